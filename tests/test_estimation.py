"""Tokens per row, measured: the truth within what is said about the error, bounded, the same every time."""

from __future__ import annotations

import logging
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import train_tokenizer

from zephon_nodes import (
    ConfigError,
    Dataset,
    Filter,
    Map,
    Pipeline,
    ReadError,
    RowError,
    StaticMixtureWorkSource,
    TokenEstimation,
    session,
)
from zephon_nodes.estimation import estimate


def texts(name, lengths):
    """A dataset with a text of so many letters in each row."""
    return Dataset.from_rows(name, [{"text": "x" * n} for n in lengths])


def letters(pointers, dataset):
    return {at: float(len(dataset[at.row]["text"])) for at in pointers}


def measured(dataset, **settings):
    """The estimate where a row's letters are its tokens, and the rows that were asked for."""
    asked = []

    def count(pointers):
        asked.extend(pointers)
        return letters(pointers, dataset)

    return estimate(dataset, count, TokenEstimation(**settings)), asked


def split(row):
    return {"input_ids": [0] * len(row["text"])}


def run(graph, **options):
    """The recipe of a graph once it was read from, and what it measured."""
    with Pipeline(graph.node, runner="inline", **options) as pipeline:
        next(iter(pipeline))
        return pipeline.loader.recipe, pipeline.estimates


def source(*datasets, weights=None, given=None, **settings):
    settings = {"chunk_size": 8, "flush_every": 4, "token_estimation": TokenEstimation(given, **settings)}
    return StaticMixtureWorkSource(list(datasets), weights or {d.name: 1 for d in datasets}, **settings)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200).filter(any))
def test_a_small_dataset_is_measured_whole_and_without_error(lengths):
    found, asked = measured(texts("d", lengths))
    assert found == (Fraction(round(Fraction(sum(lengths), len(lengths)) * 2**32), 2**32), 0.0, len(lengths))
    assert [at.row for at in asked] == list(range(len(lengths)))


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([1, 3, 30]), st.sampled_from([0.005, 0.02]))
def test_rare_long_documents_do_not_fool_it(seed, many, tolerance):
    """Of 9,000 rows of about 20 letters a few have 20,000: up to four fifths of all text, which a mean of rows misses."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, 9000)
    lengths[rng.choice(9000, many, replace=False)] = 20_000
    found, asked = measured(texts("d", lengths.tolist()), tolerance=tolerance)
    truth = lengths.mean()
    assert found.error <= tolerance and len(asked) <= 8192
    assert abs(float(found.tokens_per_row) - truth) <= max(5 * found.error, 1e-6) * truth


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_the_error_that_it_reports_is_the_error_that_it_has(seed):
    """Tokens that have little to do with the length: 4 in 5 rows give none. 5 standard errors."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 100, 9000)
    tokens = lengths * (rng.random(9000) < 0.2)
    dataset = texts("d", lengths.tolist())
    found = estimate(dataset, lambda rows: {at: float(tokens[at.row]) for at in rows}, TokenEstimation(tolerance=0.05))
    assert 0.01 < found.error < 0.2
    assert abs(float(found.tokens_per_row) / tokens.mean() - 1) <= 5 * found.error


def test_it_samples_more_until_the_tolerance_or_the_cap():
    rng = np.random.default_rng(1)
    dataset = texts("d", rng.integers(1, 100, 9000).tolist())
    tokens = rng.integers(0, 50, 9000)

    def of(**settings):
        return estimate(dataset, lambda rows: {at: float(tokens[at.row]) for at in rows}, TokenEstimation(**settings))

    rough, fine = of(tolerance=0.2), of(tolerance=0.04)
    assert rough.error < 0.2 and fine.error < 0.04 and rough.rows < fine.rows
    for cap in (512, 1024):
        capped = of(tolerance=1e-6, most_rows=cap)
        assert capped.error > 1e-6 and rough.rows <= capped.rows <= cap


