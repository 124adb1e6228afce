"""The drivers: who runs the engine, and pools of worker threads.

Every thread owns what it touches and speaks through queues.

    workers   take a task from their hop's inbox, run it, and put it into the driver's mailbox; those of a hop in processes
              have their own process run it (``processes``)
    driver    runs the engine. Its mailbox brings finished tasks, lanes of which the trainer has taken an output, and the
              word to stop. When the engine can do nothing, the driver waits for mail
    trainer   takes events from the outbox, or makes the next one itself (see ``wheel``)

So ``state_dict`` needs no lock at all. Threads are daemons that are told to stop and joined, on ``close()``, when the
driver is garbage-collected, and at interpreter exit.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol, TypeAlias

from zephon_nodes.concurrency.processes import WorkerProcess, pickled_hops
from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.concurrency.wheel import STOP, Crash, Stopped, Wheel
from zephon_nodes.engine import READERS, Engine, Event, Output, Submit
from zephon_nodes.errors import ClosedError
from zephon_nodes.pace import Pace
from zephon_nodes.plan import Hop, Plan
from zephon_nodes.stream import Failure

MakeEngine: TypeAlias = Callable[[Submit], Engine]
_JOIN_SECONDS = 3.0
_GRACE_SECONDS = 1.0
_LARGE = (32 << 20) - 8192
_TIDY_SECONDS = 1.0
CLOSED = "this loader was closed; iterate over it again to start anew"


class Driver(Protocol):
    """Runs an engine. ``get``: the next event, waiting for it. ``close``: ends all threads; safe to call again."""

    def get(self) -> Event: ...

    def close(self) -> None: ...


class InlineDriver:
    """Runs everything in the caller's thread, no further ahead than the next output needs."""

    def __init__(self, make_engine: MakeEngine, plan: Plan) -> None:
        _keep_pages()
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
        _keep_pages()
        self._mail: SimpleQueue[Any] = SimpleQueue()
        self._out: SimpleQueue[Any] = SimpleQueue()
        self._pid = os.getpid()
        stopped = Stopped()
        inboxes: dict[int, Any] = {}
        workers: list[threading.Thread] = []
        processes: list[WorkerProcess] = []
        each: list[SimpleQueue[Any]] = []
        for pool in _pools(plan):
            inbox: Any = SimpleQueue() if len(pool.hops) == 1 else _LastHopFirst(pool.hops)
            inboxes |= dict.fromkeys(pool.hops, inbox)
            each += [inbox] * pool.size
            args: tuple[Any, ...] = (inbox, self._mail, stopped)
            if pool.process:
                functions = pickled_hops(pool.hops.values())
                made = [WorkerProcess(functions, plan.source.locate) for _ in range(pool.size)]
                idle: list[None] = []
                workers += [_thread(pool.name, _work_in_process, process, idle, *args) for process in made]
                processes += made
            else:
                tidy = next(iter(pool.hops.values())).tidy
                workers += [_thread(pool.name, _work, *args, tidy) for _ in range(pool.size)]
        pace = Pace(len(plan.hops))
        engine = make_engine(_submitter(inboxes, pace))
        engine.quantum = pace.quantum
        self._counters = plan.counters
        self._counters.begun = time.perf_counter()
        self._wheel = Wheel(engine, pace, plan, self._mail, self._out, stopped)
        driver = _thread("driver", self._wheel.drive)
        ends = _Ends(driver, workers, processes, self._mail, each, self._out, stopped)
        self._end = weakref.finalize(self, _end, ends, self._pid)
        try:
            for thread in [driver, *workers]:
                thread.start()
        except BaseException:  # nobody else has this yet, to close it
            self._end()
            raise

    def get(self) -> Event:
        if os.getpid() != self._pid:
            raise ClosedError("this loader's threads are in the process that was forked; iterate over it again here")
        asked, ready = time.perf_counter(), self._out.qsize()
        event = self._wheel.next(asked)
        now = time.perf_counter()
        self._wheel.left = now
        self._counters.got(asked, now, ready)
        if isinstance(event, Output):
            self._mail.put(event.lane)
        elif isinstance(event, Crash):
            self._out.put(event)
            raise event.error
        return event

    def close(self) -> None:
        self._end()


class _Pool(NamedTuple):
    """Workers of one kind for the hops of some numbers."""

    name: str
    hops: dict[int, Hop]
    size: int
    process: bool


def _pools(plan: Plan) -> list[_Pool]:
    """A pool for each hop; but hops in processes that weren't given a number share one, so that few have to start."""
    working = {i: hop for i, hop in enumerate(plan.hops) if hop.parallelism}
    pools = [
        _Pool("+".join(hop.names), {i: hop}, hop.parallelism, False)
        for i, hop in working.items()
        if hop.runner == "thread"
    ]
    if plan.warm is not None:
        pools.append(_Pool(plan.warm.names[0], {READERS: plan.warm}, plan.readers, False))
    shared: dict[int, dict[int, Hop]] = {}
    for i, hop in working.items():
        if hop.runner == "process":
            shared.setdefault(i if hop.explicit else -1, {})[i] = hop
    return pools + [_Pool("processes", hops, next(iter(hops.values())).parallelism, True) for hops in shared.values()]


