"""Shared memory without a name, in a few segments whose places are used again and again.

A page that is written for the first time costs more than copying it (measured: fresh memory 0.7 GB/s, used again 3.5),
so whoever sends keeps its segments. A segment is a file that only descriptors know (a memfd, elsewhere an unlinked
temporary file): /dev/shm may be small, and nothing is left behind whoever is killed. Its descriptor goes to the other
process once, with the first message that uses it; then both ends keep the mapping alone.

What is sent lies in blocks, pieces of segments. A block comes back when the receiver has let go of everything in it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

LENT_BYTES = 64 << 20
"""Of blocks of how many bytes a receiver may hold arrays at a time. What comes beyond that is copied out."""
ALIGNED = 64
_SEGMENT = 64 << 20
"""Bytes of a segment, or more if something larger is sent. Few are needed; what was never written in one takes no memory."""
_UNTRACKED: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


def new_memory(size: int) -> int:
    """The descriptor of ``size`` bytes of memory, zeros."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("zephon", os.MFD_CLOEXEC)
    else:
        fd, path = tempfile.mkstemp("zephon")
        os.unlink(path)
    os.truncate(fd, size)
    return fd


def mapped(fd: int, size: int) -> Bytes:
    """The memory of a descriptor, which is closed."""
    try:
        return np.frombuffer(mmap.mmap(fd, size, **_UNTRACKED), np.uint8)
    finally:
        os.close(fd)


class Block(NamedTuple):
    """``size`` bytes from ``start`` on of segment number ``segment``."""

    segment: int
    start: int
    size: int


class Arena:
    """The memory of a sender, which grows with what the receiver holds. ``new``: descriptors and sizes of segments that the
    receiver hasn't got yet, to be closed once they are sent."""

    def __init__(self) -> None:
        self.segments: list[Bytes] = []
        self.new: list[tuple[int, int]] = []
        self._gaps: list[list[tuple[int, int]]] = []  # (start, stop) of what is free, in order

    def take(self, sizes: Sequence[int]) -> list[Block]:
        """Blocks of at least these sizes; none if one can't be had."""
        taken: list[Block] = []
        try:
            for size in sizes:
                taken.append(self._block(max(1, -(-size // ALIGNED)) * ALIGNED))
        except BaseException:
            for block in taken:
                self.back(block)
            raise
        return taken

    def _block(self, size: int) -> Block:
        """The first that is large enough, so that the same pages are used, which are warm."""
        for segment, gaps in enumerate(self._gaps):
            for i, (start, stop) in enumerate(gaps):
                if stop - start >= size:
                    gaps[i : i + 1] = [(start + size, stop)] if stop - start > size else []
                    return Block(segment, start, size)
        capacity = max(size, _SEGMENT)
        fd = new_memory(capacity)
        try:
            self.segments.append(mapped(os.dup(fd), capacity))
        except BaseException:
            os.close(fd)
            raise
        self.new.append((fd, capacity))
        self._gaps.append([(size, capacity)] if capacity > size else [])
        return Block(len(self.segments) - 1, 0, size)

    def memory(self, block: Block) -> Bytes:
        """What is in a block."""
        return self.segments[block.segment][block.start : block.start + block.size]

    def back(self, block: Block) -> None:
        """The receiver holds nothing of a block any more."""
        gaps, start, stop = self._gaps[block.segment], block.start, block.start + block.size
        i = bisect_left(gaps, (start, stop))
        if i < len(gaps) and gaps[i][0] == stop:
            stop = gaps.pop(i)[1]
        if i and gaps[i - 1][1] == start:
            i -= 1
            start = gaps.pop(i)[0]
        gaps.insert(i, (start, stop))
