"""What a run counts about itself: always on, and per task, not per record. Plain numbers, no clock: the drivers fill them in.

Every number has one writer, so nothing is locked: those of a hop the thread that runs the engine, those of the trainer
the thread that calls ``next``. Whoever reads meanwhile sees numbers that are at most a task old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Lap(NamedTuple):
    """One node's part of a task: its ``seconds``, and how many ``records`` came out of it."""

    seconds: float
    records: int


class HopCounters:
    """``tasks``: done. ``busy``, ``cpu``: seconds of workers in tasks, and of processors for them. ``under_way``: tasks
    submitted and not done. ``queued``: sum of that number over all tasks done. ``nbytes``: sent to processes and back.
    ``laps``: sums for each node of the hop."""

    __slots__ = ("busy", "cpu", "laps", "nbytes", "queued", "tasks", "under_way")

    def __init__(self) -> None:
        self.tasks = self.under_way = self.queued = self.nbytes = 0
        self.busy = self.cpu = 0.0
        self.laps: list[Lap] = []

    def began(self) -> None:
        """A task was submitted."""
        self.under_way += 1

    def ended(self, laps: Sequence[Lap], cpu: float, nbytes: int = 0) -> None:
        """A task is done. ``laps``: one for each node that it came to."""
        self.queued += self.under_way
        self.under_way -= 1
        self.tasks += 1
        self.cpu += cpu
        self.nbytes += nbytes
        self.laps += [Lap(0.0, 0)] * (len(laps) - len(self.laps))
        for i, (seconds, records) in enumerate(laps):
            before = self.laps[i]
            self.laps[i] = Lap(before.seconds + seconds, before.records + records)
            self.busy += seconds


class RunCounters:
    """``begun``, ``last``: clock at the start, and when the trainer last got something. ``waited``: seconds that the trainer
    waited. ``gets``: how often it came; ``ready``: sum of outputs that were there then. ``driver_waited``: seconds in
    which the driver had nothing to do."""

    __slots__ = ("begun", "driver_waited", "gets", "last", "ready", "waited")

    def __init__(self) -> None:
        self.begun = self.last = self.waited = self.driver_waited = 0.0
        self.gets = self.ready = 0

    def got(self, asked: float, now: float, ready: int) -> None:
        """The trainer asked, and has got something now. ``ready``: how many outputs were there when it asked."""
        self.last = now
        self.waited += now - asked
        self.gets += 1
        self.ready += ready
