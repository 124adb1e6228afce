"""What a long run may use: descriptors, threads and memory stay where they are, epoch after epoch."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

PAGE = resource.getpagesize()


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def open_files():
    """How many Parquet files are open, and how many descriptors there are besides."""
    targets = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since the listing, as the listing's own is
            targets.append(os.readlink(f"/proc/self/fd/{number}"))
    parquet = sum(target.endswith(".parquet") for target in targets)
    return parquet, len(targets) - parquet


def resident():
    """Bytes of memory in use."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * PAGE


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A hundred Parquet files of two row groups, 20 MB when decoded."""
    folder = tmp_path_factory.mktemp("files")
    for i in range(100):
        table = pa.table({"v": range(i * 100, i * 100 + 100), "text": [f"{i:04d}" * 500] * 100})
        pq.write_table(table, folder / f"{i:03d}.parquet", row_group_size=50)
    return folder


def graph(files, **options):
    source = StaticMixtureWorkSource([Dataset.from_path("files", files)], None, 4, 64, 4)
    return Pipeline(source, runner="thread", parallelism=3, **options).map(dict).shuffle(32).batch(20)


def test_descriptors_and_threads_stay_constant_over_epochs_and_kept_batches(files):
    kept, counts = [], []
    gc.collect()  # what earlier tests left open
    with graph(files) as pipeline:
        for _ in range(4):
            for n, batch in enumerate(pipeline):
                kept.append(batch)
                if n % 25 == 12:
                    counts.append((*open_files(), threading.active_count()))
    assert len(kept) >= 4 * 500
    files_open, others, threads = (set(column) for column in zip(*counts, strict=True))
    assert max(files_open) <= 3 + 3 + 1, "one for each thread that fetches ahead, each worker, and the driver"
    assert max(others) <= counts[0][1]
    assert len(threads) == 1
    assert threading.active_count() < min(threads)


def test_memory_does_not_climb_with_every_file(files):
    with graph(files) as pipeline:
        for _ in pipeline:
            pass
        before = resident()
        for _ in range(2):
            for _ in pipeline:
                pass
        after = resident()
    assert (after - before) / 200 < 50_000, "bytes more for every file that was read"


def test_a_hundred_files_are_read_with_few_descriptors(files):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 16, limits[1]))
    try:
        with graph(files) as pipeline:
            assert sum(len(batch) for batch in pipeline) == 10_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
