"""From payloads to arrays: what ``Microbatch.to_training`` is made of. Pure functions, no nodes.

A row is packed flat (``document_ids`` and the other fields of ``training.assemble``), packed apart (``sequences``, a
list of payloads, and ``target_length``), or unpacked (``input_ids``: one document). Row numbers in errors count from 0
in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_nodes import training
from zephon_nodes.errors import ConfigError

ALWAYS = ("input_ids", "labels", "position_ids")
DERIVED = ("cu_seqlens", "document_ids", "loss_mask", "max_seqlen", "num_valid_tokens", "padding_mask")
_NOT_FIELDS = frozenset((*ALWAYS, *DERIVED))
_PACKED = ("input_ids", "position_ids", "document_ids", "padding_length", "next_id")
_ALIGNED = ("input_ids", "position_ids", "document_ids", "loss_mask")


class BlankRow(dict[str, Any]):
    """A row without content, there so that ranks stay in step. It has no fields but those of tokens."""


def assembled_row(payload: Any, index: int, pad_token_id: int) -> Mapping[str, Any]:
    """Row ``index`` as ``training.assemble`` gives it, with a ``loss_mask`` (S,) if it has one.

    Raises ``ConfigError`` for a payload without ``input_ids`` or with token fields that don't fit together.
    """
    if not isinstance(payload, Mapping):
        raise ConfigError(
            f"to_training: row {index} is of type {type(payload).__name__}: a dict with input_ids is needed"
        )
    if "document_ids" in payload:
        return _checked(payload, index)
    if "sequences" not in payload or "target_length" not in payload:
        return _laid([payload], index, None, pad_token_id)
    return _laid(payload["sequences"], index, payload["target_length"], pad_token_id)


def payload_field(payloads: Sequence[Mapping[str, Any]], name: str) -> Any:
    """Field ``name`` of all payloads: an array or tensor (B, ...) if it can be stacked, else a list of B values.

    Rows packed apart give the field of their own, else a list with that of each sequence. Raises ``ConfigError`` if a
    row lacks it, or if the name is one that ``to_training`` makes.
    """
    real = [payload for payload in payloads if not isinstance(payload, BlankRow)]
    have = [_field_names(payload) for payload in real]
    lacking = [index for index, names in enumerate(have) if name not in names]
    if lacking or name in _NOT_FIELDS:
        common = set.intersection(*have) - _NOT_FIELDS if have else set()
        reason = f"row {lacking[0]} has no such field" if lacking else "to_training makes that itself"
        raise ConfigError(
            f"to_training: extra={name!r}: {reason}. Always given: {', '.join(ALWAYS)}. To ask for: {', '.join(DERIVED)}, "
            f"and fields that all rows have: {_listed(common)}"
        )
    values = [one[name] if name in one else [part[name] for part in one["sequences"]] for one in real]
    if len(real) < len(payloads):
        values = _with_blanks(name, payloads, values)
    return stacked(values) if all(name in one for one in real) else values


def _with_blanks(name: str, payloads: Sequence[Mapping[str, Any]], values: list[Any]) -> list[Any]:
    """Values of all rows: zeros like the first real one in the place of blank rows, or their own; plain 0 where all are."""
    array = _numeric(values[0]) if values else np.zeros((), np.int64)
    like = None if array is None else np.zeros_like(array)
    rest = iter(values)
    return [payload.get(name, like) if isinstance(payload, BlankRow) else next(rest) for payload in payloads]


def stacked(values: list[Any]) -> Any:
    """Numbers, flat lists of numbers, arrays or tensors of one shape, stacked in their own dtype; other values as they
    came."""
    import torch

    if values and all(isinstance(value, torch.Tensor) for value in values):
        alike = len({(value.shape, value.dtype, value.device) for value in values}) == 1
        return torch.stack(values) if alike else values
    arrays = [array for array in map(_numeric, values) if array is not None]
    if not values or len(arrays) < len(values) or len({array.shape for array in arrays}) > 1:
        return values
    common = np.result_type(*(array.dtype for array in arrays))
    if common.kind == "f" and all(array.dtype.kind in "iu" for array in arrays):
        return values  # int64 with uint64: floats would lose digits
    # By name, because numpy has two 64-bit unsigned types and torch takes only one of them.
    return np.stack(arrays, dtype=np.dtype(f"{common.kind}{common.itemsize}"))


def renamed(fields: Mapping[str, Any], rename: Mapping[str, str]) -> dict[str, Any]:
    """``fields`` under new names. Raises ``ConfigError`` for an old name that isn't there and a new one that is taken."""
    unknown = [old for old in rename if old not in fields]
    if unknown:
        raise ConfigError(f"to_training: rename={unknown[0]!r} isn't in the output, which has {', '.join(fields)}")
    out: dict[str, Any] = {}
    for old, value in fields.items():
        new = rename.get(old, old)
        if new in out:
            raise ConfigError(f"to_training: rename gives the name {new!r} to two fields, one of them {old!r}")
        out[new] = value
    return out


