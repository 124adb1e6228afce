"""Which part of a pipeline is slow, and what would help: a sentence, from numbers alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

BUSY, IDLE_TRAINER = 0.75, 0.03
WAITS, PART_CORE, ONE_CORE, ALL = 0.6, 0.4, 0.8, 0.9
"""A pool that computes less than ``WAITS`` waits for something; a process whose threads share Python's lock uses about one
core, or part of one on a machine that others use; ``ALL`` of the cores is all of them."""


class Load(NamedTuple):
    """A pool of workers. ``name``: the node that takes most of its time. ``workers``: 0 for what the driver runs.
    ``busy``: share of their time in tasks, 0 to 1. ``computing``: share of that on a processor, their own or
    one that a library's threads use for them. ``kind``: "thread" or
    "process"."""

    name: str
    workers: int
    busy: float
    computing: float = 1.0
    kind: str = "thread"


class Pace(NamedTuple):
    """``given``: samples a second that came out. ``wanted``: that the trainer would take, None if it takes all that comes.
    ``waited``: share of the trainer's time spent waiting. ``driver``: share of the driver's time at work. ``cores``: that
    there are; ``used``: that the process kept busy, None if that isn't known."""

    given: float
    wanted: float | None
    waited: float
    driver: float
    cores: int
    used: float | None


def sentence(loads: Sequence[Load], pace: Pace, inline: bool = False) -> str:
    """Where the time goes, and which setting to change."""
    if not pace.given:
        return "No output came in this time; profile for longer."
    if pace.wanted is not None and pace.given >= pace.wanted:
        return f"{_rate(pace)} Data isn't the bottleneck."
    if pace.wanted is not None and pace.waited <= IDLE_TRAINER:
        return f"The trainer waits {pace.waited:.0%} of its time: data isn't the bottleneck."
    worst = max(loads, key=lambda load: load.busy * bool(load.workers or inline), default=None)
    if inline:
        slow = f"; {worst.name} takes {worst.busy:.0%} of the time" if worst else ""
        return f"{_rate(pace)} All runs in the caller's thread{slow}: runner='thread' would work ahead of the trainer."
    if worst is not None and worst.workers and worst.busy >= max(BUSY, pace.driver):
        return _pool(worst, pace)
    if pace.driver >= BUSY:
        return _driver(loads, pace)
    most = f" ({worst.name}, the busiest, is at {worst.busy:.0%} of {_workers(worst)})" if worst else ""
    return f"{_rate(pace)} No part is busy all the time{most}: raise prefetch, so that more work is under way at once."


def needed(load: Load, given: float, wanted: float) -> int:
    """Workers that would do ``wanted`` a second, when these do ``given``."""
    return max(1, math.ceil(round(load.busy * load.workers * wanted / given, 6)))


def _pool(load: Load, pace: Pace) -> str:
    said = f"{load.name} is busy {load.busy:.0%} of {_workers(load)}"
    count = needed(load, pace.given, pace.wanted) if pace.wanted else load.workers
    more = f"{count} would feed your {_number(pace.wanted or 0)} samples/s" if count > load.workers else ""
    knob = f"parallelism of {load.name}"
    if pace.used is not None and pace.used >= ALL * pace.cores:
        few = f" ({more})" if more else ""
        return f"{said}, and all {pace.cores} cores are busy: cheaper work or more cores would help{few}."
    if pace.used is not None and load.computing < WAITS and load.kind == "thread":
        said += f", but computes only {load.computing:.0%} of that"
        uses = f"the process uses {pace.used:.1f} of {pace.cores} cores"
        if pace.used >= ONE_CORE:
            return f"{said}, and {uses}: Python's lock is in the way; runner='process' would use the others."
        if pace.used >= PART_CORE:
            why = "it waits for storage, for a processor that others use, or for Python's lock"
            return f"{said}, and {uses}: {why}; more {knob} helps against the first, runner='process' against the last."
        said += ", waiting for storage or for a processor that others use"
    return f"{said}; {more or f'more would raise the {_number(pace.given)} samples/s'} ({knob})."


def _driver(loads: Sequence[Load], pace: Pace) -> str:
    driven = [load.name for load in sorted(loads, key=lambda load: -load.busy) if not load.workers]
    there = f": {', '.join(driven)} run there" if driven else ""
    knob = f"; parallelism=1 for {driven[0]} moves its work to a worker" if driven else ""
    return f"{_rate(pace)} The driver's thread is busy {pace.driver:.0%}{there}{knob}."


def _rate(pace: Pace) -> str:
    wish = f", your trainer takes {_number(pace.wanted)}" if pace.wanted else ""
    return f"{_number(pace.given)} samples/s come{wish}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _workers(load: Load) -> str:
    return f"{load.workers} worker{'s' * (load.workers != 1)}"
