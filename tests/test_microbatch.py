import pickle
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import training
from zephon_nodes.errors import ConfigError
from zephon_nodes.microbatch import Microbatch, Origin
from zephon_nodes.stream import Pointer

IGNORE, PAD = -100, 99
TOKENS = ("cu_seqlens", "document_ids", "loss_mask", "num_valid_tokens", "padding_mask")

documents = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=5)  # (token, learn it?)


@st.composite
def batches(draw):
    """(kind, S or None, rows); a row is (documents, next token or -100, has a mask)."""
    kind = draw(st.sampled_from(["flat", "apart", "unpacked"]))
    count = draw(st.integers(0, 4))
    rows = []
    for _ in range(count):
        docs = draw(st.lists(documents, min_size=1, max_size=1 if kind == "unpacked" else 4))
        rows.append([docs, IGNORE, draw(st.booleans())])
    longest = max((sum(map(len, docs)) for docs, _, _ in rows), default=0)
    if kind == "unpacked":
        return kind, max(longest, 1), rows
    length = max(longest + draw(st.integers(0, 3)), 1)
    for row in rows:
        if sum(map(len, row[0])) == length and row[0][-1]:
            row[1] = draw(st.sampled_from([IGNORE, 7]))
    return kind, length, rows


def payload_of(kind, length, row):
    docs, next_id, has_mask = row
    ids = [[token for token, _ in doc] for doc in docs]
    masks = [[learn for _, learn in doc] for doc in docs]
    if kind == "flat":
        out = training.assemble([np.array(one, np.int32) for one in ids], length, PAD, next_id)
        mask = [learn for one in masks for learn in one]
        return {**out, "loss_mask": np.array(mask + [0] * (length - len(mask)))} if has_mask else out
    inner = [{"input_ids": one, "loss_mask": mask} if has_mask else {"input_ids": one} for one, mask in zip(ids, masks)]
    if kind == "unpacked":
        return inner[0]
    if next_id != IGNORE:
        inner[-1]["next_id"] = next_id
    return {"sequences": inner, "target_length": length}


def reference(length, rows, cross_document):
    """Each field as lists of lists, token by token."""
    out = {name: [] for name in ("input_ids", "labels", "position_ids", "document_ids")}
    for docs, next_id, has_mask in rows:
        cells = [
            (token, learn or not has_mask, d, p) for d, doc in enumerate(docs) for p, (token, learn) in enumerate(doc)
        ]
        cells += [(PAD, False, -1, p) for p in range(length - len(cells))]
        labels = []
        for t, (_, _, doc, _) in enumerate(cells):
            target, learn, other, _ = cells[t + 1] if t + 1 < length else (next_id, True, doc, 0)
            follows = doc != -1 and other != -1 and (doc == other or cross_document)
            labels.append(target if follows and learn else IGNORE)
        out["input_ids"].append([cell[0] for cell in cells])
        out["labels"].append(labels)
        out["document_ids"].append([cell[2] for cell in cells])
        out["position_ids"].append([cell[3] for cell in cells])
    return out


def microbatch(payloads, **kwargs):
    return Microbatch(payloads, [()] * len(payloads), 0, {}, **kwargs)


@settings(deadline=None, max_examples=60)
@given(batches(), st.booleans())
def test_all_kinds_of_rows_equal_the_plain_reference(batch, cross_document):
    kind, length, rows = batch
    mb = microbatch([payload_of(kind, length, row) for row in rows], pad_token_id=PAD)
    length = length if rows else 1
    got = mb.to_training(TOKENS, cross_document=cross_document, backend="numpy")
    want = reference(length, rows, cross_document)
    for name, values in want.items():
        assert got[name].tolist() == values, name
        assert got[name].shape == (len(rows), length)
        assert got[name].dtype == (np.int32 if name == "document_ids" else np.int64)
    trained = [[label != IGNORE for label in row] for row in want["labels"]]
    assert got["loss_mask"].dtype == np.float32 and got["loss_mask"].tolist() == trained
    assert got["num_valid_tokens"] == sum(map(sum, trained))
    assert got["padding_mask"].tolist() == [[doc == -1 for doc in row] for row in want["document_ids"]]
    cu, longest = training.stack_cu_seqlens(got["document_ids"])
    assert got["cu_seqlens"].tolist() == cu.tolist() and got["max_seqlen"].tolist() == longest.tolist()
    assert list(got) == [*dict.fromkeys(got)] and len(got) == 9


