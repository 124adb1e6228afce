import logging
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_faults import FakeClock, serving

from zephon_nodes import Dataset, Pipeline, ReadError, StaticMixtureWorkSource
from zephon_nodes.concurrency.prefetch import Prefetcher
from zephon_nodes.retries import Retries
from zephon_nodes.shard_cache import ShardCache
from zephon_nodes.store_counters import store_report
from zephon_nodes.work.base import Chunk, WorkSource, pointer
from zephon_nodes.work.shards_ahead import ShardsAhead


class Gate:
    """A ``fetch`` that does one thing each time it is let, and remembers the order."""

    def __init__(self):
        self.begun, self.order, self.let = threading.Semaphore(0), [], threading.Semaphore(0)

    def __call__(self, key, cancelled):
        self.order.append(key)
        self.begun.release()
        self.let.acquire()
        return not cancelled()

    def step(self):
        assert self.begun.acquire(timeout=10)
        self.let.release()


def ended(prefetcher):
    for thread in threading.enumerate():
        if thread.name == "zephon prefetch":
            thread.join(10)
    assert prefetcher._state._running == 0


def test_the_nearest_need_comes_first_and_nothing_twice():
    gate = Gate()
    prefetcher = Prefetcher(gate, 1000, threads=1)
    prefetcher.want([(9, "first", 1)])
    assert gate.begun.acquire(timeout=10)
    prefetcher.want([(5, "c", 1), (3, "b", 1), (9, "first", 1), (1, "a", 1), (3, "b", 1)])
    gate.let.release()
    for _ in range(3):
        gate.step()
    ended(prefetcher)
    assert gate.order == ["first", "a", "b", "c"]


def test_bytes_ahead_are_bounded_until_they_are_used():
    gate = Gate()
    prefetcher = Prefetcher(gate, 10, threads=2)
    prefetcher.want([(n, n, 4) for n in range(5)])
    gate.step()
    gate.step()
    ended(prefetcher)
    assert sorted(gate.order) == [0, 1]
    prefetcher.used([0, 2])
    gate.step()
    ended(prefetcher)
    assert sorted(gate.order) == [0, 1, 3], "2 was read by somebody before it was fetched"


def test_a_thing_larger_than_the_limit_is_fetched_alone():
    gate = Gate()
    prefetcher = Prefetcher(gate, 10, threads=2)
    prefetcher.want([(0, "huge", 50), (1, "small", 1)])
    gate.step()
    ended(prefetcher)
    prefetcher.used(["huge"])
    gate.step()
    ended(prefetcher)
    assert gate.order == ["huge", "small"]


def test_failures_are_logged_and_forgotten(caplog):
    calls = []

    def fetch(key, cancelled):
        calls.append(key)
        raise ReadError("no such luck")

    prefetcher = Prefetcher(fetch, 10, threads=1)
    with caplog.at_level(logging.INFO):
        prefetcher.want([(0, "a", 10), (1, "b", 10)])
        ended(prefetcher)
    assert calls == ["a", "b"]
    assert "fetching ahead failed, the bytes are fetched when they are needed: no such luck" in caplog.text
    prefetcher.want([(0, "a", 10)])
    ended(prefetcher)
    assert calls == ["a", "b", "a"]


def test_closing_cancels_what_is_under_way():
    gate = Gate()
    prefetcher = Prefetcher(gate, 10, threads=1)
    prefetcher.want([(0, "a", 1), (1, "b", 1)])
    assert gate.begun.acquire(timeout=10)
    prefetcher.close()
    gate.let.release()
    ended(prefetcher)
    assert gate.order == ["a"]
    assert not prefetcher._state._ahead


# what is told ahead


