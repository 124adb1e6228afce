"""ArrayRecord files, read with ``array_record``: its Riegeli chunks with their checksums aren't worth reading anew.

The library opens local paths only, so a remote file is copied first. Opening starts a thread pool and reads two footers (most
of a millisecond), so the last few readers stay open: this is the one format that holds descriptors, at most 16 a process.
It reports a broken file as one without records, so its ``ok()`` is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.base import Rows, Shard, Unit
from zephon_nodes.formats.decompress import local_path
from zephon_nodes.formats.spans import UNIT_BYTES
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

FIELD = "record"
_READERS = 16
_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"


class ArrayRecordFormat:
    """ArrayRecord files; needs ``pip install array_record``. A row is ``{"record": bytes}``; what the bytes mean is yours to say."""

    name = "array_record"
    suffixes: tuple[str, ...] = (".array_record", ".arrayrecord")

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it can't be read, ``ConfigError`` without array_record."""
        return ArrayRecordShard(file, columns)


class ArrayRecordShard(Shard):
    """One file. Units have about a MiB as stored."""

    columns = (FIELD,)

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        self.file = file
        with _reading(file) as reader:
            rows = int(reader.num_records())
        nbytes = file.size or 0
        units = min(rows, max(1, nbytes // UNIT_BYTES))
        self._firsts: I64 = np.arange(units + 1, dtype=np.int64) * rows // max(1, units)
        self.unit_rows: I64 = np.diff(self._firsts)
        self.unit_bytes: I64 = np.diff(self._firsts * nbytes // max(1, rows))
        self.missing = tuple(name for name in columns or () if name != FIELD)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        with _reading(self.file) as reader:
            return RecordsUnit(reader.read(int(self._firsts[unit]), int(self._firsts[unit + 1])))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``."""
        with _reading(self.file) as reader:
            return [{FIELD: record} for record in reader.read(np.asarray(rows, np.int64).tolist())] if len(rows) else []


class RecordsUnit(Unit):
    """Some records."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = records
        self.rows, self.nbytes = len(records), sum(map(len, records))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``."""
        return [{FIELD: self._records[row]} for row in rows]

    def sizes(self) -> I64:
        """See ``Unit.sizes``: the bytes of the records."""
        return np.array([len(record) for record in self._records], np.int64)


@contextmanager
def _reading(file: StoredFile) -> Iterator[Any]:
    with local_path(file) as path:
        facts = os.stat(path)
        if file.is_local and file.size not in (None, facts.st_size):
            raise file.changed(f"it had {file.size} bytes and now has {facts.st_size}")
        reader = _reader(path, facts.st_size, facts.st_mtime_ns)
        if not reader.ok():
            raise ReadError(f"{file}: it can't be read as ArrayRecord: it is cut short or broken", path=str(file))
        try:
            yield reader
        except (RuntimeError, IndexError, ValueError) as error:
            raise ReadError(f"{file}: it can't be read as ArrayRecord: {error}", path=str(file)) from error


@lru_cache(maxsize=_READERS)
def _reader(path: str, size: int, mtime_ns: int) -> Any:
    """The reader of a file as it was then: one that has been replaced has another key."""
    try:
        from array_record.python import array_record_module
    except ImportError as error:
        raise ConfigError(f"{path}: ArrayRecord files need array_record: pip install array_record") from error
    return array_record_module.ArrayRecordReader(path, _OPTIONS)
