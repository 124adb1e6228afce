from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import training
from zephon_nodes.errors import ConfigError
from zephon_nodes.packing import ALGORITHMS, packer

IGNORE = -100


@st.composite
def stacks(draw):
    """Rows as lists: (tokens, document ids, next token or -100, loss mask)."""
    length = draw(st.integers(1, 12))
    rows = []
    for _ in range(draw(st.integers(0, 4))):
        ids, doc = [], 0
        for _ in range(draw(st.integers(0, length))):
            ids.append(doc)
            doc += draw(st.booleans())
        ids += [-1] * (length - len(ids))
        tokens = draw(st.lists(st.integers(0, 50), min_size=length, max_size=length))
        next_id = IGNORE if ids[-1] == -1 else draw(st.sampled_from([IGNORE, 7, 0]))
        mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        rows.append((tokens, ids, next_id, mask))
    return length, rows


def arrays(stack):
    length, rows = stack
    shape = (len(rows), length)
    tokens, ids, masks = (
        np.array([row[i] for row in rows], kind).reshape(shape) for i, kind in ((0, int), (1, "i4"), (3, bool))
    )
    return tokens, ids, np.array([row[2] for row in rows], int), masks


def reference_labels(stack, masked, cross_document, ignore):
    length, rows = stack
    out = []
    for tokens, ids, next_id, mask in rows:
        row = []
        for t in range(length):
            label = ignore
            if ids[t] == -1:
                pass
            elif t == length - 1:
                label = ignore if next_id == IGNORE else next_id
            else:
                for u in range(length):
                    inside = ids[u] == ids[t] or (cross_document and ids[u] != -1)
                    if u == t + 1 and inside and (mask[u] or not masked):
                        label = tokens[u]
            row.append(label)
        out.append(row)
    return out


@settings(deadline=None, max_examples=60)
@given(stacks(), st.booleans(), st.booleans(), st.sampled_from([-100, -1]))
def test_labels_equal_the_plain_reference(stack, masked, cross_document, ignore):
    tokens, ids, next_id, masks = arrays(stack)
    got = training.labels(tokens, ids, next_id, masks if masked else None, ignore, cross_document)
    assert got.dtype == np.int64
    assert got.tolist() == reference_labels(stack, masked, cross_document, ignore)
    for row, one in enumerate(got):
        mask = masks[row] if masked else None
        single = training.labels(tokens[row], ids[row], int(next_id[row]), mask, ignore, cross_document)
        assert single.tolist() == one.tolist()
    assert training.num_valid_tokens(got, ignore) == sum(label != ignore for row in got.tolist() for label in row)
    weights = training.loss_mask(got, ignore)
    assert weights.dtype == np.float32
    assert weights.tolist() == [[float(label != ignore) for label in row] for row in got.tolist()]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 20), max_size=25),
    st.integers(1, 8),
    st.integers(1, 3),
    st.none() | st.integers(1, 3),
)
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_transition_inside_a_document_is_trained_exactly_once(
    algorithm, padded, lengths, max_length, num_bins, cap
):
    docs, first = [], 1
    for length in lengths:
        docs.append(np.arange(first, first + length, dtype=np.int32))
        first += length
    p = packer(algorithm, max_length, num_bins, cap)
    trained = Counter()
    for sequence in [s for doc in docs for s in p.add(doc, len(doc))] + p.flush():
        last = sequence[-1]
        next_id = last.doc[last.stop] if last.stop < last.length else IGNORE
        parts = [part.doc[part.start : part.stop] for part in sequence]
        row = training.assemble(parts, max_length if padded else None, 0, next_id)
        labels = training.labels(row["input_ids"], row["document_ids"], row["next_id"])
        trained.update((int(a), int(b)) for a, b in zip(row["input_ids"], labels, strict=True) if b != IGNORE)
    assert trained == Counter((int(a), int(b)) for doc in docs for a, b in pairwise(doc))


parts_lists = st.lists(st.lists(st.integers(1, 9), max_size=5), max_size=5)


@settings(deadline=None, max_examples=60)
@given(parts_lists, st.none() | st.integers(0, 4), st.integers(0, 3))
def test_assemble_equals_the_plain_reference(parts, padding, pad_id):
    total = sum(map(len, parts))
    row = training.assemble(
        [np.array(part, np.int32) for part in parts], None if padding is None else total + padding, pad_id, 5
    )
    padding = padding or 0
    assert row["input_ids"].tolist() == [token for part in parts for token in part] + [pad_id] * padding
    assert row["position_ids"].tolist() == [i for part in parts for i in range(len(part))] + list(range(padding))
    assert row["document_ids"].tolist() == [d for d, part in enumerate(parts) for _ in part] + [-1] * padding
    assert (row["padding_length"], row["next_id"]) == (padding, IGNORE if padding else 5)
    assert type(row["next_id"]) is int
    assert {row[name].dtype for name in ("input_ids", "position_ids", "document_ids")} == {np.dtype("int32")}


