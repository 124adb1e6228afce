"""Worker processes, each served by one thread of the driver.

The thread starts its process, hands it tasks, and waits for the answer and for the process's death at once. So whatever
happens to a process comes out of ``run``, and the driver's logic needn't know of processes at all. The kernel kills a
process when its thread ends, so also when the trainer is killed.

A process is spawned (``boot``), never forked: the trainer has threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from zephon_nodes.concurrency.child import Functions, Work
from zephon_nodes.concurrency.pickling import dumps_functions, placed
from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.concurrency.transport import Channel
from zephon_nodes.counters import HopCounters
from zephon_nodes.errors import ConfigError, WorkerError
from zephon_nodes.plan import Counted, Hop
from zephon_nodes.stream import Failure, Pointer, Record

Locate = Callable[[tuple[Pointer, ...]], str]
_BOOT = Path(__file__).with_name("boot.py")
_GRACE_SECONDS = 1.0


def pickled_hops(hops: Iterable[Hop]) -> dict[str, bytes]:
    """What worker processes need of some hops, by the names of their nodes. Raises ``WorkerError`` naming the node whose function can't be pickled."""
    if not hasattr(os, "posix_spawn") or not hasattr(socket, "send_fds"):
        raise ConfigError('worker processes need a POSIX system; pass runner="thread"')
    return {"+".join(hop.names): _pickled(hop) for hop in hops}


def _pickled(hop: Hop) -> bytes:
    bare = replace(hop, accumulator=_in_driver if hop.accumulator else None, failed=None, counters=HopCounters())
    try:
        return dumps_functions(bare)
    except Exception as error:
        own = [hop.read or hop.call] if hop.read or hop.accumulator else []
        for name, function in zip(hop.names, [*own, *hop.each], strict=True):
            _check(name, function)
        raise _unpicklable("+".join(hop.names), error) from error


def _check(name: str, function: Any) -> None:
    try:
        dumps_functions(function)
    except Exception as error:
        raise _unpicklable(name, error) from error


def _unpicklable(name: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{name}: its function can't be sent to a worker process: {type(error).__name__}: {error}; make what it can't take "
        'along inside the function, or pass runner="thread"',
        node=name,
    )


def _in_driver(place: Any) -> Any:
    """Stands for the accumulator of a hop, in a worker process."""
    raise NotImplementedError("accumulators run in the driver")


