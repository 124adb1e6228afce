"""What is read, in which order, in which lane.

A work source answers one question, purely: which pointers are chunk ``index`` of lane ``lane``? There is no iterator
behind it and nothing to save; resuming is asking for a later chunk. A curriculum of your own is one method::

    class Alternating(WorkSource):
        '''Every lane takes a row of each dataset in turn, in file order, until one ends.'''

        def __init__(self, datasets, num_lanes):
            super().__init__(datasets, num_lanes)
            self.rows = min(d.rows for d in datasets)

        def chunk(self, lane, index, epoch=0):
            rows = range(lane, self.rows, self.num_lanes)[index * 128 : (index + 1) * 128]
            if not rows:
                return None
            return [pointer(d, row, epoch) for row in rows for d in self.datasets]
"""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

import numpy as np

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import I64, key, mix, mix_array
from zephon_nodes.recipe import plain_attributes
from zephon_nodes.stream import Cut, End, Flush, Pointer
from zephon_nodes.work.shards_ahead import ShardsAhead

if TYPE_CHECKING:
    from zephon_nodes.work.token_estimation import TokenEstimation

QUANTUM = 128
"""Most pointers that travel as one unit of work, whatever the chunk size is. So few that what they give rise to mostly goes
again before Python's garbage collector looks for it (after 700 new objects): with 256 it took a tenth of the time of packing."""


TASKS_A_WORKER = 4
"""Units of work under way for each worker. They leave in order, so with fewer a long one would keep workers waiting."""

_pointer: Callable[[Any], Pointer] = functools.partial(tuple.__new__, Pointer)
"""As ``Pointer._make``, without a frame of Python."""

MOST_EMPTY = 1_000_000
SHOWN_ORIGINS = 4


class Ahead(NamedTuple):
    """Work that a lane will come to soon: what it needs may be fetched now."""

    work: Sequence[Any]


class Source(ABC):
    """Where the lanes of a graph begin. Users derive from ``WorkSource``.

    ``num_lanes``: fixed number of logical streams. ``flush_every``: chunks in a span, the distance between two places
    that a checkpoint can go back to; longer spans pad and reorder less, shorter ones resume faster.
    ``ours``: nothing that users wrote runs in it; not inherited. ``mixes``: whether it has ``shares``. ``endless``: True when no lane ever ends, which spares ranks from having to agree on the end.
    """

    num_lanes: int
    flush_every: int
    datasets: tuple[Dataset, ...] = ()
    endless: bool = False
    ours: bool = False
    mixes: bool = False
    token_estimation: TokenEstimation | None = None

    @abstractmethod
    def feed(self, lane: int, epoch: int, start: Cut) -> Iterator[Flush | Ahead | Sequence[Any] | End]:
        """A lane from a place on: a ``Flush`` at the start of each span (the first one included), lists of work of at
        most ``QUANTUM`` elements, and an ``End``; between them perhaps ``Ahead``. ``start.taken`` elements of the first span are left out."""

    def next_epoch(self, token: str | None) -> str | None:
        """What becomes of a lane's token when the next epoch begins. Only sources that keep a state have any."""
        return None

    def locate(self, origins: tuple[Pointer, ...], most: int | None = SHOWN_ORIGINS) -> str:
        """Dataset, file and row of some pointers, for messages; of the first ``most``, None for all."""
        shown = [self.locate_one(at) for at in origins[:most]]
        more = len(origins) - len(shown)
        return ("; ".join(shown) or "a record of unknown origin") + (f"; and {more} more" if more else "")

    def locate_one(self, at: Pointer) -> str:
        return f"row {at.row} of {at.dataset!r}"

    def units_in_use(self, lanes: int) -> int:
        """How many decoded units a rank that owns ``lanes`` lanes should keep. More costs memory, fewer decode twice."""
        return 16 + 8 * lanes

    def apart(self) -> Source:
        """A source with the same lanes, which can be read without moving this one."""
        return self

    def shares(self, epoch: int, span: int) -> dict[str, float] | None:
        """The mixture that a span as a whole is to have, as shares of each dataset; None for a source without one."""
        return None

    def steady(self, epoch: int, span: int) -> bool:
        """Whether the mixture is the same all through a span."""
        return True

    def unmeasured(self) -> list[str]:
        """Datasets whose tokens per row must be known before the first chunk can be made."""
        return []

    def measured(self, tokens_per_row: Mapping[str, Fraction]) -> Source:
        """The same source with tokens per row of the datasets that were ``unmeasured``."""
        return self

    def adopted(self, recipe: Mapping[str, Any]) -> Source:
        """The same source with what had been measured when ``recipe`` was saved, where it doesn't know better."""
        return self

    def earlier_recipes(self) -> list[tuple[dict[str, Any], tuple[int, int]]]:
        """Recipes that this source was amended from, each with the (epoch, span) at which they part ways."""
        return []

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """All settings that change the data, JSON-able. Two sources with equal recipes give the same lanes."""


