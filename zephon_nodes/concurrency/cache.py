"""The cache that worker threads share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Coming(Protocol):
    """Work that will fetch values. ``begun``: it does, so that it is too late to make any ahead. ``announced``: the cache
    knows how much it will take."""

    begun: bool
    announced: bool


class SharedCache(Generic[K, V]):
    """Values that several threads want, each made once, the least recently used forgotten beyond ``limit`` values.

    A value also goes as soon as all that it has to give has been taken from it, unless more of it has been announced: one
    that a pass has used up may be wanted by the next pass at once. ``made``: values made so far. ``hits``: values asked for
    that were there, or being made.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._announced: dict[K, int] = {}
        self._changed = threading.Condition()
        self.made = self.hits = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, such as that of a worker process, is an empty one."""
        return type(self), (self._limit,)

    def fetch(
        self, wanted: Mapping[K, int], make: Callable[[K], tuple[V, int]], coming: Coming | None = None
    ) -> dict[K, V]:
        """The values of some keys. ``wanted``: how much of each is taken; ``make(key)``: a value and how much it has.
        ``coming``: the work that takes them, if ``warm`` may have been told of it."""
        out: dict[K, V] = {}
        if coming is not None:
            with self._changed:
                coming.begun = True
                for key, amount in wanted.items() if coming.announced else ():
                    self._announce(key, -amount)
        while len(out) < len(wanted):
            mine = self._take_or_claim(wanted, out)
            if mine is not None:
                out[mine] = self._make(mine, wanted[mine], make)
        return out

    def warm(self, wanted: Mapping[K, int], make: Callable[[K], tuple[V, int]], coming: Coming) -> None:
        """Makes the values of keys that nobody has made or is making, until the work has begun to fetch them; waits for nobody.
        ``wanted``: how much of each will be taken."""
        with self._changed:
            if not coming.begun:
                coming.announced = True
                for key, amount in wanted.items():
                    self._announce(key, amount)
        for key in wanted:
            with self._changed:
                if coming.begun:
                    return
                if key in self._entries:
                    continue
                self._entries[key] = _Entry()
            self._make(key, 0, make)

    def _announce(self, key: K, amount: int) -> None:
        amount += self._announced.pop(key, 0)
        if amount > 0:
            self._announced[key] = amount

    def _take_or_claim(self, wanted: Mapping[K, int], out: dict[K, V]) -> K | None:
        """Takes what is ready; else claims a key that nobody is making; else waits for one that somebody is."""
        with self._changed:
            for key, amount in wanted.items():
                entry = self._entries.get(key)
                if key not in out and entry is not None and entry.ready:
                    out[key] = entry.value
                    self.hits += 1
                    self._use(key, entry, amount)
            missing = [key for key in wanted if key not in out]
            free = [key for key in missing if key not in self._entries]
            if free:
                self._entries[free[0]] = _Entry()
                return free[0]
            if missing:
                self._changed.wait()
            return None

    def _use(self, key: K, entry: _Entry[V], amount: int) -> None:
        entry.left -= amount
        self._entries.move_to_end(key)
        if entry.left <= 0:
            if key in self._announced:
                entry.left += entry.whole
            else:
                del self._entries[key]

    def _make(self, key: K, amount: int, make: Callable[[K], tuple[V, int]]) -> V:
        entry, made = self._entries[key], False
        try:
            entry.value, entry.whole = make(key)
            entry.left = entry.whole
            made = True
            return entry.value
        finally:
            with self._changed:
                entry.ready = made  # here, so that nobody takes it, or forgets it, before this thread has had its share
                if made:
                    self.made += 1
                    self._use(key, entry, amount)
                    self._forget()
                else:
                    del self._entries[key]
                self._changed.notify_all()

    def _forget(self) -> None:
        ready = [key for key, entry in self._entries.items() if entry.ready]
        for key in ready[: max(0, len(ready) - self._limit)]:
            del self._entries[key]


class _Entry(Generic[V]):
    __slots__ = ("left", "ready", "value", "whole")

    def __init__(self) -> None:
        self.ready = False
        self.left = self.whole = 0
        self.value: V
