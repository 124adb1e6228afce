"""What the packing nodes share: who may share a sequence, what is too long, what is no document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run, source

from zephon_nodes import (
    ConfigError,
    Dataset,
    PackFlat,
    PackSequences,
    Pipeline,
    Read,
    RowError,
    StaticMixtureWorkSource,
)
from zephon_nodes.packing import ALGORITHMS

KINDS = ["pack_flat", "pack_sequences"]


def mixed(names="abc", rows=20, lanes=1, **settings):
    """Documents of one token, the number of their dataset."""
    datasets = [Dataset.from_rows(name, [{"input_ids": [i + 1]}] * rows) for i, name in enumerate(names)]
    return StaticMixtureWorkSource(datasets, None, lanes, 8, 3, **settings)


def pack(work, kind, length, **settings):
    pipeline = Pipeline(work, runner="inline", on_error=settings.pop("policy", "raise"))
    return getattr(pipeline, kind)(length, **settings)


def datasets_of(work, kind="pack_flat", **settings):
    """The datasets that each sequence was made of, from its origins."""
    batches = list(pack(work, kind, 4, **settings).batch(2))
    assert sum(len(row) for batch in batches for row in batch.origins) == sum(d.rows for d in work.datasets)
    return [{origin.dataset for origin in row} for batch in batches for row in batch.origins]


@pytest.mark.parametrize("kind", KINDS)
@given(algorithm=st.sampled_from(ALGORITHMS), lanes=st.sampled_from([1, 2]), seed=st.integers(0, 9))
def test_documents_share_a_sequence_with_those_of_their_component_or_group_only(kind, algorithm, lanes, seed):
    work = mixed(lanes=lanes, seed=seed)
    shared = datasets_of(work, kind, algorithm=algorithm)
    assert any(len(names) > 1 for names in shared)
    assert all(len(names) == 1 for names in datasets_of(work, kind, algorithm=algorithm, homogeneity="component"))
    grouped = datasets_of(work, kind, algorithm=algorithm, homogeneity={"x": ["a", "c"]})
    assert all(names <= {"a", "c"} or names == {"b"} for names in grouped) and {"a", "c"} in grouped


def test_a_group_that_is_called_like_another_dataset_does_not_take_it_in():
    """ "code" is a group of one dataset, and a dataset of its own that stands in no group."""
    work = mixed(["python", "code"])
    assert all(len(names) == 1 for names in datasets_of(work, homogeneity={"code": ["python"]}))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("components", "'none', 'component' or a dict"),
        (None, "'none', 'component' or a dict"),
        ({"x": ["a", "nope"]}, "'nope' of group 'x' is none of the datasets"),
        ({"x": ["a"], "y": ["a", "b"]}, "'a' of group 'y' stands in two groups"),
    ],
)
@pytest.mark.parametrize("node", [PackFlat, PackSequences])
def test_groups_that_make_no_sense_are_refused_at_construction(node, wrong, words):
    with pytest.raises(ConfigError, match=words):
        node(Read(mixed()), 8, homogeneity=wrong)


WRONG = [
    {"max_length": 0},
    {"max_length": None},
    {"max_length": 8.0},
    {"algorithm": "best"},
    {"num_bins": 0},
    {"max_documents": 0},
    {"overlong": "cut"},
    {"on_error": "warn"},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
@pytest.mark.parametrize("node", [PackFlat, PackSequences])
def test_wrong_settings_are_refused_at_construction_with_name_and_value(node, wrong):
    ((name, value),) = wrong.items()
    settings = {"max_length": 8, **wrong}
    with pytest.raises(ConfigError, match=rf"{name}.*{value!r}"):
        node(Read(mixed()), settings.pop("max_length"), **settings)


@pytest.mark.parametrize("fields", ["text", ["input_ids"], ["next_id", "a"]])
def test_fields_that_pack_flat_makes_itself_or_a_bare_name_are_refused(fields):
    with pytest.raises(ConfigError, match="fields must be a list of names other than its own outputs"):
        PackFlat(Read(mixed()), 8, fields=fields)


@pytest.mark.parametrize("overlong", ["drop", "raise"])
@pytest.mark.parametrize("algorithm", ["wrap", "best_fit_wrap"])
def test_algorithms_that_cut_documents_take_no_policy_for_long_ones(algorithm, overlong):
    with pytest.raises(ConfigError, match=rf"overlong='{overlong}'.*algorithm='{algorithm}'"):
        PackFlat(Read(mixed()), 8, algorithm, overlong=overlong)


LONG = [{"input_ids": [i] * n} for i, n in enumerate((3, 9, 2, 20, 8), 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_that_are_too_long_are_dropped_and_counted_by_policy(kind):
    pipeline = pack(source(LONG), kind, 8, algorithm="first_fit", overlong="drop")
    arrived = {at.row for batch in pipeline.batch(1) for row in batch.origins for at in row}
    assert arrived == {0, 2, 4}
    run(pipeline)
    assert pipeline.drops.total == 2 and pipeline.drops.failed == 0
    assert [row.where.split()[1] for row in pipeline.drops.rows] == ["1", "3"]
    assert {row.reason for row in pipeline.drops.rows} == {"longer than max_length=8"}


@pytest.mark.parametrize("kind", KINDS)
def test_or_are_an_error_that_names_row_length_and_the_other_policies(kind):
    error = run(pack(source(LONG), kind, 8, algorithm="best_fit", overlong="raise"))[1]
    assert isinstance(error, RowError)
    for word in (kind, "row 1 of rows", "9 tokens", "max_length is 8", '"split"', '"drop"'):
        assert word in str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_in_which_everything_is_too_long_ends_and_says_so(kind):
    """Report P10: no spinning."""
    rows = [{"input_ids": [1] * 9}] * 2000
    pipeline = pack(source(rows, 2, chunk=100), kind, 8, algorithm="first_fit", overlong="drop").batch(2)
    assert run(pipeline) == ([], None)
    assert pipeline.drops.counts == {(kind, "longer than max_length=8"): 2000}


NO_DOCUMENTS = {
    "no field": {"text": "abc"},
    "no dict": [1, 2],
    "null": {"input_ids": None},
    "a text": {"input_ids": "abc"},
    "texts": {"input_ids": ["a", "b"]},
    "fractions": {"input_ids": [1.5, 2.5]},
    "two axes": {"input_ids": [[1, 2], [3, 4]]},
    "an id beyond int32": {"input_ids": [1, 2**40]},
    "a short loss_mask": {"input_ids": [1, 2], "loss_mask": [1]},
    "a long loss_mask": {"input_ids": [1, 2], "loss_mask": [1, 1, 0]},
    "a loss_mask of two axes": {"input_ids": [1, 2], "loss_mask": [[1], [1]]},
    "no loss_mask": {"input_ids": [1, 2], "loss_mask": None},
    "a loss_mask of texts": {"input_ids": [1, 2], "loss_mask": ["yes", "no"]},
    "a loss_mask with a null": {"input_ids": [1, 2], "loss_mask": [1, None]},
}


@pytest.mark.parametrize("name", NO_DOCUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_document_is_an_error_that_names_its_row(kind, name):
    """And the sequences before it come first: here row 0 fills one."""
    good = {"input_ids": [1, 2, 3, 4]}
    out, error = run(pack(source([good, NO_DOCUMENTS[name], good]), kind, 4))
    assert len(out) == 1 and isinstance(error, RowError)
    assert f"{kind} failed on row 1 of rows (dataset 'd')" in str(error)


@pytest.mark.parametrize("name", NO_DOCUMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_document_is_skipped_and_counted_and_its_neighbours_come(kind, name):
    good = {"input_ids": [1, 2, 3]}
    pipeline = pack(source([good, NO_DOCUMENTS[name], good]), kind, 4, policy="skip")
    tokens = 0
    for batch in pipeline.batch(1):
        step = batch.to_training(extra=["padding_mask"], backend="numpy")
        tokens += int((~step["padding_mask"]).sum())
    assert tokens == 6
    run(pipeline)
    assert pipeline.drops.failed == pipeline.drops.total == 1 and "row 1 of rows" in pipeline.drops.rows[0].where


@pytest.mark.parametrize("bad", [{}, {"s": None}, {"s": [1, 2]}], ids=["missing", "null", "short"])
def test_a_document_whose_extra_field_does_not_fit_is_named(bad):
    good = {"input_ids": [1, 2, 3], "s": np.ones(3)}
    out, error = run(pack(source([good, {"input_ids": [1, 2, 3], **bad}, good]), "pack_flat", 3, fields=["s"]))
    assert len(out) == 1 and isinstance(error, RowError)
    for word in ("pack_flat failed on row 1 of rows", "'s'"):
        assert word in str(error)
