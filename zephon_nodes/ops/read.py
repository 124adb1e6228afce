"""Where a graph begins: pointers in, rows out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.concurrency import SharedCache
from zephon_nodes.errors import ConfigError
from zephon_nodes.formats.base import BadRow, Unit
from zephon_nodes.node import Node, OnError, Setup
from zephon_nodes.stream import Item, Pointer, Record
from zephon_nodes.work.base import Source, WorkSource

UnitKey = tuple[str, int, int]


class Read(Node):
    """Reads the rows that a work source points to. Payloads are dicts of the columns.

    ``source``: a ``WorkSource``, or what ``from_node`` gives. ``parallelism``: threads that fetch and decode, shared with
    the nodes that are fused to it. Decoded units are kept in a bounded cache that all of them share.

    >>> next(iter(Loader(Read(StaticMixtureWorkSource([rows], shuffle="none")))))["text"]
    'one'
    """

    kind = "read"

    def __init__(
        self,
        source: Source,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(None, name=name, parallelism=parallelism, on_error=on_error)
        if not isinstance(source, Source):
            raise ConfigError(
                f"Read needs a WorkSource, got {type(source).__name__}; make one with "
                "StaticMixtureWorkSource([Dataset.from_path(name, path)]), or from_node(...) of torchdata nodes"
            )
        self._work_source = source

    @property
    def work_source(self) -> Source:
        return self._work_source

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]] | None:
        return _Reader(self._work_source, setup) if isinstance(self._work_source, WorkSource) else None

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"


class _Reader:
    """Rows of pointers. Pointers of one unit are served together, so a unit is fetched and decoded once for them."""

    def __init__(self, source: WorkSource, setup: Setup) -> None:
        self._setup, self._random_access = setup, source.random_access
        self._datasets = {dataset.name: dataset for dataset in source.datasets}
        self._cache: SharedCache[UnitKey, Unit] = SharedCache(setup.cache_units)

    def __call__(self, work: list[tuple[Pointer, int]]) -> list[Item]:
        payloads = self._payloads([pointer for pointer, _ in work])
        return [
            self._setup.failed((pointer,), payload.cause)
            if type(payload) is BadRow
            else Record(payload, key, (pointer,))
            for (pointer, key), payload in zip(work, payloads, strict=True)
        ]

    def _payloads(self, pointers: list[Pointer]) -> list[Any]:
        out: list[Any] = [None] * len(pointers)
        places: dict[UnitKey, tuple[list[int], list[int]]] = {}
        left = self._single_rows(pointers, out) if self._random_access else list(enumerate(pointers))
        for place, (name, shard, row, _) in left:
            unit, inside = self._datasets[name].unit_of(shard, row)
            at, rows = places.setdefault((name, shard, unit), ([], []))
            at.append(place)
            rows.append(inside)
        units = self._cache.fetch({key: len(rows) for key, (_, rows) in places.items()}, self._decode)
        for key, (at, rows) in places.items():
            for place, payload in zip(at, units[key].take(rows), strict=True):
                out[place] = payload
        return out

    def _single_rows(self, pointers: list[Pointer], out: list[Any]) -> list[tuple[int, Pointer]]:
        """Fills in the rows of formats that can fetch them one by one; returns the others."""
        shards: dict[tuple[str, int], list[int]] = {}
        for place, pointer in enumerate(pointers):
            shards.setdefault((pointer.dataset, pointer.shard), []).append(place)
        left = []
        for (name, shard), places in shards.items():
            rows = self._datasets[name].shard(shard).take([pointers[place].row for place in places])
            if rows is None:
                left += [(place, pointers[place]) for place in places]
            else:
                for place, payload in zip(places, rows, strict=True):
                    out[place] = payload
        return left

    def _decode(self, key: UnitKey) -> tuple[Unit, int]:
        name, shard, unit = key
        decoded = self._datasets[name].shard(shard).read(unit)
        return decoded, decoded.rows