class _LastHopFirst:
    """The inbox of workers that several hops share. A batch that is nearly ready goes before what will take longer.

    Made of queues that may be used in the middle of being used, by a signal handler or the garbage collector."""

    def __init__(self, hops: Mapping[int, Hop]) -> None:
        self._tasks: dict[int, SimpleQueue[Any]] = {id(hops[i]): SimpleQueue() for i in sorted(hops, reverse=True)}
        self._ready: SimpleQueue[Any] = SimpleQueue()

    def put(self, task: Any) -> None:
        if task is not STOP:
            self._tasks[id(task.hop)].put(task)
        self._ready.put(task)

    def get(self) -> Any:
        return self._first(self._ready.get())

    def get_nowait(self) -> Any:
        return self._first(self._ready.get_nowait())

    def qsize(self) -> int:
        return self._ready.qsize()

    def _first(self, said: Any) -> Any:
        """As many tasks are there as were said to be and not taken, so one is found; it needn't be the one that was said."""
        while said is not STOP:
            for tasks in self._tasks.values():
                with contextlib.suppress(Empty):
                    return tasks.get_nowait()
        return STOP


def _submitter(inboxes: Mapping[int, Any], pace: Pace) -> Submit:
    def submit(i: int, hop: Hop, calls: Sequence[Any]) -> WorkTask:
        task = WorkTask(hop, calls)
        if i in inboxes:
            if i != READERS:
                pace.sent(i)
            inboxes[i].put(task)
        else:
            task.run()
            task.finish()
            pace.took(i, task.records, task.seconds)
        return task

    return submit


def _keep_pages() -> None:
    """glibc gives every bit of free memory back to the kernel, and takes a page fault for each 4 KiB when it is needed
    again, until a large block is freed for the first time: from then on it keeps up to twice as much as that. Rows of
    images cost half as much then (17 to 31 thousand a second in W1 of the harness, eight times fewer page faults)."""
    bytearray(_LARGE)


def _thread(name: str, target: Callable[..., None], *args: Any) -> threading.Thread:
    return threading.Thread(target=target, args=args, name=f"zephon {name}", daemon=True)


def _work(
    inbox: SimpleQueue[Any], mail: SimpleQueue[Any], stopped: Stopped, tidy: Callable[[], None] | None = None
) -> None:
    """``tidy``: see ``Hop``. Memory that is given back and taken again costs as much as some reads, so seldom:
    every 0.25 s took 14% of W1 of tests/benchmarks/harness, every second nothing that could be seen."""
    tidied = time.monotonic()
    while (task := inbox.get()) is not STOP:
        if not stopped.is_set():
            try:
                task.run()
            except BaseException as error:  # noqa: BLE001 - SystemExit of user code: else nobody would hear of the task
                task.items = [Failure(error)]
            mail.put(task)
            del task  # else what it gave would live until the next one comes
            if tidy is not None and time.monotonic() - tidied > _TIDY_SECONDS:
                tidy()
                tidied = time.monotonic()


def _work_in_process(
    process: WorkerProcess, idle: list[None], inbox: SimpleQueue[Any], mail: SimpleQueue[Any], stopped: Stopped
) -> None:
    """Serves a process, which has a second task at hand while it works on the first: an answer waits for this thread to get
    the GIL. ``idle``: an entry for each process of the pool that has none; the next tasks are theirs."""
    try:
        with process:
            while True:
                while len(process.tasks) < 2 and (task := _next_task(process, idle, inbox)) is not None:
                    if task is STOP:
                        return
                    if not stopped.is_set() and not process.send(task):
                        mail.put(task)
                if process.tasks:
                    mail.put(process.receive())
    except BaseException as error:  # noqa: BLE001 - a process that died: the run can't go on without it
        mail.put(Crash(error))


def _next_task(process: WorkerProcess, idle: list[None], inbox: SimpleQueue[Any]) -> Any:
    """The next task; None if the process has one to go on with, and there are no more than idle processes will take."""
    if process.tasks:
        try:
            return inbox.get_nowait() if inbox.qsize() > len(idle) else None
        except Empty:
            return None
    idle.append(None)
    task = inbox.get()
    idle.pop()
    return task


class _Ends(NamedTuple):
    """What there is to end."""

    driver: threading.Thread
    workers: Sequence[threading.Thread]
    processes: Sequence[WorkerProcess]
    mail: SimpleQueue[Any]
    inboxes: Sequence[SimpleQueue[Any]]
    out: SimpleQueue[Any]
    stopped: Stopped


def _end(ends: _Ends, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked copy of the trainer has neither the threads nor the right to end the processes
    ends.stopped.set()
    ends.mail.put(STOP)
    ends.out.put(Crash(ClosedError(CLOSED)))  # first: whoever waits in ``get`` needn't wait for user code
    for inbox in ends.inboxes:
        inbox.put(STOP)
    deadline = time.monotonic() + _JOIN_SECONDS
    _join(ends.driver, deadline)
    if ends.processes:
        for worker in ends.workers:
            _join(worker, deadline - _JOIN_SECONDS + _GRACE_SECONDS)
        for process in ends.processes:
            process.kill()
    for worker in ends.workers:
        _join(worker, deadline)


def _join(thread: threading.Thread, deadline: float) -> None:
    """Waits for a thread, unless it is this one (garbage may be collected anywhere) or never began."""
    if thread is not threading.current_thread() and thread.ident is not None:
        thread.join(max(0.0, deadline - time.monotonic()))


def in_worker() -> bool:
    """Whether this is any thread but the first, or a process that another one started for its work."""
    if threading.current_thread() is not threading.main_thread():
        return True
    ours, others = (sys.modules.get(name) for name in ("zephon_nodes.concurrency.child", "multiprocessing.process"))
    return (ours is not None and ours.serving) or (others is not None and others.parent_process() is not None)


def default_parallelism() -> int:
    """Worker threads of a hop that wasn't given any: the cores that this process may use, at most 4."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, cores))
