"""A task: what a hop has to do for some calls, whoever runs it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from zephon_nodes.counters import Lap
from zephon_nodes.errors import named
from zephon_nodes.plan import Hop
from zephon_nodes.stream import Failure, Item


class WorkTask:
    """Work under way: see ``engine.Task``. An exception of the work becomes a ``Failure`` in its place.

    ``records``: calls that came. ``seconds``: how long all of it took. ``laps``, ``cpu``, ``nbytes``: for the hop's counters, see there.
    Made and finished by the thread that runs the engine, run by any.
    """

    __slots__ = ("calls", "cpu", "done", "hop", "items", "laps", "nbytes", "records", "seconds")

    def __init__(self, hop: Hop, calls: Sequence[Any]) -> None:
        self.hop, self.calls, self.done = hop, calls, False
        self.records = len(calls)
        self.items: list[Item] = []
        self.laps: list[Lap] = []
        self.seconds = self.cpu = 0.0
        self.nbytes = 0
        hop.counters.began()

    def run(self) -> None:
        begin, cpu = time.perf_counter(), time.thread_time()
        last = begin

        def lap(records: int) -> None:
            nonlocal last
            now = time.perf_counter()
            self.laps.append(Lap(now - last, records))
            last = now

        try:
            self.items = self.hop.run(self.calls, lap)
        except Exception as error:  # noqa: BLE001 - the trainer sees it, when its turn comes; never a bare StopIteration
            self.items = [Failure(named(error, "+".join(self.hop.names)))]
        self.seconds = time.perf_counter() - begin
        self.cpu = time.thread_time() - cpu
        self.calls = ()

    def finish(self) -> None:
        """The task is done, and counted."""
        self.done = True
        self.hop.counters.ended(self.laps, self.cpu, self.nbytes)