class WorkSource(Source):
    """A source of pointers. See the head of this file for a worked example.

    ``datasets``: what the pointers name. Names must differ. ``num_lanes``, ``flush_every``: see ``Source``.
    Raises ``ConfigError`` for settings below 1 and for two datasets of one name.

    >>> class Backwards(WorkSource):
    ...     def chunk(self, lane, index, epoch=0):
    ...         dataset = self.datasets[0]
    ...         return [pointer(dataset, row) for row in range(dataset.rows)][::-1] if index == 0 else None
    >>> next(iter(Pipeline(Backwards([rows]))))["text"]
    'and the last one'
    """

    look_ahead: int = 1
    """Chunks of a lane whose units are fetched before their turn; what that brings must fit into ``units_in_use``."""

    random_access: bool = False
    """True when neighbouring pointers rarely share a unit; readers then fetch single rows where the format can."""

    def __init__(self, datasets: Sequence[Dataset], num_lanes: int = 1, flush_every: int = 32) -> None:
        check_at_least("num_lanes", num_lanes, 1)
        check_at_least("flush_every", flush_every, 1)
        check_datasets("datasets", datasets)
        names = [dataset.name for dataset in datasets]
        if not names:
            raise ConfigError("a work source needs at least one Dataset, got none")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"datasets need different names, got {twice} more than once; rename one of them")
        self.datasets, self.num_lanes, self.flush_every = tuple(datasets), num_lanes, flush_every

    @abstractmethod
    def chunk(self, lane: int, index: int, epoch: int = 0) -> Sequence[Pointer] | None:
        """The pointers of chunk ``index`` of a lane in an epoch, perhaps none, or None after the lane's end.

        Must be pure: the same answer every time, on every rank. Once None, then None for every later index.
        """

    def chunks(self, epoch: int = 0) -> int | None:
        """After how many chunks every lane of an epoch has ended; None if that isn't known, or never."""
        return None

    def dataset(self, name: str) -> Dataset:
        for dataset in self.datasets:
            if dataset.name == name:
                return dataset
        raise ConfigError(f"there is no dataset {name!r}; the source has {[each.name for each in self.datasets]}")

    def locate_one(self, at: Pointer) -> str:
        return f"row {at.row} of {self.dataset(at.dataset).path_of(at.shard)} (dataset {at.dataset!r})"

    def recipe(self) -> dict[str, Any]:
        """See ``Source.recipe``: the class, the datasets, and its public attributes that are plain constants. Override
        it, and add to what this gives, for settings of other kinds."""
        known = ("num_lanes", "flush_every", "random_access", "endless", "look_ahead")
        return {
            "source": source_name(self),
            "num_lanes": self.num_lanes,
            "flush_every": self.flush_every,
            "datasets": {dataset.name: dataset.fingerprint() for dataset in self.datasets},
            "settings": {name: value for name, value in plain_attributes(self).items() if name not in known},
        }

    def feed(self, lane: int, epoch: int, start: Cut) -> Iterator[Flush | Ahead | Sequence[Any] | End]:
        index, skip, empty = start.span * self.flush_every, start.taken, 0
        ahead, shards = _AheadOf(self, lane, epoch, index), self._shards_ahead(lane, epoch, index)
        while True:
            if index % self.flush_every == 0:
                yield Flush(lane, index // self.flush_every)
            coming = ahead.look(index)
            if coming is not None:
                coming.soon = shards.look(index) if shards is not None else []
                yield Ahead(coming)
            chunk = ahead.take()
            if chunk is None:
                yield End(lane)
                return
            yield from (chunk[i : i + QUANTUM] for i in range(skip, len(chunk), QUANTUM))
            skip = max(0, skip - len(chunk))
            index, empty = index + 1, 0 if len(chunk) else empty + 1
            if empty == MOST_EMPTY:
                raise ConfigError(
                    f"{source_name(self)}.chunk gave {empty:,} empty chunks on end in lane {lane}, up to index {index}; "
                    "give None after the end of a lane, and let no phase begin long after the rows of those before it are gone"
                )

    def _shards_ahead(self, lane: int, epoch: int, index: int) -> ShardsAhead | None:
        """What is told of shards long before their turn; None if no dataset is copied into a cache ahead of need."""
        limits = {dataset.name: dataset.bytes_ahead for dataset in self.datasets}
        if not any(limits.values()):
            return None
        nbytes = {dataset.name: dataset.prefetched_bytes(self.random_access) for dataset in self.datasets}
        return ShardsAhead(lambda i: self.checked_chunk(lane, i, epoch), nbytes, max(limits.values()), index)

    def checked_chunk(self, lane: int, index: int, epoch: int) -> Chunk | None:
        """``chunk`` as arrays. Raises ``ConfigError`` for what isn't a chunk of this source."""
        chunk = self.chunk(lane, index, epoch)
        return None if chunk is None else self._checked(chunk, lane, index)

    def _checked(self, chunk: Any, lane: int, index: int) -> Chunk:
        """A chunk as arrays. Raises ``ConfigError`` for what isn't a chunk of this source."""
        if isinstance(chunk, Chunk):
            return chunk
        names = [dataset.name for dataset in self.datasets]
        wrong = chunk if not isinstance(chunk, Sequence) else [at for at in chunk if not _is_pointer(at, names)][:1]
        if not isinstance(chunk, Sequence) or wrong:
            raise ConfigError(
                f"{source_name(self)}.chunk(lane={lane}, index={index}) must give a list of Pointer to rows of "
                f"{sorted(names)}, or None at the end; got {wrong!r:.100}"
            )
        return Chunk.of(chunk, names)


class _AheadOf:
    """The chunks of a lane, made ``look_ahead`` before their turn, so that what they need can be fetched. What goes wrong
    in making one is raised in its turn."""

    def __init__(self, source: WorkSource, lane: int, epoch: int, index: int) -> None:
        self._source, self._lane, self._epoch, self._next = source, lane, epoch, index
        self._made: deque[Chunk | Exception | None] = deque()

    def look(self, index: int) -> Chunk | None:
        """Makes chunks up to ``look_ahead`` beyond ``index``; the last new one, if it has rows."""
        new: Chunk | Exception | None = None
        while self._next <= index + self._source.look_ahead and (not self._made or isinstance(self._made[-1], Chunk)):
            try:
                new = self._source.checked_chunk(self._lane, self._next, self._epoch)
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                new = error
            self._made.append(new)
            self._next += 1
        return new if isinstance(new, Chunk) and len(new) else None

    def take(self) -> Chunk | None:
        made = self._made.popleft()
        if isinstance(made, Exception):
            raise made
        return made


def _is_pointer(at: Any, names: Collection[str]) -> bool:
    return isinstance(at, Pointer) and at.dataset in names and all(hasattr(part, "__index__") for part in at[1:])


def source_name(source: Source) -> str:
    kind = type(source)
    return f"{kind.__module__}.{kind.__qualname__}"


class Coming:
    """What the cache of units is told of a chunk: see there."""

    __slots__ = ("announced", "begun")

    def __init__(self) -> None:
        self.begun = self.announced = False


class Chunk(Sequence[Pointer]):
    """Pointers as arrays. ``names``: of datasets; ``dataset``: index into them; ``shard``, ``row``, ``pass_``: int64.

    A slice of it is one of the same kind, without a copy; it is part of ``whole``, from place ``first`` on. ``coming``:
    shared with its slices. ``soon``:
    (index of the chunk that needs it, dataset, shard, bytes) of shards that are worth fetching into a cache now, though not
    for this chunk. ``located``: what a reader has found out about the whole, for its slices.
    """

    def __init__(self, names: Sequence[str], dataset: I64, shard: I64, row: I64, pass_: I64) -> None:
        self.names, self.dataset, self.shard, self.row, self.pass_ = names, dataset, shard, row, pass_
        self.coming = Coming()
        self.soon: list[tuple[int, str, int, int]] = []
        self.first, self.located = 0, cast(Any, None)
        self._whole: Chunk | None = None
        self._pointers: list[Pointer] | None = None
        self._identities: list[int] | None = None

    @property
    def whole(self) -> Chunk:
        return self._whole or self

    def __reduce__(self) -> tuple[Any, ...]:
        return Chunk, (self.names, self.dataset, self.shard, self.row, self.pass_)

    @classmethod
    def of(cls, pointers: Sequence[Pointer], names: Sequence[str]) -> Chunk:
        """The chunk of some pointers to datasets with these names."""
        dataset = np.array([names.index(at.dataset) for at in pointers], np.int64)
        rest = np.array([[operator.index(part) for part in at[1:]] for at in pointers], np.int64).reshape(-1, 3)
        return cls(names, dataset, *rest.T)

    def __len__(self) -> int:
        return len(self.row)

    @overload
    def __getitem__(self, i: int) -> Pointer: ...
    @overload
    def __getitem__(self, i: slice) -> Chunk: ...
    def __getitem__(self, i: int | slice) -> Pointer | Chunk:
        if isinstance(i, slice):
            part = Chunk(self.names, self.dataset[i], self.shard[i], self.row[i], self.pass_[i])
            part.coming = self.coming
            first, _, step = i.indices(len(self))
            if step == 1:
                part._whole, part.first = self.whole, self.first + first
            return part
        return Pointer(self.names[int(self.dataset[i])], int(self.shard[i]), int(self.row[i]), int(self.pass_[i]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (list, Chunk)) and self.pointers() == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Pointer]:
        return iter(self.pointers())

    def pointers(self) -> Sequence[Pointer]:
        whole = self.whole
        if whole._pointers is None:
            names = [self.names[i] for i in whole.dataset.tolist()]
            fields = zip(names, whole.shard.tolist(), whole.row.tolist(), whole.pass_.tolist(), strict=True)
            whole._pointers = [*map(_pointer, fields)]
        return whole._pointers if whole is self else whole._pointers[self.first : self.first + len(self)]

    def identities(self) -> Sequence[int]:
        whole = self.whole
        if whole._identities is None:
            keys = np.array([_row_key(name) for name in self.names], np.uint64)[whole.dataset]
            for part in (whole.shard, whole.row, whole.pass_):
                keys = mix_array(keys ^ part.astype(np.uint64))
            whole._identities = [int(x) for x in keys.tolist()]
        return whole._identities if whole is self else whole._identities[self.first : self.first + len(self)]


@functools.lru_cache(maxsize=4096)
def _row_key(name: str) -> int:
    return key("row", name)


def identity(pointer: Pointer) -> int:
    """Identity of the record that a pointer names: the same on every rank, another one in the next pass."""
    value = _row_key(pointer.dataset)
    for part in pointer[1:]:
        value = mix(value ^ operator.index(part))
    return value


def pointer(dataset: Dataset, row: int, pass_: int = 0) -> Pointer:
    """The pointer to row ``row`` of a dataset, counted through all its files in order.

    >>> pointer(rows, 2)
    Pointer(dataset='demo', shard=0, row=2, pass_=0)
    """
    row = operator.index(row)
    if not 0 <= row < dataset.rows:
        raise ConfigError(f"row {row} was asked of dataset {dataset.name!r}, which has {dataset.rows} rows")
    starts = np.cumsum(dataset.shard_rows) - dataset.shard_rows
    shard = int(np.searchsorted(starts + dataset.shard_rows, row, side="right"))
    return Pointer(dataset.name, shard, row - int(starts[shard]), operator.index(pass_))


def check_datasets(name: str, datasets: Any) -> None:
    """Raises ``ConfigError`` unless ``datasets`` is a list of ``Dataset``."""
    if not isinstance(datasets, (list, tuple)) or not all(isinstance(each, Dataset) for each in datasets):
        shown = datasets if isinstance(datasets, (list, tuple)) else f"one {type(datasets).__name__}"
        raise ConfigError(f"{name} must be a list of Dataset, such as [Dataset.from_path(...)], got {shown!r:.200}")


def check_seed(seed: Any) -> None:
    """Raises ``ConfigError`` unless ``seed`` is an int."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigError(f"seed must be an integer, got {seed!r}")


def check_at_least(name: str, value: Any, least: int) -> None:
    """Raises ``ConfigError`` unless ``value`` is an int of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, got {value!r}")
