"""Records of like length beside each other, so that padded batches pad little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.hashing import draw, key
from zephon_nodes.node import Node, OnError
from zephon_nodes.pack_node import token_count
from zephon_nodes.stream import Record
from zephon_nodes.work.base import check_at_least, check_seed


class GroupByLength(Node):
    """Sorts windows of ``window`` records by number of tokens and sends them on in runs of ``run`` neighbours, runs in a
    drawn order.

    ``window`` (1024): records a lane; larger pads less and holds more. ``run`` (32): at least the microbatch size is right;
    longer pads less, shorter mixes better. A span's end closes the window. ``seed`` (0): as in ``Shuffle``.
    Put it before ``Batch``; with ``Batch(max_tokens=...)`` short records make large batches.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows])).group_by_length(window=4, run=4)
    >>> [len(row["input_ids"]) for row in graph]
    [1, 2, 3, 4]
    """

    kind = "group_by_length"
    takes = ("rows",)
    holds = True
    reorders = True
    cheap = True
    ours = True

    def __init__(
        self,
        source: Node,
        window: int = 1024,
        run: int = 32,
        *,
        seed: int = 0,
        name: str | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, on_error=on_error)
        check_at_least("window", window, 1)
        check_at_least("run", run, 1)
        check_seed(seed)
        self.window, self.run, self.seed = window, run, seed

    def settings(self) -> dict[str, Any]:
        return {"window": self.window, "run": self.run, "seed": self.seed}

    def accumulator(self, place: Place) -> Accumulator:
        return _Windows(self, key("group_by_length", place.node, self.seed))


class _Windows(Accumulator):
    def __init__(self, node: GroupByLength, key_: int) -> None:
        self._node, self._key, self._held = node, key_, list[tuple[int, int, Record]]()

    def push(self, record: Record) -> Iterable[Record]:
        self._held.append((token_count(record.payload), record.identity, record))
        return self.flush() if len(self._held) == self._node.window else ()

    def flush(self) -> Iterable[Record]:
        held, self._held = sorted(self._held, key=lambda entry: entry[:2]), []
        runs = [held[i : i + self._node.run] for i in range(0, len(held), self._node.run)]
        runs.sort(key=lambda run: draw(self._key, run[0][1]))
        return [record for run in runs for _, _, record in run]
