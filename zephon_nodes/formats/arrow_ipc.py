"""Arrow IPC files and streams, such as Hugging Face's ``save_to_disk`` writes. A unit is a record batch, exactly.

A stream is a row of messages: 0xFFFFFFFF, an i32 length, that many bytes of flatbuffer, then a body whose length the
flatbuffer tells; first the schema, then dictionaries and record batches, at last a message of length 0. A file is the same
between a magic word and a footer. The footer doesn't say how many rows a batch has, so both are opened alike: the messages'
heads are read once (bodies are skipped) and their places kept on disk (see ``kept``).

pyarrow decodes the batches; only the four numbers that it doesn't give without reading a body are looked up here.
Single rows and big rows of a local file are taken from a memory map, so only their pages are read, and nothing twice. Its size
is looked at before each use, but a process dies from SIGBUS if the file shrinks, or a network file system fails, in between:
``memory_map=False`` reads whole batches instead.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.arrow_rows import ArrowUnit, check_names
from zephon_nodes.formats.base import Rows, Shard, Unit
from zephon_nodes.formats.decompress import sized
from zephon_nodes.formats.kept import kept
from zephon_nodes.formats.spans import BIG_ROW, BigRowsUnit, fetch_ahead
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile, read_errors

_MAGIC = b"ARROW1\0\0"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_MOST = 256 << 20  # bytes of a message's head; a longer one is garbage
_LAYOUT = 1
_SCANS, _MAPS = 256, 64


class ArrowFormat:
    """Arrow IPC files and streams. Rows are as ``ArrowUnit`` says.

    In a folder of ``save_to_disk``, the shards are those that ``state.json`` lists, in its order; a folder of several
    splits is a ``ConfigError`` that names them. ``columns`` are names of the top level.

    ``memory_map`` (True): take single and big rows of local files from a map: about three times as fast, but a file that is
    cut short while it is used ends the process. False reads whole batches.

    >>> from zephon_nodes.formats.arrow_ipc import ArrowFormat
    >>> ArrowFormat(memory_map=False).suffixes
    ('.arrow', '.arrows', '.ipc', '.feather')
    """

    name = "arrow"
    suffixes: tuple[str, ...] = (".arrow", ".arrows", ".ipc", ".feather")
    companions: tuple[str, ...] = ("state.json", "dataset_dict.json")

    def __init__(self, memory_map: bool = True) -> None:
        self.memory_map = memory_map

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """The shards. Raises ``ReadError`` if one that ``state.json`` lists isn't there."""
        for file in files:
            if os.path.basename(file.name) == "dataset_dict.json":
                splits = _json(file, "splits")
                if len(splits) > 1:
                    folder = os.path.dirname(file.path)
                    raise ConfigError(f"{folder} has the splits {', '.join(splits)}; name one: {folder}/{splits[0]}")
        shards = {file.path: file for file in files if not file.name.endswith(".json")}
        for state in files:
            if os.path.basename(state.name) == "state.json":
                folder = state.path.rpartition("/")[0]
                listed = [f"{folder}/{entry['filename']}" for entry in _json(state, "_data_files")]
                inside = {path: shards.pop(path) for path in list(shards) if path.rpartition("/")[0] == folder}
                lost = next((path for path in listed if path not in inside), None)
                if lost is not None:
                    raise ReadError(f"{lost}: state.json beside it lists this file, and it is not there", path=lost)
                shards |= {path: inside[path] for path in listed}
        return list(shards.values())

    def settings(self) -> dict[str, Any]:
        """See ``Format``: none, ``memory_map`` gives the same rows."""
        return {}

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it isn't Arrow, or ends before its end mark."""
        return ArrowShard(file, columns, memory_map=self.memory_map)


