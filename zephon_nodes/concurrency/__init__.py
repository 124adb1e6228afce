"""All concurrency of the package.

threads     the drivers: who runs the engine, and pools of worker threads
tasks       what workers do
processes   worker processes, each served by a thread of the driver
boot        how one begins, and child, what it does
transport   messages between processes, their arrays in shared memory: pickling, and blocks of memory
cache       values that several threads want
"""

from __future__ import annotations

from collections.abc import Callable

from zephon_nodes.concurrency.cache import SharedCache
from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.concurrency.threads import (
    CLOSED,
    Driver,
    InlineDriver,
    MakeEngine,
    ThreadDriver,
    default_parallelism,
    in_worker,
)
from zephon_nodes.plan import Plan

DRIVERS: dict[str, Callable[[MakeEngine, Plan], Driver]] = {
    "inline": InlineDriver,
    "thread": ThreadDriver,
    "process": ThreadDriver,
}
"""The plan says which hops run in threads and which in processes; one driver serves both."""

__all__ = [
    "CLOSED",
    "DRIVERS",
    "Driver",
    "InlineDriver",
    "MakeEngine",
    "SharedCache",
    "ThreadDriver",
    "WorkTask",
    "default_parallelism",
    "in_worker",
]
