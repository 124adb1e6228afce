"""Which pieces of which documents make up a sequence. Knows lengths only: no tokens, no clock, no randomness.

Four algorithms, one class each:

    Wrap          documents end to end, cut at exactly max_length: no padding, most cuts
    FirstFit      whole documents into the first of a few open bins with room: no cuts, most padding
    BestFit       the same, into the fullest bin with room: less padding
    BestFitWrap   the same, but a bin never leaves half empty: the next document is cut to fill it

Rules that hold for all:

1. Nothing is lost and nothing comes twice. The parts of a document come out in order.
2. Only the last part of a sequence may end before its document does (``stop < length``). So the token that follows a
   sequence has to be known only at the sequence's last position.
3. A document longer than ``max_length`` is split. All but ``Wrap`` send off its full windows at once.
4. A document of no tokens is a part with ``start == stop`` and counts for ``max_documents``, so its origin isn't lost.
   A sequence made of such parts only has no tokens. It comes out at a flush, or when ``max_documents`` is reached.
5. The work for a document grows with the number of its parts, never with the tokens that are held.
"""

from __future__ import annotations

import functools
import sys
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from zephon_nodes.errors import ConfigError, RowError

ALGORITHMS = ("wrap", "first_fit", "best_fit", "best_fit_wrap")
OVERLONG = ("split", "drop", "raise")


class Part(NamedTuple):
    """Tokens ``start:stop`` of ``doc`` (any handle), whose whole length is ``length``."""

    doc: Any
    start: int
    stop: int
    length: int


_part: Callable[[Any], Part] = functools.partial(tuple.__new__, Part)
"""As ``Part._make``, without a frame of Python."""


class Packer(ABC):
    """Decides which parts make up a sequence. ``max_length``: tokens a sequence. ``max_documents``: parts a sequence,
    None for any number; with it a sequence may close short.

    Raises ``ConfigError`` for a setting that isn't an int of at least 1.
    """

    def __init__(self, max_length: int, max_documents: int | None = None) -> None:
        self.max_length = _positive("max_length", max_length)
        self._cap = sys.maxsize if max_documents is None else _positive("max_documents", max_documents)

    @abstractmethod
    def add(self, doc: Any, length: int) -> list[list[Part]]:
        """Takes a document of ``length`` tokens. Returns the sequences that are complete now, often none."""

    def add_all(self, docs: Sequence[Any], lengths: Sequence[int]) -> list[tuple[int, list[Part]]]:
        """``add`` for each of some documents. Returns the sequences, each with how many of the documents were taken by then."""
        numbered = enumerate(zip(docs, lengths, strict=True), 1)
        return [(taken, parts) for taken, (doc, length) in numbered for parts in self.add(doc, length)]

    @abstractmethod
    def flush(self) -> list[list[Part]]:
        """Returns all that is held, as sequences, and starts clean."""


class Wrap(Packer):
    """Documents end to end, cut at exactly ``max_length``. A flush gives at most one sequence, the short tail."""

    def __init__(self, max_length: int, max_documents: int | None = None) -> None:
        super().__init__(max_length, max_documents)
        self._parts: list[Part] = []
        self._room = self.max_length

    def add(self, doc: Any, length: int) -> list[list[Part]]:
        return self.lay(Part(doc, 0, length, length))

    def lay(self, part: Part) -> list[list[Part]]:
        """``add`` for a part of a document: it is put behind what is held, and cut where sequences end."""
        done = []
        doc, start, stop, length = part
        while True:
            middle = min(stop, start + self._room)
            self._parts.append(Part(doc, start, middle, length))
            self._room -= middle - start
            if not self._room or len(self._parts) >= self._cap:
                done += self.flush()
            if middle == stop:
                return done
            start = middle

    def flush(self) -> list[list[Part]]:
        parts, self._parts, self._room = self._parts, [], self.max_length
        return [parts] if parts else []


