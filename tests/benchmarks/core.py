"""Costs that the README states, measured: python tests/benchmarks/core.py. Read ratios; absolute times are this machine's.

pointers    cost of a pointer with 1 and with 512 lanes, on 10**9 rows in 4096 shards; a seek into 10**12 rows
state       size of a lane's leaf and time of state_dict() against chunk size, buffers and length of the run
decoding    row groups decoded over all ranks, of 64 Parquet files of 20 each, 8 lanes, default shuffle
shuffle     how far rows move, and how many neighbours come from one row group
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon_nodes import Dataset, Loader, Pipeline, Read, StaticMixtureWorkSource
from zephon_nodes.formats.base import Shard
from zephon_nodes.formats.parquet import ParquetShard
from zephon_nodes.storage import StoredFile


class Invented:
    """A format of any number of rows that holds none."""

    name, suffixes = "invented", ()

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def open(self, file: StoredFile, columns: object) -> Shard:
        shard = InventedShard()
        shard.file, shard.unit_rows, shard.unit_bytes = file, np.array([self.rows]), np.array([self.rows])
        return shard


class InventedShard(Shard):
    def read(self, unit: int):
        raise NotImplementedError


def invented(shards: int, rows: int) -> Dataset:
    return Dataset("big", [StoredFile(f"{i}", f"{i}") for i in range(shards)], Invented(rows))


def pointers() -> None:
    costs = {}
    dataset = invented(4096, 10**9 // 4096)
    sources = {lanes: StaticMixtureWorkSource([dataset], None, lanes) for lanes in (1, 512)}
    for source in sources.values():
        source.chunk(0, 0)
    for _ in range(5):
        for lanes, source in sources.items():
            begin, count = time.perf_counter(), 0
            for index in range(200):
                count += len(source.chunk(0, index * 7))
            costs.setdefault(lanes, []).append((time.perf_counter() - begin) / count * 1e6)
    one, many = (statistics.median(costs[lanes]) for lanes in (1, 512))
    print(
        f"pointers: {one:.2f} us with 1 lane, {many:.2f} us with 512, ratio {many / one:.2f} (10**9 rows, 4096 shards)"
    )
    begin = time.perf_counter()
    source = StaticMixtureWorkSource([invented(1, 10**12)], None, 8, shuffle="global")
    source.chunk(3, 10**8)
    print(f"          10**12 rows, global shuffle: {1e3 * (time.perf_counter() - begin):.1f} ms to construct and seek")


def state() -> None:
    rows = [{"input_ids": np.ones(64, np.int32)} for _ in range(20_000)]
    print("state:    chunk  buffer  outputs  bytes a lane  state_dict() us")
    for chunk, buffer, steps in [(16, 1, 10), (16, 1, 1500), (4096, 1, 10), (256, 2000, 10), (256, 2000, 1500)]:
        source = StaticMixtureWorkSource([Dataset.from_rows("r", rows)], None, 8, chunk, passes=None)
        with Pipeline(source).pack_flat(256, "best_fit", num_bins=32).shuffle(buffer).batch(2) as pipeline:
            for _ in itertools.islice(pipeline, steps):
                pass
            times = []
            for _ in range(200):
                begin = time.perf_counter()
                found = pipeline.state_dict()
                times.append(time.perf_counter() - begin)
        size = max(len(json.dumps(leaf)) for key, leaf in found.items() if key.startswith("lane_"))
        print(f"       {chunk:8d}{buffer:8d}{steps:9d}{size:14d}{1e6 * statistics.median(times):17.1f}")
    print(f"          recipe: {len(found['recipe'])} bytes")


def decoding(folder: Path) -> None:
    files, groups, rows = 64, 20, 50
    for i in range(files):
        table = pa.table({"row": np.arange(i * groups * rows, (i + 1) * groups * rows)})
        pq.write_table(table, folder / f"{i:03d}.parquet", row_group_size=rows)
    read = []
    real = ParquetShard.read
    ParquetShard.read = lambda shard, unit: read.append(unit) or real(shard, unit)
    try:
        for world in (1, 2, 4, 8):
            counts, order = [], []
            for rank in range(world):
                read.clear()
                source = StaticMixtureWorkSource([Dataset.from_path("d", folder)], None, 8, seed=1)
                got = [p["row"] for p in Loader(Read(source), rank=rank, world_size=world, runner="inline")]
                counts.append(len(read))
                order += got
            print(
                f"decoding: {world} ranks decoded {sum(counts)} row groups of {files * groups} "
                f"({sum(counts) / (files * groups):.3f}), a rank at most {max(counts) / (files * groups) * world:.2f} of its share"
            )
            assert sorted(order) == list(range(files * groups * rows))
    finally:
        ParquetShard.read = real
    for shuffle in ("windows", "global", "none"):
        source = StaticMixtureWorkSource([Dataset.from_path("d", folder)], None, 1, seed=1, shuffle=shuffle)
        order = np.array([p["row"] for p in Loader(Read(source), runner="inline")])
        moved = np.abs(order - np.arange(len(order))).mean() / len(order)
        near = (order[1:] // rows == order[:-1] // rows).mean()
        print(
            f"shuffle:  {shuffle:8s} mean rank displacement {moved:.3f} of the rows (1/3 is random), "
            f"neighbours from one row group {near:.3f}"
        )


if __name__ == "__main__":
    pointers()
    state()
    with tempfile.TemporaryDirectory() as temporary:
        decoding(Path(temporary))
    sys.exit(0)
