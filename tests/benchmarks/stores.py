"""What reading remote files costs: by ranges or whole, from the cache, and with an index.

    python tests/benchmarks/stores.py [--mb 64] [--s3]

The server is Python's own, on loopback, and answers each request after ``latency`` ms and at most ``MB_S`` a second for each
connection, as a store far away does; ``--s3`` takes moto's S3 instead. Times are wall clock of one process, the best of three.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "stores")]

import store_faults  # noqa: E402
from real_stores import moto, new_folder, put  # noqa: E402

from zephon_nodes import Dataset, ShardCache, store_report  # noqa: E402
from zephon_nodes.listing import find_files  # noqa: E402
from zephon_nodes.shard_index import Facts, ShardIndex, beside_place  # noqa: E402

MB_S = 100
GROUPS, COLUMNS = 16, 8


def parquet(nbytes):
    """A file of equal columns of noise, which can't be compressed."""
    rows = nbytes // (8 * COLUMNS)
    random = np.random.default_rng(0)
    sink = io.BytesIO()
    table = pa.table({f"c{i}": random.integers(0, 2**62, rows) for i in range(COLUMNS)})
    pq.write_table(table, sink, row_group_size=rows // GROUPS, compression="none", use_dictionary=False)
    return sink.getvalue()


@contextmanager
def far_away(files, latency):
    """A store whose requests take a while to begin, and then some to arrive."""
    store = store_faults.Store("", files)
    base = store_faults._handler(store)

    class Far(base):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _content(self, content, asked, fault, body):
            time.sleep(latency)
            out, self.wfile = self.wfile, Slow(self.wfile)
            try:
                super()._content(content, asked, fault, body)
            finally:
                self.wfile = out

    server = ThreadingHTTPServer(("127.0.0.1", 0), Far)
    server.daemon_threads = True
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield store
    server.shutdown()


class Slow:
    def __init__(self, out):
        self.out = out

    def write(self, data):
        view = memoryview(data)
        for at in range(0, len(view), 1 << 20):
            self.out.write(view[at : at + (1 << 20)])
            time.sleep(len(view[at : at + (1 << 20)]) / (MB_S << 20))

    def flush(self):
        self.out.flush()


def best(work, repeats=3):
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def read_all(dataset):
    shard = dataset.shard(0)
    for unit in range(len(shard.unit_rows)):
        shard.read(unit)


def compare(title, url, options, folder):
    print(f"\n{title}: one file, {GROUPS} row groups, {COLUMNS} columns; seconds for all row groups")
    print(f"{'columns':>8} {'ranges':>8} {'whole, cold':>12} {'whole, warm':>12} {'requests by ranges':>20}")
    for count in (1, 2, 4, 6, 8):
        columns = [f"c{i}" for i in range(count)]
        plain = Dataset.from_path("d", url, columns=columns, storage_options=options)
        len(plain)
        before = store_report()
        ranged = best(lambda: read_all(plain))
        requests = (store_report().requests - before.requests) / 3
        cached = Dataset.from_path(
            "d", url, columns=columns, storage_options=options, cache=ShardCache(folder, 4 << 30)
        )
        cached.shard(0).whole = True

        def cold():
            for copy in Path(folder).glob("*.shard"):
                copy.unlink()
            read_all(cached)

        print(
            f"{count:>8} {ranged:>8.2f} {best(cold):>12.2f} {best(lambda: read_all(cached)):>12.3f} {requests:>20.0f}"
        )


def single_rows(url, options, folder, nbytes):
    (file,) = find_files(url, (".bin",), options)
    cached = dataclasses.replace(file, cache=ShardCache(folder, 4 << 30), fits=True)
    ranges = [(at, at + 4096) for at in np.random.default_rng(1).integers(0, nbytes - 4096, 32).tolist()]
    once = best(lambda: [file.read_ranges([one], True) for one in ranges]) / 32
    together = best(lambda: file.read_ranges(ranges, True)) / 32
    unchecked = best(lambda: [file.remote_ranges([one]) for one in ranges]) / 32
    cached.read_ranges(ranges)
    hit = best(lambda: [cached.read_ranges([one], True) for one in ranges * 10]) / 320
    print("\nrows of 4 KB in no order, ms a row")
    print(
        f"one a call {1e3 * once:.2f}; without asking whether the file is the same {1e3 * unchecked:.2f}; 32 a call {1e3 * together:.2f}; from the cache {1e3 * hit:.3f}"
    )


def local_cost(nbytes, folder):
    path = os.path.join(folder, "plain.bin")
    with open(path, "wb") as out:
        out.write(os.urandom(nbytes))
    (file,) = find_files(path, (".bin",))
    import fsspec

    fsspec.filesystem("memory").pipe_file("memory://bench/a.bin", Path(path).read_bytes())
    (remote,) = find_files("memory://bench/a.bin", (".bin",))
    cached = dataclasses.replace(remote, cache=ShardCache(folder, 4 << 30), fits=True)
    for size in (4096, 1 << 20):
        plain = best(lambda: [file.read_range(at * size, at * size + size) for at in range(8)]) / 8
        hit = best(lambda: [cached.read_range(at * size, at * size + size) for at in range(8)]) / 8
        print(f"read of {size >> 10} KB: plain file {1e6 * plain:.0f} us, copy in the cache {1e6 * hit:.0f} us")


def start(shards, folder):
    data = os.path.join(folder, "many")
    os.makedirs(data)
    for n in range(shards):
        open(os.path.join(data, f"{n:06}.parquet"), "wb").close()
    rows = np.full(20, 1000, np.int64)
    files = Dataset.from_path("d", data).stored_files
    index = ShardIndex({(f.name, f.size, f.version): Facts(rows, rows * 900, ("text",), (), True) for f in files})
    place = os.path.join(data, "_zephon_index")
    os.makedirs(place)
    with open(beside_place(data, "parquet", None), "wb") as out:
        out.write(index.to_bytes())
    begin = time.perf_counter()
    dataset = Dataset.from_path("d", data)
    listed = time.perf_counter()
    len(dataset)
    opened = time.perf_counter()
    print(
        f"\nstart with an index of {shards:,} shards of 20 units: listing {listed - begin:.2f} s, index {opened - listed:.2f} s, {len(index.to_bytes()) >> 10} KB"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    nbytes = given.mb << 20
    files = {"a.parquet": parquet(nbytes), "a.bin": os.urandom(nbytes)}
    with tempfile.TemporaryDirectory() as folder:
        if given.s3:
            with moto() as options:
                url = new_folder("s3", options)
                put(url, files, options)
                compare("S3 (moto)", f"{url}/a.parquet", options, f"{folder}/s3")
                single_rows(f"{url}/a.bin", options, f"{folder}/s3", nbytes)
        else:
            for latency in (0.001, 0.03):
                with far_away(files, latency) as store:
                    compare(
                        f"HTTP, {1e3 * latency:.0f} ms, {MB_S} MB/s",
                        f"{store.url}/a.parquet",
                        {},
                        f"{folder}/{latency}",
                    )
                    single_rows(f"{store.url}/a.bin", {}, f"{folder}/{latency}", nbytes)
        print()
        local_cost(16 << 20, folder)
        start(10_000, folder)


if __name__ == "__main__":
    main()
