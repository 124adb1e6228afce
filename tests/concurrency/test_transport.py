"""Channels: both ends in one process, which is all the same to them."""

from __future__ import annotations

import gc
import os
import socket
from collections import deque
from contextlib import contextmanager
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.concurrency import blocks, transport
from zephon_nodes.concurrency.blocks import SEGMENT, Segments
from zephon_nodes.concurrency.transport import INLINE, LENT_BYTES, Channel

BIG = 2 * INLINE


@contextmanager
def channels():
    ours, theirs = socket.socketpair()
    a, b = Channel(ours), Channel(theirs)
    try:
        yield a, b
    finally:
        a.close()
        b.close()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def across(a, b, message):
    """There and back, as every message has an answer."""
    a.send(message)
    got = b.receive()
    b.send(None)
    assert a.receive() is None
    return got


@given(st.lists(st.integers(0, 3 * INLINE), max_size=6), st.integers(0, 1000))
def test_messages_of_any_size_arrive(sizes, small):
    message = [np.arange(size, dtype=np.uint8) for size in sizes], bytes(small)
    with channels() as (a, b):
        for _ in range(3):
            got = across(a, b, message)
            assert got[1] == message[1]
            assert all(np.array_equal(x, y) for x, y in zip(got[0], message[0], strict=True))


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([10, BIG, 3 * BIG, 1 << 21]), st.integers(0, 12)), max_size=30
    )
)
def test_what_is_held_never_changes_whatever_is_held_and_for_how_long(steps):
    """Messages go both ways; of each, a drawn number of later ones are received before it is let go."""
    with channels() as (a, b):
        held: deque = deque()
        for number, (fill, size, keep) in enumerate(steps):
            sender, receiver = (a, b) if number % 2 else (b, a)
            want = np.full(size, fill, np.uint8)
            sender.send([want, np.full(size, 1, np.uint8)[::2].copy()])
            held.append((receiver.receive()[0], want))
            while len(held) > keep:
                held.popleft()
            for got, expected in held:
                assert np.array_equal(got, expected)
                assert got.flags.writeable


def written(channel):
    """How much of a sender's memory was ever taken."""
    return max((stop for free in channel._ours._free for stop, _ in free), default=0)


def test_arrays_lie_in_blocks_without_a_copy_and_blocks_are_used_again():
    with channels() as (a, b):
        first = across(a, b, np.zeros(BIG, np.uint8))
        place = first.ctypes.data
        del first
        across(a, b, "takes the block back")
        second = across(a, b, np.ones(BIG, np.uint8))
        third = across(a, b, np.ones(BIG, np.uint8))
        assert place == second.ctypes.data != third.ctypes.data


def test_an_array_that_is_kept_keeps_none_of_the_others_that_came_with_it():
    with channels() as (a, b):
        kept = [across(a, b, [np.full(BIG, i, np.uint8) for _ in range(8)])[3] for i in range(100)]
        across(a, b, None)
        assert sum(b._lent.values()) == 100 * BIG
        assert all((array == i).all() for i, array in enumerate(kept))


REMAINS = {
    "a view": lambda whole: whole["x"][3, 5:9],
    "a memoryview": lambda whole: memoryview(whole["x"])[2:3],
    "a tensor": lambda whole: torch.from_numpy(whole["x"]),
    "a slice of a tensor": lambda whole: whole["t"][3:5],
    "a list of rows": lambda whole: list(whole["x"]),
}


@pytest.mark.parametrize("how", REMAINS)
def test_a_block_is_held_by_whatever_is_left_of_its_arrays(how):
    with channels() as (a, b):
        whole = across(a, b, {"x": np.zeros((16, BIG), np.uint8), "t": torch.zeros(BIG)})
        left = REMAINS[how](whole)
        del whole
        gc.collect()
        for _ in range(10):
            across(a, b, {"x": np.ones((16, BIG), np.uint8), "t": torch.ones(BIG)})
        first = left[0] if isinstance(left, list) else left
        assert not np.asarray(first).any()


def test_a_consumer_that_keeps_everything_costs_no_descriptor_and_no_more_memory_than_is_lent():
    with channels() as (a, b):
        count = LENT_BYTES // BIG
        kept = [across(a, b, np.full(BIG, i % 250, np.uint8)) for i in range(count + 3)]
        before = descriptors()
        kept += [across(a, b, np.full(BIG, i % 250, np.uint8)) for i in range(count + 3, 2000)]
        assert descriptors() == before
        assert len(a._ours.memory) == 1 and written(a) <= LENT_BYTES + 4 * BIG
        assert all((array == i % 250).all() for i, array in enumerate(kept))


def test_what_is_lent_is_bounded_in_bytes():
    with channels() as (a, b):
        size = LENT_BYTES // 2 - 4096
        kept = [across(a, b, np.zeros(size, np.uint8)) for _ in range(4)]
        assert sum(b._lent.values()) <= LENT_BYTES
        assert len(kept) == 4 and len(b._lent) == 2