@settings(deadline=None, max_examples=60)
@given(batches())
def test_flat_is_the_same_end_to_end(batch):
    kind, length, rows = batch
    mb = microbatch([payload_of(kind, length, row) for row in rows], pad_token_id=PAD)
    plain, flat = (mb.to_training(TOKENS, flat=flat, backend="numpy") for flat in (False, True))
    for name in ("input_ids", "labels", "position_ids", "loss_mask", "padding_mask"):
        assert flat[name].dtype == plain[name].dtype
        assert flat[name].tolist() == [value for row in plain[name].tolist() for value in row]
    assert flat["num_valid_tokens"] == plain["num_valid_tokens"]
    ends = [0] + [
        t + 1
        for t in range(len(flat["document_ids"]))
        if (t + 1) % plain["input_ids"].shape[1] == 0 or flat["document_ids"][t + 1] != flat["document_ids"][t]
    ]
    assert flat["cu_seqlens"].tolist() == ends
    assert flat["max_seqlen"] == max((b - a for a, b in pairwise(ends)), default=0)
    assert flat["document_ids"].tolist() == training.flat_document_ids(plain["document_ids"]).tolist()


@settings(deadline=None, max_examples=60)
@given(batches(), st.booleans())
def test_torch_and_numpy_agree(batch, flat):
    kind, length, rows = batch
    mb = microbatch([payload_of(kind, length, row) for row in rows], pad_token_id=PAD)
    arrays, tensors = (mb.to_training(TOKENS, flat=flat, backend=name) for name in ("numpy", "torch"))
    assert list(arrays) == list(tensors)
    for name, array in arrays.items():
        if isinstance(array, int):
            assert type(tensors[name]) is int and tensors[name] == array
        else:
            assert isinstance(tensors[name], torch.Tensor)
            assert tensors[name].numpy().dtype == array.dtype and tensors[name].tolist() == array.tolist()


def test_torch_is_the_default():
    out = microbatch([{"input_ids": torch.tensor([1, 2, 3])}, {"input_ids": [4]}]).to_training()
    assert {name: (value.dtype, tuple(value.shape)) for name, value in out.items()} == dict.fromkeys(
        ("input_ids", "labels", "position_ids"), (torch.int64, (2, 3))
    )
    assert out["labels"].tolist() == [[2, 3, IGNORE], [IGNORE] * 3]


def test_kinds_may_be_mixed_in_a_batch():
    rows = [[[[(1, True), (2, True)], [(3, True)]], IGNORE, False]]
    packed = [payload_of(kind, 3, rows[0]) for kind in ("flat", "apart")]
    out = microbatch([*packed, {"input_ids": [5]}], pad_token_id=PAD).to_training(backend="numpy")
    assert out["input_ids"].tolist() == [[1, 2, 3], [1, 2, 3], [5, PAD, PAD]]
    assert out["labels"].tolist() == [[2, IGNORE, IGNORE], [2, IGNORE, IGNORE], [IGNORE] * 3]


@pytest.mark.parametrize("payloads", [[], [{"input_ids": []}], [{"sequences": [], "target_length": None}]])
def test_nothing_to_train_gives_padding(payloads):
    out = microbatch(payloads).to_training(TOKENS)
    assert out["labels"].shape == (len(payloads), 1)
    assert out["num_valid_tokens"] == 0 and bool(out["padding_mask"].all())


def test_no_rows_give_empty_fields():
    assert microbatch([]).to_training(["weight"])["weight"] == []


def test_calling_twice_gives_the_same_and_leaves_payloads_alone():
    payload = {"input_ids": np.array([1, 2, 3]), "weight": np.array([0.5])}
    mb = microbatch([payload])
    first = mb.to_training(["weight"])
    for value in first.values():
        value.zero_()
    assert mb.to_training(["weight"])["input_ids"].tolist() == [[1, 2, 3]]
    assert payload["input_ids"].tolist() == [1, 2, 3] and payload["weight"].tolist() == [0.5]


