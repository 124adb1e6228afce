"""A function over many things at once, for work that mostly waits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def each_in_threads(function: Callable[[A], B], things: Sequence[A], threads: int) -> Iterator[B]:
    """What the function gives for each, in order, like ``map``. After an exception, or a break, nothing new is begun."""
    with ThreadPoolExecutor(max(1, min(threads, len(things))), thread_name_prefix="zephon each") as pool:
        results = [pool.submit(function, thing) for thing in things]
        try:
            for result in results:
                yield result.result()
        finally:
            for result in results:
                result.cancel()