class ArrowShard(Shard):
    """One file, or bytes [start, stop) of one. The places of its messages are mapped from disk where they could be written."""

    def __init__(
        self,
        file: StoredFile,
        columns: Sequence[str] | None,
        start: int = 0,
        stop: int | None = None,
        memory_map: bool = True,
    ) -> None:
        self.file, self._place, self._memory_map = file, (file, start, stop), memory_map
        scan = _scan(*self._place)
        self.columns = tuple(scan.schema.names)
        check_names(file, self.columns, columns)
        self.missing = tuple(name for name in columns or () if name not in self.columns)
        self._columns = None if columns is None else [name for name in columns if name not in self.missing]
        self.unit_rows: I64 = scan.rows
        self._starts: I64 = np.concatenate([[0], np.cumsum(scan.rows)])
        share = 1.0 if columns is None else len(self._columns or ()) / max(1, len(self.columns))
        self.unit_bytes: I64 = ((scan.stops - scan.starts) * share).astype(np.int64)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        scan = _scan(*self._place)
        rows = int(self.unit_rows[unit])
        if self._maps(scan) and int(self.unit_bytes[unit]) >= BIG_ROW * max(1, rows):
            fetch_ahead(scan.data, int(scan.starts[unit]), int(scan.stops[unit]))
            return BigRowsUnit(self, int(self._starts[unit]), rows)
        ranges = [*scan.dictionaries_before(unit), (int(scan.starts[unit]), int(scan.stops[unit]))]
        parts = scan.data.read_ranges(ranges)
        with _decoding(self.file, f"record batch {unit}"):
            return self._unit(unit, _decoded(scan, parts))

    def take(self, rows: Rows) -> list[Any] | None:
        """See ``Shard.take``: from a memory map, for local files without dictionaries or compression."""
        scan, index = _scan(*self._place), np.asarray(rows, np.int64)
        if not self._maps(scan):
            return None
        if os.stat(scan.data.path).st_size != scan.data.size:
            raise self.file.changed(f"it had {scan.data.size} bytes, and has another size now")
        units = np.searchsorted(self._starts, index, side="right") - 1
        out: list[Any] = [None] * len(index)
        for unit in np.unique(units).tolist():
            places = np.flatnonzero(units == unit)
            found = self._mapped(unit).take(index[places] - self._starts[unit])
            for place, payload in zip(places.tolist(), found, strict=True):
                out[place] = payload
        return out

    def _maps(self, scan: _Scan) -> bool:
        return self._memory_map and scan.mappable and scan.data.is_local

    def _mapped(self, unit: int) -> ArrowUnit:
        return _mapped_unit(self, unit)

    def _unit(self, unit: int, batch: pa.RecordBatch) -> ArrowUnit:
        batch.validate()
        if batch.num_rows != self.unit_rows[unit]:
            raise ValueError(f"{batch.num_rows} rows came, its head says {self.unit_rows[unit]}")
        return ArrowUnit([batch if self._columns is None else batch.select(self._columns)], self.missing)


class _Scan(NamedTuple):
    """``rows``, ``starts``, ``stops``: of the record batches' messages. ``dictionaries``: int64 (n, 2), start and stop of
    theirs. ``mappable``: whether rows can be had without reading a whole batch."""

    data: StoredFile
    schema: pa.Schema
    rows: I64
    starts: I64
    stops: I64
    dictionaries: I64
    mappable: bool
    schema_message: bytes

    def dictionaries_before(self, unit: int) -> list[tuple[int, int]]:
        return [(start, stop) for start, stop in self.dictionaries.tolist() if start < self.starts[unit]]


@lru_cache(maxsize=_SCANS)
def _scan(file: StoredFile, first: int, stop: int | None) -> _Scan:
    data = sized(file)
    end = (data.size or 0) if stop is None else stop

    def fits(found: pa.Buffer) -> bool:
        return len(found) >= 40 and len(found) % 40 == 0

    buffer = kept(data, ".ipc", _LAYOUT, lambda: _places(file, data, first, end), fits)
    table = np.frombuffer(buffer, "<i8").reshape(-1, 5)
    kinds, starts, stops, rows, plain = table.T
    batches, dictionaries = kinds == _BATCH, kinds == _DICTIONARY
    head = data.read_range(int(starts[0]), int(stops[0]))
    with _decoding(file, "the schema"):
        schema = pa.ipc.read_schema(pa.py_buffer(head))
        schema.names  # noqa: B018 (decodes them, which may fail)
    mappable = bool(plain[batches].all()) and not dictionaries.any()
    return _Scan(
        data,
        schema,
        rows[batches].copy(),
        starts[batches].copy(),
        stops[batches].copy(),
        table[dictionaries, 1:3],
        mappable,
        head,
    )


