"""A shuffle window over the records of a lane."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.hashing import draw, key
from zephon_nodes.node import Node
from zephon_nodes.stream import Record
from zephon_nodes.work.base import check_at_least, check_seed


class Shuffle(Node):
    """Holds up to ``buffer_size`` records of a lane; each one that comes sends a drawn one on.

    ``buffer_size``: records a lane; larger mixes better and holds more memory. The window empties at a span's end, so a
    span is the farthest that a record can move. ``seed`` (0): draws depend on it, the node's name and the records'
    identities, so every pass has another order. Nothing is lost and no record is in a checkpoint.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).shuffle(buffer_size=4, seed=1)
    >>> sorted(row["text"] for row in graph)
    ['and the last one', 'one', 'three of them', 'two words']
    """

    kind = "shuffle"
    holds = True
    reorders = True
    cheap = True
    ours = True

    def __init__(self, source: Node, buffer_size: int = 1024, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(source, name=name)
        check_at_least("buffer_size", buffer_size, 1)
        check_seed(seed)
        self.buffer_size, self.seed = buffer_size, seed

    def settings(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size, "seed": self.seed}

    def accumulator(self, place: Place) -> Accumulator:
        return _Window(self.buffer_size, key("shuffle", place.node, self.seed))


class _Window(Accumulator):
    def __init__(self, size: int, key_: int) -> None:
        self._size, self._key, self._held = size, key_, list[Record]()

    def push(self, record: Record) -> Iterable[Record]:
        if len(self._held) < self._size:
            self._held.append(record)
            return ()
        drawn = draw(self._key, record.identity) % self._size
        out, self._held[drawn] = self._held[drawn], record
        return (out,)

    def flush(self) -> Iterable[Record]:
        held, self._held = self._held, []
        return sorted(held, key=lambda record: draw(self._key, ~record.identity))