class FirstFit(Packer):
    """Whole documents, each into the oldest open bin with room; a full bin leaves at once.

    ``num_bins``: how many may be open. If none has room, a new one is opened; if all are open, the oldest leaves.
    More bins mean less padding, and more tokens held.
    """

    def __init__(self, max_length: int, num_bins: int, max_documents: int | None = None) -> None:
        super().__init__(max_length, max_documents)
        self._num_bins = _positive("num_bins", num_bins)
        self._rooms: list[int] = []
        self._bins: list[list[Part]] = []
        self._most = 0  # no bin has more room than this: saves most of the looking

    def add(self, doc: Any, length: int) -> list[list[Part]]:
        return [parts for _, parts in self.add_all((doc,), (length,))]

    def add_all(self, docs: Sequence[Any], lengths: Sequence[int]) -> list[tuple[int, list[Part]]]:
        """See ``Packer.add_all``. One loop without calls: pre-tokenized rows come faster than anything else."""
        rooms, bins, most, max_length, cap = self._rooms, self._bins, self._most, self.max_length, self._cap
        done: list[tuple[int, list[Part]]] = []
        for taken, part in enumerate(map(_part, zip(docs, repeat(0), lengths, lengths)), 1):
            need = part[2]
            if need >= max_length:
                full, rest = _windows(part.doc, need, max_length)
                done += [(taken, parts) for parts in full]
                if rest is None:
                    continue
                part, need = rest, rest.stop - rest.start
            index = 0
            if need <= most:
                for room in rooms:
                    if room >= need:
                        break
                    index += 1
                else:
                    most = need - 1
            if need > most:
                if len(rooms) == self._num_bins:
                    done.append((taken, self._leave(0)))
                most = max(most, max_length - need)
                index = len(rooms)
                rooms.append(max_length)
                bins.append([])
            bins[index].append(part)
            rooms[index] -= need
            if not rooms[index] or len(bins[index]) >= cap:
                done.append((taken, self._leave(index)))
        self._most = most
        return done

    def _leave(self, index: int) -> list[Part]:
        del self._rooms[index]
        return self._bins.pop(index)

    def flush(self) -> list[list[Part]]:
        bins, self._bins, self._rooms, self._most = self._bins, [], [], 0
        return bins


class BestFit(Packer):
    """Whole documents, each into the fullest open bin with room (ties: the oldest); a full bin leaves at once.

    ``num_bins``: as in ``FirstFit``, but when all are open, the fullest leaves.
    """

    def __init__(self, max_length: int, num_bins: int, max_documents: int | None = None) -> None:
        super().__init__(max_length, max_documents)
        self._bins = _SortedBins(self.max_length, _positive("num_bins", num_bins), self._cap)

    def add(self, doc: Any, length: int) -> list[list[Part]]:
        done, rest = _windows(doc, length, self.max_length)
        if rest is not None and not self._bins.place(rest, done):
            done.append(self._bins.pop_fullest()[1])
            self._bins.place(rest, done)
        return done

    def flush(self) -> list[list[Part]]:
        return self._bins.pop_all()


class BestFitWrap(Packer):
    """Like ``BestFit``, but no padding: when all bins are open and none has room, the head of the document fills the
    fullest one, which leaves full, and the rest of the document is placed again.

    A flush lays what the bins hold end to end, oldest bin first, and cuts it: at most one sequence is short.
    ``num_bins``: as in ``FirstFit``; more bins mean fewer cuts.
    """

    def __init__(self, max_length: int, num_bins: int, max_documents: int | None = None) -> None:
        super().__init__(max_length, max_documents)
        self._bins = _SortedBins(self.max_length, _positive("num_bins", num_bins), self._cap)
        self._tail = Wrap(max_length, max_documents)

    def add(self, doc: Any, length: int) -> list[list[Part]]:
        done, rest = _windows(doc, length, self.max_length)
        if rest is not None and not self._bins.place(rest, done):
            room, parts = self._bins.pop_fullest()
            middle = rest.start + room
            parts.append(rest._replace(stop=middle))
            done.append(parts)
            self._bins.place(rest._replace(start=middle), done)
        return done

    def flush(self) -> list[list[Part]]:
        done = []
        for parts in self._bins.pop_all():
            for part in parts:
                done += self._tail.lay(part)
        return done + self._tail.flush()


