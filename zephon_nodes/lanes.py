"""Lanes and ranks: who owns what, and whose turn it is. Pure arithmetic.

A rank owns a contiguous block of lanes. A round is one output of each lane. ``Rounds`` hands out events in order, and at
the end of finite data does what ``at_end`` says:

    "ragged"  a lane that has ended is passed over
    "pad"     a lane that has ended gives blank outputs until every lane of every rank has ended
    "drop"    every rank stops after the last round to which every lane gives something

The last two need to know how many rounds there are on other ranks. ``agree`` is asked only when a rank has come to the
last round that is known to exist, which all ranks do at the same moment, so it may be a collective operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from zephon_nodes.engine import Event, LaneEnd, LaneFailure, Output
from zephon_nodes.errors import ConfigError

AtEnd: TypeAlias = Literal["ragged", "pad", "drop"]
Agree: TypeAlias = Callable[[int, bool], int]
"""``agree(rounds, largest)``: the largest (or smallest) of what all ranks say."""


def legal_worlds(num_lanes: int) -> list[int]:
    """World sizes that ``num_lanes`` lanes can be divided over."""
    return [world for world in range(1, num_lanes + 1) if num_lanes % world == 0]


def owned_lanes(num_lanes: int, rank: int, world_size: int) -> range:
    """The lanes of a rank. Raises ``ConfigError`` with the legal world sizes if lanes don't divide evenly."""
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be in [0, world_size), got rank={rank}, world_size={world_size}")
    if num_lanes % world_size:
        raise ConfigError(
            f"num_lanes={num_lanes} can't be divided evenly over world_size={world_size}; "
            f"legal world sizes are {legal_worlds(num_lanes)}, or start the run with another num_lanes"
        )
    each = num_lanes // world_size
    return range(rank * each, (rank + 1) * each)


def check_grad_accum(num_lanes: int, world_size: int, grad_accum: int | None) -> None:
    """Raises ``ConfigError`` unless ``grad_accum`` microbatches of a rank are whole rounds of its lanes."""
    owned = num_lanes // world_size
    if grad_accum is None or grad_accum % owned == 0:
        return
    near = [grad_accum // owned * owned] * (grad_accum > owned) + [(grad_accum // owned + 1) * owned]
    worlds = [world for world in legal_worlds(num_lanes) if grad_accum % (num_lanes // world) == 0]
    raise ConfigError(
        f"grad_accum={grad_accum} microbatches an optimizer step aren't whole rounds of the {owned} lanes that each of "
        f"{world_size} ranks owns (num_lanes={num_lanes}); use {' or '.join(map(str, near))}, or one of {worlds} ranks"
    )


class Blank(NamedTuple):
    """The turn of a lane that has ended, under at_end="pad"."""

    lane: int


class Rounds:
    """Whose turn it is. ``given``: rounds that each owned lane has given so far; ``ended``: lanes that had ended.

    ``get``: the next event of the driver, which comes in the order of turns.
    """

    def __init__(
        self, given: Mapping[int, int], ended: set[int], at_end: AtEnd, get: Callable[[], Event], agree: Agree
    ) -> None:
        self.given, self.ended = dict(given), set(ended)
        self._at_end, self._get, self._agree = at_end, get, agree
        self._known = max(self.given.values())
        self._sure = dict(given)
        self._ahead: deque[Event] = deque()
        self._failed = False

    def next(self) -> Event | Blank | None:
        """The next turn, a lane's end or failure when it comes to light, or None when the epoch is over."""
        lanes = [lane for lane in self.given if self._at_end != "ragged" or lane not in self.ended]
        if not lanes:
            return None
        lane = min(lanes, key=lambda lane: (self.given[lane], lane))
        if self._at_end != "ragged" and not self._exists(self.given[lane]):
            return None
        if lane in self.ended:
            self.given[lane] += 1
            return Blank(lane)
        event = self._ahead.popleft() if self._ahead else self._pull()
        if isinstance(event, LaneEnd):
            self.ended.add(event.lane)
        elif isinstance(event, Output):
            self.given[event.lane] += 1
        return event

    def rest(self) -> Iterator[Output | LaneEnd]:
        """The ends that haven't come to light once ``next`` has said None, and outputs that no full round had room for."""
        while len(self.ended) < len(self.given):
            event = self._ahead.popleft() if self._ahead else self._get()
            if isinstance(event, LaneFailure):
                return
            if isinstance(event, LaneEnd):
                self.ended.add(event.lane)
            yield event

    def _pull(self) -> Event:
        event = self._get()
        if isinstance(event, Output):
            self._sure[event.lane] = event.sure
        return event

    def _exists(self, round_: int) -> bool:
        """Whether the world gives round number ``round_`` (from 0)."""
        if self._failed or round_ < self._known:
            return True
        pad = self._at_end == "pad"
        self._look_ahead(round_, pad)
        sure = self._sure.values()
        self._known = self._agree(max(sure) if pad else min(sure), pad)
        return self._failed or round_ < self._known

    def _look_ahead(self, round_: int, pad: bool) -> None:
        """Pulls events until it is known whether this rank has something (pad) or everything (drop) for the round."""
        ending = self.ended | {event.lane for event in self._ahead if isinstance(event, LaneEnd)}
        while len(ending) < len(self.given):
            if pad and max(self._sure.values()) > round_:
                return
            if not pad and (ending or min(self._sure.values()) > round_):
                return
            event = self._pull()
            self._ahead.append(event)
            if isinstance(event, LaneFailure):
                self._failed = True  # not the end: its turn comes
                return
            if isinstance(event, LaneEnd):
                ending.add(event.lane)
