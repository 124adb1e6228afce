"""Lane time: how many rows of each component a lane has taken at time t.

All lanes share one clock t, counted in chunks. Component k of the mixture has a rate, in rows a lane and chunk, that is
constant between breakpoints. Its integral u_k(t) is piecewise linear and known exactly, at any t, without any state:

    u_k(t) = base + rate * (t - start)      in the segment that t lies in

A quota q_k is the rows of component k that a lane is to take in all (passes * rows / lanes). The end T of an epoch is

    stop="last"          the time when the last component has reached its quota; the others go on repeating until then
    stop="first"         the time when the first one has
    stop="redistribute"  each component leaves when it has reached its quota, and its rate goes to those that stay, in
                         proportion; T is when the last one leaves

u_k is frozen from T on. All arithmetic is on fractions here and on integers over one denominator a component when
chunks are made, so that the upper edge of chunk j is the lower edge of chunk j + 1, to the row.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

Stop: TypeAlias = Literal["last", "first", "redistribute"]


class Segment(NamedTuple):
    """``rates``: rows a lane and chunk of each component, from time ``start`` (in chunks) on."""

    start: Fraction
    rates: tuple[Fraction, ...]


class LaneTime:
    """The integrals u_k of a list of segments, frozen at ``end`` (in chunks; None: never).

    ``chunks``: chunks in an epoch, or None when it is endless. ``denominator[k]``: of what ``rows`` returns.
    """

    def __init__(self, segments: Sequence[Segment], end: Fraction | None) -> None:
        self.end = end
        self.chunks = None if end is None else math.ceil(end)
        self._starts = [segment.start for segment in segments]
        components = range(len(segments[0].rates))
        self._lines = [_lines(segments, k) for k in components]
        self.denominator = [math.lcm(*(x.denominator for line in self._lines[k] for x in line)) for k in components]
        self._scaled = [
            [(int(slope * d), int(offset * d)) for slope, offset in lines]
            for lines, d in zip(self._lines, self.denominator, strict=True)
        ]
        if end is not None:
            last = [self.at(k, end) for k in components]
            self.denominator = [math.lcm(d, u.denominator) for d, u in zip(self.denominator, last, strict=True)]
            self._scaled = [
                [(int(slope * d), int(offset * d)) for slope, offset in lines]
                for lines, d in zip(self._lines, self.denominator, strict=True)
            ]
            self._last = [int(u * d) for u, d in zip(last, self.denominator, strict=True)]

    def at(self, k: int, t: Fraction) -> Fraction:
        """u_k(t), exactly; t is at most ``end``."""
        slope, offset = self._lines[k][bisect.bisect_right(self._starts, t) - 1]
        return slope * t + offset

    def when(self, k: int, rows: Fraction) -> Fraction | None:
        """The first time when u_k has come to ``rows``, None if it never does; for a lane time without an end."""
        for i, (slope, offset) in enumerate(self._lines[k]):
            time = self._starts[i] if slope == 0 else max(self._starts[i], (rows - offset) / slope)
            reached = slope * time + offset >= rows
            if reached and (i + 1 == len(self._starts) or time <= self._starts[i + 1]):
                return time
        return None

    def taken(self, k: int, first: int, stop: int) -> Fraction:
        """Rows of component k in chunks [first, stop)."""
        return Fraction(self.rows(k, stop) - self.rows(k, first), self.denominator[k])

    def straight(self, first: int, stop: int) -> bool:
        """Whether no rate changes within chunks [first, stop), but to 0 at the end."""
        at = bisect.bisect_right(self._starts, first)
        upto = Fraction(stop) if self.end is None else min(self.end, Fraction(stop))
        return at == len(self._starts) or self._starts[at] >= upto

    def rows(self, k: int, chunk: int) -> int:
        """u_k at the start of a chunk, times ``denominator[k]``."""
        if self.end is not None and chunk >= self.end:
            return self._last[k]
        slope, offset = self._scaled[k][bisect.bisect_right(self._starts, chunk) - 1]
        return slope * chunk + offset


def _lines(segments: Sequence[Segment], k: int) -> list[tuple[Fraction, Fraction]]:
    """(slope, offset) of u_k in each segment."""
    lines, base = [], Fraction(0)
    for i, segment in enumerate(segments):
        rate = segment.rates[k]
        lines.append((rate, base - rate * segment.start))
        if i + 1 < len(segments):
            base += rate * (segments[i + 1].start - segment.start)
    return lines


def lane_time(rates: Sequence[Fraction], quotas: Sequence[Fraction] | None, stop: Stop) -> LaneTime:
    """The lane time of constant ``rates`` (rows a lane and chunk) that ends by ``stop``; ``quotas=None`` is endless."""
    return phased_time([Segment(Fraction(0), tuple(rates))], quotas, stop)


def phased_time(segments: Sequence[Segment], quotas: Sequence[Fraction] | None, stop: Stop) -> LaneTime:
    """The lane time of rates that change: ``segments`` by ``start``, the first at 0, rates of 0 allowed.

    A component whose rate is 0 in the last segment has retired: the end doesn't wait for it.
    """
    if quotas is None:
        return LaneTime(segments, None)
    if stop == "redistribute":
        return _redistributed(segments, quotas)
    endless = LaneTime(segments, None)
    times = [(endless.when(k, quota), bool(segments[-1].rates[k])) for k, quota in enumerate(quotas)]
    if stop == "first":
        return LaneTime(segments, min(time for time, _ in times if time is not None))
    return LaneTime(segments, max(time for time, stays in times if time is not None and stays))


def _redistributed(segments: Sequence[Segment], quotas: Sequence[Fraction]) -> LaneTime:
    """Each component's rate goes to 0 when it has had its quota, and to those that stay, in proportion."""
    left, now, out = list(quotas), Fraction(0), list[Segment]()
    for i, segment in enumerate(segments):
        until = segments[i + 1].start if i + 1 < len(segments) else None
        while until is None or now < until:
            rates = _shared(segment.rates, left)
            if not any(rates) and until is None:
                break
            out.append(Segment(now, rates))
            steps = [left[k] / rate for k, rate in enumerate(rates) if rate]
            step = min(steps + ([] if until is None else [until - now]))
            left = [have - rate * step for have, rate in zip(left, rates, strict=True)]
            now += step
    return LaneTime(out, now)


def _shared(rates: Sequence[Fraction], left: Sequence[Fraction]) -> tuple[Fraction, ...]:
    """The rates of those that have something left, scaled to the sum of all."""
    staying = sum(rate for rate, have in zip(rates, left, strict=True) if have)
    total = sum(rates)
    return tuple(
        rate * total / staying if have and staying else Fraction(0) for rate, have in zip(rates, left, strict=True)
    )
