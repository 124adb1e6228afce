"""Packed sequences that are laid out a batch at a time, and only if they are looked at.

Laying documents end to end takes a dozen numpy calls, however many sequences they make. So where ``Batch`` stands right
behind ``PackFlat``, packing hands on the tokens of each sequence, and the ``Microbatch`` lays them all at once: as the
tensors of a training step, or as rows for whoever looks at them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_nodes.hashing import I64
from zephon_nodes.training import IGNORE, Segments, lay


class Unlaid(NamedTuple):
    """One sequence to be. ``tokens``: int32, those of its documents end to end; nothing but these is kept of them. ``counts``:
    tokens of each document. ``mask``: their loss masks end to end, None if no one has any. ``next_id``: the token behind the
    last one in its document, -100 for none. ``padding``: places that are left of the ``length``, S."""

    tokens: npt.NDArray[np.int32]
    counts: list[int]
    mask: npt.NDArray[Any] | None
    next_id: int
    padding: int
    length: int
    pad_token_id: int


def rows(sequences: Sequence[Unlaid]) -> list[dict[str, Any]]:
    """Each sequence as ``training.assemble`` gives it, with a ``loss_mask`` (S,) if a document of it has one."""
    fields = _lay(sequences, np.int32)
    out = []
    for i, one in enumerate(sequences):
        row = {name: array[i] for name, array in fields.items()} | {
            "padding_length": one.padding,
            "next_id": one.next_id,
        }
        if one.mask is not None:
            row["loss_mask"] = _padded(one.mask, one.length)
        out.append(row)
    return out


def stack(sequences: Sequence[Unlaid]) -> dict[str, Any]:
    """All sequences as ``training.stack`` gives their rows; and, if none has a loss mask, their ``labels``."""
    arrays = _lay(sequences, np.int64)
    next_id = np.array([one.next_id for one in sequences], np.int64)
    if all(one.mask is None for one in sequences):
        labels = _labels(arrays["input_ids"], sequences, next_id)
        return {**arrays, "next_id": next_id, "loss_mask": None, "labels": labels}
    every = np.ones(sequences[0].length, np.bool_)
    masks = [every if one.mask is None else _padded(one.mask, one.length) != 0 for one in sequences]
    return {**arrays, "next_id": next_id, "loss_mask": np.stack(masks)}


def _labels(input_ids: I64, sequences: Sequence[Unlaid], next_id: I64) -> I64:
    """``training.labels`` without a loss mask: where documents end is known here, so nothing need be compared."""
    out = np.empty_like(input_ids)
    flat, begin, ends = out.reshape(-1), 0, list[int]()
    flat[:-1] = input_ids.reshape(-1)[1:]
    for one in sequences:
        ends += itertools.accumulate(one.counts, initial=begin)
        begin += one.length
        if one.padding:
            flat[begin - one.padding : begin] = IGNORE
    flat[np.array(ends) - 1] = IGNORE  # a sequence's own begin among them: the one before ends there
    out[:, -1] = next_id
    return out


def mask_of(parts: Sequence[Any], counts: Sequence[int]) -> npt.NDArray[Any]:
    """The loss masks of documents end to end. None in the place of one: it is trained everywhere."""
    pairs = zip(parts, counts, strict=True)
    return np.concatenate([np.ones(count, np.bool_) if own is None else np.asarray(own) for own, count in pairs])


def _padded(mask: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    out = np.zeros((length, *mask.shape[1:]), mask.dtype)
    out[: len(mask)] = mask
    return out


@functools.lru_cache(4)
def _filler(length: int, pad_token_id: int) -> npt.NDArray[np.int32]:
    return np.full(length, pad_token_id, np.int32)


def _lay(sequences: Sequence[Unlaid], dtype: type) -> dict[str, npt.NDArray[Any]]:
    parts, numbers, counts = list[Any](), list[int](), list[int]()
    for tokens, own, _, _, padding, length, pad_token_id in sequences:
        parts.append(tokens)
        numbers += range(len(own))
        counts += own
        if padding:
            parts.append(_filler(length, pad_token_id)[:padding])
            numbers.append(-1)
            counts.append(padding)
    return lay(Segments(parts, numbers, counts), (len(sequences), sequences[0].length), dtype)
