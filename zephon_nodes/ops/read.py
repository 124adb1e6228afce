"""Where a graph begins: pointers in, rows out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon_nodes.concurrency import SharedCache
from zephon_nodes.concurrency.prefetch import Prefetcher
from zephon_nodes.errors import ConfigError
from zephon_nodes.formats.arrow_rows import give_back
from zephon_nodes.formats.base import BadRow, Unit
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.stream import Item, Run, Together
from zephon_nodes.work.base import Chunk, Source, WorkSource

UnitKey = tuple[str, int]


class Read(Node):
    """Reads the rows that a work source points to. Payloads are dicts of the columns.

    ``source``: a ``WorkSource``, or what ``from_node`` gives. ``parallelism``: threads that fetch and decode units
    ahead of their turn; rows are taken out of them by the threads of the nodes that are fused to it, or by the driver.
    Decoded units are kept in a bounded cache that all of them share.

    >>> next(iter(Loader(Read(StaticMixtureWorkSource([rows], shuffle="none")))))["text"]
    'one'
    """

    kind = "read"
    ours = True

    def __init__(
        self,
        source: Source,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(None, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if not isinstance(source, Source):
            raise ConfigError(
                f"Read needs a WorkSource, got {type(source).__name__}; make one with "
                "StaticMixtureWorkSource([Dataset.from_path(name, path)]), or from_node(...) of torchdata nodes"
            )
        self._work_source = source

    @property
    def work_source(self) -> Source:
        return self._work_source

    def read_from(self, source: Source) -> None:
        """Reads another source from now on."""
        self._work_source = source

    @property
    def cheap(self) -> bool:  # type: ignore[override]
        """What takes rows out of units that were fetched ahead isn't worth a crossing of threads."""
        return isinstance(self._work_source, WorkSource) and not self._work_source.random_access

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]] | None:
        if not isinstance(self._work_source, WorkSource):
            return None
        return _Reader(self._work_source, setup if self.runner != "process" else setup._replace(together=False))

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"


class _Reader:
    """Rows of pointers. Pointers of one unit are served together, so a unit is fetched and decoded once for them."""

    def __init__(self, source: WorkSource, setup: Setup) -> None:
        self._setup, self._random_access = setup, source.random_access
        self._together = setup.together
        self._datasets = {dataset.name: dataset for dataset in source.datasets}
        self.cache: SharedCache[UnitKey, Unit] = SharedCache(setup.cache_units)
        limit = max(dataset.bytes_ahead for dataset in source.datasets)
        self._prefetcher = Prefetcher(self._prefetch, limit) if limit else None

    def __call__(self, work: Chunk) -> list[Item]:
        payloads = self._payloads(work)
        run = Run(work.whole, work.first, work.first + len(work))
        rows = Together(payloads, run)
        bad = BadRow in set(map(type, payloads))
        if self._together and not bad:
            return [rows]  # type: ignore[list-item]  # an item to the engine only
        items: list[Item] = [*rows.records()]
        if bad:
            for place, payload in enumerate(payloads):
                if type(payload) is BadRow:
                    items[place] = self._setup.failed(items[place].origins, payload.cause)
        return items

    def warm(self, work: Chunk) -> list[Item]:
        """Fetches the units of pointers that come soon, and begins to fetch shards that come later."""
        if self._prefetcher is not None:
            self._prefetcher.want((when, (name, shard), nbytes) for when, name, shard, nbytes in work.soon)
        if not self._random_access:
            self.cache.warm(Counter(self._located(work)[0]), self._decode, work.coming)
        return []

    def tidy(self) -> None:
        """Gives memory back that reading leaves behind in a thread."""
        give_back()

    def _payloads(self, work: Chunk) -> list[Any]:
        if self._prefetcher is not None:
            shards = set(zip(work.dataset.tolist(), work.shard.tolist(), strict=True))
            self._prefetcher.used((work.names[number], shard) for number, shard in shards)
        out: list[Any] = [None] * len(work)
        left = self._single_rows(work, out) if self._random_access else range(len(work))
        wanted = self._wanted(work, left)
        amounts = {key: len(rows) for key, (_, rows) in wanted.items()}
        found = self.cache.fetch(amounts, self._decode, work.coming)
        for key, (places, rows) in wanted.items():
            for place, payload in zip(places, found[key].take(rows), strict=True):
                out[place] = payload
        if work.first + len(work) == len(work.whole):
            work.whole.located = None  # whoever keeps a batch keeps the chunk
        return out

    def _wanted(self, work: Chunk, left: Sequence[int]) -> dict[UnitKey, tuple[list[int], list[int]]]:
        """Places in ``work`` (of those in ``left``), and rows in the unit, by unit."""
        wanted: dict[UnitKey, tuple[list[int], list[int]]] = {}
        units, rows = self._located(work) if left else ((), ())
        if len(left) < len(units):
            units, rows = [units[place] for place in left], [rows[place] for place in left]
        for place, unit, row in zip(left, units, rows, strict=True):
            found = wanted.get(unit)
            if found is None:
                found = wanted[unit] = [], []
            found[0].append(place)
            found[1].append(row)
        return wanted

    def _located(self, work: Chunk) -> tuple[Sequence[UnitKey], Sequence[int]]:
        """The unit of each row, and which row of it that is. Found for a whole chunk at once: it comes in small pieces."""
        whole, located = work.whole, work.whole.located
        if located is None:
            try:
                located = whole.located = self._locate(whole)
            except IndexError:  # a row that doesn't exist concerns the piece in which it is
                if whole is work:
                    raise
                return self._locate(work)
        units, rows = located
        return units[work.first : work.first + len(work)], rows[work.first : work.first + len(work)]

    def _locate(self, work: Chunk) -> tuple[list[UnitKey], list[int]]:
        keys: list[Any] = [None] * len(work)
        inside = np.empty(len(work), np.int64)
        for number in set(work.dataset.tolist()):
            name, places = work.names[number], np.flatnonzero(work.dataset == number)
            units, inside[places] = self._datasets[name].units_of(work.shard[places], work.row[places])
            key_of = {unit: (name, unit) for unit in set(units.tolist())}
            for place, unit in zip(places.tolist(), units.tolist(), strict=True):
                keys[place] = key_of[unit]
        return keys, inside.tolist()

    def _single_rows(self, work: Chunk, out: list[Any]) -> list[int]:
        """Fills in the rows of formats that can fetch them one by one; the places of the others."""
        shards: dict[tuple[int, int], list[int]] = {}
        for place, key in enumerate(zip(work.dataset.tolist(), work.shard.tolist(), strict=True)):
            shards.setdefault(key, []).append(place)
        left: list[int] = []
        for (number, shard), places in shards.items():
            rows = self._datasets[work.names[number]].shard(shard).take(work.row[places])
            if rows is None:
                left += places
            else:
                for place, payload in zip(places, rows, strict=True):
                    out[place] = payload
        return left

    def _prefetch(self, key: tuple[str, int], cancelled: Callable[[], bool]) -> bool:
        name, shard = key
        return self._datasets[name].prefetch(shard, cancelled)

    def _decode(self, key: UnitKey) -> tuple[Unit, int]:
        name, unit = key
        decoded = self._datasets[name].read_unit(unit)
        return decoded, decoded.rows