def converted(value: Any, backend: str) -> Any:
    """Arrays as tensors for "torch" (sharing memory), tensors as arrays for "numpy"; other values as they are."""
    if backend == "numpy" and isinstance(value, np.ndarray):
        return value
    import torch

    if backend == "torch":
        return torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _checked(row: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """A row that was packed, here or before it was stored: what can be told from ``document_ids`` needn't be there."""
    if "input_ids" not in row:
        raise ConfigError(f"to_training: row {index} has document_ids, but no input_ids; its fields: {_listed(row)}")
    lengths = {name: len(row[name]) for name in _ALIGNED if name in row}
    if min(lengths.values()) != max(lengths.values()):
        raise ConfigError(f"to_training: token fields of row {index} differ in length: {lengths}")
    if all(name in row for name in _PACKED):
        return row
    documents = np.asarray(row["document_ids"])
    firsts = np.flatnonzero(np.diff(documents, prepend=documents[:1] - 1))
    starts = np.repeat(firsts, np.diff(firsts, append=len(documents)))
    told = {"padding_length": int((documents < 0).sum()), "next_id": training.IGNORE}
    return {**told, "position_ids": np.arange(len(documents)) - starts, **row}


def _laid(sequences: Sequence[Any], index: int, target_length: int | None, pad_token_id: int) -> dict[str, Any]:
    ids = [_token_ids(one, index) for one in sequences]
    cut = target_length is not None and len(sequences) > 0
    row = training.assemble(
        ids, target_length, pad_token_id, sequences[-1].get("next_id", training.IGNORE) if cut else training.IGNORE
    )
    if any("loss_mask" in one for one in sequences):
        masks = [_mask(one, len(tokens), index) for one, tokens in zip(sequences, ids, strict=True)]
        row["loss_mask"] = np.concatenate([*masks, np.zeros(row["padding_length"], np.bool_)])
    return row


def _token_ids(payload: Any, index: int) -> npt.NDArray[Any]:
    if not isinstance(payload, Mapping) or "input_ids" not in payload:
        came = f"the fields {_listed(payload)}" if isinstance(payload, Mapping) else f"a {type(payload).__name__}"
        raise ConfigError(
            f"to_training: row {index} has no input_ids, but {came}. A Tokenize node is missing before Batch"
        )
    ids = np.asarray(payload["input_ids"])
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ConfigError(
            f"to_training: input_ids of row {index} are {ids.dtype} of shape {ids.shape}: 1-D ints are needed"
        )
    return ids


def _mask(payload: Mapping[str, Any], length: int, index: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(payload.get("loss_mask", np.ones(length, np.bool_)))
    if mask.shape != (length,):
        raise ConfigError(f"to_training: row {index} has {length} input_ids, but a loss_mask of shape {mask.shape}")
    return mask.astype(np.bool_)


def _field_names(payload: Mapping[str, Any]) -> set[str]:
    names = set(payload)
    if "target_length" in names and payload.get("sequences"):
        names |= set.intersection(*(set(one) for one in payload["sequences"]))
    return names


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(sorted(map(str, names))) or "none"


def _numeric(value: Any) -> npt.NDArray[Any] | None:
    if isinstance(value, (list, tuple)):
        if not all(isinstance(item, (int, float, np.generic)) for item in value):
            return None
    elif not isinstance(value, (int, float, np.generic, np.ndarray)):
        return None
    array = np.asarray(value)
    return array if array.dtype.kind in "biufc" else None
