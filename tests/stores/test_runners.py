"""Stores under every runner and start method, and a cache whose users are killed at any moment."""

import multiprocessing
import os
import random
import signal
import time

import pytest
from store_faults import serving
from torch.utils.data import DataLoader

from zephon_nodes import Dataset, Pipeline, ShardCache, StaticMixtureWorkSource
from zephon_nodes.shard_cache import Entry

FILES = {f"{n}.jsonl": "".join(f'{{"n": {n * 1000 + row}}}\n' for row in range(60)).encode() for n in range(4)}
TOTAL = sum(map(len, FILES.values()))
NUMBERS = sorted(n * 1000 + row for n in range(4) for row in range(60))


def pipeline(store, folder, **options):
    paths = [f"{store.url}/{name}" for name in sorted(FILES)]
    cache = ShardCache(str(folder / "cache"), 2 * TOTAL, TOTAL)
    dataset = Dataset.from_path("d", paths, cache=cache, index_dir=folder / "index")
    return Pipeline(StaticMixtureWorkSource([dataset], num_lanes=4, seed=1, chunk_size=16), **options)


@pytest.mark.parametrize("runner", ["inline", "thread", "process"])
def test_every_runner_gives_the_same(tmp_path, runner):
    with serving(dict(FILES)) as store:
        want = list(pipeline(store, tmp_path / "want"))
        assert sorted(row["n"] for row in want) == NUMBERS
        made = pipeline(store, tmp_path / runner, runner=runner).map(_same)
        assert list(made) == want


def _same(row):
    return row


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.deep) for name in ("spawn", "forkserver"))]
)
def test_workers_of_a_loader_read_after_their_parent_has(tmp_path, method):
    """The parent's threads of fsspec and pyarrow are alive when the workers are forked."""
    with serving(dict(FILES)) as store:
        graph = pipeline(store, tmp_path)
        want = sorted(row["n"] for row in graph)
        loader = DataLoader(
            graph.as_dataset(), batch_size=None, num_workers=2, multiprocessing_context=method, timeout=60
        )
        assert sorted(int(row["n"]) for row in loader) == want == NUMBERS


# a cache whose users are killed

SIZES = [3_000, 5_000, 8_000, 2_000, 7_000, 4_000]
LIMIT = 15_000


def content(n):
    return bytes([n]) * SIZES[n]


def _entry(n):
    def fill(write):
        for at in range(0, SIZES[n], 500):
            write(content(n)[at : at + 500])

    return Entry(f"{n}", f"{n}", SIZES[n] if n % 2 else None, fill)


def _hammer(folder, seed, wrong):
    random.seed(seed)
    cache = ShardCache(folder, LIMIT)
    while True:
        n = random.randrange(len(SIZES))
        with cache.open(_entry(n)) as stream:
            if stream.read() != content(n):
                wrong.set()


def test_a_cache_whose_users_are_killed_stays_right_and_bounded(tmp_path):
    context = multiprocessing.get_context("fork")
    wrong, cache = context.Event(), ShardCache(str(tmp_path), LIMIT)
    users = [context.Process(target=_hammer, args=(str(tmp_path), seed, wrong)) for seed in range(3)]
    for user in users:
        user.start()
    try:
        for seed in range(3, 30):
            end = time.monotonic() + 0.03
            while time.monotonic() < end:
                assert cache.used() <= LIMIT
            victim = users.pop(0)
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            users.append(context.Process(target=_hammer, args=(str(tmp_path), seed, wrong)))
            users[-1].start()
    finally:
        for user in users:
            user.kill()
            user.join()
    assert not wrong.is_set()
    for n in range(len(SIZES)):
        with cache.open(_entry(n)) as stream:
            assert stream.read() == content(n)
    assert not list(tmp_path.glob("*.part"))
    assert cache.used() <= LIMIT
