"""``python -m zephon_nodes inspect``: a saved state, or a dataset."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError
from zephon_nodes.explore.grid import text_grid
from zephon_nodes.explore.peek import Table
from zephon_nodes.explore.states import StateView
from zephon_nodes.explore.values import line_of
from zephon_nodes.state import lane_numbers

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_FILES, _ROWS, _DEPTH = 20, 5, 4


def inspect(path: str) -> str:
    """What a file of a state, or a dataset, holds, as text.

    ``path``: a state as JSON or by ``torch.save``, perhaps with other things around it; or what ``Dataset.from_path``
    takes. Raises ``ConfigError`` for neither.
    """
    saved = _saved(path)
    if saved is None:
        return dataset_text(Dataset.from_path(os.path.basename(path.rstrip("/")) or path, path))
    found = dict(_states("", saved, _DEPTH))
    if not found:
        raise ConfigError(f"{path} holds no state of a zephon_nodes graph; its keys are {_keys(saved)}")
    return "\n\n".join((f"{where}:\n" if where else "") + repr(StateView(state)) for where, state in found.items())


def _saved(path: str) -> Any:
    """What a file of a checkpoint holds, None for anything else."""
    if not os.path.isfile(path):
        return None
    if path.endswith(".json"):
        with open(path, encoding="utf-8") as file:
            try:
                held = json.load(file)
            except ValueError:
                return None
        return held if isinstance(held, dict) else None
    if not path.endswith(_TORCH):
        return None
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(f"{path} can't be read by torch.load(weights_only=True): {error}") from error


def _states(where: str, value: Any, depth: int) -> list[tuple[str, Mapping[str, Any]]]:
    """States anywhere in nested dicts, with the keys that lead there."""
    if not isinstance(value, Mapping) or depth == 0:
        return []
    if isinstance(value.get("recipe"), str) and lane_numbers(value):
        return [(where, value)]
    inner = [_states(f"{where}.{key}" if where else str(key), part, depth - 1) for key, part in value.items()]
    return [found for part in inner for found in part]


def _keys(value: Any) -> str:
    return ", ".join(map(str, list(value)[:10])) if isinstance(value, Mapping) else type(value).__name__


def dataset_text(dataset: Dataset) -> str:
    """Files, rows, units, fields and the first rows of a dataset."""
    units = dataset.unit_rows[dataset.unit_rows > 0]
    sizes = (
        f"{int(units.min()):,} to {int(units.max()):,} rows, median {int(np.median(units)):,}" if len(units) else "none"
    )
    lines = [
        f"{dataset.format.name}: {len(dataset.files):,} files, {dataset.rows:,} rows, {len(units):,} units ({sizes})",
        "",
        text_grid(["file", "rows", "units"], _files(dataset)),
    ]
    rest = len(dataset.files) - _FILES
    lines += [f"and {rest:,} more files"] if rest > 0 else []
    first = [dataset[i] for i in range(min(_ROWS, dataset.rows))]
    if first and all(isinstance(row, Mapping) for row in first):
        lines += ["", text_grid(["field", "type", "first"], _fields(first))]
    shards = np.searchsorted(dataset.shard_starts, np.arange(len(first)), side="right") - 1
    origins = [[(dataset.files[s], i - int(dataset.shard_starts[s]))] for i, s in enumerate(shards.tolist())]
    return "\n".join([*lines, "", repr(Table(first, origins, "rows"))])


def _files(dataset: Dataset) -> list[list[str]]:
    counts = np.diff(dataset.first_units)
    every = zip(dataset.files, dataset.shard_rows.tolist(), counts.tolist(), strict=True)
    return [[name, f"{rows:,}", f"{units:,}"] for name, rows, units in list(every)[:_FILES]]


def _fields(rows: list[Any]) -> list[list[str]]:
    """Each field with the types that it has in the first rows."""
    names = dict.fromkeys(str(name) for row in rows for name in row)
    out = []
    for name in names:
        values = [row[name] for row in rows if name in row]
        kinds = dict.fromkeys(type(value).__name__ for value in values)
        out.append([name, " or ".join(kinds), line_of(values[0])])
    return out
