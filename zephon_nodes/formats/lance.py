"""Lance datasets, read with ``pylance``. A fragment is a shard.

A dataset is a folder: ``data/*.lance`` files, and manifests that say which of them, with which rows deleted, a version
consists of. The library reads all of it, from local disks and its own clients of object stores, so this project's caches and
retries don't apply. The newest version is taken when the ``Dataset`` is made, and read for as long as it lives: what is
appended or deleted meanwhile isn't seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.arrow_rows import ArrowUnit
from zephon_nodes.formats.base import Rows, Shard, Unit
from zephon_nodes.formats.spans import UNIT_BYTES
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

_DATASETS = 16
_LANCE_READS = ("s3://", "gs://", "az://", "abfs://", "abfss://", "http://", "https://")


@dataclass(frozen=True)
class LanceFragment(StoredFile):
    """Fragment ``fragment`` of version ``pinned`` of the dataset at ``root``."""

    root: str = ""
    pinned: int = 0
    fragment: int = 0


class LanceFormat:
    """Lance datasets; needs ``pip install pylance``. Give the ``.lance`` folder, or one that holds several.

    Rows are as ``ArrowUnit`` says, without those that are deleted. ``columns`` are names of the top level.
    """

    name = "lance"
    suffixes: tuple[str, ...] = (".lance",)

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """The fragments of the newest version of each dataset. Raises ``ConfigError`` for files outside of a dataset."""
        roots: dict[str, list[StoredFile]] = {}
        for file in files:
            root, middle, _ = file.path.rpartition("/data/")
            if not middle:
                raise ConfigError(
                    f"{file}: it is no part of a Lance dataset; give the folder that holds data/ and _versions/"
                )
            roots.setdefault(root, []).append(file)
        return [shard for root, inside in roots.items() for shard in _fragments(root, inside)]

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a fragment. Raises ``ReadError`` if it can't be read, ``ConfigError`` without pylance."""
        if not isinstance(file, LanceFragment):
            raise ReadError(f"{file}: its dataset isn't known; read it with Dataset.from_path", path=str(file))
        return LanceShard(file, columns)


class LanceShard(Shard):
    """One fragment. Units are runs of rows of about a MiB as stored."""

    def __init__(self, file: LanceFragment, columns: Sequence[str] | None) -> None:
        self.file = self._fragment = file
        with _decoding(file):
            opened = _fragment(file)
            rows = int(opened.count_rows())
            self.columns = tuple(opened.schema.names)
        self.missing = tuple(name for name in columns or () if name not in self.columns)
        self._columns = None if columns is None else [name for name in columns if name not in self.missing]
        nbytes = file.size or 0
        units = min(rows, max(1, nbytes // UNIT_BYTES))
        self._firsts: I64 = np.arange(units + 1, dtype=np.int64) * rows // max(1, units)
        self.unit_rows: I64 = np.diff(self._firsts)
        self.unit_bytes: I64 = np.diff(self._firsts * nbytes // max(1, rows))

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        return self._rows(np.arange(self._firsts[unit], self._firsts[unit + 1]))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``: reads the pages of these rows."""
        index, places = np.unique(np.asarray(rows, np.int64), return_inverse=True)
        return self._rows(index).take(places) if len(index) else []

    def _rows(self, index: I64) -> ArrowUnit:
        with _decoding(self._fragment):
            table = _fragment(self._fragment).take(index.tolist(), columns=self._columns)
            if table.num_rows != len(index):
                raise ValueError(f"{table.num_rows} rows came, {len(index)} were asked for")
            return ArrowUnit(table.to_batches(), self.missing)


def _fragments(root: str, files: Sequence[StoredFile]) -> list[StoredFile]:
    sizes = {file.path.rpartition("/")[2]: file.size or 0 for file in files}
    options, name = files[0].storage_options, files[0].name.rpartition("/data/")[0] or "."
    probe = LanceFragment(root, name, storage_options=options, root=root)
    if not probe.is_local and not root.startswith(_LANCE_READS):
        raise ConfigError(f"{root}: Lance reads local folders and {', '.join(_LANCE_READS)}; copy the dataset there")
    with _decoding(probe):
        dataset = _dataset(root, 0, _options(probe))
        pinned, found = int(dataset.version), dataset.get_fragments()
    shards: list[StoredFile] = []
    for fragment in found:
        names = [data.path for data in fragment.metadata.files]
        lost = next((path for path in names if path not in sizes), None)
        if lost is not None:
            raise ReadError(f"{root}/data/{lost}: version {pinned} lists this file, and it is not there", path=root)
        number = int(fragment.fragment_id)
        size = sum(sizes[path] for path in names)
        facts = (f"{root}/{number}", f"{name}/{number}", size, f"{pinned}", options)
        shards.append(
            LanceFragment(*facts, label=f"{root}, fragment {number}", root=root, pinned=pinned, fragment=number)
        )
    return shards


def _fragment(file: LanceFragment) -> Any:
    return _pinned(file.root, file.pinned, _options(file)).get_fragment(file.fragment)


def _options(file: StoredFile) -> tuple[tuple[str, str], ...]:
    given = file.storage_options() if callable(file.storage_options) else file.storage_options
    return tuple(sorted((name, value) for name, value in given.items() if isinstance(value, str)))


def _dataset(root: str, version: int, options: tuple[tuple[str, str], ...]) -> Any:
    """A version of a dataset; 0 for the newest."""
    try:
        import lance
    except ImportError as error:
        raise ConfigError(f"{root}: Lance datasets need pylance: pip install pylance") from error
    return lance.dataset(root, version=version or None, storage_options=dict(options) or None)


_pinned = lru_cache(maxsize=_DATASETS)(_dataset)


@contextmanager
def _decoding(file: StoredFile) -> Iterator[None]:
    try:
        yield
    except (ReadError, ConfigError):
        raise
    except (OSError, ValueError, RuntimeError, pa.ArrowException) as error:
        raise ReadError(f"{file}: it can't be read as Lance: {error}", path=str(file)) from error
