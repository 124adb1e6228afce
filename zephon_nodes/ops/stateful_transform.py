"""A user's own stateful operator: any object with ``push`` and ``flush``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import key
from zephon_nodes.node import Node, OnError, Runner, Setup, each_record
from zephon_nodes.recipe import describe_function
from zephon_nodes.stream import Drop, Item, Pointer, Record


class Transform(Protocol):
    """What a factory gives: sees the payloads of one span of one lane, in order.

    ``push(payload)`` returns the payloads to send on, or None; it may be a generator. ``flush()`` does the same at the
    span's end and may be left out. Holding back, dropping, splitting and merging need nothing more.
    """

    def push(self, payload: Any) -> Iterable[Any] | None: ...

    def flush(self) -> Iterable[Any] | None: ...


class Emit(NamedTuple):
    """An output that says what it is made of: ``parents`` are objects that were pushed.

    >>> class Joined:
    ...     def __init__(self):
    ...         self.held = []
    ...     def push(self, row):
    ...         self.held.append(row)
    ...     def flush(self):
    ...         yield Emit(" | ".join(row["text"] for row in self.held[1:]), tuple(self.held[1:]))
    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).stateful_transform(Joined)
    >>> list(graph), graph.drops.total
    (['two words | three of them | and the last one'], 1)
    """

    payload: Any
    parents: tuple[Any, ...] = ()


class StatefulTransform(Node):
    """Runs a fresh ``factory()`` over every span of every lane. See ``Transform`` for what it must give.

        class Dedup:
            '''Leaves out texts that the span has had.'''

            def __init__(self):
                self.seen = set()

            def push(self, payload):
                if payload["text"] not in self.seen:
                    self.seen.add(payload["text"])
                    yield payload

        StatefulTransform(source, Dedup)

    What it remembers ends with the span, about ``chunk_size * flush_every`` rows. It runs in the driver's thread: leave
    heavy work to a map before or after it, or to a static method ``work(payload) -> payload`` of the class, which is
    applied to every output in worker threads. ``factory`` gets no arguments (bind them with ``functools.partial``; plain ones
    become part of the recipe), ``version`` is to be raised when its code is edited.

    Origins: an object that was pushed and comes out keeps its own. Anything else is taken to be made of all that was pushed
    since the previous output, or of the parents that ``Emit(payload, parents)`` names. What never came out, in either
    way, stands in the drop report as "absorbed".

    >>> class Running:
    ...     def __init__(self):
    ...         self.total = 0
    ...     def push(self, row):
    ...         self.total += len(row["input_ids"])
    ...         yield self.total
    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).stateful_transform(Running))
    [1, 3, 6, 10]
    """

    kind = "stateful_transform"
    holds = True

    def __init__(
        self,
        source: Node,
        factory: Callable[[], Any],
        *,
        version: str | int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if not callable(factory):
            raise ConfigError(f"stateful_transform needs a class or a function that makes the object, got {factory!r}")
        if isinstance(factory, type) and not callable(getattr(factory, "push", None)):
            raise ConfigError(f"stateful_transform: {factory.__qualname__} has no method push(payload)")
        self.factory, self.version = factory, version
        bound = factory
        while isinstance(bound, functools.partial):
            bound = bound.func
        if isinstance(bound, type) and inspect.isfunction(inspect.getattr_static(bound, "work", None)):
            raise ConfigError(f"stateful_transform: {bound.__qualname__}.work must be a @staticmethod, work(payload)")
        self.work: Callable[[Any], Any] | None = getattr(bound, "work", None)

    @property
    def cheap(self) -> bool:  # type: ignore[override]
        return self.work is None

    def settings(self) -> dict[str, Any]:
        return describe_function(self.factory, self.version)

    def accumulator(self, place: Place) -> Accumulator:
        return _Stateful(self.factory(), place)

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]] | None:
        work = self.work
        if work is None:
            return None
        each = each_record(setup, lambda record: [record.replaced(work(record.payload))])
        return lambda record: each([record])


class _Stateful(Accumulator):
    """Keeps account of what was pushed, so that the user needn't.

    ``_known``: records by the object that was pushed; several of one object (a small int, say) in order. ``_pending``: those
    that haven't come out in any way. ``_since``: pushed since the previous output. A record that has come out by its
    children is forgotten when nobody else holds its payload, so that big payloads don't live until the span's end.
    """

    def __init__(self, transform: Any, place: Place) -> None:
        self._transform, self._place = transform, place
        self._known: dict[int, deque[Record]] = {}
        self._pending: dict[int, Record] = {}
        self._since: list[Record] = []
        self._used: list[Record] = []
        self._last: tuple[Pointer, ...] = ()
        self._count = 0

    def push(self, record: Record) -> Iterable[Item]:
        self._forget()
        self._known.setdefault(id(record.payload), deque()).append(record)
        self._pending[id(record)] = record
        self._since.append(record)
        try:
            return self._records(self._transform.push(record.payload))
        except Exception:
            self._pending.pop(id(record), None)  # the policy accounts for it
            self._since = [other for other in self._since if other is not record]
            raise

    def flush(self) -> Iterable[Item]:
        flush = getattr(self._transform, "flush", None)
        out: list[Item] = list(self._records(flush())) if flush else []
        return out + [Drop(self._place.node, "absorbed", record.origins) for record in self._pending.values()]

    def held(self) -> list[tuple[Pointer, ...]]:
        return [record.origins for record in self._pending.values()]

    def _records(self, outputs: Iterable[Any] | None) -> list[Record]:
        """Records of what one call has given."""
        if outputs is None:
            return []
        if isinstance(outputs, (dict, str, bytes)):
            raise TypeError(
                f"push and flush must return a list of payloads or be generators, got a {type(outputs).__name__}"
            )
        given = list(outputs)
        if not given:
            return []
        since, self._since = self._since, []
        self._last = _origins(since) or self._last
        return [self._own(payload) or self._new(payload, since) for payload in given]

    def _own(self, payload: Any) -> Record | None:
        """The record of an object that was pushed and comes out."""
        waiting = self._known.get(id(payload))
        if waiting is None or waiting[0].payload is not payload:
            return None
        record = waiting.popleft()
        if not waiting:
            del self._known[id(payload)]
        self._pending.pop(id(record), None)
        return record

    def _new(self, payload: Any, parents: list[Record]) -> Record:
        """The record of a new object, made of the parents that it names, or of all that was pushed since the last output."""
        origins = self._last
        if isinstance(payload, Emit):
            found = [self._known[id(parent)][0] for parent in payload.parents if id(parent) in self._known]
            payload, parents, origins = payload.payload, found, _origins(found)
        for parent in parents:
            self._pending.pop(id(parent), None)
        self._used += parents
        place = self._place
        self._count += 1
        return Record(payload, key(place.node, place.epoch, place.lane, place.span, self._count), origins)

    def _forget(self) -> None:
        for record in self._used:
            waiting = self._known.get(id(record.payload))
            if waiting and waiting[0] is record and sys.getrefcount(record.payload) <= _OURS:
                waiting.popleft()
                if not waiting:
                    del self._known[id(record.payload)]
        self._used = []


_OURS = 2
"""References to a payload that only its record holds, the one of asking included."""


def _origins(records: list[Record]) -> tuple[Pointer, ...]:
    return tuple(at for record in records for at in record.origins)
