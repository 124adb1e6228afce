"""Who runs the engine: one thread at a time, the driver's own or the trainer's.

A batch handed over by another thread comes late: that one has to put it down, the trainer has to wake up, and both want
Python's lock meanwhile. For small batches this costs more than making them. So a trainer that comes back at once, each time
to an empty outbox, takes the wheel and runs the engine itself until there is an output: no hand-over at all. A trainer
that is away for longer, as one that trains, finds its batches made by the driver meanwhile.

Whoever holds ``_turn`` runs the engine. The trainer says that it wants the wheel, and wakes the driver if that waits for mail;
the driver lets go of it between two steps and sleeps for as long as the trainer keeps coming. Which of them steps the
engine has no influence on what comes out of it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.engine import Engine, Event
from zephon_nodes.pace import Pace
from zephon_nodes.plan import Plan

STOP = object()
_WANTED = object()
_SHORT_SECONDS = 0.0005
"""How long a trainer that makes its own batches is away, on average: less than a hand-over and the wait for the lock take."""
_NAP_SECONDS = 0.005
_FADING = 0.1


class Crash:
    """The end of everything: an error that belongs to no lane, or that this was closed."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Stopped:
    """Whether all is to end. Without a lock: a signal handler or the garbage collector may say so in the middle of anything,
    also of a look at it."""

    def __init__(self) -> None:
        self._said = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        self._said = True
        self._bell.put(None)

    def is_set(self) -> bool:
        return self._said

    def wait(self, seconds: float) -> bool:
        """Whether it is said within a time."""
        if not self._said:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=seconds)
        return self._said


class Wheel:
    """The engine of a run, its mail and its outbox. ``drive``: what the driver's thread does. ``next``: the next event, for
    the trainer's. ``left``: when the trainer last went away, set by it."""

    def __init__(
        self,
        engine: Engine,
        pace: Pace,
        plan: Plan,
        mail: SimpleQueue[Any],
        out: SimpleQueue[Any],
        stopped: Stopped,
    ) -> None:
        self._engine, self._pace, self._mail, self._out, self._stopped = engine, pace, mail, out, stopped
        self._warm, self._counters = plan.warm, plan.counters
        self._numbers = {id(hop): i for i, hop in enumerate(plan.hops)}
        self._pools = any(hop.parallelism for hop in plan.hops)
        self._shared = plan.ours  # users' code keeps its thread
        self._turn = threading.Lock()
        self._wanted, self._visits = False, 0
        self.left, self._away = 0.0, _NAP_SECONDS
        self._idle_since = self._counters.begun

    def drive(self) -> None:
        """Runs the engine into the outbox whenever the trainer doesn't, until told to stop."""
        while not self._stopped.is_set():
            if self._turn.acquire(blocking=False):
                try:
                    if not (self._wanted or self._fill()):
                        return
                finally:
                    self._turn.release()
            visits = -1
            while self._wanted or visits != self._visits:
                visits = self._visits
                if self._stopped.wait(_NAP_SECONDS):
                    return

    def next(self, asked: float) -> Event | Crash:
        """The next event; waits for it. ``asked``: the time."""
        if self.left:
            self._away += _FADING * (asked - self.left - self._away)
        if self._away > _SHORT_SECONDS or not self._shared or self._out.qsize():
            return self._out.get()  # type: ignore[no-any-return]
        self._wanted = True
        try:
            if self._turn.locked():
                self._mail.put(_WANTED)
            with self._turn:
                return self._make()
        finally:
            self._visits += 1
            self._wanted = False

    def _fill(self) -> bool:
        """Runs the engine until the trainer wants it. False: told to stop, or it has come to grief."""
        engine, out = self._engine, self._out
        try:
            self._take()
            while not self._wanted:
                moved = self._step()
                while engine.events:
                    out.put(engine.events.popleft())
                if not self._read(moved):
                    return False
            self._idle_since = time.perf_counter()
            return True
        except BaseException as error:  # noqa: BLE001 - handed to the trainer, who raises it
            self._end(error)
            return False

    def _make(self) -> Event | Crash:
        """Runs the engine until there is an event. Workers have all that they may have before the trainer goes."""
        engine, out, moved = self._engine, self._out, True
        try:
            self._take()
            while not out.qsize() and self._read(moved or bool(engine.events)):
                moved = (self._pools or not engine.events) and self._step()
                if engine.events and not moved:
                    self._idle_since = time.perf_counter()
                    return engine.events.popleft()
        except BaseException as error:
            self._end(error)
            raise
        return out.get()  # type: ignore[no-any-return]

    def _take(self) -> None:
        since, self._idle_since = self._idle_since, time.perf_counter()
        self._counters.driver_waited += self._idle_since - since

    def _step(self) -> bool:
        self._engine.quantum = self._pace.quantum
        return self._engine.step()

    def _end(self, error: BaseException) -> None:
        self._stopped.set()
        self._out.put(Crash(error))

    def _read(self, moved: bool) -> bool:
        """Reads the mail; waits for some if the engine has not ``moved``. False: no step is to follow."""
        mail, wait = self._mail, not moved
        if self._stopped.is_set():
            return False
        while wait or not mail.empty():
            message = self._waited_for() if wait else mail.get()
            wait = False
            if message is STOP:
                return False
            if isinstance(message, Crash):
                self._end(message.error)
                return False
            if isinstance(message, WorkTask):
                message.finish()
                if message.hop is not self._warm:
                    self._pace.took(self._numbers[id(message.hop)], message.records, message.seconds)
            elif message is not _WANTED:
                self._engine.taken(message)
        return True

    def _waited_for(self) -> Any:
        begin = time.perf_counter()
        message = self._mail.get()
        self._counters.driver_waited += time.perf_counter() - begin
        return message