class WorkerProcess:
    """One process. ``hops``: of ``pickled_hops``; ``load`` adds some. ``locate``: where rows lie, for errors.

    A context of the thread that serves it: entering starts it, leaving ends it, if need be by force. ``tasks``: those that
    it has been sent and hasn't answered, oldest first; two at most.
    """

    def __init__(self, hops: Mapping[str, bytes], locate: Locate) -> None:
        self._hops, self._locate = dict(hops), locate
        self._pid, self._pidfd = 0, -1
        self._ended = False
        self._poll = select.poll()
        self._code: int | None = None
        self.tasks: deque[WorkTask] = deque()
        self._lock = threading.RLock()  # the garbage collector may end a run in the middle of a look at its process

    def __enter__(self) -> WorkerProcess:
        try:
            ours, theirs = socket.socketpair()
            self._channel = Channel(ours, self._wait)
            with theirs:
                self._pid = _spawned(theirs.fileno())
        except OSError as error:
            raise WorkerError(f"a worker process can't be started: {error}") from error
        try:
            self._begin(ours)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _begin(self, ours: socket.socket) -> None:
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(
                OSError
            ):  # an old kernel, or no descriptor left: the end of the socket tells as well
                self._pidfd = os.pidfd_open(self._pid)
        self._poll.register(ours, select.POLLIN)
        if self._pidfd >= 0:
            self._poll.register(self._pidfd, select.POLLIN)
        path = json.dumps(sys.path).encode()
        with contextlib.suppress(EOFError, ConnectionError):  # said by the first task, with what it was
            ours.sendall(len(path).to_bytes(4, "big") + path)
            self.load(self._hops)
        self._hops = {}

    def load(self, hops: Mapping[str, bytes]) -> None:
        """Gives it functions for more tasks."""
        self._channel.send(Functions(dict(hops)))

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(EOFError, OSError):
            self._channel.send(None)
        self._channel.close()
        if not self._ended_within(_GRACE_SECONDS):
            self.kill()
            self._ended_within(_GRACE_SECONDS)

    def send(self, task: WorkTask) -> bool:
        """Hands over a task. False if it is done already: with an error, because its records can't be pickled.

        Raises ``WorkerError`` if the process is dead.
        """
        names = "+".join(task.hop.names)
        try:
            self._channel.send(Work(names, task.calls))
        except EOFError:
            raise self._death(task) from None
        except Exception as error:  # noqa: BLE001 - whatever pickling somebody's object does
            self._refuse(task, "what comes to it can't be sent to its worker process", error)
            return False
        self.tasks.append(task)
        return True

    def receive(self) -> WorkTask:
        """The oldest task that was sent, done. Raises ``WorkerError`` if the process dies of it."""
        task, before = self.tasks[0], self._channel.nbytes
        try:
            done = self._channel.receive()
        except EOFError:
            raise self._death(task) from None
        except Exception as error:  # noqa: BLE001 - whatever unpickling somebody's object does
            self._refuse(task, "what it gave can't be loaded from its worker process", error)
            return self.tasks.popleft()
        task.items, task.laps, task.seconds, task.cpu = done
        task.nbytes = self._channel.nbytes - before
        for item in task.items:
            if type(item) is Failure:
                self._complete(item.error, task)
        task.calls = ()
        return self.tasks.popleft()

    def _refuse(self, task: WorkTask, what: str, error: Exception) -> None:
        out = WorkerError(f'{"+".join(task.hop.names)}: {what}: {type(error).__name__}: {error}; pass runner="thread"')
        out.__cause__ = error
        self._complete(out, task)
        task.items, task.calls = [Failure(out)], ()

    def _complete(self, error: BaseException, task: WorkTask) -> None:
        """Adds to an error what the process can't know."""
        placed(error, self._locate)
        if isinstance(error, WorkerError) and not error.node:
            error.node, error.origins = "+".join(task.hop.names), error.origins or rows_of(task.calls)
            error.args = (f"{error.args[0]} (it worked on {self._locate(error.origins)})",)

    def kill(self) -> None:
        """Ends the process by force, from any thread."""
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._pid and not self._ended:
                os.kill(self._pid, signal.SIGKILL)

    # waiting

    def _wait(self) -> None:
        """Until the process has said something, or has ended without a word."""
        ready = {fd for fd, _ in self._poll.poll()}
        if ready == {self._pidfd}:
            raise EOFError

    def _ended_within(self, seconds: float) -> bool:
        """Whether the process ends, within a time. Its exit code is then known, and its number may be another's."""
        until = time.monotonic() + seconds
        while not self._reaped() and time.monotonic() < until:
            if self._pidfd >= 0:
                end = select.poll()
                end.register(self._pidfd, select.POLLIN)
                end.poll(1000 * max(0.0, until - time.monotonic()))
            else:
                time.sleep(0.01)
        return self._reaped()

    def _reaped(self) -> bool:
        with self._lock:
            if not self._ended:
                try:
                    pid, status = os.waitpid(self._pid, os.WNOHANG)
                    self._code = os.waitstatus_to_exitcode(status) if pid else None
                    self._ended = pid != 0
                except ChildProcessError:  # somebody else has waited for it
                    self._ended = True
                if self._ended and self._pidfd >= 0:
                    os.close(self._pidfd)
            return self._ended

    def _death(self, task: WorkTask) -> WorkerError:
        """The error of a process that is dead. ``task``: it died of, unless it had an earlier one."""
        how = _told(self._code) if self._ended_within(_GRACE_SECONDS) else "closed its connection"
        task = self.tasks[0] if self.tasks else task
        names, rows = "+".join(task.hop.names), rows_of(task.calls)
        return WorkerError(
            f"{names}: its worker process {self._pid} {how} while it worked on {self._locate(rows)}",
            node=names,
            origins=rows,
        )


def _spawned(fd: int) -> int:
    """A new process, with the socket of ``fd``. SIGINT, which the terminal sends to all, waits until it is ignored."""
    target = 3 if fd != 3 else 4
    program = [spawn.get_executable(), *_flags(), str(_BOOT), str(target), str(os.getpid())]
    actions = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, fd, target)]
    return os.posix_spawn(program[0], program, os.environ, file_actions=actions, setsigmask=[signal.SIGINT])


def _flags() -> list[str]:
    """This interpreter's own options, as multiprocessing passes them on."""
    import subprocess

    return list(subprocess._args_from_interpreter_flags())  # type: ignore[attr-defined]


def _told(code: int | None) -> str:
    if code is None:
        return "ended"
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was killed by {name}" + (" (out of memory?)" if -code == signal.SIGKILL else "")


def rows_of(calls: Any) -> tuple[Pointer, ...]:
    """The rows that calls of any node are about."""
    return tuple(_rows(calls))


def _rows(call: Any) -> Iterator[Pointer]:
    if isinstance(call, Pointer):
        yield call
    elif isinstance(call, Record):
        yield from call.origins
    elif isinstance(call, Counted):
        yield from _rows(call.call)
    elif hasattr(call, "doc"):
        yield from _rows(call.doc)
    elif isinstance(call, Sequence) and not isinstance(call, (str, bytes)):
        for one in call:
            yield from _rows(one)
