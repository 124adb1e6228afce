"""A mixture of datasets as a closed form: no allocator, no iterator, no state.

``lane_time`` says how many rows u_k(t) of component k a lane has taken at time t; ``component`` and ``order`` say which
rows those are. Chunk j holds the rows with u_k(j) <= u < u_k(j + 1), sorted by when in the chunk they are due, ties by
name. Hence every prefix of every lane is mixed to about a row per component, all lanes keep step, and any chunk costs the
same to make.

A mixture that changes is a list of eras, each the phases from some span of some epoch on: the first is what the source
was made with, every further one an amendment. A component is drawn at a rate of 0 until its first era.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.work.base import (
    QUANTUM,
    TASKS_A_WORKER,
    Chunk,
    WorkSource,
    check_at_least,
    check_datasets,
    source_name,
)
from zephon_nodes.work.component import Component
from zephon_nodes.work.lane_time import LaneTime, Segment, Stop, phased_time
from zephon_nodes.work.mixture_spec import MixtureSpec
from zephon_nodes.work.order import Order, Shuffle
from zephon_nodes.work.phases import Phase, Phases, Shares, Stretch, Weights
from zephon_nodes.work.token_estimation import TokenEstimation, as_fraction
from zephon_nodes.work.windows import fit_windows, memory_plan

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset


TASKS_UNDER_WAY = 4 * TASKS_A_WORKER
RATE_SCALE = 1 << 64


class Era(NamedTuple):
    """``phases`` hold from span ``span`` of epoch ``epoch`` on; ``datasets``: names of those that come in with it."""

    epoch: int
    span: int
    phases: Phases
    datasets: tuple[str, ...]


class StaticMixtureWorkSource(WorkSource):
    """Rows of several datasets in given proportions, the same for any number of ranks.

    ``datasets``: one or more ``Dataset`` with different names and at least a row each.
    ``mixture``: weight of each dataset by name, as a dict or ``MixtureSpec``, or ``Phases`` of such; shares of rows, or of
    tokens with a ``token_estimation``. None: by size.
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
    ``token_estimation``: see ``TokenEstimation``.

    Raises ``ConfigError`` for unknown or missing names, weights that aren't positive, a dataset without rows, and windows
    that can't fit ``window_bytes``. Construction opens the datasets to count their rows.

    >>> source = StaticMixtureWorkSource([rows], num_lanes=2, shuffle="none")
    >>> [at.row for at in source.chunk(lane=0, index=0)], [at.row for at in source.chunk(lane=1, index=0)]
    ([0, 1], [2, 3])
    >>> source.chunk(lane=0, index=1) is None
    True
    """

    mixes = True

    ours = True

    def __init__(  # noqa: PLR0913 - the data settings of a run, all optional
        self,
        datasets: Sequence[Dataset],
        mixture: Weights | Phases | None = None,
        num_lanes: int = 1,
        chunk_size: int = 256,
        flush_every: int = 32,
        seed: int = 0,
        *,
        shuffle: Shuffle = "windows",
        passes: int | None = 1,
        stop: Stop = "last",
        window_bytes: int = 32 << 30,
        token_estimation: TokenEstimation | None = None,
    ) -> None:
        super().__init__(datasets, num_lanes, flush_every)
        check_at_least("chunk_size", chunk_size, 1)
        check_at_least("window_bytes", window_bytes, 1)
        _check_choices(seed, shuffle, passes, stop)
        _check_rows(datasets)
        self.chunk_size, self.seed, self.shuffle, self.stop = chunk_size, seed, shuffle, stop
        self.passes, self.endless = passes, passes is None
        self.random_access = shuffle == "global"
        self.token_estimation, self.window_bytes = token_estimation, window_bytes
        self.tokens_per_row: dict[str, Fraction] = dict(token_estimation.given) if token_estimation else {}
        phases = _as_phases(mixture, {dataset.name: dataset.rows for dataset in datasets})
        _check_units(phases, token_estimation)
        self.window_units = fit_windows(datasets, num_lanes, window_bytes) if shuffle == "windows" else 1
        self._eras = [Era(0, 0, phases, tuple(sorted(dataset.name for dataset in datasets)))]
        self._put_in_order(datasets)

    def _put_in_order(self, datasets: Sequence[Dataset]) -> None:
        self.datasets = tuple(sorted(datasets, key=lambda dataset: dataset.name))
        self._names = tuple(dataset.name for dataset in self.datasets)
        self._components = [Component(dataset, self._order(dataset)) for dataset in self.datasets]
        self._times: dict[int, LaneTime] = {}
        self._converted: dict[Phases, list[int]] = {}
        # No further than the shortest window lasts, so that at most the next one is fetched beside the present one.
        shortest = min(component.order.window_rows for component in self._components)
        self.look_ahead = max(1, min(16, shortest // self.chunk_size))

    def _order(self, dataset: Dataset) -> Order:
        units = int((dataset.unit_rows > 0).sum())
        window_rows = max(1, self.window_units * dataset.rows // units)
        return Order(dataset.name, dataset.unit_rows, self.num_lanes, self.shuffle, window_rows, self.seed)

    # what is read

    def chunk(self, lane: int, index: int, epoch: int = 0) -> Chunk | None:
        """The pointers of chunk ``index`` of a lane: about ``chunk_size`` of them, None after the end. Pure."""
        if not 0 <= lane < self.num_lanes:
            raise ConfigError(f"lane {lane} was asked of a source with num_lanes={self.num_lanes}")
        if index < 0 or epoch < 0:
            raise ConfigError(f"chunk {index} of epoch {epoch} was asked for; both count from 0")
        time = self.time(epoch)
        if time.chunks is not None and index >= time.chunks:
            return None
        due, dataset = [], []
        for k, component in enumerate(self._components):
            low, high, denominator = time.edges(k, index)
            if low < high:
                found = component.due(lane, epoch, (low, high), denominator)
                due += found
                dataset += [np.full(len(part.row), k) for part in found]
        if not due:
            nothing = np.zeros(0, np.int64)
            return Chunk(self._names, nothing, nothing, nothing, nothing)
        times, shard, row, pass_ = (np.concatenate(parts) for parts in zip(*due, strict=True))
        by_time = np.argsort(times, kind="stable")
        return Chunk(self._names, np.concatenate(dataset)[by_time], shard[by_time], row[by_time], pass_[by_time])

    def chunks(self, epoch: int = 0) -> int | None:
        return self.time(epoch).chunks

    @property
    def eras(self) -> tuple[Era, ...]:
        """What the source was made with, and its amendments in order."""
        return tuple(self._eras)

    def time(self, epoch: int = 0) -> LaneTime:
        """The lane time of an epoch: how many rows of each dataset, by name in order, a lane has taken by when."""
        epoch = min(epoch, self._eras[-1].epoch + 1)  # from then on they are alike
        if epoch not in self._times:
            self._times[epoch] = self._time(epoch, len(self._eras))
        return self._times[epoch]

    def _time(self, epoch: int, eras: int) -> LaneTime:
        """The lane time as it was before all but the first ``eras`` eras. An amendment doesn't change the end before it."""
        last = self._eras[eras - 1]
        begin = Fraction(last.span * self.flush_every if last.epoch == epoch else 0)
        if begin and eras > 1:
            before = self._time(epoch, eras - 1)
            if before.end is not None and before.end <= begin:
                raise ConfigError(
                    f"epoch {epoch} comes to its end in chunk {math.ceil(before.end) - 1}, that is in span "
                    f"{(math.ceil(before.end) - 1) // self.flush_every}, and so before it would be amended at span {last.span}; "
                    "amend earlier, or in a later epoch"
                )
        segments = [Segment(Fraction(phase.start), self._rates(phase.shares)) for phase in self._phases(epoch, eras)]
        quotas = None
        if self.passes is not None:
            quotas = [Fraction(self.passes * component.order.rows, self.num_lanes) for component in self._components]
        return phased_time(segments, quotas, self.stop, begin)

    def phases(self, epoch: int = 0) -> list[Phase]:
        """The phases of an epoch, starts in chunks, amendments included. Shares are those of ``mixture``."""
        return self._phases(epoch, len(self._eras))

    def _phases(self, epoch: int, eras: int) -> list[Phase]:
        self._check_measured()
        known = self._eras[:eras]
        before = [era for era in known if era.epoch < epoch]
        now = [era._replace(span=0) for era in before[-1:]] + [era for era in known if era.epoch == epoch]
        out: list[Phase] = []
        for era in now:
            begin = era.span * self.flush_every
            starts = [begin + start for start in self._starts(era.phases)]
            out = [phase for phase in out if phase.start < begin] + era.phases.steps(starts)
        return out

    def shares(self, epoch: int, span: int) -> dict[str, float]:
        """See ``Source.shares``: of tokens with a ``token_estimation``, else of rows."""
        time, begin = self.time(epoch), span * self.flush_every
        rows = {name: time.taken(k, begin, begin + self.flush_every) for k, name in enumerate(self._names)}
        sizes = {name: float(n * self.tokens_per_row.get(name, Fraction(1))) for name, n in rows.items() if n}
        if not sizes:  # after the end
            sizes = {name: float(n) for name, n in self._phase(epoch, begin).shares.items()}
        total = sum(sizes.values())
        return {name: size / total for name, size in sizes.items()}

    def _phase(self, epoch: int, chunk: int) -> Phase:
        return [phase for phase in self.phases(epoch) if phase.start <= chunk][-1]

    def steady(self, epoch: int, span: int) -> bool:
        begin = span * self.flush_every
        return self.time(epoch).straight(begin, begin + self.flush_every)

    def _rates(self, shares: Shares) -> tuple[Fraction, ...]:
        """Rows a lane and chunk of each dataset. Measured ones are rounded, so that sums of them stay short numbers."""
        none = Fraction(0)
        if not self.token_estimation:
            return tuple(self.chunk_size * shares.get(name, none) for name in self._names)
        rows = [shares.get(name, none) / self.tokens_per_row[name] if name in shares else none for name in self._names]
        total = sum(rows)
        return tuple(_rounded(self.chunk_size * share / total) if share else none for share in rows)

    def _starts(self, phases: Phases) -> list[int]:
        """The starts of phases in chunks. Each is found from the tokens really delivered before it, so that what is rounded
        doesn't add up."""
        if phases.unit == "chunks":
            return [phase.start for phase in phases.phases]
        if phases in self._converted:
            return self._converted[phases]
        starts, tokens = [0], Fraction(0)
        for i, there in enumerate(phases.phases[1:]):
            stretch = Stretch(phases, i, self._tokens_a_chunk)
            count = stretch.chunks(there.start * (phases.tokens_per_step or 1) - tokens)
            tokens += stretch.tokens(count)
            starts.append(starts[-1] + count)
        self._converted[phases] = starts
        return starts

    def _tokens_a_chunk(self, shares: Shares) -> Fraction:
        """Tokens that all lanes deliver in a chunk."""
        rates = zip(self._names, self._rates(shares), strict=True)
        return self.num_lanes * sum((rate * self.tokens_per_row[name] for name, rate in rates if rate), Fraction(0))

    # tokens

    def unmeasured(self) -> list[str]:
        """Datasets whose tokens per row the mixture needs and that aren't known yet."""
        return [name for name in self._names if name not in self.tokens_per_row] if self.token_estimation else []

    def measured(self, tokens_per_row: Mapping[str, float | Fraction]) -> StaticMixtureWorkSource:
        """The same source with tokens per row of some datasets: {"wiki": 812.5}."""
        unknown = sorted(set(tokens_per_row) - set(self._names))
        if self.token_estimation is None or unknown:
            problem = (
                f"{unknown} are none of its datasets {list(self._names)}" if unknown else "it has no token_estimation"
            )
            raise ConfigError(f"tokens per row don't fit this source: {problem}")
        new = copy.copy(self)
        new.tokens_per_row = self.tokens_per_row | {name: as_fraction(name, n) for name, n in tokens_per_row.items()}
        new._times, new._converted = {}, {}
        return new

    def adopted(self, recipe: Mapping[str, Any]) -> StaticMixtureWorkSource:
        known: dict[str, str] = {}
        for era in (recipe, *recipe.get("amendments", ())):
            known |= era.get("tokens_per_row") or {}
        return (
            self.measured({name: Fraction(known[name]) for name in self.unmeasured() if name in known})
            if known
            else self
        )

    def _check_measured(self) -> None:
        if self.unmeasured():
            raise ConfigError(
                f"tokens per row of {self.unmeasured()} aren't known yet; a Loader measures them when it is first read "
                "from, or give them: source.measured({...})"
            )

    # amendments

    def amended(
        self, at: int, mixture: Weights | Phases, add: Sequence[Dataset] = (), *, epoch: int = 0
    ) -> StaticMixtureWorkSource:
        """This source with another mixture from span ``at`` of epoch ``epoch`` on, for a run that is under way.

        Everything before that span stays byte-identical. A state of the run loads under the amended source as long as
        all its lanes are before the span; what was amended is part of the recipe from then on. ``mixture``: as at
        construction, starts of ``Phases`` counted from the amendment; a dataset without a weight retires. ``add``: new
        datasets, which begin with their first row there. Later epochs begin with the new mixture.

        Raises ``ConfigError`` for a span that isn't after the last amendment, or that the epoch ends before, and for names
        and weights as at construction.
        """
        check_at_least("at", at, 0)
        check_at_least("epoch", epoch, 0)
        last = self._eras[-1]
        if (epoch, at) <= (last.epoch, last.span):
            raise ConfigError(
                f"an amendment must come after the last one, at span {last.span} of epoch {last.epoch}; got {at=}"
            )
        check_datasets("add", add)
        datasets = [*self.datasets, *add]
        WorkSource.__init__(new := copy.copy(self), datasets, self.num_lanes, self.flush_every)
        _check_rows(add)
        phases = mixture if isinstance(mixture, Phases) else Phases([(0, mixture)])
        _check_units(phases, self.token_estimation)
        unknown = sorted(phases.names - {dataset.name for dataset in datasets}, key=str)
        resting = sorted({dataset.name for dataset in add} - phases.names)
        if unknown or resting:
            problem = (
                f"names {unknown}, which are none of {sorted(d.name for d in datasets)}; add=[...] them"
                if unknown
                else f"gives no weight to the new datasets {resting}; give them one, or leave them out"
            )
            raise ConfigError(f"the mixture {problem}")
        new._eras = [*self._eras, Era(epoch, at, phases, tuple(sorted(dataset.name for dataset in add)))]
        new._put_in_order(datasets)
        if not new.unmeasured():
            new.time(epoch)
        return new

    # settings

    def memory_plan(self) -> str:
        """What the shuffle windows cost a rank, for each number of ranks that divides the lanes."""
        return memory_plan(self.datasets, self.window_units, self.num_lanes)

    def units_in_use(self, lanes: int) -> int:
        """Of each dataset, for a lane: this window and the next, pieces of two more, and what is fetched ahead; for all
        lanes together, what is under way."""
        small = [(d.unit_rows > 0).sum() / d.rows for d in self.datasets]
        ahead = sum(int((self.look_ahead + 1) * self.chunk_size * units) for units in small)
        under_way = int(TASKS_UNDER_WAY * QUANTUM * max(small))
        return 4 + under_way + lanes * (len(small) * (2 * self.window_units + 2) + ahead)

    def recipe(self) -> dict[str, Any]:
        return self._recipe(len(self._eras))

    def earlier_recipes(self) -> list[tuple[dict[str, Any], tuple[int, int]]]:
        return [(self._recipe(n), (self._eras[n].epoch, self._eras[n].span)) for n in range(1, len(self._eras))]

    def _recipe(self, eras: int) -> dict[str, Any]:
        first, *rest = (self._era_recipe(era) for era in self._eras[:eras])
        return {
            "source": source_name(self),
            "num_lanes": self.num_lanes,
            "flush_every": self.flush_every,
            **first,
            "chunk_size": self.chunk_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "passes": self.passes,
            "stop": self.stop,
            "window_units": self.window_units,
            **({"amendments": rest} if rest else {}),
        }

    def _era_recipe(self, era: Era) -> dict[str, Any]:
        said: dict[str, Any] = {"datasets": {name: self.dataset(name).fingerprint() for name in era.datasets}}
        said |= {"mixture": era.phases.recipe()}
        if self.token_estimation:
            known = all(name in self.tokens_per_row for name in era.datasets)
            said["tokens_per_row"] = {name: str(self.tokens_per_row[name]) for name in era.datasets} if known else None
        if era.phases.unit != "chunks":
            said["starts_in_chunks"] = None if self.unmeasured() else self._starts(era.phases)
        return said if era is self._eras[0] else said | {"epoch": era.epoch, "span": era.span}


