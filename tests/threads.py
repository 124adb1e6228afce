"""Threads in tests: those of the package, and some to be blocked or to hang in place of the test."""

from __future__ import annotations

import gc
import threading

from zephon_nodes.concurrency import ThreadDriver


def running():
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("zephon"))


def still_running():
    """Threads that don't end by themselves within a second."""
    for thread in threading.enumerate():
        if thread.name.startswith("zephon"):
            thread.join(1)
    return running()


def end_leaked_threads():
    """What a failed test leaves must not fail the next one."""
    for driver in [x for x in gc.get_objects() if type(x) is ThreadDriver]:
        driver.close()


def in_thread(function):
    """Runs a function in a thread: the thread, and a list for its result or its exception."""
    got = []

    def run():
        try:
            got.append(function())
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, got
