"""Rows that are already in memory: a list of Python values, for notebooks, tests and small components."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from zephon_nodes.digest import content_digest
from zephon_nodes.formats.base import BadRow, Rows, Shard, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

UNIT_ROWS = 64
_IMMUTABLE = frozenset({str, bytes, int, float, bool, complex, type(None)})


class MemoryFormat:
    """A format whose one file is a list of rows."""

    name = "rows"
    suffixes: tuple[str, ...] = ()

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = list(rows)
        self._digest = ""

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of the rows; ``file`` is only a name, and columns can't be chosen."""
        return MemoryShard(file, self.rows)

    def digest(self) -> str:
        """SHA-256 of the content, in hex. See ``content_digest``."""
        self._digest = self._digest or content_digest(self.rows)
        return self._digest


class MemoryShard(Shard):
    """All rows, in units of 64."""

    def __init__(self, file: StoredFile, rows: Sequence[Any]) -> None:
        self.file = file
        self._rows = rows
        starts = np.arange(0, len(rows), UNIT_ROWS)
        self.unit_rows: I64 = np.minimum(UNIT_ROWS, len(rows) - starts)
        units = (rows[start : start + UNIT_ROWS] for start in starts.tolist())
        self.unit_bytes: I64 = np.array([max(1, sum(map(_nbytes, unit))) for unit in units], np.int64)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        return MemoryUnit(self._rows[unit * UNIT_ROWS : (unit + 1) * UNIT_ROWS], int(self.unit_bytes[unit]))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``."""
        return [_fresh(self._rows[row]) for row in rows]


class MemoryUnit(Unit):
    """Some of the rows. ``nbytes`` is an estimate; the rows themselves are the user's."""

    def __init__(self, rows: Sequence[Any], nbytes: int) -> None:
        self._rows = rows
        self.rows, self.nbytes = len(rows), nbytes

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``. Copies deeply, so that nobody downstream can change the user's rows."""
        return [_fresh(self._rows[row]) for row in rows]


def _fresh(row: Any) -> Any:
    if type(row) is dict and all(type(value) in _IMMUTABLE for value in row.values()):
        return row.copy()
    try:
        return copy.deepcopy(row)
    except (TypeError, copy.Error) as error:
        return BadRow(error)


def _nbytes(value: Any) -> int:
    """About how many bytes a value holds."""
    if isinstance(value, Mapping):
        return sum(map(_nbytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_nbytes, value))
    if isinstance(value, (str, bytes)):
        return len(value)
    return int(getattr(value, "nbytes", 8))
