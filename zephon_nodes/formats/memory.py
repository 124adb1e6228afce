"""Rows that are already in memory: a list of Python values, for notebooks, tests and small components."""

from __future__ import annotations

import copy
import datetime
import decimal
import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_nodes.formats.base import BadRow, Shard, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

UNIT_ROWS = 64
_SAMPLE = 64
_IMMUTABLE = frozenset({str, bytes, int, float, bool, complex, type(None)})
_BY_REPR = (complex, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, range)


class MemoryFormat:
    """A format whose one file is a list of rows."""

    name = "rows"
    suffixes: tuple[str, ...] = ()

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = list(rows)

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of the rows; ``file`` is only a name, and columns can't be chosen."""
        return MemoryShard(file, self.rows)

    def digest(self) -> str:
        """SHA-256 of the content, in hex. See ``content_digest``."""
        return content_digest(self.rows)


class MemoryShard(Shard):
    """All rows, in units of 64."""

    def __init__(self, file: StoredFile, rows: Sequence[Any]) -> None:
        self.file = file
        self._rows = rows
        starts = np.arange(0, len(rows), UNIT_ROWS)
        self.unit_rows: I64 = np.minimum(UNIT_ROWS, len(rows) - starts)
        each = sum(map(_nbytes, rows[:_SAMPLE])) // max(1, min(_SAMPLE, len(rows)))
        self.unit_bytes: I64 = self.unit_rows * max(1, each)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        return MemoryUnit(self._rows[unit * UNIT_ROWS : (unit + 1) * UNIT_ROWS], int(self.unit_bytes[unit]))

    def take(self, rows: Sequence[int]) -> list[Any]:
        """See ``Shard.take``."""
        return [_fresh(self._rows[row]) for row in rows]


class MemoryUnit(Unit):
    """Some of the rows. ``nbytes`` is an estimate; the rows themselves are the user's."""

    def __init__(self, rows: Sequence[Any], nbytes: int) -> None:
        self._rows = rows
        self.rows, self.nbytes = len(rows), nbytes

    def take(self, rows: Sequence[int]) -> list[Any]:
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


def content_digest(value: Any) -> str:
    """SHA-256 in hex of a value's content, the same in every process and on every machine.

    Covers dict (in any order of keys), list, tuple, set, str, bytes, numbers, None, numpy arrays and what turns into
    one (tensors, images), dates, times and decimals. Of other objects only the name of the type counts.
    """
    digest = hashlib.sha256()
    for part in _canonical(value):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def _canonical(value: Any) -> Iterator[bytes]:
    """The parts that a value is hashed as: its kind, its size where it has parts, its content."""
    kind = type(value).__name__.encode()
    if value is None or isinstance(value, (bool, int, str, bytes, bytearray, float)):
        yield from (kind, _scalar(value))
    elif isinstance(value, Mapping):
        yield from (b"dict", b"%d" % len(value))
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            yield from _canonical(key)
            yield from _canonical(value[key])
    elif isinstance(value, (set, frozenset)):
        yield from (b"set", b"%d" % len(value), *sorted(content_digest(member).encode() for member in value))
    elif isinstance(value, (list, tuple)):
        yield from (kind, b"%d" % len(value))
        for member in value:
            yield from _canonical(member)
    elif isinstance(value, _BY_REPR):
        yield from (kind, repr(value).encode())
    else:
        yield from _array(value)


def _scalar(value: Any) -> bytes:
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, int):
        return b"%d" % value
    return str.encode(value, "utf-8", "surrogatepass") if isinstance(value, str) else bytes(value or b"")


def _array(value: Any) -> Iterator[bytes]:
    array = _as_array(value)
    if array is None:
        yield from (b"object", f"{type(value).__module__}.{type(value).__qualname__}".encode())
    elif array.dtype == object:
        yield from (b"array", str(array.shape).encode())
        yield from _canonical(array.ravel().tolist())
    else:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield from (b"array", little.dtype.str.encode(), str(array.shape).encode(), little.tobytes())


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    if not (hasattr(value, "__array__") or hasattr(value, "__array_interface__")):
        return None
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError):  # a tensor that numpy has no type for, or one with a gradient
        return None