def _decoded(scan: _Scan, parts: Sequence[Any]) -> pa.RecordBatch:
    """The batch of the last message; the others are dictionaries."""
    if len(parts) == 1 and not len(scan.dictionaries):
        return pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(parts[0])), scan.schema)
    end = struct.pack("<Ii", 0xFFFFFFFF, 0)
    with pa.ipc.open_stream(b"".join([scan.schema_message, *parts, end])) as stream:
        return stream.read_next_batch()


@lru_cache(maxsize=_MAPS)
def _mapped_unit(shard: ArrowShard, unit: int) -> ArrowUnit:
    scan = _scan(*shard._place)
    start, stop = int(scan.starts[unit]), int(scan.stops[unit])
    with read_errors(shard.file, "map"), pa.memory_map(os.fsencode(scan.data.path)) as mapped:
        whole = mapped.read_buffer()
    with _decoding(shard.file, f"record batch {unit}"):
        return shard._unit(unit, _decoded(scan, [whole[start:stop]]))


def _places(file: StoredFile, data: StoredFile, first: int, stop: int) -> Any:
    """int64 rows of (kind, start, stop, rows, 1 if not compressed), one for each message."""
    with data.open() as stream, _decoding(file, "its messages"), read_errors(file, "read"):
        found = list(_messages(stream, first, stop))
    if not found or found[0][0] != _SCHEMA:
        raise ReadError(f"{file}: it doesn't begin with a schema: it isn't an Arrow file or stream", path=str(file))
    return np.array(found, "<i8").tobytes()


def _messages(stream: BinaryIO, place: int, size: int) -> Iterator[tuple[int, int, int, int, int]]:
    stream.seek(place)
    place += 8 if stream.read(8) == _MAGIC else 0
    while True:
        stream.seek(place)
        head = stream.read(8)
        if len(head) < 8:
            raise ValueError(f"it ends at byte {size} without an end mark: it is cut short, or still being written")
        mark, length = struct.unpack("<Ii", head)
        if mark != 0xFFFFFFFF:
            raise ValueError(f"no message begins at byte {place}")
        if length == 0:
            return
        meta = stream.read(length) if 0 < length < _MOST else b""
        if len(meta) != length:
            raise ValueError(f"the message at byte {place} says its head has {length} bytes, which aren't there")
        kind, body, rows, plain = _head(meta)
        stop = place + 8 + length + body
        if body < 0 or stop > size:
            raise ValueError(
                f"the message at byte {place} says it ends at byte {stop}, the file at {size}: it is cut short"
            )
        yield kind, place, stop, rows, plain
        place = stop


def _head(meta: bytes) -> tuple[int, int, int, int]:
    """Kind, bytes of the body, rows, and whether it isn't compressed, from the flatbuffer of a message."""
    try:
        message = struct.unpack_from("<I", meta)[0]
        kind = _field(meta, message, 1, "<B")
        body = _field(meta, message, 3, "<q")
        if kind != _BATCH:
            return kind, body, 0, 1
        at = _place(meta, message, 2)
        batch = at + struct.unpack_from("<I", meta, at)[0]
        return kind, body, _field(meta, batch, 0, "<q"), int(not _place(meta, batch, 3))
    except struct.error as error:
        raise ValueError(f"a message's head can't be read: {error}") from error


def _place(meta: bytes, table: int, field: int) -> int:
    """Where a field of a flatbuffer table lies, 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", meta, table)[0]
    if vtable < 0:
        raise struct.error("a table lies outside")
    size = struct.unpack_from("<H", meta, vtable)[0]
    slot = 4 + 2 * field
    offset = struct.unpack_from("<H", meta, vtable + slot)[0] if slot + 2 <= size else 0
    return table + offset if offset else 0


def _field(meta: bytes, table: int, field: int, kind: str) -> int:
    place = _place(meta, table, field)
    return int(struct.unpack_from(kind, meta, place)[0]) if place else 0


def _json(file: StoredFile, key: str) -> Any:
    try:
        return json.loads(b"".join(file.blocks(1 << 20)))[key]
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError(f"{file}: it has no {key!r} that can be read: {error!r}", path=str(file)) from error


@contextmanager
def _decoding(file: StoredFile, what: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, ValueError, OSError, StopIteration) as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"{file}: {what} can't be read as Arrow: {error}", path=str(file)) from error
