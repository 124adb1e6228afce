"""Shards whose rows lie one behind the other as spans of bytes: MDS, tar, LitData, token files, text.

All of them are read alike. A unit is a run of rows that holds about a MiB, fetched with one request and cut up as rows are
taken from it; a single row is one request for its span. Only the offsets of the last few files used are kept decoded.
Big rows of a local file are read one by one when they are taken from their unit: the kernel is told to fetch the unit ahead,
and a copy of all of it is saved (measured on images of 85 kB: less than half the time a row).
"""

from __future__ import annotations

import os
import struct
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import BadRow, Rows, Shard, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

UNIT_BYTES = 1 << 20
BIG_ROW = 32 << 10
BAD_VALUE = (ValueError, LookupError, TypeError, ArithmeticError, EOFError, struct.error)

# The bytes of a row (valid during the call only) and its number in the file, to a payload of fresh values.
Decode: TypeAlias = Callable[[memoryview, int], Any]


class Parts(NamedTuple):
    """Rows that begin with the sizes of their parts, in ``head`` bytes. ``places``: from these (and perhaps more) and the
    row's length to where the wanted parts are; ``build``: from those parts to a payload."""

    head: int
    places: Callable[[memoryview, int], list[tuple[int, int]]]
    build: Callable[[list[memoryview]], Any]

    def decode(self, piece: memoryview, row: int) -> Any:
        """The payload of a row that has been read whole."""
        return self.build([piece[start:stop] for start, stop in self.places(piece, len(piece))])


class Spans(NamedTuple):
    """``data``: the file with the rows' bytes. ``offsets``: int64, n + 1: row i is bytes [offsets[i], offsets[i + 1]).

    ``parts``: given where not all parts of the rows are wanted; big rows are then read without the others.
    """

    data: StoredFile
    offsets: I64
    decode: Decode
    parts: Parts | None = None


