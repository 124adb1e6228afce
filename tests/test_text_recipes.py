"""Whole recipes of text: tokens delivered against the target, masks from the document to the label, rows that are tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import run
from runs import source as one_source

from zephon_nodes import Dataset, Phases, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.testing import run_rounds

PREFIX, MIDDLE, SUFFIX = 9001, 9002, 9003


# shares of tokens


def lengths(rows, mean, spread, rare=0):
    """Lengths of ``mean`` and up to ``spread`` more or less, and ``rare`` documents of fifty times that."""
    drawn = np.random.default_rng(mean).integers(mean - spread, mean + spread + 1, rows)
    drawn[: rare * 97 : 97] = 50 * mean
    return drawn.tolist()


def texts(name, lengths):
    return Dataset.from_rows(name, [{"d": name, "text": "x" * n} for n in lengths])


def spelled(row):
    return {"input_ids": np.zeros(len(row["text"]), np.int32)}


@pytest.mark.parametrize("rare", [0, 12])
@pytest.mark.parametrize("stop", ["first", "last"])
def test_half_of_the_tokens_of_a_full_run_come_from_rows_of_20_and_half_from_rows_of_2000(rare, stop):
    """12,000 short rows are sampled, 130 long ones are measured whole. Within 1%, of packed tokens as the trainer gets them."""
    datasets = [texts("short", lengths(12_000, 20, 19, rare)), texts("long", lengths(130, 2000, 200))]
    source = StaticMixtureWorkSource(
        datasets, {"short": 0.5, "long": 0.5}, 2, 128, 4, stop=stop, token_estimation=TokenEstimation()
    )
    tokens = Counter()
    with Pipeline(source).map(spelled).pack_flat(4096, "best_fit_wrap", homogeneity="component").batch(4) as pipeline:
        for batch in pipeline:
            step = batch.to_training(["padding_mask"], backend="numpy")
            for padded, origins in zip(step["padding_mask"], batch.origins, strict=True):
                tokens[origins[0].dataset] += int((~padded).sum())
    assert tokens.total() > 400_000
    assert tokens["short"] / tokens.total() == pytest.approx(0.5, rel=0.01)


def test_a_mixture_in_rows_would_be_far_from_it():
    """What the estimation is for: the same without it."""
    datasets = [texts("short", [20] * 400), texts("long", [2000] * 400)]
    tokens = Counter()
    for row in run(Pipeline(StaticMixtureWorkSource(datasets, {"short": 1, "long": 1})))[0]:
        tokens[row["d"]] += len(row["text"])
    assert tokens["short"] / tokens.total() < 0.02


def changing(amend):
    """In tokens, with a phase at chunk 4 and, after chunk 8, another mixture with a new dataset."""
    datasets = [texts("short", [4] * 900), texts("long", [40] * 300)]
    phases = Phases([(0, {"short": 3, "long": 1}), (4, {"short": 1, "long": 3})])
    source = StaticMixtureWorkSource(datasets, phases, 4, 16, 2, passes=3, token_estimation=TokenEstimation())
    if amend:
        source = source.amended(4, {"short": 1, "new": 1}, [texts("new", [8] * 200)])
    return Pipeline(source).map(spelled).pack_flat(64, "best_fit").batch(2)


@pytest.mark.parametrize("worlds", [(1, 2, 4), (4, 1, 2), (2, 4, 1)])
def test_every_world_gives_the_same_batches_before_across_and_after_a_change(worlds):
    want, _ = run_rounds(lambda: changing(True), 1)
    before, state = run_rounds(lambda: changing(False), worlds[0], 3)
    across, state = run_rounds(lambda: changing(True), worlds[1], 5, state)
    after, state = run_rounds(lambda: changing(True), worlds[2], None, state)
    assert before + across + after == want and len(after) > 5
    assert want != run_rounds(lambda: changing(False), 1)[0]


# masks


@settings(max_examples=15)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=40),
    st.sampled_from(["first_fit", "best_fit", "best_fit_wrap", "wrap"]),
    st.sampled_from([0, 0.5, 1]),
)
def test_masks_and_rearranged_documents_arrive_as_labels_through_packing(sizes, algorithm, rate):
    """Token t of document i is 100 i + t, learned where t % 3; so every label says whether it may be there.

    A label is the next token of its own document, and -100 where that isn't to be learned, or there is none.
    """
    rows = [{"input_ids": 100 * i + np.arange(n), "loss_mask": np.arange(n) % 3 > 0} for i, n in enumerate(sizes)]
    graph = Pipeline(one_source(rows, chunk=16), runner="inline")
    graph = graph.fill_in_the_middle(PREFIX, MIDDLE, SUFFIX, rate=rate, keep=(0, 0))
    documents = run(graph)[0]
    arrived, learned = Counter(), Counter()
    for batch in graph.pack_flat(40, algorithm).batch(2):
        step = batch.to_training(["document_ids"], backend="numpy")
        for ids, labels, parts in zip(step["input_ids"], step["labels"], step["document_ids"], strict=True):
            arrived.update(ids[parts >= 0].tolist())
            learned.update(labels[labels >= 0].tolist())
            same = parts[1:] == parts[:-1]
            assert all(label in (-100, token) for label, token in zip(labels[:-1][same], ids[1:][same], strict=True))
            assert (labels[parts < 0] == -100).all()
    want = Counter(int(token) for row in documents for token in row["input_ids"])
    targets = [(row["input_ids"][1:], np.asarray(row["loss_mask"])[1:]) for row in documents]
    assert arrived == want
    assert learned == Counter(int(token) for ids, mask in targets for token, on in zip(ids, mask, strict=True) if on)


# rows that are tokens already


def rows_as(kind, tmp_path):
    ids = [list(range(i, i + 1 + i % 7)) for i in range(40)]
    if kind == "lists":
        return Dataset.from_rows("d", [{"input_ids": row} for row in ids]), ids
    if kind == "numpy":
        return Dataset.from_rows("d", [{"input_ids": np.array(row, np.uint16)} for row in ids]), ids
    type_ = {"list": pa.list_(pa.int32()), "large_list": pa.large_list(pa.int64()), "uint16": pa.list_(pa.uint16())}[
        kind
    ]
    pq.write_table(pa.table({"input_ids": pa.array(ids, type_)}), tmp_path / "d.parquet", row_group_size=16)
    return Dataset.from_path("d", tmp_path / "d.parquet"), ids


@pytest.mark.parametrize("kind", ["lists", "numpy", "list", "large_list", "uint16"])
@pytest.mark.parametrize("pack", ["pack_flat", "pack_sequences", None])
def test_rows_of_tokens_go_straight_to_packing_and_to_batches(kind, pack, tmp_path):
    dataset, ids = rows_as(kind, tmp_path)
    graph = Pipeline(StaticMixtureWorkSource([dataset], shuffle="none"))
    graph = graph if pack is None else getattr(graph, pack)(16, "best_fit")
    got = []
    for batch in graph.batch(4):
        step = batch.to_training(["document_ids"])
        for row, parts in zip(step["input_ids"], step["document_ids"], strict=True):
            got += [row[parts == part].tolist() for part in range(int(parts.max()) + 1)]
    assert sorted(got) == sorted(ids)


@pytest.mark.parametrize("kind", ["list", "uint16"])
def test_arrow_lists_come_as_arrays_of_their_own_type(kind, tmp_path):
    """No list of Python numbers on the way, and no wider type."""
    dataset, ids = rows_as(kind, tmp_path)
    rows = run(Pipeline(StaticMixtureWorkSource([dataset], shuffle="none"), runner="inline"))[0]
    assert [row["input_ids"].tolist() for row in rows] == ids
    assert {row["input_ids"].dtype for row in rows} == {np.dtype("uint16" if kind == "uint16" else "int32")}


def test_packed_rows_go_straight_to_a_batch():
    """As a corpus that was packed before: rows of one length, with their own document ids."""
    rows = [{"input_ids": np.arange(8) + 8 * i} for i in range(6)]
    (batch,) = list(Pipeline(one_source(rows, chunk=8)).batch(6))
    step = batch.to_training(backend="numpy")
    assert step["input_ids"].tolist() == [row["input_ids"].tolist() for row in rows]
    assert (step["labels"][:, :-1] == step["input_ids"][:, 1:]).all() and (step["labels"][:, -1] == -100).all()
