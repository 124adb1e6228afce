"""A named collection of files of one format: how many rows, where they lie, and each row by (shard, row)."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from zephon_nodes.errors import ConfigError, RowError
from zephon_nodes.formats import format_named, format_of, gather, wanted_suffixes, without_strangers
from zephon_nodes.formats.base import BadRow, Format, Shard, Unit
from zephon_nodes.formats.memory import MemoryFormat
from zephon_nodes.hashing import I64
from zephon_nodes.hub import hub_paths
from zephon_nodes.listing import PathLike, find_files
from zephon_nodes.progress import bar
from zephon_nodes.recipe import plain_attributes
from zephon_nodes.remote import Options
from zephon_nodes.shard_cache import ShardCache
from zephon_nodes.shard_index import Facts, ShardIndex, find_index, indexed_shards
from zephon_nodes.storage import BESIDE, StoredFile

Map: TypeAlias = "Callable[[Callable[[StoredFile], Shard], Sequence[StoredFile]], Iterable[Shard]]"

_LISTED_FILES = 16
_OPENED_AT_ONCE = 16
_NAMED_COLUMNS = 20


class _Opened:
    """What is known once every file has been opened."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        none = np.zeros(0, np.int64)
        self.shard_rows: I64 = np.array([shard.unit_rows.sum() for shard in shards], np.int64)
        self.shard_starts = _starts(self.shard_rows)
        self.first_units = _starts(np.array([len(shard.unit_rows) for shard in shards], np.int64))
        self.unit_rows: I64 = np.concatenate([none, *(shard.unit_rows for shard in shards)])
        self.unit_bytes: I64 = np.concatenate([none, *(shard.unit_bytes for shard in shards)])
        self.unit_starts = _starts(self.unit_rows)


