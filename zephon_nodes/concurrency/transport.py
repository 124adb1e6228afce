"""Messages between two processes: any object, its arrays through shared memory.

A message is pickled (protocol 5) into a stream, with the large buffers of arrays apart. On the socket goes a head; the
sizes of these parts and the parts follow it if they are small. Else they lie in blocks of shared memory (``blocks``), which the
head names: each buffer of ``OWN`` bytes and more in one of its own, the rest in one together. The receiver makes its arrays on
that memory without a copy, and when the last of a block is gone, the block goes back with the next message the other way:
so every message has an answer, and at most two wait for theirs. A receiver that holds blocks of ``LENT_BYTES``, or ``LENT``
that are of many buffers, copies what comes next, one buffer at a time, so that a record that is kept for long keeps nobody
else's memory.

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

from zephon_nodes.concurrency.blocks import ALIGNED, LENT_BYTES, Arena, Block, Bytes, mapped
from zephon_nodes.concurrency.pickling import dumps, loads

INLINE = 64 << 10
"""Smaller messages go through the socket itself."""
OWN = 64 << 10
"""Smaller buffers share a block."""
LENT = 4
"""How many shared blocks a receiver may hold something of."""
_MOST_OWN = 128
_HEAD = struct.Struct("=IIII")
_BLOCK = struct.Struct("=IQQ")


class Channel:
    """One end of a connection, for one thread. ``wait``: called before every read.

    ``nbytes``: sent and received so far.
    """

    def __init__(self, sock: socket.socket, wait: Callable[[], None] = lambda: None) -> None:
        self._socket, self._wait = sock, wait
        self._arena = Arena()
        self._theirs: list[Bytes] = []
        self._lent: dict[Block, bool] = {}
        self._lent_bytes = 0
        self._let_go: deque[Block] = deque()  # finalizers add to it, in any thread
        self._back: list[Block] = []
        self.nbytes = 0

    def close(self) -> None:
        self._socket.close()

    # sending

    def send(self, message: Any) -> None:
        """Raises what pickling raises, before anything is sent; ``EOFError`` if the other end is gone."""
        parts = dumps(message)
        sizes = [len(part) for part in parts]
        self.nbytes += sum(sizes)
        table = array.array("Q", sizes).tobytes()
        inline = sum(sizes) < INLINE
        blocks = [] if inline else self._laid([table, *parts], sizes)
        self._collect()
        back, self._back = self._back, []
        new, self._arena.new = self._arena.new, []
        head = _HEAD.pack(len(sizes), len(blocks), len(back), len(new))
        head += array.array("Q", [capacity for _, capacity in new]).tobytes()
        head += b"".join([_BLOCK.pack(*block) for block in (*blocks, *back)])
        self._write(b"".join([head, table, *parts]) if inline else head, [fd for fd, _ in new])

    def _laid(self, parts: list[Any], sizes: list[int]) -> list[Block]:
        """Puts the parts, the first of which is the table of sizes, into blocks."""
        own = _own(sizes)
        rest = [parts[0], *(part for i, part in enumerate(parts[1:]) if i not in own)]
        starts, end = _places([*map(len, rest)])
        blocks = self._arena.take([end, *(sizes[i] for i in own)])
        memory = self._arena.memory(blocks[0])
        for start, part in zip(starts, rest, strict=True):
            np.copyto(memory[start : start + len(part)], np.frombuffer(part, np.uint8))
        for i, block in zip(own, blocks[1:], strict=True):
            np.copyto(self._arena.memory(block)[: sizes[i]], np.frombuffer(parts[i + 1], np.uint8))
        return blocks

    def _collect(self) -> None:
        """Notes the blocks of the other end of which nothing is held any more."""
        while self._let_go:
            block = self._let_go.popleft()
            if self._lent.pop(block, None) is not None:
                self._lent_bytes -= block.size
            self._back.append(block)

    def _write(self, data: bytes, fds: list[int]) -> None:
        try:
            sent = socket.send_fds(self._socket, [data], fds) if fds else 0
            self._socket.sendall(memoryview(data)[sent:])
        except ConnectionError as error:
            raise EOFError from error
        finally:
            for fd in fds:
                os.close(fd)

    # receiving

    def receive(self) -> Any:
        """The next message. Raises ``EOFError`` if the other end is gone, and what unpickling raises, after which the
        channel can still be used."""
        head, fds = self._read_head()
        count, used, back, new = _HEAD.unpack(head)
        capacities = memoryview(self._read(8 * new)).cast("Q").tolist()
        blocks = [Block(*fields) for fields in _BLOCK.iter_unpack(self._read(_BLOCK.size * (used + back)))]
        if len(fds) < new:
            for fd in fds:
                os.close(fd)
            raise OSError("no descriptor of shared memory came: too many files are open (ulimit -n)")
        self._theirs += [mapped(fd, capacity) for fd, capacity in zip(fds, capacities, strict=True)]
        for block in blocks[used:]:
            self._arena.back(block)
        if used:
            return self._in_blocks(blocks[:used], count)
        sizes = memoryview(self._read(8 * count)).cast("Q").tolist()
        self.nbytes += sum(sizes)
        return loads(_cut(memoryview(self._read(sum(sizes))), sizes))

    def _in_blocks(self, blocks: list[Block], count: int) -> Any:
        rest = self._memory(blocks[0])
        sizes = rest[: 8 * count].view(np.uint64).tolist()
        self.nbytes += sum(sizes)
        self._collect()
        own = _own(sizes)
        together = [i for i in range(count) if i not in own]
        starts, _ = _places([8 * count, *(sizes[i] for i in together)])
        lends = len(together) > 1 and sum(self._lent.values()) < LENT and self._may_lend(blocks[0])
        view = self._lend(blocks[0], True) if lends else memoryview(rest)  # type: ignore[arg-type]
        parts: list[Any] = [None] * count
        try:
            for i, start in zip(together, starts[1:], strict=True):
                data = view[start : start + sizes[i]]
                parts[i] = data if lends or i == 0 else bytearray(data)
            for i, block in zip(own, blocks[1:], strict=True):
                parts[i] = self._one(block, sizes[i])
            return loads(parts)
        finally:
            if not lends:
                self._let_go.append(blocks[0])

    def _one(self, block: Block, size: int) -> Any:
        """The only buffer of a block."""
        if self._may_lend(block):
            return self._lend(block, False)[:size]
        try:
            return bytearray(self._memory(block)[:size])
        finally:
            self._let_go.append(block)

    def _memory(self, block: Block) -> Bytes:
        return self._theirs[block.segment][block.start : block.start + block.size]

    def _may_lend(self, block: Block) -> bool:
        return self._lent_bytes + block.size <= LENT_BYTES

    def _lend(self, block: Block, many: bool) -> memoryview:
        """The memory of a block, which goes back when nothing of it is held. ``many``: it has many buffers."""
        self._lent[block] = many
        self._lent_bytes += block.size
        memory = self._memory(block)
        weakref.finalize(memory, self._let_go.append, block).atexit = False
        return memoryview(memory)  # type: ignore[arg-type]

    def _read_head(self) -> tuple[bytes, list[int]]:
        self._wait()
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            head, fds, _, _ = socket.recv_fds(self._socket, _HEAD.size, _MOST_OWN, flags)
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


def _own(sizes: Sequence[int]) -> dict[int, None]:
    """The buffers that have blocks of their own, in order. The stream has none: it is read at once."""
    return dict.fromkeys([i for i, size in enumerate(sizes) if size >= OWN and i][:_MOST_OWN])


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where each part of a block lies, and the end of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // ALIGNED) * ALIGNED
    return starts, end


def _cut(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    out, at = [], 0
    for size in sizes:
        out.append(data[at : at + size])
        at += size
    return out
