"""Parquet files. A unit is a row group, exactly."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.arrow_rows import BAD_VALUE, ArrowUnit, RowsUnit, can_be_made, check_names
from zephon_nodes.formats.base import Shard, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile, read_errors

_BATCH_BYTES, _CACHED_BYTES, _BATCH_ROWS = 64 << 20, 1 << 20, 8192
_LONG_ROW = 2048
_LOCAL = fs.LocalFileSystem()  # opens a file with one call less that lets go of Python's lock than ``pa.OSFile``
_FOOTERS = 64
_PIECE = 256 << 10
# Bytes that come in the time that a request takes: 50 ms, the range and whether the file is the same, at 100 MB/s.
_A_REQUEST = 4 << 20


class ParquetFormat:
    """Parquet. Opening reads the footer. Rows are as ``ArrowUnit`` says.

    ``columns`` may name nested fields with dots, as pyarrow does. One that a file lacks is None in each row of it.
    """

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet", ".pq")

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it has no readable footer."""
        return ParquetShard(file, columns)


class ParquetShard(Shard):
    """One Parquet file. Of its footer only counts stay here; the last few footers read are kept per process."""

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        self.file = file
        footer = _footer(file)
        with _decoding(file, "the footer"):
            self.columns = tuple(footer.schema.to_arrow_schema().names)
            check_names(file, self.columns, columns)
            leaves = [footer.schema.column(i).path for i in range(len(footer.schema))]
        chosen = {
            name: [i for i, leaf in enumerate(leaves) if f"{leaf}.".startswith(f"{name}.")] for name in columns or ()
        }
        self.missing = tuple(name for name, found in chosen.items() if not found)
        self._columns = None if columns is None else [name for name in columns if name not in self.missing]
        taken = None if columns is None else sorted({i for found in chosen.values() for i in found})
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        self.unit_rows: I64 = np.array([group.num_rows for group in groups], np.int64)
        self.unit_bytes: I64 = np.array([_nbytes(group, taken) for group in groups], np.int64)
        wanted = sum(_stored(group, taken) for group in groups)
        self.whole = _worth_whole(wanted, sum(_stored(group, None) for group in groups), len(groups))

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        footer = _footer(self.file)
        with _decoding(self.file, f"row group {unit}"), _source(self.file, self.whole, True) as source:
            reader = _reader(source, footer)
            decoded = self._made(reader, unit)
            if decoded is None:
                # Not more at once: nested columns can't be decoded over 2 GiB.
                decoded = ArrowUnit(list(self._batches(reader, unit, _BATCH_BYTES)), self._absent())
        rows = int(self.unit_rows[unit])
        if decoded.rows != rows:
            text = f"{self.file}: row group {unit} holds {decoded.rows} rows, its footer says {rows}: the file is broken or has changed"
            raise ReadError(text, path=str(self.file))
        return decoded

    def _made(self, reader: pq.ParquetFile, unit: int) -> Unit | None:
        """A unit of long rows, all made at once; None if that can't be done."""
        nbytes = int(self.unit_bytes[unit])
        if nbytes < _LONG_ROW * self.unit_rows[unit] or not can_be_made(self._schema(reader)):
            return None
        with suppress(*BAD_VALUE):
            return RowsUnit(self._batches(reader, unit, _CACHED_BYTES), self._absent())
        return None

    def _batches(self, reader: pq.ParquetFile, unit: int, nbytes: int) -> Iterable[pa.RecordBatch]:
        """A row group in batches of about ``nbytes``. What fits into one is read by one call, which takes Python's lock
        less often."""
        rows = int(self.unit_rows[unit])
        fit = rows * nbytes // max(1, int(self.unit_bytes[unit]))
        options = {"columns": self._columns, "use_threads": False}
        if fit >= rows:
            return reader.read_row_group(unit, **options).to_batches()  # type: ignore[no-any-return]
        return reader.iter_batches(row_groups=[unit], batch_size=min(max(fit, 1), _BATCH_ROWS), **options)  # type: ignore[no-any-return]

    def _schema(self, reader: pq.ParquetFile) -> pa.Schema:
        """Of what is read; with a column inside another one, of everything."""
        schema = reader.schema_arrow
        inside = self._columns is None or not set(self._columns) <= set(schema.names)
        return schema if inside else pa.schema([schema.field(name) for name in self._columns or ()])

    def _absent(self) -> list[str]:
        tops = {name.partition(".")[0] for name in self._columns or ()}
        return [top for top in dict.fromkeys(name.partition(".")[0] for name in self.missing) if top not in tops]


def _nbytes(group: pq.RowGroupMetaData, leaves: Sequence[int] | None) -> int:
    if leaves is None:
        return int(group.total_byte_size)
    return sum(group.column(leaf).total_uncompressed_size for leaf in leaves)


def _worth_whole(wanted: int, size: int, groups: int) -> bool:
    """Whether a file is better copied into the cache than read by ranges, a row group at a time.

    Half of it is worth the rest, which comes in the same requests and serves the next pass; and in a small file the
    requests cost more than the bytes. Measured by tests/benchmarks/stores.py.
    """
    return 2 * wanted >= size or size <= wanted + groups * 2 * _A_REQUEST


def _stored(group: pq.RowGroupMetaData, leaves: Sequence[int] | None) -> int:
    """Bytes of some columns in the file."""
    every = range(group.num_columns) if leaves is None else leaves
    return sum(group.column(leaf).total_compressed_size for leaf in every)


@lru_cache(maxsize=_FOOTERS)
def _footer(file: StoredFile) -> pq.FileMetaData:
    with _decoding(file, "the footer"), _source(file) as source:
        return pq.read_metadata(source)


def _reader(source: Any, footer: pq.FileMetaData) -> pq.ParquetFile:
    """One coalesced request a row group, where a request has a price; else pieces that stay in the processor's cache."""
    near = isinstance(source, pa.NativeFile)
    return pq.ParquetFile(source, metadata=footer, pre_buffer=not near, buffer_size=_PIECE if near else 0)


@contextmanager
def _source(file: StoredFile, fetch: bool = False, check: bool = False) -> Iterator[Any]:
    """What pyarrow reads from. Not a memory map: a file cut short while it is mapped kills the process with SIGBUS.

    ``fetch``: copies a remote file into its cache, if it has one. ``check``: that it hasn't changed, once it has been read.
    """
    with file.held(fetch) as near:
        if near.is_local:
            with _LOCAL.open_input_file(os.fsencode(near.path)) as source:
                if near.size not in (None, source.size()):
                    raise file.changed(f"it had {near.size} bytes and now has {source.size()}")
                yield source
            return
        try:
            with _remote(near) as stream:
                yield stream
        except ReadError:
            raise
        except (OSError, pa.ArrowException):
            file.check_unchanged()  # says more than that it can't be decoded
            raise
        if check:
            file.check_unchanged()


@contextmanager
def _remote(file: StoredFile) -> Iterator[Any]:
    with file.open(0) as stream:  # pyarrow asks for just what it needs
        try:
            stream.seek(0, os.SEEK_END)
        except ValueError as error:  # fsspec's stream over HTTP calls itself seekable, and isn't
            text = (
                f"{file}: the server tells no size or reads no ranges, and Parquet needs both; copy the file elsewhere"
            )
            raise ReadError(text, path=str(file)) from error
        yield stream


@contextmanager
def _decoding(file: StoredFile, what: str) -> Iterator[None]:
    with read_errors(file, f"read {what} of"):
        try:
            yield
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise ReadError(f"{file}: {what} can't be read as Parquet: {error}", path=str(file)) from error