class Dataset:
    """Files of one format, called shards, each cut into units. Made by ``from_path`` or ``from_rows``.

    Listing the files happens at once; opening them (Parquet footers, JSONL indexes) at the first use of a count or a
    row, once a process. Pickles without what was opened.

    Attributes: ``given``, what ``from_path`` was given, for a recipe file; None for one that isn't made of files.

    ``len(dataset)`` rows; ``dataset[i]`` and iteration read rows in file order, for looking at data, not for training.

    >>> dataset = Dataset.from_rows("greetings", [{"text": "hello"}, {"text": "world"}])
    >>> len(dataset), dataset[-1]
    (2, {'text': 'world'})
    """

    def __init__(
        self, name: str, files: Sequence[StoredFile], fmt: Format, columns: Sequence[str] | None = None
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError(f"a dataset needs a name, a non-empty string; got {name!r}")
        self.name = name
        self.format = fmt
        self.columns = _checked_columns(name, columns)
        self.given: dict[str, Any] | None = None
        self._files = tuple(files)
        self._opened: _Opened | None = None
        self._index: ShardIndex | None = None

    @classmethod
    def from_path(
        cls,
        name: str,
        path: PathLike | Sequence[PathLike],
        fmt: str | Format | None = None,
        columns: Sequence[str] | None = None,
        storage_options: Options | None = None,
        index_dir: PathLike | None = None,
        cache: ShardCache | None = None,
    ) -> Dataset:
        """A dataset of files.

        ``path``: a file, a folder, a glob pattern, a URL that fsspec opens, ``hf://org/name[@revision][/config]/split`` of the
        Hugging Face hub, or a list of those; see ``find_files`` and ``hub_paths``.
        ``fmt``: the name of a format ("parquet", "mds", "webdataset", ...; see ``zephon_nodes.formats``), or a format with
        settings of its own; None tells it by suffix, and then all files must be of one.
        ``columns``: read only these, None for all; fewer is less to read and decode. One that only some files have is
        None in the rows of the others. ``storage_options``: for fsspec (credentials, endpoints), or a function without
        arguments that gives them, called once a process and again when the store refuses them; ``retries=Retries(...)`` among
        them says how long failures are waited out, ten minutes by default. They never stand in a recipe, a state or an
        error. ``cache``: where remote files are copied to; None reads what is needed from the store each time.
        ``index_dir``: folder for JSONL indexes and
        decompressed copies, ``"beside"`` for hidden files beside the data; None for ``~/.cache/zephon_nodes/index``.

        Raises ``ConfigError`` if the name is empty, nothing is found or the format isn't clear, ``ReadError`` if the
        store fails. A column that no file has is a ``ConfigError`` when the files are opened.
        """
        chosen = format_named(fmt) if isinstance(fmt, str) else fmt
        files = find_files(hub_paths(path, chosen, storage_options), wanted_suffixes(chosen), storage_options)
        if cache is not None:
            files = _cached(files, cache)
        if index_dir is not None:
            files = [dataclasses.replace(file, cache_dir=os.fspath(index_dir)) for file in files]
        if index_dir == BESIDE and not all(file.is_local for file in files):
            raise ConfigError(f"dataset {name!r}: index_dir='beside' needs local files; name a local folder instead")
        try:
            if chosen is None:
                chosen = format_of(files)
                files = without_strangers(chosen, files)
            files = gather(chosen, files)
        except ConfigError as error:
            raise ConfigError(f"dataset {name!r}: {error}") from error
        made = cls(name, files, chosen, columns)
        made.given = {"path": path, "fmt": fmt, "columns": columns, "index_dir": index_dir}
        # A cache, retries and functions belong to a machine, not to a recipe file.
        plain = {} if storage_options is None or callable(storage_options) else dict(storage_options)
        plain.pop("retries", None)
        made.given["storage_options"] = plain or None
        return made

    @classmethod
    def from_rows(cls, name: str, rows: Iterable[Any]) -> Dataset:
        """A dataset of Python values, mostly dicts. It keeps the list and gives out copies, so the rows stay as they are.

        Processes get a copy of all rows: meant for small data. Raises ``ConfigError`` for an empty name, or a str, bytes
        or dict in place of a list.
        """
        if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
            raise ConfigError(f"dataset {name!r}: rows must be a list of rows, got a {type(rows).__name__}")
        return cls(name, [StoredFile("rows", "rows")], MemoryFormat(rows))

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, relative to the dataset's root, in order."""
        return tuple(file.name for file in self._files)

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return int(self._open().shard_starts[-1])

    @property
    def shard_rows(self) -> I64:
        """int64, rows of each shard."""
        return self._open().shard_rows

    @property
    def shard_starts(self) -> I64:
        """int64, one longer than ``shard_rows``: rows of the dataset before each shard."""
        return self._open().shard_starts

    @property
    def first_units(self) -> I64:
        """int64, one longer than ``shard_rows``: units of the dataset before each shard."""
        return self._open().first_units

    @property
    def unit_rows(self) -> I64:
        """int64, rows of each unit of all shards, in order, with those that are empty."""
        return self._open().unit_rows

    @property
    def unit_bytes(self) -> I64:
        """int64, estimated bytes of each unit when decoded."""
        return self._open().unit_bytes

    @property
    def unit_starts(self) -> I64:
        """int64, one longer than ``unit_rows``: rows of the dataset before each unit."""
        return self._open().unit_starts

    def open(self, map_: Map | None = None) -> None:
        """Opens all files that no index tells of (see ``write_index``), if that hasn't been done.

        ``map_``: like ``map``; one that keeps order may be parallel. None opens 16 remote files at once. Raises ``ReadError``
        for a file that can't be opened, ``ConfigError`` for a column that no file has.
        """
        if self._opened is None:
            shards = self._indexed_shards()
            unknown = [file for file, shard in zip(self._files, shards, strict=True) if shard is None]
            remote = len(unknown) > 1 and not all(file.is_local for file in unknown)
            new = (map_ or (_at_once if remote else map))(self._shard_of, unknown)
            places = [place for place, shard in enumerate(shards) if shard is None]
            with bar(f"opening {self.name}", len(unknown), "files") as advance:
                for shard, place in zip(new, places, strict=True):  # to its end, where its threads end
                    shards[place] = shard
                    advance(1)
            found = [shard for shard in shards if shard is not None]
            _check_missing(self.name, found)
            self._opened = _Opened(found)

    @property
    def stored_files(self) -> tuple[StoredFile, ...]:
        """The files, in order."""
        return self._files

    def indexed(self) -> Dataset:
        """The same dataset with what opening it has told, which then travels along when it is pickled."""
        if isinstance(self.format, MemoryFormat):
            return self
        facts = {(file.name, file.size, file.version): Facts.of(shard) for file, shard in self._files_and_shards()}
        made = copy.copy(self)
        made._index = dataclasses.replace(self._index or ShardIndex({}), facts=facts)
        return made

    @classmethod
    def from_rank_0(cls, make: Callable[[], Dataset]) -> Dataset:
        """What ``make`` gives on rank 0 of torch.distributed, on every rank: only one lists and opens the files.

        All ranks must call it. Without torch.distributed it is ``make()``. Raises ``ConfigError`` on all ranks if it
        fails on rank 0.

        >>> Dataset.from_rank_0(lambda: Dataset.from_rows("d", [{"n": 1}]))
        Dataset('d', memory, 1 file, 1 rows, first 'rows')
        """
        from zephon_nodes.distributed import from_rank_0, world_of

        return from_rank_0(lambda: make().indexed(), world_of(None, None, None))

    def _files_and_shards(self) -> Iterator[tuple[StoredFile, Shard]]:
        return zip(self._files, self._open().shards, strict=True)

    def _indexed_shards(self) -> list[Shard | None]:
        """The shards that an index tells of; None for the others."""
        if isinstance(self.format, MemoryFormat):
            return [None] * len(self._files)
        if self._index is None:
            self._index = find_index(self._files, self.format.name, self.columns)
        return indexed_shards(self._index, self._files, self._shard_of) if self._index else [None] * len(self._files)

    def unit_of(self, shard: int, row: int) -> tuple[int, int]:
        """(unit in the shard, row in the unit) of a row of a shard. Raises IndexError if there is no such row."""
        opened = self._open()
        if not (0 <= shard < len(self._files) and 0 <= row < opened.shard_rows[shard]):
            raise IndexError(f"dataset {self.name!r} has no row {row} of shard {shard}")
        place = int(opened.shard_starts[shard]) + row
        unit = _holder(opened.unit_starts, place)
        return unit - int(opened.first_units[shard]), place - int(opened.unit_starts[unit])

    def units_of(self, shard: I64, row: I64) -> tuple[I64, I64]:
        """``unit_of`` for int64 arrays, units numbered through the dataset. Raises IndexError if one is outside."""
        opened = self._open()
        if len(shard) and not (shard.min() >= 0 and shard.max() < len(self._files)):
            raise IndexError(f"dataset {self.name!r} has no shard {int(shard.max())}")
        wrong = (row < 0) | (row >= opened.shard_rows[shard])
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise IndexError(f"dataset {self.name!r} has no row {int(row[at])} of shard {int(shard[at])}")
        place = opened.shard_starts[shard] + row
        units: I64 = opened.unit_starts.searchsorted(place, side="right") - 1
        return units, place - opened.unit_starts[units]

    def read_unit(self, unit: int) -> Unit:
        """Fetches and decodes a unit, by its number in the dataset."""
        shard = _holder(self.first_units, unit)
        return self.shard(shard).read(unit - int(self.first_units[shard]))

    def shard(self, index: int) -> Shard:
        """The shard of a number."""
        return self._open().shards[index]

    @property
    def bytes_ahead(self) -> int:
        """How many bytes of its files each process copies into the cache before they are needed; 0 for none."""
        return max((file.cache.ahead_bytes or 0 for file in self._files if file.cache and file.is_cached), default=0)

    def prefetched_bytes(self, random_access: bool) -> I64:
        """int64, bytes that ``prefetch`` of each shard brings; 0 where it would bring none, or none that are worth it."""
        shards = self._open().shards
        worth = [
            file.is_cached and shard.whole and (file.fits or not random_access)
            for file, shard in zip(self._files, shards, strict=True)
        ]
        sizes = [(file.size or 0) * wanted for file, wanted in zip(self._files, worth, strict=True)]
        return np.array(sizes, np.int64)

    def prefetch(self, shard: int, cancelled: Callable[[], bool]) -> bool:
        """Copies a shard into the cache if there is room and it isn't there. Whether it is. Raises ``ReadError``."""
        return self.shard(shard).prefetch(cancelled)

    def path_of(self, shard: int) -> str:
        """Full path or URL of a shard's file, for messages."""
        return str(self._files[shard])

    def fingerprint(self) -> dict[str, Any]:
        """What the recipe holds of the data: counts, format and its settings, columns, and a SHA-256 of [name, rows, size] of each file.

        With at most 16 files, these are there as ``list``. Rows given to ``from_rows`` have a SHA-256 of their content
        instead. Not in it: where the files lie, and when they were written. Plain str, int, list, dict, None.
        """
        facts: dict[str, Any] = {"files": len(self._files), "rows": self.rows, "format": self.format.name}
        facts["columns"] = None if self.columns is None else list(self.columns)
        settings = _settings(self.format)
        if settings:
            facts["settings"] = settings
        if isinstance(self.format, MemoryFormat):
            return facts | {"digest": self.format.digest()}
        counts = self.shard_rows.tolist()
        listed = [[file.name, rows, file.size] for file, rows in zip(self._files, counts, strict=True)]
        facts["digest"] = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
        return facts | ({"list": listed} if len(listed) <= _LISTED_FILES else {})

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> Any:
        place = operator.index(index)
        place += self.rows if place < 0 else 0
        if not 0 <= place < self.rows:
            raise IndexError(f"dataset {self.name!r} has {self.rows} rows, and no row {index}")
        shard = _holder(self.shard_starts, place)
        row = place - int(self.shard_starts[shard])
        unit, row_in_unit = self.unit_of(shard, row)
        found = self.shard(shard).take([row]) or self.shard(shard).read(unit).take([row_in_unit])
        return self._good(found[0], shard, row)

    def __iter__(self) -> Iterator[Any]:
        for number, shard in enumerate(self._open().shards):
            row = 0
            for unit, count in enumerate(shard.unit_rows.tolist()):
                for payload in shard.read(unit).take(range(count)):
                    yield self._good(payload, number, row)
                    row += 1

    def __repr__(self) -> str:
        files = f"{len(self._files)} file{'s' * (len(self._files) != 1)}"
        rows = "" if self._opened is None else f", {self.rows} rows"
        return f"Dataset({self.name!r}, {self.format.name}, {files}{rows}, first {self.path_of(0)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def _open(self) -> _Opened:
        self.open()
        if self._opened is None:
            raise ConfigError(f"dataset {self.name!r} could not be opened")
        return self._opened

    def _shard_of(self, file: StoredFile) -> Shard:
        return self.format.open(file, self.columns)

    def _good(self, payload: Any, shard: int, row: int) -> Any:
        if isinstance(payload, BadRow):
            where = f"dataset {self.name!r}, {self.path_of(shard)}, row {row}"
            raise RowError(f"{where}: {payload.cause}", where=where) from payload.cause
        return payload


def _settings(form: Format) -> dict[str, Any]:
    """The settings of a format that decide about rows: what its ``settings()`` says, else its plain attributes."""
    told = getattr(form, "settings", None)
    return dict(told()) if callable(told) else plain_attributes(form)


def _checked_columns(name: str, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str) or not columns or not all(isinstance(column, str) and column for column in columns):
        raise ConfigError(f"dataset {name!r}: columns must be a list of names, or None for all; got {columns!r}")
    if len(set(columns)) < len(columns):
        raise ConfigError(f"dataset {name!r}: a column is named twice in columns={list(columns)!r}")
    return tuple(columns)


def _check_missing(name: str, shards: Sequence[Shard]) -> None:
    missing = set.intersection(*(set(shard.missing) for shard in shards)) if shards else set()
    if missing:
        there = list(dict.fromkeys(column for shard in shards for column in shard.columns or ()))
        shown = ", ".join(there[:_NAMED_COLUMNS]) + ", ..." * (len(there) > _NAMED_COLUMNS)
        raise ConfigError(
            f"dataset {name!r}: no file has column {', '.join(map(repr, sorted(missing)))}; the columns are: {shown}"
        )


def _at_once(function: Callable[[StoredFile], Shard], files: Sequence[StoredFile]) -> Iterator[Shard]:
    from zephon_nodes.concurrency.each import each_in_threads

    return each_in_threads(function, files, _OPENED_AT_ONCE)


def _cached(files: Sequence[StoredFile], cache: ShardCache) -> list[StoredFile]:
    if not isinstance(cache, ShardCache):
        raise ConfigError(f"cache must be a ShardCache(folder, max_bytes), got a {type(cache).__name__}")
    known = [file.size for file in files if file.size is not None]
    fits = len(known) == len(files) and sum(known) <= cache.max_bytes
    return [dataclasses.replace(file, cache=cache, fits=fits) for file in files]


def _starts(counts: I64) -> I64:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _holder(starts: I64, place: int) -> int:
    """The part that holds a place: the last that starts at or before it, so never an empty one."""
    return int(starts.searchsorted(place, side="right")) - 1
