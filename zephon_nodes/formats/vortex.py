"""Vortex files, read with ``vortex-data``: its encodings are many and change, and it is fast.

It reads through a function of ours, so ranges, caches and retries are those of every other format, and no file stays open.
A unit is a split, the rows that the file's chunks let be read together. Single rows come by ``scan(indices=...)``, which wants
them in rising order and gives them that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.arrow_rows import ArrowUnit
from zephon_nodes.formats.base import Rows, Shard, Unit
from zephon_nodes.formats.decompress import sized
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

VALUE = "value"  # the column of files that hold no structs
_FILES = 64
_VIEWS = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}


class VortexFormat:
    """Vortex files; needs ``pip install vortex-data`` (Python 3.11 or newer). Rows are as ``ArrowUnit`` says; a file whose
    root isn't a struct gives ``{"value": it}``. ``columns`` are names of the top level."""

    name = "vortex"
    suffixes: tuple[str, ...] = (".vortex",)

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if its footer can't be read, ``ConfigError`` without vortex-data."""
        return VortexShard(file, columns)


class VortexShard(Shard):
    """One file. Its footer is kept per process for the last 64 files used."""

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        self.file = file
        opened = _opened(file)
        with _decoding(file, "the footer"):
            schema = opened.dtype.to_arrow_schema() if _is_struct(opened) else None
            self.columns = (VALUE,) if schema is None else tuple(schema.names)
            splits = np.array(opened.splits(), np.int64).reshape(-1, 2)
            rows = len(opened)
        self.missing = tuple(name for name in columns or () if name not in self.columns)
        names = None if columns is None else [name for name in columns if name not in self.missing]
        self._columns = None if schema is None else names
        self._starts: I64 = splits[:, 0]
        self.unit_rows: I64 = splits[:, 1] - splits[:, 0]
        if rows != self.unit_rows.sum():
            raise ReadError(f"{file}: its splits hold {self.unit_rows.sum()} of {rows} rows", path=str(file))
        self.unit_bytes: I64 = self.unit_rows * max(1, file.size or 1) // max(1, rows)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        start = int(self._starts[unit])
        with _decoding(self.file, f"split {unit}"):
            scan = _opened(self.file).to_repeated_scan(self._columns)
            return self._unit(
                scan.execute(row_range=(start, start + int(self.unit_rows[unit]))), int(self.unit_rows[unit])
            )

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``: reads the parts of the file that hold these rows."""
        import vortex

        index, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        if not len(index):
            return []
        with _decoding(self.file, "rows"):
            wanted = vortex.array(pa.array(index, pa.uint64()))
            found = _opened(self.file).scan(self._columns, indices=wanted)
            return self._unit(found, len(index)).take(places)

    def _unit(self, arrays: Any, rows: int) -> ArrowUnit:
        whole = arrays.read_all().to_arrow_array()
        chunks = whole.chunks if isinstance(whole, pa.ChunkedArray) else [whole]
        batches = [_batch(chunk) for chunk in chunks]
        unit = ArrowUnit(batches, self.missing)
        if unit.rows != rows:
            raise ValueError(f"{unit.rows} rows came, {rows} were asked for")
        return unit


class _Source:
    """What vortex reads from: ``vortex.io.ReadBytesAt``."""

    def __init__(self, file: StoredFile) -> None:
        self._file = file

    def size(self) -> int:
        return self._file.size or 0

    def read_at(self, offset: int, length: int) -> bytes:
        return self._file.read_range(offset, offset + length)


@lru_cache(maxsize=_FILES)
def _opened(file: StoredFile) -> Any:
    try:
        import vortex
    except ImportError as error:
        raise ConfigError(f"{file}: Vortex files need vortex-data: pip install vortex-data") from error
    with _decoding(file, "the footer"):
        return vortex.open_readable(_Source(sized(file)), without_segment_cache=True)


def _is_struct(opened: Any) -> bool:
    return type(opened.dtype).__name__ == "StructDType"


def _batch(array: pa.Array) -> pa.RecordBatch:
    if not pa.types.is_struct(array.type):
        return pa.record_batch({VALUE: _plain(array)})
    fields = [array.type.field(i).name for i in range(array.type.num_fields)]
    columns = [_plain(column) for column in array.flatten()]
    if not columns:
        raise ValueError("it has no columns")
    return pa.RecordBatch.from_arrays(columns, fields)


def _plain(column: pa.Array) -> pa.Array:
    """Views as offsets, which rows are read from faster."""
    return column.cast(_VIEWS[column.type]) if column.type in _VIEWS else column


@contextmanager
def _decoding(file: StoredFile, what: str) -> Iterator[None]:
    try:
        yield
    except (ReadError, ConfigError):
        raise
    except (RuntimeError, ValueError, OSError, TypeError, pa.ArrowException) as error:
        cause = str(error).partition("\nBacktrace")[0]
        raise ReadError(f"{file}: {what} can't be read as Vortex: {cause}", path=str(file)) from error
