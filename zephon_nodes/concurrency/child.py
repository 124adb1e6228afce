"""What a worker process does: loads worker functions, and runs them on what comes, one task after the other."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from zephon_nodes.concurrency.pickling import dumps
from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.concurrency.transport import Channel
from zephon_nodes.counters import Lap
from zephon_nodes.errors import WorkerError
from zephon_nodes.plan import Hop
from zephon_nodes.stream import Drop, Failure, Item, Pointer, Record


class Functions(NamedTuple):
    """The first message: pickled hops, by the names of their nodes. It has no answer."""

    hops: dict[str, bytes]


class Work(NamedTuple):
    """Calls for the hop of some nodes."""

    names: str
    calls: Sequence[Any]


class Done(NamedTuple):
    """The answer to ``Work``; as of ``WorkTask``."""

    items: list[Item]
    laps: list[Lap]
    seconds: float
    cpu: float


serving = False
"""Whether this process is a worker."""


def serve(sock: socket.socket) -> None:
    """Answers until the other end is gone."""
    global serving
    serving = True
    channel = Channel(sock)
    hops: dict[str, Hop | Exception] = {}
    try:
        while True:
            _answer(channel, hops)
    except EOFError:
        return


def _loaded(data: bytes) -> Hop | Exception:
    try:
        return pickle.loads(data)  # type: ignore[no-any-return]
    except Exception as error:  # noqa: BLE001 - user code; said when the function is needed
        return error


def _answer(channel: Channel, hops: dict[str, Hop | Exception]) -> None:
    try:
        work = channel.receive()
    except EOFError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever unpickling somebody's object does
        channel.send(_failed("a worker process can't load what it was sent", error))
        return
    if work is None:  # said as well as closed: a fork of the trainer may hold the connection open
        raise EOFError
    if isinstance(work, Functions):
        hops.update({names: _loaded(data) for names, data in work.hops.items()})
        return
    hop = hops[work.names]
    if isinstance(hop, Exception):
        channel.send(_failed(f"{work.names}: its functions can't be loaded in a worker process", hop))
        return
    done = _run(hop, work)
    del work
    try:
        channel.send(done)
    except EOFError:
        raise
    except Exception:  # noqa: BLE001 - whatever pickling somebody's object does
        channel.send(done._replace(items=[_sendable(hop, item) for item in done.items]))


def _run(hop: Hop, work: Work) -> Done:
    _one_thread_each()
    task = WorkTask(hop, work.calls)
    try:
        task.run()
    except BaseException as error:  # noqa: BLE001 - SystemExit of user code: raised in the training loop, as of a thread
        task.items = [Failure(error)]
    return Done(task.items, task.laps, task.seconds, task.cpu)


_told: list[bool] = []


def _one_thread_each() -> None:
    """Torch, if a function has imported it, would use all cores in each worker."""
    set_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
    if set_threads is not None and not _told:
        _told.append(True)
        set_threads(1)


def _sendable(hop: Hop, item: Item) -> Item:
    """An item, or, if it can't be pickled, the error that says so."""
    try:
        dumps(item)
        return item
    except Exception as error:  # noqa: BLE001 - whatever pickling somebody's object does
        kind = type(item.payload).__name__ if isinstance(item, Record) else type(item).__name__
        names = "+".join(hop.names)
        origins = item.origins if isinstance(item, (Record, Drop)) else ()
        return _failure(f"{names} gave a {kind} that can't be sent from its worker process", error, origins)


def _failure(what: str, error: Exception, origins: tuple[Pointer, ...] = ()) -> Failure:
    """The parent adds the node and, if they aren't given, the rows."""
    out = WorkerError(f'{what}: {type(error).__name__}: {error}; pass runner="thread"', origins=origins)
    out.__cause__ = error
    return Failure(out)


def _failed(what: str, error: Exception) -> Done:
    return Done([_failure(what, error)], [], 0.0, 0.0)
