"""The drivers: who runs the engine, and pools of worker threads.

Every thread owns what it touches and speaks through queues.

    workers   take a task from their hop's inbox, run it, and put it into the driver's mailbox
    driver    runs the engine; it alone changes it. Its mailbox brings finished tasks, lanes of which the trainer has taken
              an output, and the word to stop. When the engine can do nothing, the driver waits for mail
    trainer   takes events from the outbox

So nothing is polled, no lock is held while user code runs, and ``state_dict`` needs no lock at all. Threads are daemons
that are told to stop and joined, on ``close()``, when the driver is garbage-collected, and at interpreter exit.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias

from zephon_nodes.counters import Lap, RunCounters
from zephon_nodes.engine import READERS, Engine, Event, Output, Submit
from zephon_nodes.errors import ClosedError, named
from zephon_nodes.plan import Hop, Plan
from zephon_nodes.stream import Failure, Item
from zephon_nodes.work.base import QUANTUM

MakeEngine: TypeAlias = Callable[[Submit], Engine]
_STOP = object()
_JOIN_SECONDS = 3.0
_TASK_SECONDS = 0.03
_FIRST_QUANTUM = 8
CLOSED = "this loader was closed; iterate over it again to start anew"


class Driver(Protocol):
    """Runs an engine. ``get``: the next event, waiting for it. ``close``: ends all threads; safe to call again."""

    def get(self) -> Event: ...

    def close(self) -> None: ...


class WorkTask:
    """Work under way: see ``engine.Task``. An exception of the work becomes a ``Failure`` in its place.

    ``seconds``: how long a record took. ``laps``, ``cpu``, ``nbytes``: for the hop's counters, see there.
    Made and finished by the thread that runs the engine, run by any.
    """

    __slots__ = ("calls", "cpu", "done", "hop", "items", "laps", "nbytes", "seconds")

    def __init__(self, hop: Hop, calls: Sequence[Any]) -> None:
        self.hop, self.calls, self.done = hop, calls, False
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
        self.seconds = (time.perf_counter() - begin) / len(self.calls)
        self.cpu = time.thread_time() - cpu
        self.calls = ()

    def finish(self) -> None:
        """The task is done, and counted."""
        self.done = True
        self.hop.counters.ended(self.laps, self.cpu, self.nbytes)


class InlineDriver:
    """Runs everything in the caller's thread, no further ahead than the next output needs."""

    def __init__(self, make_engine: MakeEngine, plan: Plan) -> None:
        self._engine: Engine | None = make_engine(self._submit)
        self._counters = plan.counters
        self._counters.begun = time.perf_counter()

    def _submit(self, i: int, hop: Hop, calls: Sequence[Any]) -> WorkTask:
        task = WorkTask(hop, calls)
        task.run()
        task.finish()
        return task

    def _live(self) -> Engine:
        if self._engine is None:
            raise ClosedError(CLOSED)
        return self._engine

    def get(self) -> Event:
        engine, asked = self._live(), time.perf_counter()
        while not engine.events:
            engine.step()
        event = engine.events.popleft()
        if isinstance(event, Output):
            engine.taken(event.lane)
        self._counters.got(asked, time.perf_counter(), 0)
        return event

    def close(self) -> None:
        self._engine = None


class ThreadDriver:
    """Runs the engine in a thread of its own, ahead of the trainer, and each hop in a pool of threads."""

    def __init__(self, make_engine: MakeEngine, plan: Plan) -> None:
        self._mail: SimpleQueue[Any] = SimpleQueue()
        self._out: SimpleQueue[Any] = SimpleQueue()
        self._pid = os.getpid()
        stopped = threading.Event()
        pools = {i: ("+".join(hop.names), hop.parallelism) for i, hop in enumerate(plan.hops) if hop.parallelism}
        if plan.warm is not None:
            pools[READERS] = (plan.warm.names[0], plan.readers)
        inboxes: dict[int, SimpleQueue[Any]] = {i: SimpleQueue() for i in pools}
        workers = [
            _thread(name, _work, inboxes[i], self._mail, stopped)
            for i, (name, size) in pools.items()
            for _ in range(size)
        ]
        pace = _Pace()
        engine = pace.engine = make_engine(_submitter(inboxes, pace))
        engine.quantum = _FIRST_QUANTUM
        self._counters = plan.counters
        self._counters.begun = time.perf_counter()
        driver = _thread("driver", _drive, engine, pace, plan, self._mail, self._out)
        each = [inboxes[i] for i, (_, size) in pools.items() for _ in range(size)]
        self._end = weakref.finalize(self, _end, driver, workers, self._mail, each, self._out, stopped)
        for thread in [driver, *workers]:
            thread.start()

    def get(self) -> Event:
        if os.getpid() != self._pid:
            raise ClosedError("this loader's threads are in the process that was forked; iterate over it again here")
        asked, ready = time.perf_counter(), self._out.qsize()
        event = self._out.get()
        self._counters.got(asked, time.perf_counter(), ready)
        if isinstance(event, Output):
            self._mail.put(event.lane)
        elif isinstance(event, _Crash):
            self._out.put(event)
            raise event.error
        return event  # type: ignore[no-any-return]

    def close(self) -> None:
        self._end()


