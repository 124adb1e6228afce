"""Messages between two processes: any object, its arrays through shared memory.

A message is pickled (protocol 5) into a stream, with the large buffers of arrays apart. On the socket goes a head; the
sizes of these parts and the parts follow it if they are small, or else lie, each at a multiple of 64 bytes, in one block of
shared memory (``blocks``), whose number stands in the head. The receiver makes its arrays on that memory without a copy.
When the last of them is gone, the block's number goes back with the next message the other way: so every message has an
answer, and at most two wait for theirs. A receiver that holds arrays of ``LENT`` blocks, or ``LENT_BYTES``, copies what comes
next, one buffer at a time, so that a record that is kept for long keeps nobody else's memory.

What goes through the socket is less than its buffer, so neither end waits for the other to read.
"""

from __future__ import annotations

import array
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from zephon_nodes.concurrency.blocks import LENT, LENT_BYTES, Bytes, Ring, mapped
from zephon_nodes.concurrency.pickling import dumps, loads

INLINE = 64 << 10
"""Smaller messages go through the socket itself."""
_ALIGNED = 64
_HEAD = struct.Struct("=IIQI?")


class Channel:
    """One end of a connection, for one thread. ``wait``: called before every read.

    ``nbytes``: sent and received so far.
    """

    def __init__(self, sock: socket.socket, wait: Callable[[], None] = lambda: None) -> None:
        self._socket, self._wait = sock, wait
        self._ring = Ring()
        self._theirs: dict[int, Bytes] = {}
        self._lent: dict[int, int] = {}
        self._let_go: deque[int] = deque()  # finalizers add to it, in any thread
        self._back: list[int] = []
        self.nbytes = 0

    def close(self) -> None:
        self._socket.close()

    # sending

    def send(self, message: Any) -> None:
        """Raises what pickling raises, before anything is sent; ``EOFError`` if the other end is gone."""
        parts = dumps(message)
        sizes = array.array("Q", [len(part) for part in parts])
        self.nbytes += sum(sizes)
        parts = [sizes.tobytes(), *parts]
        number, capacity, fd = -1, 0, None
        if sum(sizes) >= INLINE:
            starts, end = _places([len(parts[0]), *sizes])
            number, memory, fd = self._ring.take(end)
            capacity = len(memory)
            for start, part in zip(starts, parts, strict=True):
                np.copyto(memory[start : start + len(part)], np.frombuffer(part, np.uint8))
        self._collect()
        back, self._back = self._back, []
        head = _HEAD.pack(len(sizes), number + 1, capacity, len(back), fd is not None)
        head += array.array("I", back).tobytes()
        self._write(head if number >= 0 else b"".join([head, *parts]), fd)

    def _collect(self) -> None:
        """Notes the blocks of the other end of which nothing is held any more."""
        while self._let_go:
            number = self._let_go.popleft()
            self._lent.pop(number, None)
            self._back.append(number)

    def _write(self, data: bytes, fd: int | None) -> None:
        try:
            sent = 0
            if fd is not None:
                sent = socket.send_fds(self._socket, [data], [fd])
                os.close(fd)
            self._socket.sendall(memoryview(data)[sent:])
        except ConnectionError as error:
            raise EOFError from error

    # receiving

    def receive(self) -> Any:
        """The next message. Raises ``EOFError`` if the other end is gone, and what unpickling raises, after which the
        channel can still be used."""
        head, fds = self._read_head()
        count, number, capacity, back, new = _HEAD.unpack(head)
        for block in memoryview(self._read(4 * back)).cast("I"):
            self._ring.back(block)
        if not number:
            sizes = memoryview(self._read(8 * count)).cast("Q").tolist()
            self.nbytes += sum(sizes)
            return loads(_cut(memoryview(self._read(sum(sizes))), sizes))
        if new:
            self._theirs[number - 1] = mapped(_only(fds), capacity)
        return self._in_block(number - 1, count)

    def _in_block(self, number: int, count: int) -> Any:
        sizes = self._theirs[number][: 8 * count].view(np.uint64).tolist()
        self.nbytes += sum(sizes)
        starts, end = _places([8 * count, *sizes])
        places = list(zip(starts[1:], sizes, strict=True))
        self._collect()
        if count > 1 and len(self._lent) < LENT and sum(self._lent.values(), end) <= LENT_BYTES:
            self._lent[number] = end
            memory = self._theirs[number][:end]
            weakref.finalize(memory, self._let_go.append, number).atexit = False
            view = memoryview(memory)  # type: ignore[arg-type]
            return loads([view[start : start + size] for start, size in places])
        view = memoryview(self._theirs[number])  # type: ignore[arg-type]
        try:
            stream, *buffers = [view[start : start + size] for start, size in places]
            return loads([stream, *map(bytearray, buffers)])
        finally:
            self._let_go.append(number)

    def _read_head(self) -> tuple[bytes, list[int]]:
        self._wait()
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            head, fds, _, _ = socket.recv_fds(self._socket, _HEAD.size, 1, flags)
        except ConnectionError as error:
            raise EOFError from error
        if not head:
            raise EOFError
        return head + bytes(self._read(_HEAD.size - len(head))), fds

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            self._wait()
            try:
                got = self._socket.recv_into(view[at:])
            except ConnectionError as error:
                raise EOFError from error
            if not got:
                raise EOFError
            at += got
        return data


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each part lies, and the end of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return starts, end


def _cut(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return out


def _only(fds: list[int]) -> int:
    if not fds:
        raise OSError("no descriptor of shared memory came: too many files are open (ulimit -n)")
    return fds[0]
