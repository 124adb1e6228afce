"""What travels between nodes.

A lane is a stream of records, cut by marks. Work moves in lists of items of one lane:

    Record    a payload with its identity and its origins
    Drop      a record that was left out on purpose (a filter, a bad row under on_error="skip"); it travels on, so that
              it is counted exactly once, where a checkpoint passes it
    Failure   an error, kept in its place until everything before it has been delivered

    Together  records of rows that were read together, as one item: only from Read to a node right behind it

and two marks, which never overtake an item and are never overtaken:

    Flush     the start of a span: every stateful node emits what it holds for the lane and starts clean
    End       nothing more comes in this lane in this epoch

None is a payload like any other.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from zephon_nodes.hashing import child_identity, group_identity

if TYPE_CHECKING:
    from zephon_nodes.work.base import Chunk

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


class Run(NamedTuple):
    """The rows that places ``first`` to ``stop`` of a chunk point to: what is known of them, unless somebody asks for it."""

    chunk: Chunk
    first: int
    stop: int

    def pointers(self) -> Sequence[Pointer]:
        return self.chunk.pointers()[self.first : self.stop]

    def identities(self) -> Sequence[int]:
        return self.chunk.identities()[self.first : self.stop]


class Piece(NamedTuple):
    """Tokens ``start:stop`` of the document that place ``place`` of a chunk points to."""

    chunk: Chunk
    place: int
    start: int
    stop: int

    def pointer(self) -> Pointer:
        return self.chunk.pointers()[self.place]

    def identity(self) -> int:
        whole = self.chunk.identities()[self.place]
        return child_identity(whole, self.start) if self.start else whole


Origins: TypeAlias = "tuple[Pointer, ...] | list[Any]"
"""Pointers, or a list of what they can be had from: ``Run``, ``Piece``, ``Pointer``, and others of this kind."""


def pointers_of(origins: Origins) -> tuple[Pointer, ...]:
    """The pointers themselves."""
    if not isinstance(origins, list):
        return origins
    found: list[Pointer] = []
    for part in origins:
        if type(part) is Piece:
            found.append(part.pointer())
        elif type(part) is Pointer:
            found.append(part)
        else:
            found += part.pointers() if type(part) is Run else pointers_of(part)
    return tuple(found)


def rows_in(origins: Origins | Run) -> int:
    """How many pointers there are."""
    if isinstance(origins, Run):
        return origins.stop - origins.first
    if not isinstance(origins, list) or (origins and type(origins[0]) in (Piece, Pointer)):
        return len(origins)
    return sum(map(rows_in, origins))


class Record:
    """One sample on its way.

    ``payload``: any value, mostly a dict. ``identity``: 64-bit int, the same in every run and on every worker.
    ``origins``: pointers of the rows it is made of. ``cut``: set where records are counted (see ``engine``).
    ``parts``: of a packed record, (dataset, tokens) of each document; else None.
    Few ask for the identity, the origins and the parts of a record that is made of others, so they may be given as a list
    (see ``Origins``), and are worked out when they are needed.
    """

    __slots__ = ("_identity", "_parts", "cut", "made_of", "payload")

    def __init__(
        self,
        payload: Any,
        identity: int | list[Any],
        origins: Origins,
        cut: Cut | None = None,
        parts: tuple[tuple[str, int], ...] | list[Any] | None = None,
    ) -> None:
        self.payload, self._identity, self.made_of, self.cut, self._parts = payload, identity, origins, cut, parts

    @property
    def identity(self) -> int:
        return _resolved(self._identity)

    @property
    def origins(self) -> tuple[Pointer, ...]:
        made_of = self.made_of
        if isinstance(made_of, list):
            made_of = self.made_of = pointers_of(made_of)
        return made_of

    @origins.setter
    def origins(self, origins: tuple[Pointer, ...]) -> None:
        self.made_of = origins

    @property
    def parts(self) -> tuple[tuple[str, int], ...] | None:
        parts = self._parts
        if isinstance(parts, list):
            self._parts = parts = tuple((piece.pointer().dataset, piece.stop - piece.start) for piece in parts)
        return parts

    def replaced(self, payload: Any) -> Record:
        """The same record with another payload."""
        return Record(payload, self._identity, self.made_of, self.cut, self._parts)

    def child(self, payload: Any, index: int) -> Record:
        """Part ``index`` of a record that was split."""
        return Record(payload, child_identity(self.identity, index), self.made_of, self.cut)

    def __repr__(self) -> str:
        return f"Record({self.payload!r}, origins={self.origins!r})"


def component(record: Record) -> str:
    """The dataset that a record belongs to in a mixture: that of its first row."""
    return record.origins[0].dataset if record.origins else ""


def _resolved(identity: Any) -> int:
    if isinstance(identity, int):
        return identity
    members: list[int] = []
    for part in identity:
        if type(part) is Run:
            members += part.identities()
        else:
            members.append(part.identity() if type(part) is Piece else _resolved(part))
    return group_identity(members)


def merged(payload: Any, records: Sequence[Record]) -> Record:
    """One record made of several, in order."""
    return Record(payload, [record._identity for record in records], [record.made_of for record in records])


class Row(NamedTuple):
    """A record as it was read, for whoever needs no more of it than this. ``place``: in the chunk."""

    payload: Any
    chunk: Chunk
    place: int

    @property
    def origins(self) -> tuple[Pointer, ...]:
        return (self.chunk.pointers()[self.place],)

    @property
    def identity(self) -> int:
        return self.chunk.identities()[self.place]


_row = functools.partial(tuple.__new__, Row)
"""As ``Row._make``, without a frame of Python."""


class Together(NamedTuple):
    """Records of rows that were read together, and that nobody has told apart yet."""

    payloads: list[Any]
    run: Run

    def records(self) -> list[Record]:
        """Each by itself."""
        return [*map(Record, self.payloads, self.run.identities(), [(at,) for at in self.run.pointers()])]

    def rows(self) -> list[Row]:
        """Each by itself, with less trouble."""
        chunk, first, stop = self.run
        return [*map(_row, zip(self.payloads, itertools.repeat(chunk), range(first, stop)))]

    def part(self, first: int, stop: int) -> Together:
        """Some of them."""
        begin = self.run.first
        return Together(self.payloads[first:stop], Run(self.run.chunk, begin + first, begin + stop))


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
