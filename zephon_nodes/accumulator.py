"""The stateful half of a node: sees one lane's records in order and decides what is worked on together.

One instance serves one span of one lane and is then thrown away, so "reset" needs no code, and a checkpoint needs nothing
of it: a resume makes a new one and shows it the span again. It has no thread, clock, I/O or global. What it remembers
ends with the span.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from zephon_nodes.stream import Pointer, Record, Together

if TYPE_CHECKING:
    from zephon_nodes.work.base import Source


class Place(NamedTuple):
    """Where an accumulator works. ``source``: what the run reads. ``fill_last``: the last output of the lane is to be
    filled up (at_end="pad").

    >>> Place(node="shuffle", lane=3, span=0, epoch=0, source=None).lane
    3
    """

    node: str
    lane: int
    span: int
    epoch: int
    source: Source
    fill_last: bool = False


class Before(NamedTuple):
    """A call of the counting node that doesn't hold the record whose push has completed it."""

    call: Any


class Accumulator(ABC):
    """Turns records into calls: values that the node's worker function takes, one at a time, in any thread.

    Where a node has no worker function, calls are the records (or drops, or failures) themselves.

    >>> class Pairs(Accumulator):
    ...     def __init__(self):
    ...         self.waiting = []
    ...     def push(self, record):
    ...         self.waiting.append(record)
    ...         return self.flush() if len(self.waiting) == 2 else []
    ...     def flush(self):
    ...         call, self.waiting = self.waiting, []
    ...         return [call] if call else []
    >>> pairs = Pairs()
    >>> [list(pairs.push(letter)) for letter in "abc"], pairs.flush()
    ([[], [['a', 'b']], []], [['c']])
    """

    @abstractmethod
    def push(self, record: Record) -> Iterable[Any]:
        """The calls that are complete now."""

    def push_together(self, rows: Together) -> list[tuple[int, Any]] | None:
        """The same as pushing each of them: the calls that are complete now, with how many of the records had been pushed
        by then. None, and nothing done, if they have to be pushed one by one. May be left as it is: it saves time."""
        return None

    @abstractmethod
    def flush(self) -> Iterable[Any]:
        """The calls made of all that is held. Nothing is pushed after it."""

    def held(self) -> list[tuple[Pointer, ...]]:
        """The origins of what is held, for the report when ``flush`` raises. May be left as it is."""
        return []


class Grouping(Accumulator):
    """Calls of ``size`` records, the last one shorter."""

    def __init__(self, size: int) -> None:
        self._size, self._held = size, list[Record]()

    def push(self, record: Record) -> Iterable[list[Record]]:
        self._held.append(record)
        return self.flush() if len(self._held) == self._size else ()

    def flush(self) -> Iterable[list[Record]]:
        held, self._held = self._held, []
        return [held] if held else ()