def test_an_estimate_that_stays_rough_is_said_so(caplog):
    rng = np.random.default_rng(1)
    dataset = texts("d", rng.integers(1, 100, 2000).tolist())
    work = source(dataset, tolerance=1e-4, most_rows=512)
    with caplog.at_level(logging.WARNING, "zephon_nodes"):
        run(Pipeline(work).map(lambda row: {"input_ids": [0] * (1 + len(row["text"]) ** 2 // 50)}))
    assert "tokens per row of 'd' are known to" in caplog.text and "raise most_rows" in caplog.text


def test_the_same_sample_every_time():
    dataset = texts("d", [1 + i * i % 97 for i in range(9000)])
    assert measured(dataset) == measured(dataset)
    assert measured(dataset)[1] != measured(texts("other", [1 + i * i % 97 for i in range(9000)]))[1]


# through a graph


def test_it_goes_through_the_graphs_own_steps_up_to_the_tokenizer():
    """Rows that are filtered out give no token, parts of a row count together, and what comes behind isn't run."""
    tokenizer, lengths = train_tokenizer(), list(range(1, 41))
    dataset = Dataset.from_rows("d", [{"text": "a b " * n} for n in lengths])

    def never(row):
        assert len(row["input_ids"]) < 10**6
        return row

    graph = Pipeline(source(dataset)).filter(lambda row: len(row["text"]) > 80)
    graph = graph.flat_map(lambda row: [row, {"text": "a"}]).tokenize(tokenizer, bos=None, eos=None).map(never)
    tokens = [len(tokenizer.encode(text).ids) for n in lengths if n > 20 for text in ("a b " * n, "a")]
    found = run(graph)[1]["d"]
    assert found.tokens_per_row == Fraction(sum(tokens), 40)


def test_nodes_that_only_reorder_or_end_a_run_do_not_disturb_it():
    """Rows come dataset by dataset here, which a strict mixture would take for surplus, and a Take for the end."""
    work = source(texts("a", [3] * 200), texts("b", [7] * 200))
    for build in (
        lambda p: p.ensure_mixture(4, strict=True, mixture={"a": 1, "b": 1}),
        lambda p: p.shuffle(9),
        lambda p: p.group_by_length(32, 4),
        lambda p: p.take(5),
    ):
        found = run(build(Pipeline(work).map(split)))[1]
        assert {name: one.tokens_per_row for name, one in found.items()} == {"a": 3, "b": 7}


def test_a_branch_for_each_dataset_is_gone_through():
    work = source(texts("a", [5] * 20), texts("b", [5] * 20))
    twice = {
        "a": lambda node: Map(node, split),
        "b": lambda node: Map(Filter(node, bool), lambda r: {"input_ids": [1]}),
    }
    found = run(Pipeline(work).switch(twice))[1]
    assert {name: one.tokens_per_row for name, one in found.items()} == {"a": 5, "b": 1}


def test_bad_rows_are_treated_as_the_graph_treats_them():
    def fails(row):
        return {"input_ids": [0] * (8 // (len(row["text"]) - 1))}

    work = source(texts("d", [1, 2, 3, 5]))
    with pytest.raises(RowError, match="row 0 of rows"):
        run(Pipeline(work).map(fails))
    assert run(Pipeline(work).map(fails), on_error="skip")[1]["d"].tokens_per_row == Fraction(8 + 4 + 2, 4)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda p: p.map(lambda row: {"input_ids": []}), "of dataset 'd' gave no token.*TokenEstimation"),
        (lambda p: p.filter(lambda row: False).map(split), "of dataset 'd' gave no token.*filters"),
        (lambda p: p, "'input_ids' before packing; put tokenize"),
    ],
)
def test_a_dataset_that_gives_no_tokens_is_refused_with_what_to_do(build, words):
    with pytest.raises(ConfigError, match=words):
        run(build(Pipeline(source(texts("d", [4] * 9)))))


def test_threads_are_gone_when_it_fails():
    def torn(row):
        raise ReadError("torn")

    with pytest.raises(ReadError, match="torn"):
        run(Pipeline(source(texts("d", [4] * 9))).map(torn), on_error="skip")


# once for a run


@pytest.fixture
def calls(monkeypatch):
    """The names of each measurement of this process."""
    out, real = [], session.measure
    monkeypatch.setattr(session, "measure", lambda plan, names, how: out.append(list(names)) or real(plan, names, how))
    return out


def test_it_is_measured_when_first_read_from_and_never_again(calls):
    def graph():
        return Pipeline(source(texts("a", [3] * 200), texts("b", [7] * 200)), runner="inline").map(split).batch(4)

    pipeline = graph()
    assert calls == []
    fresh = pipeline.state_dict()
    batches = iter(pipeline)
    rows = [[len(row["input_ids"]) for row in batch] for _, batch in zip(range(6), batches, strict=False)]
    assert calls == [["a", "b"]]
    list(batches), list(pipeline)
    assert calls == [["a", "b"]], "another epoch measures nothing"
    state = graph()
    state.load_state_dict(fresh)
    assert [[len(row["input_ids"]) for row in batch] for _, batch in zip(range(6), state, strict=False)] == rows
    assert calls == [["a", "b"]] * 2, "a state from before the measuring can't know"
    resumed = graph()
    state = pipeline.state_dict()
    resumed.load_state_dict(state)
    next(iter(resumed))
    assert calls == [["a", "b"]] * 2 and resumed.estimates == {}
    assert resumed.loader.recipe == state["recipe"]
    resumed.close(), pipeline.close()


def test_given_ratios_are_taken_and_only_the_others_measured(calls):
    datasets = texts("a", [3] * 20), texts("b", [7] * 20)
    recipe, found = run(Pipeline(source(*datasets, given={"a": 4})).map(split))
    assert calls == [["b"]] and set(found) == {"b"}
    assert '"tokens_per_row":{"a":"4","b":"7"}' in recipe
    run(Pipeline(source(*datasets, given={"a": 4, "b": "7"})).map(split))
    assert calls == [["b"]]


def test_what_one_run_has_measured_can_be_given_to_another(calls):
    datasets = texts("a", [3, 4, 4] * 20), texts("b", [7] * 20)
    recipe, found = run(Pipeline(source(*datasets)).map(split))
    given_ = {name: one.tokens_per_row for name, one in found.items()}
    assert run(Pipeline(source(*datasets, given=given_)).map(split))[0] == recipe
    assert len(calls) == 1


def test_another_ratio_is_another_recipe():
    datasets = texts("a", [3] * 20), texts("b", [7] * 20)
    state = Pipeline(source(*datasets, given={"a": 3, "b": 7})).map(split).state_dict()
    with pytest.raises(ValueError, match=r"tokens_per_row\.b: \"7\" -> \"8\""):
        Pipeline(source(*datasets, given={"a": 3, "b": 8})).map(split).load_state_dict(state)
