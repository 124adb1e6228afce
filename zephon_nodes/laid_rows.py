"""Packed sequences that are laid out a batch at a time, and only if they are looked at.

Laying documents end to end takes a dozen numpy calls, however many sequences they make. So where ``Batch`` stands right
behind ``PackFlat``, packing only says which parts make up a sequence. The ``Microbatch`` takes the tokens of all its
sequences at once, and lays the rest at once as well: as the tensors of a training step, or as rows for whoever looks at them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_nodes.hashing import I64
from zephon_nodes.packing import Part
from zephon_nodes.training import IGNORE, concatenated, places


class Unlaid(NamedTuple):
    """One sequence to be. ``parts``: of records with ``input_ids`` and perhaps a ``loss_mask``; S = ``length`` tokens at most."""

    parts: Sequence[Part]
    length: int
    pad_token_id: int


class Sequences(NamedTuple):
    """The B sequences of a batch, to be laid out. ``input_ids``: int32 (B, S), with padding; nothing else is kept of the
    documents. ``counts``: tokens of each document of each sequence. ``paddings``: places that are left of each.
    ``next_ids``: the token behind the last one of each in its document, -100 for none. ``masks``: the loss masks of the
    documents of each end to end, or None; None if there are none at all."""

    input_ids: npt.NDArray[np.int32]
    counts: list[list[int]]
    paddings: list[int]
    next_ids: list[int]
    masks: list[npt.NDArray[Any] | None] | None


def gather(sequences: Sequence[Unlaid]) -> Sequences:
    """The tokens of sequences of one length."""
    tokens, counts, paddings, next_ids, masked = list[Any](), list[list[int]](), list[int](), list[int](), False
    for parts, length, pad_token_id in sequences:
        own = list[int]()
        for record, start, stop, whole in parts:
            document, count = record.payload, stop - start
            ids = document["input_ids"]
            tokens.append(ids if count == whole else ids[start:stop])
            own.append(count)
            masked = masked or "loss_mask" in document
        padding = length - sum(own)
        if padding:
            tokens.append(_filler(length, pad_token_id)[:padding])
        counts.append(own)
        paddings.append(padding)
        next_ids.append(IGNORE if padding else next_token(parts[-1]))
    ids = concatenated(tokens, np.int32).reshape(len(sequences), -1)
    return Sequences(ids, counts, paddings, next_ids, [_mask(one.parts) for one in sequences] if masked else None)


def next_token(part: Part) -> int:
    """The token after a part in its document, -100 if there is none or it isn't to be learned."""
    document = part.doc.payload
    if part.stop == part.length or ("loss_mask" in document and not document["loss_mask"][part.stop]):
        return IGNORE
    return int(document["input_ids"][part.stop])


def rows(sequences: Sequences) -> list[dict[str, Any]]:
    """Each sequence as ``training.assemble`` gives it, with a ``loss_mask`` (S,) if a document of it has one."""
    fields = {
        "input_ids": sequences.input_ids.copy(),
        **_places(sequences, np.int32),
    }  # copies of a batch share the sequences
    masks = sequences.masks or [None] * len(sequences.paddings)
    out = []
    for i, (padding, next_id, mask) in enumerate(zip(sequences.paddings, sequences.next_ids, masks, strict=True)):
        row = {name: array[i] for name, array in fields.items()}
        row |= {"padding_length": padding, "next_id": next_id}
        if mask is not None:
            row["loss_mask"] = _padded(mask, sequences.input_ids.shape[1])
        out.append(row)
    return out


def stack(sequences: Sequences) -> dict[str, Any]:
    """All sequences as ``training.stack`` gives their rows; and, if none has a loss mask, their ``labels``."""
    ids = sequences.input_ids.astype(np.int64)
    next_id = np.array(sequences.next_ids, np.int64)
    arrays = {"input_ids": ids, **_places(sequences, np.int64), "next_id": next_id}
    if sequences.masks is None:
        return {**arrays, "loss_mask": None, "labels": _labels(ids, sequences, next_id)}
    length = ids.shape[1]
    every = np.ones(length, np.bool_)
    masks = [every if one is None else _padded(one, length) != 0 for one in sequences.masks]
    return {**arrays, "loss_mask": np.stack(masks)}


def _labels(input_ids: I64, sequences: Sequences, next_id: I64) -> I64:
    """``training.labels`` without a loss mask: where documents end is known here, so nothing need be compared."""
    out = np.empty_like(input_ids)
    flat, length = out.reshape(-1), input_ids.shape[1]
    flat[:-1] = input_ids.reshape(-1)[1:]
    ends = list[int]()
    for row, (counts, padding) in enumerate(zip(sequences.counts, sequences.paddings, strict=True)):
        ends += itertools.accumulate(counts, initial=row * length)
        if padding:
            out[row, -padding:] = IGNORE
    flat[np.array(ends) - 1] = IGNORE  # a sequence's own begin among them: the one before ends there
    out[:, -1] = next_id
    return out


def _mask(parts: Sequence[Part]) -> npt.NDArray[Any] | None:
    """The loss masks of documents end to end. One that has none is trained everywhere; None if no one has any."""
    masks = [part.doc.payload.get("loss_mask") for part in parts]
    if all(mask is None for mask in masks):
        return None
    own = [
        np.ones(part.stop - part.start, np.bool_) if mask is None else np.asarray(mask[part.start : part.stop])
        for mask, part in zip(masks, parts, strict=True)
    ]
    return np.concatenate(own)


def _padded(mask: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    out = np.zeros((length, *mask.shape[1:]), mask.dtype)
    out[: len(mask)] = mask
    return out


@functools.lru_cache(4)
def _filler(length: int, pad_token_id: int) -> npt.NDArray[np.int32]:
    return np.full(length, pad_token_id, np.int32)


def _places(sequences: Sequences, dtype: type) -> dict[str, npt.NDArray[Any]]:
    numbers, counts = list[int](), list[int]()
    for own, padding in zip(sequences.counts, sequences.paddings, strict=True):
        numbers += range(len(own))
        counts += own
        if padding:
            numbers.append(-1)
            counts.append(padding)
    return places(numbers, counts, sequences.input_ids.shape, dtype)