def test_fields_come_with_names_of_their_own():
    payloads = [{"input_ids": [1, 2], "weight": [0.5, 0.25]}, {"input_ids": [3], "weight": [1.0, 0.75]}]
    out = microbatch(payloads).to_training(["weight", "document_ids"], rename={"input_ids": "tokens", "weight": "w"})
    assert set(out) == {"tokens", "labels", "position_ids", "w", "document_ids"}
    assert out["w"].dtype == torch.float64 and out["w"].tolist() == [[0.5, 0.25], [1.0, 0.75]]


def test_flat_leaves_fields_of_payloads_alone():
    out = microbatch([{"input_ids": [1, 2], "a": [1, 2]}] * 2).to_training(["a"], flat=True)
    assert tuple(out["a"].shape) == (2, 2) and tuple(out["input_ids"].shape) == (4,)


def test_extra_may_be_one_name():
    assert "cu_seqlens" in microbatch([{"input_ids": [1]}]).to_training("cu_seqlens")


@pytest.mark.parametrize("flat", [False, True])
def test_segments_come_by_either_of_their_names(flat):
    mb = microbatch([{"input_ids": [1, 2]}, {"input_ids": [3]}])
    one, other, both = (
        mb.to_training(names, flat=flat) for names in ("max_seqlen", "cu_seqlens", ("max_seqlen", "cu_seqlens"))
    )
    assert list(one) == list(other) == list(both) == ["input_ids", "labels", "position_ids", "cu_seqlens", "max_seqlen"]
    for name in ("cu_seqlens", "max_seqlen"):
        assert torch.equal(*(torch.as_tensor(got[name]) for got in (one, other)))


@pytest.mark.parametrize("backend", ["jax", None])
def test_an_unknown_backend_is_refused(backend):
    with pytest.raises(ConfigError, match='"torch" or "numpy"'):
        microbatch([]).to_training(backend=backend)


def test_an_unknown_name_is_refused_with_the_list():
    with pytest.raises(ConfigError, match=r"'weigth'.*num_valid_tokens.*url, weight$"):
        microbatch([{"input_ids": [1], "weight": 1, "url": ""}]).to_training(["weigth"])


FILES = {"web": ["a.jsonl", "b.jsonl", "c.jsonl"], "code": ["x.parquet"]}
POINTERS = [(Pointer("web", 1, 5), Pointer("code", 0, 2, 3)), (), (Pointer("made", 0, 1),)]


def test_origins_name_files():
    mb = Microbatch([None, "b", 3], POINTERS, 4, FILES)
    assert mb.origins == [
        [Origin("web", "b.jsonl", 5, 0, 0, 1), Origin("code", "x.parquet", 2, 0, 3, 0)],
        [],
        [Origin("made", "", 1, 0, 0, 0)],
    ]


def test_it_is_a_list_of_payloads():
    mb = Microbatch([None, "b", 3], POINTERS, 4, FILES)
    assert (len(mb), mb[1], mb[-1], list(mb)) == (3, "b", 3, [None, "b", 3])
    assert repr(mb) == "<Microbatch of 3 rows, lane 4>"
    assert repr(microbatch([{"input_ids": [], "url": ""}])) == "<Microbatch of 1 rows, lane 0, fields input_ids, url>"


def test_pickling_takes_only_the_files_it_needs():
    mb = Microbatch([{"input_ids": [1, 2]}] * 3, POINTERS, 4, FILES, pad_token_id=7)
    data = pickle.dumps(mb)
    assert b"b.jsonl" in data and b"a.jsonl" not in data and b"c.jsonl" not in data
    for _ in range(2):
        back = pickle.loads(data)
        assert (back.payloads, back.pointers, back.lane, back.pad_token_id) == (mb.payloads, POINTERS, 4, 7)
        assert back.origins == mb.origins
        data = pickle.dumps(back)