class _Crash:
    """The driver's own death: an error that belongs to no lane, or the end of everything after ``close``."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Pace:
    """Sets how many records are fed at a time, so that a task takes about ``_TASK_SECONDS``: longer ones keep the first
    batch, and the end, waiting; shorter ones cost more in crossing threads than they do. At most doubled at a time."""

    engine: Engine

    def took(self, seconds: float) -> None:
        """A record of a task took ``seconds``."""
        wanted = round(_TASK_SECONDS / max(seconds, 1e-9))
        self.engine.quantum = max(1, min(2 * self.engine.quantum, QUANTUM, wanted))


def _submitter(inboxes: Mapping[int, SimpleQueue[Any]], pace: _Pace) -> Submit:
    def submit(i: int, hop: Hop, calls: Sequence[Any]) -> WorkTask:
        task = WorkTask(hop, calls)
        if i in inboxes:
            inboxes[i].put(task)
        else:
            task.run()
            task.finish()
            pace.took(task.seconds)
        return task

    return submit


def _thread(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    return threading.Thread(target=target, args=args, name=f"zephon {name}", daemon=True)


def _work(inbox: SimpleQueue[Any], mail: SimpleQueue[Any], stopped: threading.Event) -> None:
    while (task := inbox.get()) is not _STOP:
        if not stopped.is_set():
            try:
                task.run()
            except BaseException as error:  # noqa: BLE001 - SystemExit of user code: else nobody would hear of the task
                task.items = [Failure(error)]
            mail.put(task)


def _drive(engine: Engine, pace: _Pace, plan: Plan, mail: SimpleQueue[Any], out: SimpleQueue[Any]) -> None:
    counters = plan.counters
    try:
        while True:
            moved = engine.step()
            while engine.events:
                out.put(engine.events.popleft())
            while not (moved and mail.empty()):
                message = _waited_for(mail, counters)
                moved = True
                if message is _STOP:
                    return
                if isinstance(message, WorkTask):
                    message.finish()
                    if message.hop is not plan.warm:
                        pace.took(message.seconds)
                else:
                    engine.taken(message)
    except BaseException as error:  # noqa: BLE001 - handed to the trainer, who raises it
        out.put(_Crash(error))


def _waited_for(mail: SimpleQueue[Any], counters: RunCounters) -> Any:
    begin = time.perf_counter()
    message = mail.get()
    counters.driver_waited += time.perf_counter() - begin
    return message


def _end(
    driver: threading.Thread,
    workers: Sequence[threading.Thread],
    mail: SimpleQueue[Any],
    inboxes: Sequence[SimpleQueue[Any]],
    out: SimpleQueue[Any],
    stopped: threading.Event,
) -> None:
    stopped.set()
    mail.put(_STOP)
    out.put(_Crash(ClosedError(CLOSED)))  # first: whoever waits in ``get`` needn't wait for user code
    deadline = time.monotonic() + _JOIN_SECONDS
    _join(driver, deadline)
    for inbox in inboxes:
        inbox.put(_STOP)
    for worker in workers:
        _join(worker, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    """Waits for a thread, unless it is this one (garbage may be collected anywhere) or never began."""
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(max(0.0, deadline - time.monotonic()))


def in_worker() -> bool:
    """Whether this is any thread but the first, or a process that another one started for its work."""
    started = sys.modules.get("multiprocessing.process")  # without it no process has been started by its means
    return threading.current_thread() is not threading.main_thread() or (
        started is not None and started.parent_process() is not None
    )


def default_parallelism() -> int:
    """Worker threads of a hop that wasn't given any: the cores that this process may use, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores))