def test_two_messages_may_wait_for_their_answers():
    """As of a process that has its next task at hand, while the other end holds all that it may."""
    with channels() as (a, b):
        kept, large = [], 8 * BIG
        for i in range(LENT_BYTES // large):
            a.send([i, np.full(large, 2 * i % 251, np.uint8)])
            a.send([i, np.full(large, (2 * i + 1) % 251, np.uint8)])
            for _ in range(2):
                kept.append(b.receive()[1])
                b.send(np.full(large, 255, np.uint8))
            kept += [a.receive(), a.receive()]
        assert max(written(a), written(b)) <= LENT_BYTES + 4 * large
        assert [int(x[-1]) for x in kept if x[-1] != 255] == [i % 251 for i in range(2 * LENT_BYTES // large)]


def test_what_is_larger_than_a_segment_gets_one_of_its_own(monkeypatch):
    monkeypatch.setattr(blocks, "SEGMENT", 4 * BIG)
    with channels() as (a, b):
        for size in (BIG, 40 * BIG, BIG, 400 * BIG, BIG, 300 * BIG, 3 * BIG):
            got = across(a, b, [np.full(size, 7, np.uint8)] * 2)
            assert all(array.all() and len(array) == size for array in got)
            del got
        assert [len(memory) for memory in a._ours.memory] == [4 * BIG, 40 * BIG, 400 * BIG]


def test_many_large_buffers_in_one_message():
    with channels() as (a, b):
        message = [np.full(4096, i % 100, np.uint8) for i in range(20_000)]
        got = across(a, b, message)
        assert all(np.array_equal(x, y) for x, y in zip(got, message, strict=True))


def test_what_cannot_be_pickled_sends_nothing_and_harms_nothing():
    with channels() as (a, b):
        with pytest.raises(Exception, match="cannot pickle"):
            a.send([np.zeros(BIG), socket.socketpair])
            a.send([np.zeros(BIG), (x for x in "")])
        b.receive()
        b.send(None)
        a.receive()
        assert across(a, b, "fine") == "fine"


class Poison:
    def __reduce__(self):
        return _explode, (np.zeros(BIG),)


def _explode(array):
    raise ValueError("not on this side")


def test_what_cannot_be_unpickled_is_an_error_after_which_the_channel_goes_on():
    with channels() as (a, b):
        for _ in range(300):
            a.send(Poison())
            with pytest.raises(ValueError, match="not on this side"):
                b.receive()
            b.send(None)
            a.receive()
        assert across(a, b, "fine") == "fine"
        assert written(a) <= 8 * BIG


def _refused(received, *args):
    """As in a process that may open no more files."""
    data, fds, *_ = received(*args)
    for fd in fds:
        os.close(fd)
    return data, [], 0, None


def test_memory_that_did_not_arrive_is_an_error_for_each_message_in_it_and_for_no_other(monkeypatch):
    monkeypatch.setattr(blocks, "SEGMENT", BIG)
    with channels() as (a, b):
        with monkeypatch.context() as patch:
            patch.setattr(transport.socket, "recv_fds", partial(_refused, socket.recv_fds))
            a.send(np.ones(BIG, np.uint8))
            with pytest.raises(OSError, match="too many files are open"):
                b.receive()
        b.send(None)
        a.receive()
        a.send(np.full(2 * BIG, 7, np.uint8))
        assert (b.receive() == 7).all()
        b.send(None)
        a.receive()
        a.send(bytes(100))
        assert b.receive() == bytes(100)


def test_the_end_of_the_other_end_is_an_end_of_file_in_every_state():
    with channels() as (a, b):
        b.close()
        with pytest.raises(EOFError):
            a.receive()
        with pytest.raises(EOFError):
            a.send(1)
    with channels() as (a, b):
        a.send(1)
        b._read(3)
        a.close()
        with pytest.raises(EOFError):
            b._read(1 << 20)


def test_bytes_are_counted_at_both_ends():
    with channels() as (a, b):
        across(a, b, bytes(1000))
        across(a, b, np.zeros(BIG, np.uint8))
        assert a.nbytes == b.nbytes > BIG + 1000


def test_without_memfd_an_unlinked_file_does(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with channels() as (a, b):
        assert across(a, b, np.full(BIG, 3, np.uint8)).all()
    assert not list(tmp_path.iterdir())


# segments


@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(0, 8)), max_size=80))
def test_blocks_never_overlap_and_free_places_grow_together_again(steps):
    segments = Segments()
    taken: list = []
    for size, keep in steps:
        address, memory = segments.take(size)
        assert len(memory) == size
        room = -(-size // 4096) * 4096
        assert all(address + room <= at or at + other <= address for at, other in taken)
        taken.append((address, room))
        while len(taken) > keep:
            segments.back(taken.pop(len(taken) // 2)[0])
    for address, _ in taken:
        segments.back(address)
    for fd, _ in segments.fresh:
        os.close(fd)
    assert segments._free == [[(0, SEGMENT)]] * bool(steps)


def test_the_lowest_place_with_room_is_taken():
    segments = Segments()
    addresses = [segments.take(size)[0] for size in (8192, 4096, 8192, 4096)]
    for fd, _ in segments.fresh:
        os.close(fd)
    segments.back(addresses[1])
    segments.back(addresses[2])
    assert segments.take(10_000)[0] == addresses[1]
    segments.back(addresses[0])
    assert segments.take(100)[0] == addresses[0]


def test_memory_is_nameless_and_its_descriptor_is_closed_once_it_is_mapped():
    before = descriptors()
    memory = blocks.mapped(blocks.new_memory(8192), 8192)
    memory[:] = 5
    assert descriptors() - before <= 1  # the mapping's own, until Python 3.13
    del memory
    gc.collect()
    assert descriptors() == before


def test_the_threshold_is_below_what_a_socket_takes_at_once():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) > 2 * transport.INLINE