def lane(shards, rows_a_chunk=3):
    """The chunks of a lane that reads one row of each of these shards, one after the other."""
    parts = [shards[at : at + rows_a_chunk] for at in range(0, len(shards), rows_a_chunk)]

    def chunk(index):
        if index >= len(parts):
            return None
        shard = np.array(parts[index], np.int64)
        zeros = np.zeros(len(shard), np.int64)
        return Chunk(["d"], zeros, shard, zeros, zeros)

    return chunk, len(parts)


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 60))
def test_every_shard_is_told_before_its_turn_and_bytes_are_bounded(shards, limit):
    chunk, count = lane(shards)
    nbytes = np.arange(10, dtype=np.int64)
    ahead = ShardsAhead(chunk, {"d": nbytes}, limit, 0)
    told: dict[int, int] = {}
    for index in range(count):
        for when, name, shard, size in ahead.look(index):
            assert name == "d"
            assert size == nbytes[shard] > 0
            assert when >= index
            assert shard in chunk(when).shard
            told[shard] = when
        # Whatever is read now was told, unless it costs nothing.
        assert all(shard in told for shard in chunk(index).shard.tolist() if nbytes[shard])
        outstanding = {shard for shard, when in told.items() if when > index}
        largest_chunk = int(nbytes[np.unique(chunk(min(index + 1, count - 1)).shard)].sum()) if outstanding else 0
        assert sum(int(nbytes[shard]) for shard in outstanding) <= limit + max(largest_chunk, 27)


def test_a_chunk_that_raises_ends_the_looking_and_nothing_else():
    def chunk(index):
        if index == 2:
            raise KeyError("later")
        return lane([index] * 3)[0](0)

    ahead = ShardsAhead(chunk, {"d": np.ones(10, np.int64)}, 100, 0)
    assert [shard for _, _, shard, _ in ahead.look(0)] == [0, 1]
    assert ahead.look(1) == []


# whole runs

SHARDS = 12
FILES = {f"{n:02}.jsonl": "".join(f'{{"n": {n * 1000 + row}}}\n' for row in range(200)).encode() for n in range(SHARDS)}
TOTAL = sum(map(len, FILES.values()))


def dataset(store, folder, limit=10 * TOTAL, ahead=TOTAL // 3):
    paths = [f"{store.url}/{name}" for name in sorted(FILES)]
    cache = ShardCache(str(folder / "cache"), limit, ahead)
    options = {"retries": Retries(60, clock=FakeClock())}
    return Dataset.from_path("d", paths, cache=cache, storage_options=options, index_dir=folder / "index")


def numbers(rows, **kind):
    source = StaticMixtureWorkSource([rows], num_lanes=2, seed=3, chunk_size=32, **kind)
    return [row["n"] for row in Pipeline(source)]


@pytest.fixture
def local(tmp_path):
    folder = tmp_path / "local"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return Dataset.from_path("d", folder, index_dir=tmp_path / "index of local")


@pytest.mark.parametrize("shuffle", ["none", "windows", "global"])
def test_a_run_with_cache_and_prefetch_gives_what_local_files_give(tmp_path, local, shuffle):
    want = numbers(local, shuffle=shuffle)
    with serving(dict(FILES)) as store:
        len(dataset(store, tmp_path))  # finds the lines, so that the run itself needs nothing but rows
        for limit in (10 * TOTAL, TOTAL // 2):
            before = store_report()
            assert numbers(dataset(store, tmp_path / f"{limit}", limit), shuffle=shuffle) == want
            assert store_report().downloads - before.downloads >= SHARDS


class Slow(WorkSource):
    """Shard by shard, in file order."""

    def chunk(self, lane, index, epoch=0):
        rows = range(index * 100, min(index * 100 + 100, self.datasets[0].rows))
        return [pointer(self.datasets[0], row) for row in rows] or None


def test_shards_are_fetched_ahead_once_each(tmp_path):
    with serving(dict(FILES)) as store:
        rows = dataset(store, tmp_path)
        assert len(rows) == SHARDS * 200
        for copy in (tmp_path / "cache").glob("*.shard"):
            copy.unlink()  # what finding the lines has copied
        before, store.log[:] = store_report(), []
        found = [row["n"] for row in Pipeline(Slow([rows]))]
        assert found == [n * 1000 + row for n in range(SHARDS) for row in range(200)]
        after = store_report()
        assert after.downloads - before.downloads == SHARDS
        assert after.ahead - before.ahead > 0
        assert sorted(path for path, _ in store.gets()) == sorted(FILES)


def test_nothing_is_fetched_ahead_where_that_is_turned_off(tmp_path):
    with serving(dict(FILES)) as store:
        before = store_report()
        assert len(numbers(dataset(store, tmp_path, ahead=0))) == SHARDS * 200
        assert store_report().ahead == before.ahead
