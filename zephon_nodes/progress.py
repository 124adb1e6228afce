"""Bars for work that takes more than a second: on a terminal, in the main thread of the main process, and nowhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS = 1.0
"""How long work may take before it gets a bar."""


@contextmanager
def bar(what: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
    """Gives a function to call with how much has been done. ``unit``: such as "files", or "B" for bytes."""
    if not shown():
        yield lambda amount: None
        return
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that would stay behind

    with Bar(
        total=total, desc=what, unit=unit, unit_scale=unit == "B", delay=SECONDS, leave=False, file=sys.stderr
    ) as drawn:
        yield drawn.update


def shown() -> bool:
    """Whether a bar would be seen, and by nobody who reads a log."""
    from zephon_nodes.concurrency import in_worker

    return sys.stderr is not None and sys.stderr.isatty() and not in_worker()