class _SortedBins:
    """Open bins as (room, number, parts), fullest first, so that the best one is found by bisection."""

    def __init__(self, max_length: int, num_bins: int, cap: int) -> None:
        self._max_length, self._num_bins, self._cap = max_length, num_bins, cap
        self._bins: list[tuple[int, int, list[Part]]] = []
        self._opened = 0

    def place(self, part: Part, done: list[list[Part]]) -> bool:
        """Puts a part into the fullest bin with room, or a new one; to ``done`` if that is full. False: no bin to be had."""
        need = part.stop - part.start
        index = bisect_left(self._bins, (need,))
        if index < len(self._bins):
            room, number, parts = self._bins.pop(index)
        elif len(self._bins) < self._num_bins:
            room, number, parts = self._max_length, self._opened, []
            self._opened += 1
        else:
            return False
        parts.append(part)
        if room == need or len(parts) >= self._cap:
            done.append(parts)
        else:
            insort(self._bins, (room - need, number, parts))
        return True

    def pop_fullest(self) -> tuple[int, list[Part]]:
        """Room and parts."""
        room, _, parts = self._bins.pop(0)
        return room, parts

    def pop_all(self) -> list[list[Part]]:
        """The parts of each bin, in the order in which the bins were opened."""
        bins, self._bins = self._bins, []
        return [parts for _, _, parts in sorted(bins, key=lambda entry: entry[1])]


def packer(algorithm: str, max_length: int, num_bins: int, max_documents: int | None = None) -> Packer:
    """The packer with that name, one of ``ALGORITHMS``. "wrap" has no bins: ``num_bins`` doesn't matter there.

    Raises ``ConfigError`` for an unknown name and for numbers that aren't ints of at least 1.
    """
    _choice("algorithm", algorithm, ALGORITHMS)
    _positive("num_bins", num_bins)
    if algorithm == "wrap":
        return Wrap(max_length, max_documents)
    if algorithm == "first_fit":
        return FirstFit(max_length, num_bins, max_documents)
    if algorithm == "best_fit":
        return BestFit(max_length, num_bins, max_documents)
    return BestFitWrap(max_length, num_bins, max_documents)


def check_overlong(overlong: str) -> None:
    """Raises ``ConfigError`` if ``overlong`` isn't one of ``OVERLONG``."""
    _choice("overlong", overlong, OVERLONG)


def overlong_reason(length: int, max_length: int, overlong: str) -> str | None:
    """Why a document is to be left out, or None if it goes to the packer. To be asked before ``Packer.add``.

    ``overlong``: "split" leaves nothing out, "drop" leaves out what is longer than ``max_length``, "raise" raises a
    ``RowError`` for it (the caller adds node and origins).
    """
    if length <= max_length or overlong == "split":
        return None
    if overlong == "raise":
        raise RowError(
            f'a document has {length} tokens, max_length is {max_length}, and overlong="raise" forbids to cut it: '
            f'use a larger max_length, overlong="split" to cut it, or overlong="drop" to leave it out'
        )
    return f"longer than max_length={max_length}"


def _windows(doc: Any, length: int, max_length: int) -> tuple[list[list[Part]], Part | None]:
    """The full windows of a document as sequences, and the part that is left to place."""
    if length < max_length:
        return [], _part((doc, 0, length, length))
    stop = length - length % max_length
    full = [[_part((doc, start, start + max_length, length))] for start in range(0, stop, max_length)]
    return full, _part((doc, stop, length, length)) if stop < length else None


def _positive(name: str, value: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"packing: {name}={value!r}, but an int of at least 1 is needed")
    return value


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"packing: {name}={value!r} is unknown: use one of {', '.join(map(repr, choices))}")
