"""Packed sequences that are laid out a batch at a time, and only if they are looked at.

Laying documents end to end takes a dozen numpy calls, however many sequences they make. So where ``Batch`` stands right
behind ``PackFlat``, packing hands on the pieces of each sequence, and the ``Microbatch`` lays them all at once: as the
tensors of a training step, or as rows for whoever looks at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zephon_nodes.hashing import I64
from zephon_nodes.training import IGNORE, lay


class Unlaid(NamedTuple):
    """One sequence to be. ``ids``: 1-D ints of each document. ``masks``: their loss masks, None where a document has none,
    or None if no one has. ``next_id``: the token behind the last one in its document, -100 for none. ``padding``: places
    that are left of the ``length``, S."""

    ids: list[Any]
    masks: list[Any] | None
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
        if one.masks is not None:
            row["loss_mask"] = mask(one)
        out.append(row)
    return out


def stack(sequences: Sequence[Unlaid]) -> dict[str, Any]:
    """All sequences as ``training.stack`` gives their rows; and, if none has a loss mask, their ``labels``."""
    arrays = _lay(sequences, np.int64)
    next_id = np.array([one.next_id for one in sequences], np.int64)
    if all(one.masks is None for one in sequences):
        return {**arrays, "next_id": next_id, "loss_mask": None, "labels": _labels(arrays["input_ids"], sequences)}
    every = np.ones(sequences[0].length, np.bool_)
    masks = [every if one.masks is None else mask(one) != 0 for one in sequences]
    return {**arrays, "next_id": next_id, "loss_mask": np.stack(masks)}


def _labels(input_ids: I64, sequences: Sequence[Unlaid]) -> I64:
    """``training.labels`` without a loss mask: where documents end is known here, so nothing need be compared."""
    out = np.empty_like(input_ids)
    flat, at, ends = out.reshape(-1), -1, []
    flat[:-1] = input_ids.reshape(-1)[1:]
    for one in sequences:
        for ids in one.ids:
            at += len(ids)
            ends.append(at)
        flat[at + 1 : at + 1 + one.padding] = IGNORE
        at += one.padding
    flat[ends] = IGNORE
    out[:, -1] = [one.next_id for one in sequences]
    return out


def mask(one: Unlaid) -> npt.NDArray[Any]:
    """The loss masks of a sequence end to end, zeros at padding; a document without one is trained everywhere."""
    pairs = zip(one.ids, one.masks or [None] * len(one.ids), strict=True)
    laid = np.concatenate([np.ones(len(ids), np.bool_) if own is None else np.asarray(own) for ids, own in pairs])
    out = np.zeros((one.length, *laid.shape[1:]), laid.dtype)
    out[: len(laid)] = laid
    return out


def _lay(sequences: Sequence[Unlaid], dtype: type) -> dict[str, I64]:
    length, pad = sequences[0].length, sequences[0].pad_token_id
    return lay([one.ids for one in sequences], length, pad, dtype)
