"""JSON Lines: one JSON object a line. A unit is the lines that begin in the same MiB of the file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from zephon_nodes.formats.base import BadRow, Rows, Shard, Unit
from zephon_nodes.formats.decompress import plain
from zephon_nodes.formats.line_index import line_offsets
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

UNIT_BYTES = 1 << 20
_SHOWN = 60
_loads = json.JSONDecoder(strict=False).decode  # not strict: a raw control character in a string is let through


class JsonlFormat:
    """JSON Lines in UTF-8, plain or compressed with gzip or zstd. A row is the object, as ``json`` gives it.

    Lines end at b"\\n" only, so U+2028 and the like may stand in strings. Blank lines are no rows. A line that isn't a
    JSON object is a ``BadRow``; raw control characters in strings are let through. Opening reads the file once to find its lines, unless an index is there (see
    ``line_offsets``); a compressed file is decompressed into the cache folder, once for each path, size and version.

    ``columns`` are keys of the object (dots have no meaning); one that a line lacks is None.
    """

    name = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst")

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it can't be read or decompressed."""
        return JsonlShard(file, columns)


class JsonlShard(Shard):
    """One file of lines. Only the offsets of the lines are kept, mapped from disk where they could be written."""

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        self.file = file
        self._data = plain(file)
        self._columns = columns
        self._offsets = line_offsets(self._data)
        blocks = np.arange(0, int(self._offsets[-1]) + UNIT_BYTES, UNIT_BYTES)
        self._firsts: I64 = np.unique(np.searchsorted(self._offsets[:-1], blocks))
        self.unit_rows: I64 = np.diff(self._firsts)
        self.unit_bytes: I64 = np.diff(self._offsets[self._firsts])

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        offsets = self._offsets[self._firsts[unit] : self._firsts[unit + 1] + 1]
        return JsonlUnit(self._data.read_range(int(offsets[0]), int(offsets[-1])), offsets, self._columns)

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``: reads the bytes of these lines only."""
        index = np.asarray(rows, np.int64)
        spans = zip(self._offsets[index].tolist(), self._offsets[index + 1].tolist(), strict=True)
        return [parse_line(line, self._columns) for line in self._data.read_ranges(list(spans), scattered=True)]


class JsonlUnit(Unit):
    """Some lines, as bytes. Each is parsed when it is taken."""

    def __init__(self, raw: bytes, offsets: I64, columns: Sequence[str] | None) -> None:
        self._raw, self._offsets, self._columns = raw, offsets - offsets[0], columns
        self.rows, self.nbytes = len(offsets) - 1, len(raw) + self._offsets.nbytes

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``."""
        index = np.asarray(rows, np.int64)
        spans = zip(self._offsets[index].tolist(), self._offsets[index + 1].tolist(), strict=True)
        return [parse_line(self._raw[start:stop], self._columns) for start, stop in spans]

    def sizes(self) -> I64:
        """See ``Unit.sizes``: the bytes of the lines."""
        sizes: I64 = np.diff(self._offsets)
        return sizes


def parse_line(line: bytes, columns: Sequence[str] | None = None) -> Any:
    """The object in a line, or of it the ``columns``; a ``BadRow`` if it is no JSON object in UTF-8."""
    try:
        row = _loads(str(line, "utf-8"))
    except UnicodeDecodeError as error:
        return _bad(f"not UTF-8 at byte {error.start} of the line ({error.reason})", line, error)
    except json.JSONDecodeError as error:
        return _bad(f"not JSON: {error.msg} (character {error.pos} of the line)", line, error)
    except (ValueError, RecursionError) as error:
        return _bad(f"JSON that can't be read: {error}", line, error)
    if not isinstance(row, dict):
        return _bad(f"a JSON object was expected, a {type(row).__name__} came", line, None)
    return row if columns is None else {name: row.get(name) for name in columns}


def _bad(text: str, line: bytes, cause: Exception | None) -> BadRow:
    shown = line.rstrip() if len(line) <= _SHOWN else line[:_SHOWN] + b"..."
    error = ValueError(f"{text}; the line: {shown.decode('utf-8', 'replace')!r}")
    error.__cause__ = cause
    return BadRow(error)
