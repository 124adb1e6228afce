"""What metrics() says, against the tensors that a trainer gets."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import source

from zephon_nodes import Dataset, Loader, Microbatch, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.counters import RunCounters
from zephon_nodes.stream import Pointer
from zephon_nodes.tally import Tally, mixture_error, shares, sizes, totals


def rows(*lengths):
    return [{"input_ids": np.arange(n, dtype=np.int32)} for n in lengths]


def two(a, b, **options):
    data = [Dataset.from_rows("a", rows(*a)), Dataset.from_rows("b", rows(*b))]
    return Pipeline(StaticMixtureWorkSource(data, num_lanes=2, **options), runner="inline")


PACKERS = {
    "best": lambda graph: graph.pack_flat(8, "best_fit_wrap"),
    "cut apart": lambda graph: graph.pack_sequences(8, "wrap"),
    "unpacked": lambda graph: graph,
    "flat": lambda graph: graph.pack_flat(8, "first_fit"),
    "wrapped": lambda graph: graph.pack_flat(8, "wrap"),
    "apart": lambda graph: graph.pack_sequences(8),
}
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@given(LENGTHS, LENGTHS, st.sampled_from(sorted(PACKERS)), st.integers(1, 3))
def test_tokens_and_padding_are_those_of_the_tensors(a, b, packer, size):
    graph = PACKERS[packer](two(a, b)).batch(size)
    tokens = padding = samples = batches = 0
    for batch in graph:
        mask = batch.to_training(extra=["padding_mask"])["padding_mask"]
        padding += int(mask.sum())
        tokens += int((~mask).sum())
        samples += len(batch)
        batches += 1
    said = graph.metrics()
    assert (said["tokens"], said["samples"], said["batches"]) == (tokens, samples, batches)
    assert said["padding_share"] == pytest.approx(padding / (padding + tokens))
    assert tokens == sum(a) + sum(b), "nothing lost, nothing twice"


@given(LENGTHS, LENGTHS, st.sampled_from(["unpacked", "flat", "apart"]))
def test_tokens_of_each_dataset(a, b, packer):
    found = Counter()
    for batch in PACKERS[packer](two(a, b)).batch(3):
        found.update(sizes(batch).by_dataset)
    assert found == {"a": sum(a), "b": sum(b)}


@given(LENGTHS, LENGTHS, st.sampled_from(sorted(PACKERS)), st.integers(1, 3))
def test_a_row_counts_once_in_a_mixture_of_rows_however_it_is_cut(a, b, packer, size):
    graph = PACKERS[packer](two(a, b, stop="redistribute")).batch(size)
    for _ in graph:
        pass
    assert graph.metrics()["share/a"] == pytest.approx(len(a) / (len(a) + len(b)))
    counted = graph.history(1000).shares("samples")
    assert counted == pytest.approx({"a": len(a) / (len(a) + len(b)), "b": len(b) / (len(a) + len(b))})


def test_a_mixture_is_measured_in_what_it_is_meant_in():
    a, b = [2] * 40, [6] * 40
    by_rows = two(a, b, mixture={"a": 1, "b": 1})
    assert list(by_rows) and by_rows.metrics()["share/a"] == 0.5 and by_rows.metrics()["mixture_error"] == 0
    by_tokens = two(a, b, mixture={"a": 1, "b": 1}, token_estimation=TokenEstimation(), stop="first").batch(2)
    batches = sum(1 for _ in by_tokens)
    said = by_tokens.metrics()
    assert (
        batches
        and abs(said["share/a"] - 0.5) < 0.1
        and said["mixture_error"] == pytest.approx(abs(said["share/a"] - 0.5))
    )


def test_everything_is_a_float_and_nothing_resets_by_asking():
    graph = two([3] * 9, [4] * 9).filter(lambda row: len(row["input_ids"]) == 3).batch(2)
    list(graph)
    first = graph.metrics()
    assert all(type(value) is float for value in first.values())
    assert graph.metrics() == first
    assert first["dropped"] == 9 and first["failed"] == 0 and first["epoch"] == 0


def test_epochs_add_up_and_a_loaded_state_begins_anew_but_for_what_it_holds():
    graph = two([3] * 8, [4] * 8).filter(lambda row: len(row["input_ids"]) == 3).batch(2)
    list(graph)
    list(graph)
    assert graph.metrics()["samples"] == 16 and graph.metrics()["epoch"] == 1 and graph.metrics()["dropped"] == 8
    other = two([3] * 8, [4] * 8).filter(lambda row: len(row["input_ids"]) == 3).batch(2)
    for _ in itertools.islice(other, 2):
        pass
    dropped = other.metrics()["dropped"]
    state = other.state_dict()
    other.load_state_dict(state)
    assert other.metrics()["batches"] == 0 and other.metrics()["dropped"] == dropped


@pytest.mark.parametrize(
    "change", [lambda p: p.batch(3), lambda p: p.pack_flat(7).batch(2), lambda p: p.map(dict).batch(3)]
)
def test_one_dataset_is_counted_without_a_look_at_pointers_as_with_one(change):
    rows = [{"input_ids": [1] * n} for n in (3, 9, 1, 12, 5, 5, 2)]
    pipeline = change(Pipeline(StaticMixtureWorkSource([Dataset.from_rows("only", rows)]), runner="inline"))
    quick, slow = Tally(datasets=["only"]), Tally(datasets=["only", "none"])
    for batch in pipeline:
        origins = tuple(at for row in batch.pointers for at in row)
        quick.add(batch, origins, {"only": 1.0})
        slow.add(batch, origins, {"only": 1.0})
    assert quick.given == slow.given == {"only": 7} and quick.metrics() == slow.metrics()
    assert pipeline.metrics()["share/only"] == 1.0


def test_time_is_counted_over_runs():
    tally = Tally()
    for waited in (1.0, 2.0):
        run = RunCounters()
        tally.began(run)
        run.begun, run.last, run.waited = 5.0, 9.0, waited
    assert (tally.waited, tally.elapsed) == (3.0, 8.0)
    assert tally.metrics()["data_wait_share"] == 3 / 8


def test_before_anything_came():
    said = Loader(two([1], [1]).node).metrics()
    assert said["tokens"] == said["padding_share"] == said["data_wait_share"] == 0 and "mixture_error" not in said


def test_other_payloads():
    assert sizes("text")[:3] == (1, 0, 0)
    assert sizes({"a": 1})[:3] == (1, 0, 0)
    assert sizes(Microbatch(["x", {"v": 1}], [(), ()], 0, {}))[:3] == (2, 0, 0)
    assert sizes({"input_ids": [1, 2, 3]})[:3] == (1, 3, 0)
    at = (Pointer("a", 0, 0), Pointer("b", 0, 0))
    tensors = {"input_ids": np.zeros((2, 4)), "document_ids": np.array([[0, 0, 1, -1], [0, -1, -1, -1]])}
    assert sizes(tensors, at)[:4] == (2, 4, 4, {"a": 2.0, "b": 2.0})
    assert sizes({"input_ids": np.zeros((2, 4)), "padding_mask": np.ones((2, 4), bool)})[:3] == (2, 0, 8)


def test_blank_batches_hold_nothing():
    graph = Pipeline(source(rows(3, 3, 3), lanes=2), at_end="pad", agree=lambda rounds, largest: rounds).batch(1)
    outputs = list(graph)
    assert len(outputs) == 4 and graph.metrics()["tokens"] == 9 and graph.metrics()["batches"] == 3


def test_shares_and_errors():
    assert shares({"b": 3, "a": 1}) == {"a": 0.25, "b": 0.75} and shares({"a": 0}) == {}
    assert mixture_error({"a": 1.0}, {"a": 0.75, "b": 0.25}) == 0.25 and mixture_error({}, {}) == 0


@given(LENGTHS, LENGTHS, st.sampled_from(sorted(PACKERS)), st.integers(1, 3))
def test_totals_are_those_of_the_sizes(a, b, packer, size):
    for batch in PACKERS[packer](two(a, b)).batch(size):
        assert totals(batch) == sizes(batch)[:3]
