"""From token ids to what a training step takes. Pure numpy functions on one sequence or a stack of them.

S is the length of a sequence, B the number of sequences, "..." any leading axes. A document's id is its place in the
sequence: 0, 1, 2 and so on, -1 at padding, which always stands at the end.

Labels are shifted inside documents: position t is trained on token t + 1 if that belongs to the same document. Where a
document is cut by the end of a sequence, the last position is trained on ``next_id``, the first token of the rest. So
every step from a token to the next one in its document is trained exactly once, however documents were packed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import I64

I32: TypeAlias = "npt.NDArray[np.int32]"

IGNORE = -100
_INT32_RANGE = np.iinfo(np.int32)
_INT32 = np.dtype(np.int32)


def check_token_id(name: str, value: Any) -> None:
    """Raises ``ConfigError`` unless ``value`` is an int that fits into int32, or None."""
    fits = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if value is not None and not (fits and _INT32_RANGE.min <= value <= _INT32_RANGE.max):
        raise ConfigError(
            f"{name} must be an integer that fits into int32, or None for the tokenizer's own, got {value!r}"
        )


def assemble(
    parts_ids: Sequence[npt.ArrayLike], max_length: int | None, pad_token_id: int, next_id: int = IGNORE
) -> dict[str, Any]:
    """Lays the parts of one packed sequence end to end and pads it.

    ``parts_ids``: one 1-D array of ints a part; empty ones take an id, but no position. ``max_length``: S; None for no
    padding. ``next_id``: the token that follows the last part in its document, -100 if the document ends there.

    Returns ``input_ids`` int32 (S,), ``position_ids`` int32 (S,) from 0 in each part and from 0 in the padding,
    ``document_ids`` int32 (S,), ``padding_length`` int, ``next_id`` int: as given, but -100 if there is padding.
    Raises ``ConfigError`` if the parts have more than ``max_length`` tokens.
    """
    counts = [*map(len, parts_ids)]  # type: ignore[arg-type]
    total = sum(counts)
    length = total if max_length is None else max_length
    padding = length - total
    if padding < 0:
        raise ConfigError(
            f"a packed sequence of {length} tokens was asked for, but its parts have {total}: was a part made longer after packing?"
        )
    padded = [*parts_ids, np.full(padding, pad_token_id, np.int32)]
    placed = places([*range(len(counts)), -1], [*counts, padding], (1, length))
    return {
        "input_ids": concatenated(padded, np.int32),
        **{name: array[0] for name, array in placed.items()},
        "padding_length": padding,
        "next_id": IGNORE if padding else int(next_id),
    }


def places(
    numbers: Sequence[int], counts: Sequence[int], shape: tuple[int, int], dtype: type = np.int32
) -> dict[str, npt.NDArray[Any]]:
    """The ``position_ids``, ``dtype``, and ``document_ids``, int32, of B rows at once, (B, S), in a few numpy calls.

    ``numbers``: of each document in its row, from 0, and -1 for padding, row by row. ``counts``: tokens of each; B * S in all.
    """
    first = _range(shape[1], dtype)
    return {
        "position_ids": _joined([first[:count] for count in counts], dtype).reshape(shape),
        "document_ids": np.array(numbers, np.int32).repeat(counts).reshape(shape),
    }


def concatenated(parts: Sequence[Any], dtype: type) -> npt.NDArray[Any]:
    """1-D arrays and lists of ints, end to end: an array of its own, ``dtype`` (tokens,), that may be written to."""
    for part in parts:
        # Mostly it is the very object, which is found out in a tenth of the time.
        if type(part) is not np.ndarray or (part.dtype is not _INT32 and part.dtype != _INT32):
            break
    else:
        try:
            joined = _joined(parts, np.int32)
            return joined if dtype is np.int32 else joined.astype(dtype)
        except TypeError:  # one has gaps
            pass
    # "unsafe": they are ints, or empty lists, which numpy takes for floats.
    return np.concatenate(parts, out=np.empty(sum(map(len, parts)), dtype), casting="unsafe")


def _joined(parts: Sequence[Any], dtype: type) -> npt.NDArray[Any]:
    """``np.concatenate`` of arrays of ``dtype`` without gaps. That gives up Python's lock at every one of them, and waits to
    have it back when other threads are busy."""
    return np.frombuffer(bytearray().join(parts), dtype)


@functools.lru_cache(4)
def _range(length: int, dtype: type) -> npt.NDArray[Any]:
    return np.arange(length, dtype=dtype)


def stack(rows: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, Any]:
    """Stacks sequences from ``assemble``, padded further to the longest; S is at least 1.

    Returns ``input_ids`` int64 (B, S), ``position_ids`` int64 (B, S), ``document_ids`` int32 (B, S), ``next_id`` int64
    (B,), ``loss_mask`` bool (B, S), or None if no row has one; rows without one are trained everywhere.
    """
    length = max((len(row["input_ids"]) for row in rows), default=0) or 1
    shape = (len(rows), length)
    masked = any("loss_mask" in row for row in rows)
    mask = np.ones(shape, np.bool_) if masked else None
    input_ids = np.full(shape, pad_token_id, np.int64)
    position_ids = np.empty(shape, np.int64)
    document_ids = np.full(shape, -1, np.int32)
    for index, row in enumerate(rows):
        stop = len(row["input_ids"])
        input_ids[index, :stop] = row["input_ids"]
        position_ids[index, :stop] = row["position_ids"]
        document_ids[index, :stop] = row["document_ids"]
        if stop < length:
            padding = row["padding_length"]
            position_ids[index, stop:] = np.arange(padding, padding + length - stop)
    if mask is not None:
        for index, row in enumerate(rows):
            if "loss_mask" in row:
                mask[index, : len(row["input_ids"])] = np.asarray(row["loss_mask"]) != 0
    next_id = np.array([row["next_id"] if len(row["input_ids"]) == length else IGNORE for row in rows], np.int64)
    return {
        "input_ids": input_ids,
        "position_ids": position_ids,
        "document_ids": document_ids,
        "next_id": next_id,
        "loss_mask": mask,
    }


def labels(
    input_ids: npt.NDArray[Any],
    document_ids: npt.NDArray[Any],
    next_id: npt.ArrayLike,
    loss_mask: npt.ArrayLike | None = None,
    ignore_index: int = IGNORE,
    cross_document: bool = False,
) -> I64:
    """What each position is trained on: int64 (..., S).

    ``input_ids``, ``document_ids``: ints (..., S). ``next_id``: ints (...), -100 for none. ``loss_mask``: (..., S), 0
    where token t isn't to be learned *as a target*; ``next_id`` has its own mask already applied.
    ``labels[t]`` is ``input_ids[t + 1]``, and ``next_id`` at the last position. It is ``ignore_index`` at padding, at
    the end of a document, and where the target is masked. ``cross_document=True`` also trains the last token of a
    document on the first of the next one in its sequence, as plain concatenation does.
    """
    before, after = document_ids[..., :-1], document_ids[..., 1:]
    untrained = after < 0
    untrained |= before < 0 if cross_document else before != after
    if loss_mask is not None:
        untrained |= np.asarray(loss_mask)[..., 1:] == 0
    out = np.empty(input_ids.shape, np.int64)
    out[..., :-1] = input_ids[..., 1:]
    np.copyto(out[..., :-1], ignore_index, where=untrained)
    last = np.asarray(next_id, np.int64)[..., None]
    out[..., -1:] = last
    np.copyto(out[..., -1:], ignore_index, where=(last == IGNORE) | (document_ids[..., -1:] < 0))
    return out


def num_valid_tokens(labels: I64, ignore_index: int = IGNORE) -> int:
    """How many positions are trained. May be 0: divide a summed loss by ``max(1, n)``."""
    return int(np.count_nonzero(labels != ignore_index))


def loss_mask(labels: I64, ignore_index: int = IGNORE) -> npt.NDArray[np.float32]:
    """1.0 where a position is trained, else 0.0: float32, shape of ``labels``."""
    return np.not_equal(labels, ignore_index).astype(np.float32)


def cu_seqlens(document_ids: npt.NDArray[Any]) -> I32:
    """Where the K segments of one sequence (S,) begin, and S at the end: int32 (K + 1,). Padding is a segment of its own."""
    edges = np.flatnonzero(document_ids[1:] != document_ids[:-1]) + 1
    return np.concatenate(([0], edges, [len(document_ids)])).astype(np.int32)


def stack_cu_seqlens(document_ids: npt.NDArray[Any]) -> tuple[I32, I32]:
    """``cu_seqlens`` of each row of (B, S): int32 (B, K), short rows filled up with S; and the longest segment of each
    row: int32 (B,)."""
    count, length = document_ids.shape
    rows = [cu_seqlens(row) for row in document_ids]
    out = np.full((count, max(map(len, rows), default=1)), length, np.int32)
    for index, row in enumerate(rows):
        out[index, : len(row)] = row
    return out, np.array([np.diff(row).max() for row in rows], np.int32)


def flat_cu_seqlens(document_ids: npt.NDArray[Any]) -> tuple[I32, int]:
    """``cu_seqlens`` of the rows of (B, S) laid end to end: int32 (segments + 1,) from 0 to B * S; and the longest segment.

    A segment never goes over the end of a row.
    """
    begins = np.ones(document_ids.shape, np.bool_)
    begins[:, 1:] = document_ids[:, 1:] != document_ids[:, :-1]
    edges = np.append(np.flatnonzero(begins), document_ids.size).astype(np.int32)
    return edges, int(np.diff(edges).max(initial=0))


def flat_document_ids(document_ids: I32) -> I32:
    """Document ids of the rows of (B, S) laid end to end: int32 (B * S,), numbered through, so that no two rows share one."""
    counts = document_ids.max(axis=1, initial=-1) + 1
    before = np.cumsum(counts) - counts
    return np.where(document_ids < 0, -1, document_ids + before[:, None]).astype(np.int32).reshape(-1)
