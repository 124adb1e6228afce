"""A checkpoint: where to replay from, and how much of it had been delivered. Never records, never buffers.

    {"version": 1, "epoch": 0, "world_size": 2, "recipe": "<canonical JSON>",
     "lane_0": [span, taken, rounds, ended, level, dropped, failed], "lane_1": [...]}

A lane is one leaf under a string key, so that JSON, ``torch.save`` and a plain DCP checkpoint carry it, and DCP deals
lanes to other ranks by itself. A rank's state holds the lanes that it owns.

    span, taken     the lane's cut: ``taken`` records of span ``span`` are inside what was delivered
    rounds          outputs given in this epoch
    ended           1 after the lane's end
    level           1 if all lanes of its rank had given the same rounds: such a state may move to another world
    dropped, failed records left out so far in this epoch, and those of them that were left out by an error

An eighth element is the source's own state at the span's start, as text, when it keeps one (``from_node``), else "".
A ninth lists what was skipped, [span, taken] to [span, taken] each; see ``skip_spans`` and ``Loader.skip``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeAlias

from zephon_nodes.engine import Start
from zephon_nodes.errors import StateError
from zephon_nodes.recipe import differences
from zephon_nodes.stream import Cut

VERSION = 1
PREFIX = "lane_"
SHARED = ("version", "epoch", "world_size", "recipe")


@dataclass
class LaneState:
    """One lane's leaf; see the head of this file."""

    span: int = 0
    taken: int = 0
    rounds: int = 0
    ended: bool = False
    level: bool = True
    dropped: int = 0
    failed: int = 0
    token: str | None = None
    skips: list[list[int]] = field(default_factory=list)

    def after(self, span: int, taken: int, token: str | None) -> LaneState:
        """The state after one more output. As ``dataclasses.replace`` makes it, which takes several times as long."""
        return LaneState(
            span, taken, self.rounds + 1, self.ended, self.level, self.dropped, self.failed, token, self.skips
        )

    def leaf(self, level: bool) -> list[Any]:
        flags = [int(self.ended), int(level)]
        values: list[Any] = [self.span, self.taken, self.rounds, *flags, self.dropped, self.failed]
        if self.skips:
            return [*values, self.token or "", [list(skip) for skip in self.skips]]
        return values if self.token is None else [*values, self.token]

    @classmethod
    def of(cls, key: str, leaf: Any) -> LaneState:
        if (
            not isinstance(leaf, (list, tuple))
            or not 7 <= len(leaf) <= 9
            or not all(isinstance(x, int) and x >= 0 for x in leaf[:7])
            or not all(isinstance(x, str) for x in leaf[7:8])
            or not all(isinstance(x, (list, tuple)) for x in leaf[8:])
            or not all(isinstance(skip, (list, tuple)) and len(skip) == 4 for x in leaf[8:] for skip in x)
        ):
            raise StateError(
                f"{key} of the state must be a list of 7 integers of at least 0 (and perhaps a text and skips), got {leaf!r}"
            )
        span, taken, rounds, ended, level, dropped, failed, token, skips = (
            [*leaf, "", []][:9] if len(leaf) < 9 else leaf
        )
        return cls(
            span,
            taken,
            rounds,
            bool(ended),
            bool(level),
            dropped,
            failed,
            token or None,
            [list(skip) for skip in skips],
        )

    def skipped(self, span: int, taken: int) -> LaneState:
        """This lane gone on to another place without its records."""
        return replace(self, span=span, taken=taken, skips=[*self.skips, [self.span, self.taken, span, taken]])

    def start(self) -> Start:
        return Start(Cut(self.span, self.taken, self.token), self.rounds)


def lane_numbers(state: Mapping[str, Any]) -> list[int]:
    """The lanes that a state holds."""
    names = [key[len(PREFIX) :] for key in state if isinstance(key, str) and key.startswith(PREFIX)]
    return sorted(int(name) for name in names if name.isdecimal())


Earlier: TypeAlias = "tuple[str, tuple[int, int]]"
"""A recipe that the current one was amended from, and the (epoch, span) at which they part ways."""


def check_shape(state: Mapping[str, Any]) -> None:
    """Raises ``StateError`` unless this is a state of this version."""
    if isinstance(state, Mapping) and state.get("version", VERSION) != VERSION:
        raise StateError(f"the state has version {state['version']}, this release reads version {VERSION}")
    missing = [key for key in SHARED if key not in state] if isinstance(state, Mapping) else list(SHARED)
    if missing or not lane_numbers(state):
        has = sorted(map(str, state))[:8] if isinstance(state, Mapping) else type(state).__name__
        raise StateError(f"this is no state of a zephon_nodes graph: it has {has}, and not {missing or 'any lane'}")
    try:
        json.loads(state["recipe"])["source"].get("source")
    except (TypeError, ValueError, KeyError, AttributeError):
        raise StateError(f"the recipe in the state can't be read: {state['recipe']!r:.80}") from None
    if not isinstance(state["epoch"], int) or not 0 <= state["epoch"] < 1 << 31:
        raise StateError(f"epoch of the state must be an integer from 0 to 2**31, got {state['epoch']!r:.80}")


