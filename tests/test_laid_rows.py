import copy
import gc
import itertools
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import round_robin

from zephon_nodes import Dataset, Microbatch, Pipeline, StaticMixtureWorkSource, laid_rows, training
from zephon_nodes.laid_rows import Unlaid, gather
from zephon_nodes.packing import Part
from zephon_nodes.stream import Record

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
        out.append(sequence(ids, None if room else draw(st.none() | st.just(3)), room, masks))
    return out


def sequence(ids, next_id=None, padding=0, masks=(), pad=PAD):
    """A sequence of documents, the last of which may go on with ``next_id``."""
    parts = []
    for i, own in enumerate(ids):
        mask = masks[i] if masks else None
        more = [] if next_id is None or i < len(ids) - 1 else [next_id]
        document = {"input_ids": np.array([*own, *more], np.int32)}
        if mask is not None:
            document["loss_mask"] = np.array([*mask, *[True] * len(more)])
        parts.append(Part(Record(document, i, ()), 0, len(own), len(own) + len(more)))
    return Unlaid(parts, sum(map(len, ids)) + padding, pad)


def documents(one):
    """Token ids and loss mask of each."""
    cut = [(part.doc.payload, slice(part.start, part.stop)) for part in one.parts]
    return [(own["input_ids"][at], own["loss_mask"][at] if "loss_mask" in own else None) for own, at in cut]


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert np.array_equal(value, right[name]) and getattr(value, "dtype", None) == getattr(
            right[name], "dtype", None
        )


@given(batches())
def test_rows_are_those_of_assemble(sequences):
    for row, one in zip(laid_rows.rows(gather(sequences)), sequences, strict=True):
        mask = row.pop("loss_mask", None)
        ids, masks = [*zip(*documents(one), strict=True)] or ((), ())
        goes_on = bool(one.parts) and one.parts[-1].stop < one.parts[-1].length
        same(row, training.assemble(ids, LENGTH, PAD, 3 if goes_on else training.IGNORE))
        if all(own is None for own in masks):
            assert mask is None
        else:
            known = [[True] * len(own) if m is None else m.tolist() for own, m in zip(ids, masks, strict=True)]
            assert mask.tolist() == [*itertools.chain(*known), *[False] * row["padding_length"]]


def test_a_document_without_a_mask_is_trained_everywhere():
    one = sequence([[5, 6], [7, 8, 9], []], padding=1, masks=[None, np.array([0, 1, 1]), None])
    assert laid_rows.rows(gather([one]))[0]["loss_mask"].tolist() == [1, 1, 0, 1, 1, 0]
    assert training.concatenated([], np.int32).tolist() == []


def test_where_the_next_token_is_masked_nothing_is_to_be_learned():
    document = {"input_ids": np.arange(6), "loss_mask": [True, True, True, False, True, True]}
    cut = [Unlaid([Part(Record(document, 0, ()), 0, stop, 6)], stop, PAD) for stop in (2, 3, 4, 6)]
    assert [gather([one]).next_ids for one in cut] == [[2], [-100], [4], [-100]]


@given(batches())
def test_the_stack_is_that_of_the_rows(sequences):
    gathered = gather(sequences)
    got, want = laid_rows.stack(gathered), training.stack(laid_rows.rows(gathered), PAD)
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
        assert [len(batch.unlaid.counts) for batch in batches] == [2] * 5
        assert [row["input_ids"][0] for batch in batches for row in batch] == [0, 0, 8, 16, 24, 0, 8, 0, 8, 16]


def test_what_is_changed_in_a_row_is_in_the_tensors():
    one = sequence([np.arange(4)])
    batch = Microbatch([one, one], [(), ()], 0, {})
    batch[1]["input_ids"][0] = 50
    assert batch.to_training(backend="numpy")["input_ids"].tolist() == [[0, 1, 2, 3], [50, 1, 2, 3]]
    batch.payloads = batch.payloads[1:]
    assert batch.to_training(backend="numpy")["input_ids"].tolist() == [[50, 1, 2, 3]] and len(batch) == 1


def test_copies_of_a_batch_share_nothing_that_can_be_changed():
    batch = Microbatch([sequence([np.arange(4)], padding=1)], [()], 0, {})
    copies = [copy.copy(batch), copy.deepcopy(batch), pickle.loads(pickle.dumps(batch))]
    buffers = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    copies.append(pickle.loads(data, buffers=[bytes(buffer) for buffer in buffers]))
    for name in ("input_ids", "position_ids", "document_ids"):
        batch[0][name][0] = 99
    for one in copies:
        assert one.to_training(backend="numpy")["input_ids"].tolist() == [[0, 1, 2, 3, PAD]]
        assert [one[0][name][0] for name in ("input_ids", "position_ids", "document_ids")] == [0, 0, 0]
        one[0]["input_ids"][0] = 5


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


def test_only_a_batch_right_behind_lays_out_and_not_in_a_process_nor_behind_workers_of_packing():
    def unlaid(pipeline):
        with pipeline:
            return next(iter(pipeline)).unlaid is not None

    assert (
        unlaid(packed().batch(2)) and unlaid(packed().batch(max_tokens=16)) and unlaid(packed().batch(2, parallelism=2))
    )
    assert not unlaid(packed().batch(2, runner="process", parallelism=1))
    assert not unlaid(packed().map(dict).batch(2))
    assert not unlaid(packed(parallelism=2).batch(2)) and not unlaid(packed().shuffle(2).batch(2))
