import gc
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import round_robin

from zephon_nodes import Dataset, Microbatch, Pipeline, StaticMixtureWorkSource, laid_rows, training
from zephon_nodes.laid_rows import Unlaid

LENGTH, PAD = 12, 7


@st.composite
def batches(draw):
    """Sequences to be, some with loss masks, some padded, some of a document that goes on."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        room, ids, masks = LENGTH, [], []
        while room and draw(st.integers(0, 4)):
            size = draw(st.integers(0, room))
            ids.append(np.array(draw(st.lists(st.integers(0, 99), min_size=size, max_size=size)), np.int32))
            masks.append(draw(st.none() | st.just(np.arange(size) % 2 == 0)))
            room -= size
        next_id = training.IGNORE if room else draw(st.sampled_from([training.IGNORE, 3]))
        out.append(sequence(ids, next_id, room, masks))
    return out


def sequence(ids, next_id=training.IGNORE, padding=0, masks=(), pad=PAD):
    """A sequence of documents."""
    counts = [*map(len, ids)]
    mask = laid_rows.mask_of(masks, counts) if any(one is not None for one in masks) else None
    length = sum(counts) + padding
    return Unlaid(training.concatenated(ids, np.int32), counts, mask, next_id, padding, length, pad)


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert np.array_equal(value, right[name]) and getattr(value, "dtype", None) == getattr(
            right[name], "dtype", None
        )


@given(batches())
def test_rows_are_those_of_assemble(sequences):
    for row, one in zip(laid_rows.rows(sequences), sequences, strict=True):
        mask = row.pop("loss_mask", None)
        ids = np.split(one.tokens, np.cumsum(one.counts)[:-1]) if one.counts else []
        same(row, training.assemble(ids, LENGTH, PAD, one.next_id))
        assert (mask is None) == (one.mask is None)
        if mask is not None:
            assert mask.tolist() == one.mask.tolist() + [False] * one.padding


def test_a_document_without_a_mask_is_trained_everywhere():
    one = sequence([[5, 6], [7, 8, 9], []], padding=1, masks=[None, np.array([0, 1, 1]), None])
    assert laid_rows.rows([one])[0]["loss_mask"].tolist() == [1, 1, 0, 1, 1, 0]
    assert training.concatenated([], np.int32).tolist() == []


@given(batches())
def test_the_stack_is_that_of_the_rows(sequences):
    got, want = laid_rows.stack(sequences), training.stack(laid_rows.rows(sequences), PAD)
    if want["loss_mask"] is None:
        assert got.pop("loss_mask") is want.pop("loss_mask")
        labels = training.labels(want["input_ids"], want["document_ids"], want["next_id"])
        assert np.array_equal(got.pop("labels"), labels)
    same(got, want)


@given(batches(), st.booleans(), st.booleans())
def test_tensors_are_the_same_whether_or_not_somebody_has_looked_at_the_rows(sequences, flat, pickled):
    def made():
        batch = Microbatch(list(sequences), [()] * len(sequences), 0, {}, PAD)
        return pickle.loads(pickle.dumps(batch)) if pickled else batch

    extra = ["document_ids", "loss_mask", "num_valid_tokens", "cu_seqlens", "padding_mask"]
    fresh, seen = made(), made()
    assert len(fresh) == len(seen.payloads) == len(sequences)
    assert fresh.unlaid is not None and seen.unlaid is None
    same(fresh.to_training(extra, flat=flat, backend="numpy"), seen.to_training(extra, flat=flat, backend="numpy"))
    assert fresh.unlaid is not None


def test_a_batch_that_nobody_has_looked_at_keeps_tokens_and_no_documents():
    made = []

    def document(row):
        ids = np.arange(row["n"] * 8, dtype=np.int32)
        made.append(weakref.ref(ids))
        return {"input_ids": ids, "loss_mask": ids > 2}

    source = StaticMixtureWorkSource([Dataset.from_rows("d", [{"n": n} for n in (1, 4, 2, 3)])], shuffle="none")
    with Pipeline(source, runner="inline").map(document).pack_flat(8).batch(2) as pipeline:
        batches = list(pipeline)
        gc.collect()
        assert len(made) == 4 and all(one() is None for one in made)
        assert [len(batch.unlaid) for batch in batches] == [2] * 5
        assert [row["input_ids"][0] for batch in batches for row in batch] == [0, 0, 8, 16, 24, 0, 8, 0, 8, 16]


def test_what_is_changed_in_a_row_is_in_the_tensors():
    one = sequence([np.arange(4)])
    batch = Microbatch([one, one], [(), ()], 0, {})
    batch[1]["input_ids"][0] = 50
    assert batch.to_training(backend="numpy")["input_ids"].tolist() == [[0, 1, 2, 3], [50, 1, 2, 3]]
    batch.payloads = batch.payloads[1:]
    assert batch.to_training(backend="numpy")["input_ids"].tolist() == [[50, 1, 2, 3]] and len(batch) == 1


def test_sequences_among_other_rows_are_laid_out_one_by_one():
    one = sequence([np.arange(3)], padding=1, pad=9)
    batch = Microbatch([{"input_ids": np.arange(2)}, one], [(), ()], 0, {})
    assert batch.unlaid is None and batch[1]["input_ids"].tolist() == [0, 1, 2, 9]


ROWS = [{"input_ids": np.arange(n, dtype=np.int32), "n": n, "loss_mask": np.arange(n) > 1} for n in (5, 3, 8, 1, 0, 30)]


def packed(**settings):
    source = StaticMixtureWorkSource([Dataset.from_rows("d", ROWS)], num_lanes=2, passes=2)
    return Pipeline(source).pack_flat(8, **settings)


@pytest.mark.parametrize("settings", [{}, {"algorithm": "first_fit"}, {"fields": ["loss_mask"]}, {"parallelism": 2}])
def test_rows_of_batches_are_the_rows_that_packing_gives(settings):
    def rows(pipeline):
        with pipeline:
            return list(pipeline)

    alone, lanes = rows(packed(**settings)), ([], [])
    for batch in rows(packed(**settings).batch(2)):
        lanes[batch.lane].extend(batch.payloads)
    together = round_robin(lanes)
    assert len(alone) == len(together) > 4
    for left, right in zip(alone, together, strict=True):
        same(left, right)


def test_only_a_batch_right_behind_lays_out_and_only_where_packing_has_no_workers_of_its_own():
    def unlaid(pipeline):
        with pipeline:
            return next(iter(pipeline)).unlaid is not None

    assert unlaid(packed().batch(2)) and unlaid(packed().batch(max_tokens=16))
    assert not unlaid(packed().map(dict).batch(2))
    assert not unlaid(packed(parallelism=2).batch(2)) and not unlaid(packed().shuffle(2).batch(2))
