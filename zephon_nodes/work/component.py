"""One dataset of a mixture: which of its rows are due when, in which lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from zephon_nodes.hashing import I64
from zephon_nodes.stream import pass_number
from zephon_nodes.work.order import Order

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset


class Due(NamedTuple):
    """Rows of a chunk, arrays of one length. ``time``: float64 in [0, 1), when in the chunk; the others int64."""

    time: Any
    shard: I64
    row: I64
    pass_: I64


class Component:
    """A dataset in its order. Row i of the c rows of a piece is due at u = (z + (i + phi) / c) * N / (r L)."""

    def __init__(self, dataset: Dataset, order: Order) -> None:
        self.name, self.order = dataset.name, order
        self._shard_starts = np.cumsum(dataset.shard_rows) - dataset.shard_rows

    def due(self, lane: int, epoch: int, edges: tuple[int, int], denominator: int) -> list[Due]:
        """The rows with edges[0] <= u * denominator < edges[1], a ``Due`` for each round that they touch."""
        order = self.order
        scale, den = order.rounds * order.lanes, denominator * order.rows
        low, high = edges[0] * scale, edges[1] * scale
        out = []
        for z in range(low // den, -(-high // den)):
            piece = order.piece(epoch, z, lane)
            count, phase = piece[1] - piece[0], order.phase(epoch, z, lane)
            first, stop = (_first_due(edge - z * den, den, count, phase) for edge in (low, high))
            if first < stop:
                place = (np.arange(first, stop) + phase / 2**32) / count
                time = (place + (z * den - low) / den) / ((high - low) / den)
                out.append(
                    self._located(time, order.take(pass_number(epoch, z // order.rounds), piece, first, stop), epoch, z)
                )
        return out

    def _located(self, time: Any, rows: I64, epoch: int, z: int) -> Due:
        shard = np.searchsorted(self._shard_starts, rows, side="right") - 1
        pass_ = pass_number(epoch, z // self.order.rounds)
        return Due(time, shard, rows - self._shard_starts[shard], np.full(len(rows), pass_))


def _first_due(edge: int, den: int, count: int, phase: int) -> int:
    """The first i in [0, count] with (i + phase / 2**32) / count >= edge / den."""
    first = -((phase * den - (edge * count << 32)) // (den << 32))
    return min(max(first, 0), count)