def read_state(
    state: Mapping[str, Any], owned: Iterable[int], world_size: int, recipe: str, earlier: Iterable[Earlier] = ()
) -> tuple[int, dict[int, LaneState]]:
    """(epoch, lanes) of a state for a rank that owns ``owned`` in a world of ``world_size``.

    Raises ``StateError`` if lanes are missing, the recipe differs (naming every setting, with both values), or the
    state isn't level and the world is another one.
    """
    check_shape(state)
    wanted, lanes_there = list(owned), json.loads(state["recipe"])["source"].get("num_lanes", 1 << 31)
    present = [lane for lane in lane_numbers(state) if lane < lanes_there]
    every = {lane: LaneState.of(f"{PREFIX}{lane}", state[f"{PREFIX}{lane}"]) for lane in present}
    epoch: int = state["epoch"]
    # Of all lanes, not only of this rank's: all ranks must come to the same answer.
    furthest = max(((at.span, at.taken) for at in every.values()), default=(0, 0))
    _check_recipe(state["recipe"], recipe, earlier, (epoch, *furthest))
    absent = sorted(set(wanted) - set(present))
    if absent:
        raise StateError(
            f"the state holds lanes {present}, this rank owns {wanted} and misses {absent}; "
            "merge the states of all ranks with merge_states(...) and load the result on every rank"
        )
    lanes = {lane: every[lane] for lane in wanted}
    uneven = [lane for lane, at in lanes.items() if not at.level]
    if uneven and state["world_size"] != world_size:
        raise StateError(
            f"the state was saved in the middle of a round (lanes {uneven}) on {state['world_size']} ranks, so it resumes "
            f"exactly on {state['world_size']} ranks only, not on {world_size}; save after whole rounds, that is after a "
            "number of outputs that is a multiple of the lanes that a rank owns"
        )
    return epoch, lanes


def _check_recipe(saved: Any, current: str, earlier: Iterable[Earlier], reached: tuple[int, int, int]) -> None:
    if saved == current:
        return
    for recipe, parting in earlier:
        if saved == recipe and reached <= (*parting, 0):
            return
        if saved == recipe:
            raise StateError(
                f"the source is amended from span {parting[1]} of epoch {parting[0]} on, but the state has come to span "
                f"{reached[1]} of epoch {reached[0]}; amend at span {reached[1] + 1} or later"
            )
    old, new = json.loads(saved), json.loads(current)
    if _only_skips_more(old, new):
        return
    lines = differences(old, new)
    raise StateError(
        f"the state belongs to another recipe; {len(lines)} settings differ (saved -> now):\n  "
        + "\n  ".join(lines)
        + "\nrestore them, or start a new run without the state"
    )


def _only_skips_more(saved: dict[str, Any], current: dict[str, Any]) -> bool:
    """Whether the recipes differ by nodes that now skip bad rows and had raised: no bad row lies before the state then."""
    more = saved.get("on_error", {}).items() <= current.get("on_error", {}).items()
    return more and {**saved, "on_error": None} == {**current, "on_error": None}


def write_state(
    epoch: int, world_size: int, recipe: str, lanes: Mapping[int, LaneState], level: bool
) -> dict[str, Any]:
    """The state of a rank's lanes, detached from them. ``level``: whether they have all given the same rounds."""
    head: dict[str, Any] = {"version": VERSION, "epoch": epoch, "world_size": world_size, "recipe": recipe}
    return {**head, **{f"{PREFIX}{lane}": at.leaf(level) for lane, at in lifted(lanes, level).items()}}


def lifted(lanes: Mapping[int, LaneState], level: bool = True) -> Mapping[int, LaneState]:
    """Lanes of which those that have ended count the rounds of the others, as they would have under at_end="pad"."""
    rounds = max((at.rounds for at in lanes.values()), default=0)
    if not level or all(at.rounds == rounds or not at.ended for at in lanes.values()):
        return lanes
    return {lane: replace(at, rounds=rounds) if at.ended else at for lane, at in lanes.items()}


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The states of all ranks as one, which loads on any legal number of ranks.

    Raises ``StateError`` if they are of different epochs, recipes or worlds, if ranks stopped after different numbers of
    rounds, or if two of them hold different things of one lane.

    >>> source = StaticMixtureWorkSource([rows], num_lanes=2)
    >>> states = [Pipeline(source, rank=rank, world_size=2).state_dict() for rank in (0, 1)]
    >>> [key for key in merge_states(states) if key.startswith("lane_")]
    ['lane_0', 'lane_1']
    """
    merged: dict[str, Any] = {}
    stopped: set[Fraction] = set()
    for rank, state in enumerate(states):
        check_shape(state)
        for key, value in state.items():
            if key == "recipe" and merged.get(key, value) != value:
                lines = differences(json.loads(merged[key]), json.loads(value))
                raise StateError(
                    f"state {rank} is of another recipe than earlier ones (theirs -> its): {'; '.join(lines)}"
                )
            if key in merged and merged[key] != value:
                raise StateError(f"state {rank} says {key}={value!r:.200}, an earlier one {merged[key]!r:.200}")
            merged[key] = list(value) if isinstance(value, list) else value
        own = [LaneState.of(f"{PREFIX}{lane}", state[f"{PREFIX}{lane}"]) for lane in lane_numbers(state)]
        live = [at.rounds for at in own if not at.ended]
        if len(live) == len(own) or (live and all(at.level for at in own)):
            stopped.add(Fraction(sum(live), len(live)))
    if not merged:
        raise StateError("nothing to merge: pass a list of the states of all ranks")
    if len(stopped) > 1:
        raise StateError(
            f"the ranks stopped after different numbers of rounds, {sorted(map(float, stopped))}; save all at one step"
        )
    lanes = {lane: LaneState.of(f"{PREFIX}{lane}", merged[f"{PREFIX}{lane}"]) for lane in lane_numbers(merged)}
    return {
        **merged,
        **{
            f"{PREFIX}{n}": at.leaf(at.level) for n, at in lifted(lanes, all(at.level for at in lanes.values())).items()
        },
    }
