"""Lane time: how many rows of each component a lane has taken at time t.

All lanes share one clock t, counted in chunks. Component k of the mixture has a rate, in rows a lane and chunk, that is
constant between breakpoints. Its integral u_k(t) is piecewise linear and known exactly, at any t, without any state:

    u_k(t) = base + rate * (t - start)      in the segment that t lies in

A quota q_k is the rows of component k that a lane is to take in all (passes * rows / lanes). The end T of an epoch is

    stop="last"          the time when no component wants anything more; the others go on repeating until then
    stop="first"         the time when the first one has reached its quota
    stop="redistribute"  each component leaves when it has reached its quota, and its rate goes to those that stay, in
                         proportion; T is when no component wants anything more

A component wants until it has its quota, or until it is drawn no more. u_k is frozen from T on. All arithmetic is on
fractions here and on integers over one denominator when a chunk is made, so that the upper edge of chunk j is the lower
edge of chunk j + 1, to the row.

Components that leave are followed by a level v that all share inside a segment: u_k = base + min(rate_k * v, what it lacks),
and they leave in order of what they lack over their rate. So no number is made of the one before it, and none grows.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

Stop: TypeAlias = Literal["last", "first", "redistribute"]


class Segment(NamedTuple):
    """``rates``: rows a lane and chunk of each component, from time ``start`` (in chunks) on."""

    start: Fraction
    rates: tuple[Fraction, ...]


class Line(NamedTuple):
    """u = slope * t + offset."""

    slope: Fraction
    offset: Fraction


class LaneTime:
    """The integrals u_k of a list of segments, frozen at ``end`` (in chunks; None: never).

    ``chunks``: chunks in an epoch, or None when it is endless. ``lines``: of each segment and component, if they are
    known already.
    """

    def __init__(
        self, segments: Sequence[Segment], end: Fraction | None, lines: Sequence[Sequence[Line]] | None = None
    ) -> None:
        self.end = end
        self.chunks = None if end is None else math.ceil(end)
        self._starts = [segment.start for segment in segments]
        self._lines = list(_lines(segments)) if lines is None else lines
        self._scaled: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._last = [] if end is None else [self.at(k, end) for k in range(len(segments[0].rates))]

    def at(self, k: int, t: Fraction) -> Fraction:
        """u_k(t), exactly; t is at most ``end``."""
        slope, offset = self._lines[bisect.bisect_right(self._starts, t) - 1][k]
        return slope * t + offset

    def when(self, k: int, rows: Fraction) -> Fraction | None:
        """The first time when u_k has come to ``rows``, None if it never does; for a lane time without an end."""
        for i, lines in enumerate(self._lines):
            slope, offset = lines[k]
            time = self._starts[i] if slope == 0 else max(self._starts[i], (rows - offset) / slope)
            reached = slope * time + offset >= rows
            if reached and (i + 1 == len(self._starts) or time <= self._starts[i + 1]):
                return time
        return None

    def edges(self, k: int, chunk: int) -> tuple[int, int, int]:
        """u_k at the start of a chunk and of the next one, over a common denominator: (low, high, denominator)."""
        low, one = self._edge(k, chunk)
        high, other = self._edge(k, chunk + 1)
        if one == other:
            return low, high, one
        both = math.lcm(one, other)
        return low * (both // one), high * (both // other), both

    def _edge(self, k: int, chunk: int) -> tuple[int, int]:
        if self.end is not None and chunk >= self.end:
            return self._last[k].as_integer_ratio()
        segment = bisect.bisect_right(self._starts, chunk) - 1
        found = self._scaled.get((k, segment))
        if found is None:
            slope, offset = self._lines[segment][k]
            both = math.lcm(slope.denominator, offset.denominator)
            found = int(slope * both), int(offset * both), both
            self._scaled[k, segment] = found
        return found[0] * chunk + found[1], found[2]

    def taken(self, k: int, first: int, stop: int) -> Fraction:
        """Rows of component k in chunks [first, stop)."""
        return Fraction(*self._edge(k, stop)) - Fraction(*self._edge(k, first))

    def straight(self, first: int, stop: int) -> bool:
        """Whether no rate changes within chunks [first, stop), but to 0 at the end."""
        at = bisect.bisect_right(self._starts, first)
        upto = Fraction(stop) if self.end is None else min(self.end, Fraction(stop))
        return at == len(self._starts) or self._starts[at] >= upto


def _lines(segments: Sequence[Segment]) -> Iterator[list[Line]]:
    """The lines of u_k in each segment."""
    base = [Fraction(0)] * len(segments[0].rates)
    for segment, after in itertools.zip_longest(segments, segments[1:]):
        yield [Line(rate, had - rate * segment.start) for rate, had in zip(segment.rates, base, strict=True)]
        if after is not None:
            step = after.start - segment.start
            base = [had + rate * step if rate else had for rate, had in zip(segment.rates, base, strict=True)]


def lane_time(rates: Sequence[Fraction], quotas: Sequence[Fraction] | None, stop: Stop) -> LaneTime:
    """The lane time of constant ``rates`` (rows a lane and chunk) that ends by ``stop``; ``quotas=None`` is endless."""
    return phased_time([Segment(Fraction(0), tuple(rates))], quotas, stop)


def phased_time(
    segments: Sequence[Segment], quotas: Sequence[Fraction] | None, stop: Stop, least: Fraction = Fraction(0)
) -> LaneTime:
    """The lane time of rates that change: ``segments`` by ``start``, the first at 0, rates of 0 allowed. It doesn't end
    before ``least``."""
    if quotas is None:
        return LaneTime(segments, None)
    if stop == "redistribute":
        return _Redistribution(segments, quotas).walk(least)
    endless = LaneTime(segments, None)
    times = [endless.when(k, quota) for k, quota in enumerate(quotas)]
    if stop == "first":
        end = min(time for time in times if time is not None)
    else:
        retired = [_retires(segments, k) for k in range(len(quotas))]
        end = max(min(t for t in both if t is not None) for both in zip(times, retired, strict=True))
    return LaneTime(segments, max(end, least))


def _retires(segments: Sequence[Segment], k: int) -> Fraction | None:
    """From when on a component is drawn no more, None if it is to the last."""
    drawn = [i for i, segment in enumerate(segments) if segment.rates[k]]
    after = drawn[-1] + 1 if drawn else 0
    return segments[after].start if after < len(segments) else None


class _Redistribution:
    """Each component's rate goes to 0 when it has had its quota, and to those that stay, in proportion."""

    def __init__(self, segments: Sequence[Segment], quotas: Sequence[Fraction]) -> None:
        self._segments, self._quotas = segments, quotas
        self._retires = [_retires(segments, k) for k in range(len(quotas))]
        self._had = [Fraction(0)] * len(quotas)
        self._out: list[Segment] = []
        self._lines: list[list[Line]] = []

    def walk(self, least: Fraction) -> LaneTime:
        end = Fraction(0)
        for segment, after in itertools.zip_longest(self._segments, self._segments[1:]):
            end = self._go(segment, None if after is None else after.start)
            if self._satisfied(end):
                break
        return LaneTime(self._out, max(end, least), self._lines)

    def _satisfied(self, now: Fraction) -> bool:
        """Whether no component lacks anything that it would still be drawn for."""
        each = zip(self._had, self._quotas, self._retires, strict=True)
        return all(had >= quota or (retires is not None and retires <= now) for had, quota, retires in each)

    def _go(self, segment: Segment, until: Fraction | None) -> Fraction:
        """Goes through a segment. Gives ``until``, or when the last component left before that."""
        rates, base = segment.rates, list(self._had)
        lacks = [quota - had for quota, had in zip(self._quotas, base, strict=True)]
        leaving = sorted((lacks[k] / rate, k) for k, rate in enumerate(rates) if rate and lacks[k] > 0)
        total, staying = sum(rates, Fraction(0)), sum((rates[k] for _, k in leaving), Fraction(0))
        now, level, gone = segment.start, Fraction(0), Fraction(0)
        for i, (leaves, k) in enumerate(leaving):
            if leaves > level or i == 0:
                stay = leaving[i:]
                self._add(segment, now, {k: base[k] for _, k in stay}, level, total / staying)
                then = segment.start + (gone + staying * leaves) / total
                if until is not None and then >= until:
                    level = ((until - segment.start) * total - gone) / staying
                    for _, other in stay:
                        self._had[other] = min(self._quotas[other], base[other] + rates[other] * level)
                    return until
                now, level = then, leaves
            self._had[k] = self._quotas[k]
            gone, staying = gone + lacks[k], staying - rates[k]
        self._add(segment, now, {}, level, Fraction(0))
        return now

    def _add(
        self, segment: Segment, now: Fraction, staying: dict[int, Fraction], level: Fraction, speed: Fraction
    ) -> None:
        """The lines from ``now`` on. ``staying``: what components that stay had when the segment began."""
        lines, back = [Line(Fraction(0), had) for had in self._had], level - now * speed
        for k, base in staying.items():
            lines[k] = Line(segment.rates[k] * speed, base + segment.rates[k] * back)
        self._out.append(Segment(now, segment.rates))
        self._lines.append(lines)
