"""Programs that end in every way that a user's can. Not a test: ``test_exit`` runs ``python exits.py NAME TIMES ...``.

To end a real interpreter twenty times without importing torch twenty times, this one forks before any thread runs; each
child goes on as the main program, with its own stderr, and ends as it likes. The parent prints how, as JSON lines.
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import itertools
import json
import os
import select
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from torchdata.nodes import Loader, Prefetcher

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

LIMIT = 40
RUNNER = ["thread"]
READY, TOLD = os.pipe()
MAIN = [0]
KEPT = []
"""What a script's global variables hold when it ends."""


def graph(function=dict, rows=4000, **options):
    dataset = Dataset.from_rows("d", [{"v": i} for i in range(rows)])
    options = {"runner": RUNNER[0], **options}
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], None, 2, 64), **options).map(function).batch(2)
    KEPT.append(pipeline)
    return pipeline


def ready():
    """Tells the parent that the moment for a signal has come; also from a worker process, which has no such descriptor."""
    if RUNNER[0] == "process" and os.getpid() != MAIN[0]:
        with open(f"/proc/{os.getppid()}/fd/{TOLD}", "wb") as told:
            told.write(b"!")
    else:
        os.write(TOLD, b"!")


def three_items():
    KEPT.append(iter(graph()))
    assert len(list(itertools.islice(KEPT[-1], 3))) == 3


def three_items_through_torchdata():
    loader = Loader(Prefetcher(graph().node, 2))
    KEPT.append(loader)
    KEPT.append(iter(loader))
    next(KEPT[-1])


def error_in_flight():
    for _ in graph():
        raise ValueError("in the loop")


def error_of_a_map():
    for _ in graph(lambda payload: payload["nothing"]):
        pass


def sys_exit_in_the_loop():
    for _ in graph():
        sys.exit(7)


def abandoned_generator():
    def batches():
        yield from graph()

    KEPT.append(batches())
    next(KEPT[-1])


def slow_map_in_flight():
    KEPT.append(iter(graph(sleep_once)))
    next(KEPT[-1])


def reader_thread_outlives_main():
    def read():
        assert sum(len(batch) for batch in graph()) == 4000

    threading.Thread(target=read).start()


def exit_function_of_the_user():
    import atexit

    pipeline = graph()
    atexit.register(lambda: (pipeline.state_dict(), pipeline.close()))
    next(iter(pipeline))


def fork(child):
    """Reads, forks, lets the child do something and end, and reads on to the end."""
    iterator = iter(graph())
    next(iterator)
    pid = os.fork()
    if pid == 0:
        child(iterator)
        return
    _, status = os.waitpid(pid, 0)
    assert sum(len(batch) for batch in iterator) == 3998
    sys.exit(os.waitstatus_to_exitcode(status))


def fork_whose_child_ends():
    fork(lambda iterator: None)


def fork_whose_child_iterates_anew():
    fork(lambda iterator: sys.exit(0 if sum(len(batch) for batch in KEPT[0]) == 4000 else 9))


def fork_whose_child_reads_on():
    def child(iterator):
        signal.alarm(5)
        try:
            list(iterator)
        except RuntimeError as error:  # ClosedError is one
            sys.exit(0 if "fork" in str(error) else 8)
        sys.exit(9)

    fork(child)


def waits_in_next():
    next(iter(graph(functools.partial(wait_once, threading.Event()), parallelism=1)))


def wait_once(event, payload):
    ready()
    event.wait(0.7)
    return payload


def computes_in_the_loop():
    for _ in graph():
        ready()
        for _ in range(100 * LIMIT):  # in pieces: a signal just before a system call doesn't interrupt it
            time.sleep(0.01)


def worker_waits():
    """The loop waits for a worker that takes its time."""

    def wait(payload):
        ready()
        time.sleep(0.7)
        return payload

    next(iter(graph(wait, parallelism=2)))


def worker_hangs():
    """As ``map_function_hangs``, in a process."""

    seen = []

    def hang(payload):
        seen.append(payload)
        if len(seen) > 60:
            time.sleep(1000)
        return payload

    KEPT.append(iter(graph(hang, parallelism=2)))
    next(KEPT[-1])


def os_exit_in_the_loop():
    for _ in graph():
        os._exit(6)


def worker_is_killed():
    def die(payload):
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in graph(die):
        pass


def map_function_sleeps():
    next(iter(graph(functools.partial(sleep_once, signal=True))))


SLEPT: list[bool] = []


def sleep_once(payload, signal=False):
    """Half a second, at the first record that comes."""
    if not SLEPT:
        SLEPT.append(True)
        if signal:
            ready()
        time.sleep(0.5)
    return payload


def map_function_is_slow_at_every_record():
    def slow(payload):
        ready()
        time.sleep(1)
        return payload

    next(iter(graph(slow, parallelism=4)))


def map_function_hangs():
    KEPT.append(iter(graph(lambda payload: threading.Event().wait() if payload["v"] > 9 else payload, parallelism=4)))
    next(KEPT[-1])


def parent(jobs):
    """In a child: the name of its program. In the parent: None, when all have ended."""
    for job in jobs:
        program, _, signal_name = job.partition(":")
        name, _, runner = program.partition("/")
        with tempfile.TemporaryFile() as stderr:
            begun, pid = time.monotonic(), os.fork()
            if pid == 0:
                os.setpgid(0, 0)
                RUNNER[0], MAIN[0] = runner or "thread", os.getpid()
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.dup2(stderr.fileno(), 2)
                faulthandler.register(signal.SIGUSR1)
                return name
            if signal_name:
                select.select([READY], [], [], LIMIT)
                to = os.killpg if signal_name == "SIGINT" else os.kill  # a terminal sends it to all
                to(pid, getattr(signal, signal_name))
            code = wait(pid)
            while select.select([READY], [], [], 0)[0]:
                os.read(READY, 1 << 16)
            stderr.seek(0)
            print(
                json.dumps(
                    {
                        "job": job,
                        "code": code,
                        "stderr": stderr.read().decode(),
                        "seconds": time.monotonic() - begun,
                        "left": left(pid),
                    }
                ),
                flush=True,
            )
    return None


def left(group):
    """Processes of a group that are still there after two seconds."""
    end = time.monotonic() + 2
    while (found := alive(group)) and time.monotonic() < end:
        time.sleep(0.01)
    return found


def alive(group):
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rsplit(")", 1)[1].split()[:3]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(pgrp) == group and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def wait(pid):
    """The exit code, or None of a program that had to be killed."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGUSR1)  # a program that hangs says where
    time.sleep(1)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


if __name__ == "__main__":
    gc.freeze()  # torch's hundred thousand objects, which every child would go through at its end
    program = parent(sys.argv[1:])
    if program:
        globals()[program]()