class SpanShard(Shard):
    """A file of ``rows`` rows in ``nbytes`` bytes, both known before it is opened.

    Units have as nearly equal numbers of rows as can be, so that they don't depend on whether the counts came from an
    index or from the file itself.
    """

    def __init__(self, file: StoredFile, rows: int, nbytes: int) -> None:
        self.file = file
        self.rows = rows
        units = min(rows, max(1, nbytes // UNIT_BYTES))
        self._firsts: I64 = np.arange(units + 1, dtype=np.int64) * rows // max(1, units)
        self.unit_rows: I64 = np.diff(self._firsts)
        self.unit_bytes: I64 = np.diff(self._firsts * nbytes // max(1, rows))

    @abstractmethod
    def spans(self) -> Spans:
        """Where the rows lie. Raises ``ReadError`` if the file doesn't hold what was said of it."""

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        spans, first = self.spans(), int(self._firsts[unit])
        offsets = spans.offsets[first : int(self._firsts[unit + 1]) + 1]
        if spans.data.is_local and offsets[-1] - offsets[0] >= BIG_ROW * (len(offsets) - 1):
            fetch_ahead(spans.data, int(offsets[0]), int(offsets[-1]))
            return BigRowsUnit(self, first, len(offsets) - 1)
        return SpanUnit(spans.data.read_range(int(offsets[0]), int(offsets[-1])), offsets, spans.decode, first)

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``: reads the bytes of these rows only."""
        spans, index = self.spans(), np.asarray(rows, np.int64)
        ranges = list(zip(spans.offsets[index].tolist(), spans.offsets[index + 1].tolist(), strict=True))
        if spans.parts is not None and sum(stop - start for start, stop in ranges) > BIG_ROW * len(ranges):
            return _parts_of_rows(spans.data, spans.parts, ranges)
        parts = zip(spans.data.read_ranges(ranges, scattered=True), index.tolist(), strict=True)
        return [decoded(spans.decode, memoryview(part), row) for part, row in parts]

    def check_rows(self, rows: int, says: str) -> None:
        """Raises ``ReadError`` if the file holds another number of rows than ``says`` (what told them) said."""
        if rows != self.rows:
            text = f"{self.file}: it holds {rows} rows, {says} says {self.rows}: the file is broken or was replaced"
            raise ReadError(text, path=str(self.file))


class SpanUnit(Unit):
    """Some rows, as bytes. Each is decoded when it is taken. ``first``: number of its first row in the file."""

    def __init__(self, raw: bytes, offsets: I64, decode: Decode, first: int) -> None:
        self._raw, self._offsets, self._decode, self._first = raw, offsets - offsets[0], decode, first
        self.rows, self.nbytes = len(offsets) - 1, len(raw) + self._offsets.nbytes

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``."""
        index, raw = np.asarray(rows, np.int64), memoryview(self._raw)
        starts, stops = self._offsets[index].tolist(), self._offsets[index + 1].tolist()
        places = zip(starts, stops, (index + self._first).tolist(), strict=True)
        return [decoded(self._decode, raw[start:stop], row) for start, stop, row in places]


class BigRowsUnit(Unit):
    """Rows of a local file that are read by ``shard.take`` when they are taken. ``first``: number of its first row."""

    def __init__(self, shard: Shard, first: int, rows: int) -> None:
        self._shard, self._first = shard, first
        self.rows, self.nbytes = rows, 0

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``. Raises ``ReadError`` if the file has changed."""
        index = np.asarray(rows, np.int64)
        if len(index) and not 0 <= index.min() <= index.max() < self.rows:
            raise IndexError(f"rows {index.min()} to {index.max()} were asked of a unit of {self.rows} rows")
        return self._shard.take(index + self._first) or []


def _parts_of_rows(data: StoredFile, parts: Parts, rows: Sequence[tuple[int, int]]) -> list[Any]:
    """Payloads of rows, of which only the heads and then the wanted parts are read."""
    heads = data.read_ranges([(start, min(stop, start + parts.head)) for start, stop in rows], scattered=True)
    places = [
        decoded(lambda head, nbytes: parts.places(head, nbytes), memoryview(head), stop - start)
        for head, (start, stop) in zip(heads, rows, strict=True)
    ]
    ranges = [
        (start + first, start + last)
        for (start, _), found in zip(rows, places, strict=True)
        for first, last in ([] if isinstance(found, BadRow) else found)
    ]
    pieces = iter(data.read_ranges(ranges, scattered=True) if ranges else [])
    payloads = []
    for found in places:
        if not isinstance(found, BadRow):
            mine = [memoryview(next(pieces)) for _ in found]
            found = decoded(lambda _, __, mine=mine: parts.build(mine), memoryview(b""), 0)  # type: ignore[misc]
        payloads.append(found)
    return payloads


def fetch_ahead(file: StoredFile, start: int, stop: int) -> None:
    """Asks the kernel to have a range of a local file in memory soon, where it can be asked."""
    with file.open() as stream:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(stream.fileno(), start, stop - start, os.POSIX_FADV_WILLNEED)


def decoded(decode: Decode, piece: memoryview, row: int) -> Any:
    """The payload of a row, or a ``BadRow`` that says why it can't be had."""
    try:
        return decode(piece, row)
    except BAD_VALUE as error:
        return BadRow(error)


def checked_offsets(file: StoredFile, offsets: I64, start: int, stop: int) -> I64:
    """Offsets as they are. Raises ``ReadError`` unless they rise from at least ``start`` and end at ``stop`` exactly."""
    if offsets[0] < start or offsets[-1] != stop or (np.diff(offsets) < 0).any():
        text = (
            f"{file}: its rows' offsets run from {offsets[0]} to {offsets[-1]}, they must rise within bytes {start} to "
            f"{stop}: the file is cut short or broken"
        )
        raise ReadError(text, path=str(file))
    return offsets


def chosen(row: dict[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Only these columns of a row, None for those that it lacks."""
    return row if columns is None else {name: row.get(name) for name in columns}
