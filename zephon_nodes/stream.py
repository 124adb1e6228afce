"""What travels between nodes.

A lane is a stream of records, cut by marks. Work moves in lists of items of one lane:

    Record    a payload with its identity and its origins
    Drop      a record that was left out on purpose (a filter, a bad row under on_error="skip"); it travels on, so that
              it is counted exactly once, where a checkpoint passes it
    Failure   an error, kept in its place until everything before it has been delivered

and two marks, which never overtake an item and are never overtaken:

    Flush     the start of a span: every stateful node emits what it holds for the lane and starts clean
    End       nothing more comes in this lane in this epoch

None is a payload like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from zephon_nodes.hashing import child_identity, group_identity

_EPOCH_SHIFT = 32


def pass_number(epoch: int, pass_: int) -> int:
    """One number for pass ``pass_`` of an epoch: every epoch has orders of its own, however many passes the others have."""
    return epoch << _EPOCH_SHIFT | pass_


def split_pass(number: int) -> tuple[int, int]:
    """(epoch, pass in the epoch) of a ``pass_number``."""
    return number >> _EPOCH_SHIFT, number & (1 << _EPOCH_SHIFT) - 1


class Pointer(NamedTuple):
    """Names a sample without reading it.

    ``dataset``: the dataset's name. ``shard``: index of the file in the dataset. ``row``: index in the file.
    ``pass_``: which time the dataset is gone through, a ``pass_number``.

    >>> StaticMixtureWorkSource([rows], shuffle="none").chunk(lane=0, index=0)[1]
    Pointer(dataset='demo', shard=0, row=1, pass_=0)
    """

    dataset: str
    shard: int
    row: int
    pass_: int = 0


class Cut(NamedTuple):
    """A place in a lane: ``taken`` records of span ``span``. ``token`` is the source's own state at the span's start, if it has one."""

    span: int
    taken: int
    token: Any = None


class Record:
    """One sample on its way.

    ``payload``: any value, mostly a dict. ``identity``: 64-bit int, the same in every run and on every worker; given as a list
    where it is made of others, which few ask for.
    ``origins``: pointers of the rows it is made of. ``cut``: set where records are counted (see ``engine``).
    ``parts``: of a packed record, (dataset, tokens) of each document; else None.
    """

    __slots__ = ("_identity", "cut", "origins", "parts", "payload")

    def __init__(
        self,
        payload: Any,
        identity: int | list[Any],
        origins: tuple[Pointer, ...],
        cut: Cut | None = None,
        parts: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        self.payload, self._identity, self.origins, self.cut, self.parts = payload, identity, origins, cut, parts

    @property
    def identity(self) -> int:
        return _resolved(self._identity)

    def replaced(self, payload: Any) -> Record:
        """The same record with another payload."""
        return Record(payload, self._identity, self.origins, self.cut, self.parts)

    def child(self, payload: Any, index: int) -> Record:
        """Part ``index`` of a record that was split."""
        return Record(payload, child_identity(self.identity, index), self.origins, self.cut)

    def __repr__(self) -> str:
        return f"Record({self.payload!r}, origins={self.origins!r})"


def component(record: Record) -> str:
    """The dataset that a record belongs to in a mixture: that of its first row."""
    return record.origins[0].dataset if record.origins else ""


def _resolved(identity: Any) -> int:
    return identity if isinstance(identity, int) else group_identity([*map(_resolved, identity)])


def merged(payload: Any, records: Sequence[Record]) -> Record:
    """One record made of several, in order."""
    origins = tuple(itertools.chain.from_iterable([record.origins for record in records]))
    return Record(payload, [record._identity for record in records], origins)


class Drop:
    """A record that was left out. ``failed``: by an error under on_error="skip", not by a filter. ``count``: of records
    that were left out alike; ``origins`` are then not kept. ``place``: (span, records before it), set where records are
    counted."""

    __slots__ = ("count", "failed", "node", "origins", "place", "reason")

    def __init__(
        self, node: str, reason: str, origins: tuple[Pointer, ...], failed: bool = False, count: int = 1
    ) -> None:
        self.node, self.reason, self.origins, self.failed, self.count = node, reason, origins, failed, count
        self.place: tuple[int, int] | None = None

    @property
    def head(self) -> str:
        """What drops are counted by: the kind of error, or the reason."""
        return self.reason.split("\n", 1)[0].split(":", 1)[0]

    def __repr__(self) -> str:
        return f"Drop({self.node!r}, {self.reason!r}, {self.origins!r})"


class Failure:
    """An error that waits for its turn. ``origins``: of the record that it happened to, if it is known."""

    __slots__ = ("error", "origins")

    def __init__(self, error: BaseException, origins: tuple[Pointer, ...] = ()) -> None:
        self.error, self.origins = error, origins


Item: TypeAlias = "Record | Drop | Failure"


class Flush(NamedTuple):
    """The start of span ``span`` of a lane; ``token`` as in ``Cut``."""

    lane: int
    span: int
    token: Any = None


class End(NamedTuple):
    """The end of a lane in this epoch; ``token`` as in ``Flush``."""

    lane: int
    token: Any = None
