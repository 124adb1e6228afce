"""Lane time walked from event to event in fractions, and the chunks that follow from it, row by row."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

from zephon_nodes.stream import Pointer, pass_number
from zephon_nodes.work.order import Order


class Clock:
    """Rows of each component that a lane has had at any time. ``segments``: (start, rates) pairs, the first at 0.

    ``quotas``: rows a lane, None for an endless run. ``end``: None, or when the run ends: with "first", when the first
    component has its quota; else when all have theirs that are drawn now or later.
    """

    def __init__(self, segments: Any, quotas: Any, stop: str, upto: int = 1000) -> None:
        self.end: Fraction | None = None
        self.corners = [(Fraction(0), [Fraction(0)] * len(segments[0][1]))]
        while self.corners[-1][0] < upto or quotas is not None:
            now, had = self.corners[-1]
            coming = [(start, rates) for start, rates in segments if start > now]
            given = [rates for start, rates in segments if start <= now][-1]
            rates = given
            if quotas is not None:
                short = [quota - rows for quota, rows in zip(quotas, had, strict=True)]
                if self._over(stop, given, [rates for _, rates in coming], short):
                    self.end = now
                    return
                if stop == "redistribute":
                    rates = _redistributed(given, short)
                steps = [need / rate for need, rate in zip(short, rates, strict=True) if rate and need > 0]
            else:
                steps = [Fraction(upto)]
            step = min(steps + [start - now for start, _ in coming[:1]])
            self.corners.append((now + step, [rows + rate * step for rows, rate in zip(had, rates, strict=True)]))

    @staticmethod
    def _over(stop: str, rates: Any, coming: Any, short: Any) -> bool:
        if stop == "first":
            return any(need <= 0 for need in short)
        wanting = [any(later[k] for later in [rates, *coming]) and need > 0 for k, need in enumerate(short)]
        return not any(wanting)

    def at(self, k: int, t: Fraction) -> Fraction:
        if self.end is not None:
            t = min(t, self.end)
        for (begin, low), (end, high) in itertools.pairwise(self.corners):
            if begin <= t <= end:
                return low[k] + (high[k] - low[k]) * (t - begin) / (end - begin)
        return self.corners[-1][1][k]


def _redistributed(rates: Any, short: Any) -> list[Fraction]:
    stay = [rate if need > 0 else Fraction(0) for rate, need in zip(rates, short, strict=True)]
    return [rate * sum(rates) / sum(stay) if sum(stay) else Fraction(0) for rate in stay]


def rates(source: Any, shares: Any) -> list[Fraction]:
    """Rows a lane and chunk of each dataset, in order of name. ``shares``: of tokens where tokens per row are known."""
    names = sorted(dataset.name for dataset in source.datasets)
    rows = [Fraction(str(shares.get(name, 0))) / source.tokens_per_row.get(name, Fraction(1)) for name in names]
    return [source.chunk_size * each / sum(rows) for each in rows]


def clock(source: Any, phases: Any, upto: int = 1000) -> Clock:
    """``phases``: (start in chunks, weights) pairs."""
    segments = [(Fraction(start), rates(source, weights)) for start, weights in phases]
    datasets = sorted(source.datasets, key=lambda dataset: dataset.name)
    quotas = [Fraction(source.passes * d.rows, source.num_lanes) for d in datasets] if source.passes else None
    return Clock(segments, quotas, source.stop, upto)


def chunks_by_hand(source: Any, time: Clock, epoch: int = 0, upto: int = 40) -> dict[tuple[int, int], list[Pointer]]:
    """{(lane, index): pointers} of all chunks of an epoch, of an endless one the first ``upto``.

    Row i of the c rows of a piece is due at (z + (i + phi) / c) N / (r L); a chunk holds what is due in it, in that order.
    """
    lanes, count = source.num_lanes, upto if time.end is None else math.ceil(time.end)
    want: dict[tuple[int, int], Any] = {(lane, index): [] for lane in range(lanes) for index in range(count)}
    for k, dataset in enumerate(sorted(source.datasets, key=lambda dataset: dataset.name)):
        edges = [time.at(k, Fraction(i)) for i in range(count + 1)]
        window_rows = max(1, source.window_units * dataset.rows // len(dataset.unit_rows))
        order = Order(dataset.name, dataset.unit_rows, lanes, source.shuffle, window_rows, source.seed)
        each = Fraction(dataset.rows, order.rounds * lanes)
        for z, lane in itertools.product(range(int(edges[-1] / each) + 1), range(lanes)):
            start, stop = order.piece(epoch, z, lane)
            number = pass_number(epoch, z // order.rounds)
            phase = Fraction(order.phase(epoch, z, lane), 2**32)
            for i, row in enumerate(order.take(number, (start, stop), 0, stop - start).tolist()):
                due = (z + (i + phase) / (stop - start)) * each
                for index in range(count):
                    if edges[index] <= due < edges[index + 1]:
                        place = (due - edges[index]) / (edges[index + 1] - edges[index])
                        want[lane, index].append((place, dataset.name, Pointer(dataset.name, 0, row, number)))
    return {at: [pointer for _, _, pointer in sorted(rows)] for at, rows in want.items()}
