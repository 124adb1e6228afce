"""Messages between two processes: any object, its arrays through shared memory.

A message is pickled (protocol 5) into a stream, with the large buffers of arrays apart. A buffer of ``INLINE`` bytes and
more gets a block of shared memory of its own (``blocks``). The rest, one after the other, each at a multiple of 64 bytes,
gets one together, or goes through the socket if it is small. The receiver makes its arrays on the blocks without a copy.
When nothing is left of one, its address goes back with the next message the other way: so every message has an answer, and
at most two wait for theirs. A receiver that holds ``LENT_BYTES`` copies what comes next.

What goes through the socket is less than its buffer, so neither end waits for the other to read.
"""

from __future__ import annotations

import array
import itertools
import os
import socket
import struct
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from zephon_nodes.concurrency.blocks import Bytes, Segments, mapped, split_address
from zephon_nodes.concurrency.pickling import dumps, loads

INLINE = 64 << 10
"""What is smaller goes through the socket itself."""
LENT_BYTES = 64 << 20
"""How much shared memory a receiver may hold arrays on."""
_ALIGNED = 64
_HEAD = struct.Struct("=IQQII")
_TOGETHER = (1 << 64) - 1
"""Instead of an address: what isn't in a block of its own; or, if nothing is, in the socket."""
_MOST_SEGMENTS = 253  # that Linux sends at once
_MOST_BACK = 4096


class Channel:
    """One end of a connection, for one thread. ``wait``: called before every read.

    ``nbytes``: sent and received so far.
    """

    def __init__(self, sock: socket.socket, wait: Callable[[], None] = lambda: None) -> None:
        self._socket, self._wait = sock, wait
        self._ours = Segments()
        self._theirs: list[Bytes | OSError] = []
        self._lent: dict[int, int] = {}
        self._lent_bytes = 0
        self._let_go: deque[int] = deque()  # finalizers add to it, in any thread
        self._back: list[int] = []
        self.nbytes = 0

    def close(self) -> None:
        self._socket.close()

    # sending

    def send(self, message: Any) -> None:
        """Raises what pickling raises, before anything is sent; ``EOFError`` if the other end is gone."""
        parts = dumps(message)
        together, table = list[Any](), array.array("Q")
        for part in parts:
            size, place = len(part), _TOGETHER
            if size < INLINE or part is parts[0]:
                together.append(part)
            else:
                place, memory = self._ours.take(size)
                np.copyto(memory, np.frombuffer(part, np.uint8))
            table.extend((size, place))
        together.insert(0, table.tobytes())
        self.nbytes += sum(table[::2])
        starts, end = _places(map(len, together))
        address, memory = (_TOGETHER, np.zeros(end, np.uint8)) if end < INLINE else self._ours.take(end)
        for start, part in zip(starts, together, strict=True):
            np.copyto(memory[start : start + len(part)], np.frombuffer(part, np.uint8))
        self._post(len(parts), address, end, memory.tobytes() if address == _TOGETHER else b"")

    def _post(self, parts: int, address: int, size: int, inline: bytes) -> None:
        self._collect()
        fresh, self._ours.fresh = self._ours.fresh, []
        back, self._back = self._back[:_MOST_BACK], self._back[_MOST_BACK:]
        numbers = array.array("Q", [*back, *(size for _, size in fresh)])
        head = _HEAD.pack(parts, address, size, len(back), len(fresh))
        self._write(b"".join([head, numbers.tobytes(), inline]), [fd for fd, _ in fresh])

    def _collect(self) -> None:
        """Notes the blocks of the other end of which nothing is held any more."""
        while self._let_go:
            address = self._let_go.popleft()
            self._lent_bytes -= self._lent.pop(address, 0)
            self._back.append(address)

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
        parts, address, size, back, fresh = _HEAD.unpack(head)
        numbers = memoryview(self._read(8 * (back + fresh))).cast("Q").tolist()
        for block in numbers[:back]:
            self._ours.back(block)
        for fd, capacity in itertools.zip_longest(fds, numbers[back:]):
            self._theirs.append(_mapped(fd, capacity))
        self._collect()
        if address == _TOGETHER:
            return self._loaded(parts, address, memoryview(self._read(size)))
        return self._loaded(parts, address, memoryview(self._memory(address, size)))  # type: ignore[arg-type]

    def _loaded(self, count: int, address: int, together: memoryview) -> Any:
        numbers = together[: 16 * count].cast("Q").tolist()
        sizes, places = numbers[::2], numbers[1::2]
        self.nbytes += sum(sizes)
        lies = address != _TOGETHER
        shared = [size for size, place in zip(sizes, places, strict=True) if place == _TOGETHER]
        lent = lies and len(shared) > 1 and self._may_lend(len(together))
        if lent:
            together = self._lend(address, self._memory(address, len(together)))
        try:
            starts, _ = _places([16 * count, *shared])
            cut = iter([together[start : start + size] for start, size in zip(starts[1:], shared, strict=True)])
            parts: list[Any] = [next(cut)]
            for size, place in zip(sizes[1:], places[1:], strict=True):
                if place == _TOGETHER:
                    parts.append(bytearray(next(cut)) if lies and not lent else next(cut))
                else:
                    parts.append(self._taken(place, size))
            return loads(parts)
        finally:
            if lies and not lent:
                self._let_go.append(address)

    def _taken(self, address: int, size: int) -> Any:
        memory = self._memory(address, size)
        if self._may_lend(size):
            return self._lend(address, memory)
        self._let_go.append(address)
        return bytearray(memory)  # the block isn't written to before the next message goes out

    def _may_lend(self, size: int) -> bool:
        return self._lent_bytes + size <= LENT_BYTES

    def _lend(self, address: int, memory: Bytes) -> memoryview:
        self._lent[address] = len(memory)
        self._lent_bytes += len(memory)
        weakref.finalize(memory, self._let_go.append, address).atexit = False
        return memoryview(memory)  # type: ignore[arg-type]

    def _memory(self, address: int, size: int) -> Bytes:
        number, start = split_address(address)
        segment = self._theirs[number]
        if isinstance(segment, OSError):
            raise segment
        return segment[start : start + size]

    def _read_head(self) -> tuple[bytes, list[int]]:
        self._wait()
        flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
        try:
            head, fds, _, _ = socket.recv_fds(self._socket, _HEAD.size, _MOST_SEGMENTS, flags)
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


def _mapped(fd: int | None, capacity: int) -> Bytes | OSError:
    """A segment that came, or why it can't be had: said by each message that lies in it."""
    if fd is None:
        return OSError("no descriptor of shared memory came: too many files are open (ulimit -n)")
    try:
        return mapped(fd, capacity)
    except OSError as error:
        return error


def _places(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Where each part lies, and the end of all."""
    starts, end = [], 0
    for size in sizes:
        starts.append(end)
        end += -(-size // _ALIGNED) * _ALIGNED
    return starts, end
