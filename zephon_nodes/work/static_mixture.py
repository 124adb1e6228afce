"""A mixture of datasets in fixed proportions, as a closed form: no allocator, no iterator, no state.

``lane_time`` says how many rows u_k(t) of component k a lane has taken at time t; ``order`` says which rows those are.
Row i of the c rows of a piece is due at u = (z + (i + phi) / c) * N / (r L), so a piece fills its round evenly, and
chunk j holds the rows with u_k(j) <= u < u_k(j + 1), sorted by when in the chunk they are due, ties by name. Hence every
prefix of every lane is mixed to about a row per component, all lanes keep step, and any chunk costs the same to make.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import I64
from zephon_nodes.stream import pass_number
from zephon_nodes.work.base import Chunk, WorkSource, check_at_least
from zephon_nodes.work.lane_time import LaneTime, Stop, lane_time
from zephon_nodes.work.mixture_spec import MixtureSpec
from zephon_nodes.work.order import Order, Shuffle

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset

MOST_WINDOW_UNITS = 4


class StaticMixtureWorkSource(WorkSource):
    """Rows of several datasets in fixed proportions, the same for any number of ranks.

    ``datasets``: one or more ``Dataset`` with different names and at least a row each.
    ``mixture``: weight of each dataset by name, as a dict or ``MixtureSpec``; shares of rows. None: by size.
    ``num_lanes`` (1): logical streams, fixed for the run; any world size that divides it gives the same global batches.
    1 to 4 times the largest world is right; more costs memory and locality.
    ``chunk_size`` (256): rows of a lane in one unit of lane time. ``flush_every`` (32): chunks in a span; a resume replays
    at most ``chunk_size * flush_every`` rows a lane, and packing pads a little at each span's end.
    ``seed`` (0). ``shuffle`` ("windows"): "windows" of storage units, "global" (perfect, but fetches about a unit a row)
    or "none" (file order).
    ``passes`` (1): passes in an epoch, None for an endless epoch. ``stop`` ("last"): when an epoch ends. "last": when the
    slowest dataset has had its passes, the others repeating until then; "first": when the first has had them;
    "redistribute": every dataset leaves after its passes and the others take its share, so that every row comes exactly
    ``passes`` times.
    ``window_bytes`` (32 GiB): decoded bytes that the windows of all lanes together may hold; a rank holds the share of
    the lanes that it owns. Windows are at most 4 units wide and get narrower to fit. ``memory_plan()`` tells what it comes to.

    Raises ``ConfigError`` for unknown or missing names, weights that aren't positive, a dataset without rows, and windows
    that can't fit ``window_bytes``. Construction opens the datasets to count their rows.
    """

    def __init__(  # noqa: PLR0913 - the data settings of a run, all optional
        self,
        datasets: Sequence[Dataset],
        mixture: MixtureSpec | Mapping[str, float | str | Fraction] | None = None,
        num_lanes: int = 1,
        chunk_size: int = 256,
        flush_every: int = 32,
        seed: int = 0,
        *,
        shuffle: Shuffle = "windows",
        passes: int | None = 1,
        stop: Stop = "last",
        window_bytes: int = 32 << 30,
    ) -> None:
        super().__init__(datasets, num_lanes, flush_every)
        check_at_least("chunk_size", chunk_size, 1)
        check_at_least("window_bytes", window_bytes, 1)
        _check_choices(seed, shuffle, passes, stop)
        empty = [dataset.name for dataset in datasets if dataset.rows == 0]
        if empty:
            raise ConfigError(f"datasets {empty} have no rows; leave them out of the mixture or check their paths")
        self.datasets = tuple(sorted(datasets, key=lambda dataset: dataset.name))
        self.mixture = MixtureSpec.of(mixture, {dataset.name: dataset.rows for dataset in datasets})
        self.chunk_size, self.seed, self.shuffle, self.stop = chunk_size, seed, shuffle, stop
        self.passes, self.endless = passes, passes is None
        self.random_access = shuffle == "global"
        self.window_bytes = window_bytes
        self.window_units = self._fit_windows()
        self.time = self._lane_time()
        self._names = tuple(dataset.name for dataset in self.datasets)
        self._shard_starts = [np.cumsum(d.shard_rows) - d.shard_rows for d in self.datasets]
        self._orders = [self._order(dataset) for dataset in self.datasets]

    def chunk(self, lane: int, index: int, epoch: int = 0) -> Chunk | None:
        """The pointers of chunk ``index`` of a lane: about ``chunk_size`` of them, None after the end. Pure."""
        if not 0 <= lane < self.num_lanes:
            raise ConfigError(f"lane {lane} was asked of a source with num_lanes={self.num_lanes}")
        if self.time.chunks is not None and index >= self.time.chunks:
            return None
        draws = [part for k in range(len(self._names)) for part in self._draw(k, lane, index, epoch)]
        if not draws:
            nothing = np.zeros(0, np.int64)
            return Chunk(self._names, nothing, nothing, nothing, nothing)
        due = np.concatenate([draw[0] for draw in draws])
        by_time = np.argsort(due, kind="stable")
        dataset, shard, row, pass_ = (np.concatenate([d[i] for d in draws])[by_time] for i in range(1, 5))
        return Chunk(self._names, dataset, shard, row, pass_)

    def _draw(self, k: int, lane: int, index: int, epoch: int) -> list[tuple[Any, I64, I64, I64, I64]]:
        """Component k's rows of a chunk, a tuple (due, dataset, shard, row, pass) for each round that it touches."""
        order, rounds = self._orders[k], self._orders[k].rounds
        scale, den = rounds * self.num_lanes, self.time.denominator[k] * self._orders[k].rows
        low, high = self.time.rows(k, index) * scale, self.time.rows(k, index + 1) * scale
        out = []
        for z in range(low // den, -(-high // den)):
            piece = order.piece(epoch, z, lane)
            count = piece[1] - piece[0]
            phase = order.phase(epoch, z, lane)
            first, stop = (_first_due(edge - z * den, den, count, phase) for edge in (low, high))
            if first >= stop:
                continue
            pass_ = pass_number(epoch, z // rounds)
            shard, row = self._locate(k, order.take(pass_, piece, first, stop))
            place = (np.arange(first, stop) + phase / 2**32) / count
            due = (place + (z * den - low) / den) / ((high - low) / den)
            out.append((due, np.full(len(row), k), shard, row, np.full(len(row), pass_)))
        return out

    def _locate(self, k: int, rows: I64) -> tuple[I64, I64]:
        starts = self._shard_starts[k]
        shard = np.searchsorted(starts, rows, side="right") - 1
        return shard, rows - starts[shard]

    def _lane_time(self) -> LaneTime:
        weights = [self.mixture[dataset.name] for dataset in self.datasets]
        rates = [self.chunk_size * weight for weight in weights]
        quotas = None
        if self.passes is not None:
            quotas = [Fraction(self.passes * dataset.rows, self.num_lanes) for dataset in self.datasets]
        return lane_time(rates, quotas, self.stop)

    def _order(self, dataset: Dataset) -> Order:
        units = int((dataset.unit_rows > 0).sum())
        window_rows = max(1, self.window_units * dataset.rows // units)
        return Order(dataset.name, dataset.unit_rows, self.num_lanes, self.shuffle, window_rows, self.seed)

    # memory

    def _fit_windows(self) -> int:
        if self.shuffle != "windows":
            return 1
        for units in range(MOST_WINDOW_UNITS, 0, -1):
            need = self._window_need(units, self.num_lanes)
            if need <= self.window_bytes:
                return units
        raise ConfigError(
            f"shuffle='windows' with num_lanes={self.num_lanes} holds at least {need:,} decoded bytes over all ranks, "
            f"window_bytes allows {self.window_bytes:,}; raise window_bytes, take fewer lanes, name fewer columns, "
            "rewrite the files with smaller row groups, or use shuffle='none'"
        )

    def _window_need(self, window_units: int, lanes: int) -> int:
        """Bytes that ``lanes`` lanes hold: two windows a component each, and never more than the dataset."""
        need = 0
        for dataset in self.datasets:
            used = dataset.unit_rows > 0
            total = int(dataset.unit_bytes[used].sum())
            need += min(total, 2 * window_units * lanes * total // max(1, int(used.sum())))
        return need

    def memory_plan(self) -> str:
        """What the shuffle windows cost a rank, for each number of ranks that divides the lanes."""
        worlds = [world for world in range(1, self.num_lanes + 1) if self.num_lanes % world == 0]
        lines = [f"windows of {self.window_units} units; decoded bytes that they hold on a rank, at most:"]
        for world in worlds:
            lines.append(f"  {world:5d} ranks: {self._window_need(self.window_units, self.num_lanes // world):,}")
        return "\n".join(lines)

    def units_in_use(self, lanes: int) -> int:
        return 4 + len(self.datasets) * lanes * (2 * self.window_units + 2)

    def recipe(self) -> dict[str, Any]:
        return {
            **super().recipe(),
            "chunk_size": self.chunk_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "passes": self.passes,
            "stop": self.stop,
            "window_units": self.window_units,
            "mixture": {name: str(weight) for name, weight in sorted(self.mixture.items())},
        }


def _first_due(edge: int, den: int, count: int, phase: int) -> int:
    """The first i in [0, count] with (i + phase / 2**32) / count >= edge / den."""
    first = -((phase * den - (edge * count << 32)) // (den << 32))
    return min(max(first, 0), count)


def _check_choices(seed: Any, shuffle: Any, passes: Any, stop: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed must be an integer, got {seed!r}")
    if shuffle not in ("windows", "global", "none"):
        raise ConfigError(f"shuffle must be 'windows', 'global' or 'none', got {shuffle!r}")
    if stop not in ("last", "first", "redistribute"):
        raise ConfigError(f"stop must be 'last', 'first' or 'redistribute', got {stop!r}")
    if passes is not None:
        check_at_least("passes (None for endless)", passes, 1)
