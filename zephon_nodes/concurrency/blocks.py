"""Shared memory without a name, in a few blocks that are used again and again.

A page that is written for the first time costs more than copying it (measured: fresh memory 0.7 GB/s, used again 3.5),
so whoever sends keeps a ring of blocks. A block is a file that only descriptors know (a memfd, elsewhere an unlinked
temporary file): /dev/shm may be small, and nothing is left behind whoever is killed. Its descriptor goes to the other
process once, with the first message that uses the block; then both ends keep the mapping alone.

A block comes back when the receiver has let go of everything that lies in it.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

LENT = 4
LENT_BYTES = 64 << 20
"""Of how many blocks, and bytes, a receiver may hold arrays at a time. What comes beyond that is copied out."""
_SMALLEST = 1 << 20
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


class Ring:
    """The blocks of a sender: of ``LENT`` the receiver may hold something, two more may be under way."""

    def __init__(self) -> None:
        self._blocks: list[Bytes] = []
        self._free: list[int] = []

    def take(self, size: int) -> tuple[int, Bytes, int | None]:
        """A free block of at least ``size`` bytes: its number, its memory, and its descriptor if the receiver doesn't have
        it yet, to be closed once it is sent. The last one that came back is taken first: its pages are warm."""
        for number in reversed(self._free):
            if len(self._blocks[number]) >= size:
                self._free.remove(number)
                return number, self._blocks[number], None
        capacity = max(_SMALLEST, 1 << (size - 1).bit_length())
        fd = new_memory(capacity)
        memory = mapped(os.dup(fd), capacity)
        if not self._free or len(self._blocks) < LENT + 2:
            self._blocks.append(memory)
            return len(self._blocks) - 1, memory, fd
        number = min(self._free, key=lambda n: len(self._blocks[n]))
        self._free.remove(number)
        self._blocks[number] = memory
        return number, memory, fd

    def back(self, number: int) -> None:
        """The receiver holds nothing of a block any more."""
        self._free.append(number)