def _as_phases(mixture: Weights | Phases | None, rows: Mapping[str, int]) -> Phases:
    """The mixture as phases that name exactly these datasets."""
    if not isinstance(mixture, Phases):
        return Phases([(0, MixtureSpec.of(mixture, rows))])
    unknown, missing = sorted(mixture.names - set(rows)), sorted(set(rows) - mixture.names)
    if unknown or missing:
        raise ConfigError(
            f"the phases and the datasets name different things: weights without a dataset {unknown}, "
            f"datasets that no phase gives a weight {missing}"
        )
    return mixture


def _rounded(rate: Fraction) -> Fraction:
    return max(Fraction(round(rate * RATE_SCALE), RATE_SCALE), Fraction(1, RATE_SCALE))


def _check_units(phases: Phases, estimation: TokenEstimation | None) -> None:
    if phases.unit != "chunks" and estimation is None:
        raise ConfigError(f"phases in {phases.unit} need token_estimation=TokenEstimation() to be turned into chunks")


def _check_rows(datasets: Sequence[Dataset]) -> None:
    empty = [dataset.name for dataset in datasets if dataset.rows == 0]
    if empty:
        raise ConfigError(f"datasets {empty} have no rows; leave them out of the mixture or check their paths")


def _check_choices(seed: Any, shuffle: Any, passes: Any, stop: Any) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed must be an integer, got {seed!r}")
    if shuffle not in ("windows", "global", "none"):
        raise ConfigError(f"shuffle must be 'windows', 'global' or 'none', got {shuffle!r}")
    if stop not in ("last", "first", "redistribute"):
        raise ConfigError(f"stop must be 'last', 'first' or 'redistribute', got {stop!r}")
    if passes is not None:
        check_at_least("passes (None for endless)", passes, 1)