def test_assemble_refuses_parts_that_are_too_long():
    with pytest.raises(ConfigError, match="3 tokens was asked for, but its parts have 4"):
        training.assemble([np.arange(4)], 3, 0)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(parts_lists, st.booleans()), max_size=4), st.integers(0, 3))
def test_stack_pads_as_assemble_would_have(given_rows, padding):
    longest = max((sum(map(len, parts)) for parts, _ in given_rows), default=0)
    rows, target = [], max(longest + padding, 1)
    for parts, padded in given_rows:
        arrays_ = [np.array(part, np.int32) for part in parts]
        rows.append(training.assemble(arrays_, longest + padding if padded else None, 9, 4))
    stack = training.stack(rows, 9)
    if not any(padded for _, padded in given_rows):
        target = max(longest, 1)
    assert stack["loss_mask"] is None
    for index, (parts, _) in enumerate(given_rows):
        want = training.assemble([np.array(part, np.int32) for part in parts], target, 9, 4)
        for name in ("input_ids", "position_ids", "document_ids", "next_id"):
            assert np.array_equal(stack[name][index], want[name])
    assert stack["input_ids"].shape == (len(rows), target)
    assert {name: str(array.dtype) for name, array in stack.items() if array is not None} == {
        "input_ids": "int64",
        "position_ids": "int64",
        "document_ids": "int32",
        "next_id": "int64",
    }


def test_stack_goes_on_counting_in_padding_that_is_there():
    short, long = training.assemble([np.arange(2)], 4, 0), training.assemble([np.arange(7)], None, 0)
    assert training.stack([short, long], 0)["position_ids"].tolist() == [[0, 1, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]


def test_padding_has_no_label_whatever_the_next_token_is():
    assert training.labels(np.array([1, 2, 0]), np.array([0, 0, -1]), 5).tolist() == [2, IGNORE, IGNORE]


def test_stack_lays_loss_masks_and_trains_rows_without_one():
    masked = {**training.assemble([np.arange(3)], None, 0), "loss_mask": [1.0, 0.0, 1.0]}
    plain = training.assemble([np.arange(2)], None, 0)
    assert training.stack([masked, plain], 0)["loss_mask"][:, :2].tolist() == [[True, False], [True, True]]


def reference_segments(ids):
    """Lengths of the runs of equal ids."""
    out = []
    for t, doc in enumerate(ids):
        if t and ids[t - 1] == doc:
            out[-1] += 1
        else:
            out.append(1)
    return out


@settings(deadline=None, max_examples=60)
@given(stacks())
def test_cu_seqlens_equal_the_plain_reference(stack):
    length, rows = stack
    _, ids, _, _ = arrays(stack)
    segments = [reference_segments(row[1]) for row in rows]
    ends = [[sum(row[:k]) for k in range(len(row) + 1)] for row in segments]
    for one, want in zip(ids, ends, strict=True):
        got = training.cu_seqlens(one)
        assert got.dtype == np.int32 and got.tolist() == want

    stacked, longest = training.stack_cu_seqlens(ids)
    width = max(map(len, ends), default=1)
    assert stacked.tolist() == [row + [length] * (width - len(row)) for row in ends]
    assert longest.tolist() == [max(row) for row in segments]
    assert (stacked.dtype, longest.dtype, stacked.ndim) == (np.int32, np.int32, 2)

    flat, most = training.flat_cu_seqlens(ids)
    everything = [n for row in segments for n in row]
    assert flat.dtype == np.int32 and type(most) is int
    assert flat.tolist() == [sum(everything[:k]) for k in range(len(everything) + 1)]
    assert flat[-1] == length * len(rows)
    assert most == max(everything, default=0)


@settings(deadline=None, max_examples=60)
@given(stacks())
def test_flat_document_ids_keep_documents_and_share_none(stack):
    rows = stack[1]
    _, ids, _, _ = arrays(stack)
    flat = training.flat_document_ids(ids)
    assert flat.dtype == np.int32
    names = [(row, doc) if doc >= 0 else None for row in range(len(rows)) for doc in rows[row][1]]
    numbers = {None: -1, **{name: n for n, name in enumerate(dict.fromkeys(x for x in names if x))}}
    assert flat.tolist() == [numbers[name] for name in names]


KINDS = [np.int32, np.int64, np.uint8, ">i4"]


@given(st.lists(st.tuples(st.lists(st.integers(0, 99), max_size=5), st.sampled_from([*KINDS, list, "gaps"]))))
def test_parts_of_any_kind_end_to_end_are_an_array_of_its_own(parts):
    def made(values, kind):
        if kind == "gaps":
            return np.repeat(np.array(values, np.int32), 2)[::2]
        return values if kind is list else np.array(values, kind)

    given_ = [made(*part) for part in parts]
    for dtype in (np.int32, np.int64):
        got = training.concatenated(given_, dtype)
        assert got.dtype == dtype and got.flags.writeable
        assert got.tolist() == [value for values, _ in parts for value in values]
        assert not any(np.shares_memory(got, part) for part in given_)
