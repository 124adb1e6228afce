"""What formats cost. Read ratios; absolute figures are this machine's.

python tests/benchmarks/formats.py make DIR    writes 3000 samples (id, image of 10 to 250 kB, caption) in every format that
                                               this environment can write; run it in several environments, one after the other
python tests/benchmarks/formats.py bytes DIR   bytes read and rows decoded for each row delivered, in three orders
python tests/benchmarks/formats.py own DIR [NAME ...]   W1, image bytes batched by 32 in random order: this project beside each format's own
                                               loader, each run in a fresh process, interleaved, in an environment that has
                                               streaming, litdata and webdataset (see tests/formats/golden/make_*.py) and this project
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS, BATCH, SHARD = 3000, 32, 32 << 20
GOLDEN = Path(__file__).parents[1] / "formats/golden"


def samples():
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.lognormal(11.2, 0.6, ROWS), 10_000, 250_000).astype(int)
    return [
        {"id": i, "image": generator.bytes(size), "caption": f"caption {i} " * 5}
        for i, size in enumerate(sizes.tolist())
    ]


def shards(rows):
    held, nbytes = [], 0
    for row in rows:
        held.append(row)
        nbytes += len(row["image"])
        if nbytes > SHARD:
            yield held
            held, nbytes = [], 0
    if held:
        yield held


def has(name):
    return importlib.util.find_spec(name) is not None


def make_parquet(out, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for i, part in enumerate(shards(rows)):
        pq.write_table(pa.Table.from_pylist(part), out / f"{i:03d}.parquet", row_group_size=64, compression="none")


def make_arrow(out, rows):
    import pyarrow as pa

    for i, part in enumerate(shards(rows)):
        table = pa.Table.from_pylist(part)
        with pa.ipc.new_file(out / f"{i:03d}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=64)


def make_tar(out, rows):
    for i, part in enumerate(shards(rows)):
        with tarfile.open(out / f"{i:03d}.tar", "w") as tar:
            for row in part:
                for field, data in (
                    ("jpg", row["image"]),
                    ("txt", row["caption"].encode()),
                    ("cls", b"%d" % row["id"]),
                ):
                    info = tarfile.TarInfo(f"{row['id']:06d}.{field}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def make_mds(out, rows):
    sys.path.insert(0, str(GOLDEN))
    from stand_in import MDSWriter

    with MDSWriter(
        out=str(out), columns={"id": "int", "image": "bytes", "caption": "str"}, size_limit=SHARD, exist_ok=True
    ) as writer:
        for row in rows:
            writer.write(row)


def make_litdata(out, rows, **options):
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(out), chunk_bytes=SHARD, **options)
    for i, row in enumerate(rows):
        writer[i] = row
    writer.done()
    writer.merge()


def make_litdata_trees(out, rows):
    make_litdata(out, [row | {"array": np.zeros(1, np.int64)} for row in rows])


def make_vortex(out, rows):
    import pyarrow as pa
    import vortex

    for i, part in enumerate(shards(rows)):
        vortex.io.write(vortex.array(pa.Table.from_pylist(part)), str(out / f"{i:03d}.vortex"))


def make_lance(out, rows):
    import lance
    import pyarrow as pa

    lance.write_dataset(pa.Table.from_pylist(rows), str(out / "a.lance"), max_rows_per_file=400)


def make_array_record(out, rows):
    from array_record.python.array_record_module import ArrayRecordWriter

    for i, part in enumerate(shards(rows)):
        writer = ArrayRecordWriter(str(out / f"{i:03d}.array_record"), "group_size:1,uncompressed")
        for row in part:
            writer.write(row["image"] + row["caption"].encode())
        writer.close()


MAKERS = {
    **{"parquet": (make_parquet, "pyarrow"), "arrow": (make_arrow, "pyarrow"), "tar": (make_tar, "numpy")},
    **{
        "mds": (make_mds, "streaming"),
        "litdata": (make_litdata, "litdata"),
        "litdata_trees": (make_litdata_trees, "litdata"),
    },
    **{
        "vortex": (make_vortex, "vortex"),
        "lance": (make_lance, "lance"),
        "array_record": (make_array_record, "array_record"),
    },
}


def make(folder):
    rows = samples()
    for name, (maker, package) in MAKERS.items():
        out = folder / name
        if not has(package) or out.exists():
            continue
        out.mkdir(parents=True)
        maker(out, rows)
        print(f"{name}: {sum(file.stat().st_size for file in out.rglob('*') if file.is_file()) / 1e6:.0f} MB")


def read_so_far():
    """Bytes that this process has read through system calls, from the page cache or not. A memory map doesn't count."""
    return int(Path("/proc/self/io").read_text().split()[1])


def one_order(path, columns, shuffle):
    """(bytes read by system calls, rows decoded or fetched singly) for each row delivered."""
    from zephon_nodes import Dataset, Loader, Read, StaticMixtureWorkSource
    from zephon_nodes.formats.spans import BigRowsUnit

    dataset = Dataset.from_path("d", path, columns=columns, index_dir=path.parent / "index")
    source = StaticMixtureWorkSource([dataset], shuffle=shuffle)
    decoded = [0]
    for shard in {id(dataset.shard(i)): dataset.shard(i) for i in range(len(dataset.files))}.values():
        read, take = shard.read, shard.take

        def counted_read(unit, read=read):
            found = read(unit)
            decoded[0] += 0 if isinstance(found, BigRowsUnit) else found.rows  # those are counted as they are taken
            return found

        def counted_take(rows, take=take):
            found = take(rows)
            decoded[0] += 0 if found is None else len(found)
            return found

        shard.read, shard.take = counted_read, counted_take
    before, count = read_so_far(), 0
    with Loader(Read(source), runner="inline") as loader:
        for _ in loader:
            count += 1
    return (read_so_far() - before) / count, decoded[0] / count


def count_bytes(folder):
    mean = sum(len(row["image"]) for row in samples()) / ROWS
    print(
        f"an image has {mean:,.0f} bytes; kB read by system calls (rows decoded) for each row delivered; maps don't count"
    )
    print(f"{'':16}{'sequential':>18}{'windows':>18}{'global':>18}{'captions, global':>20}")
    for name in MAKERS:
        if not (folder / name).exists():
            continue
        caption = {"tar": "txt", "array_record": None}.get(name, "caption")
        cells = [one_order(folder / name, None, shuffle) for shuffle in ("none", "windows", "global")]
        cells += [one_order(folder / name, [caption], "global")] if caption else []
        print(f"{name:16}" + "".join(f"{nbytes / 1e3:11.1f} ({rows:4.2f})" for nbytes, rows in cells), flush=True)


def zephon(path, shuffle, threads):
    from zephon_nodes import Dataset, Loader, Read, StaticMixtureWorkSource
    from zephon_nodes.ops.batch import Batch

    dataset = Dataset.from_path("d", path, index_dir=Path(path).parent / "index")
    source = StaticMixtureWorkSource([dataset], shuffle=shuffle, passes=None)
    runner = {"runner": "inline"} if threads == 0 else {"parallelism": threads}
    return iter(Loader(Batch(Read(source), BATCH), **runner))


def forever(make_loader):
    while True:
        yield from make_loader()


def mosaic(path, workers):
    sys.path.insert(0, str(GOLDEN))
    from stand_in import StreamingDataset, clean_stale_shared_memory
    from torch.utils.data import DataLoader

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=path, batch_size=BATCH, shuffle=True, num_canonical_nodes=1, epoch_size=100 * ROWS)
    return forever(lambda: DataLoader(dataset, batch_size=BATCH, collate_fn=list, **_workers(workers)))


def litdata(path, workers):
    from litdata import StreamingDataLoader, StreamingDataset

    dataset = StreamingDataset(path, shuffle=True, subsample=50.0)
    loader = StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=list, **_workers(workers))
    return forever(lambda: loader)


def webdataset(path, workers):
    import webdataset as wds

    urls = sorted(map(str, Path(path).glob("*.tar")))
    pipeline = wds.WebDataset(urls, resampled=True, shardshuffle=False).shuffle(1000)
    pipeline = pipeline.batched(BATCH, collation_fn=list)
    return iter(wds.WebLoader(pipeline, batch_size=None, **_workers(workers)))


def _workers(workers):
    return {"num_workers": workers, **({"prefetch_factor": 4, "persistent_workers": True} if workers else {})}


OWN = {"mds": mosaic, "litdata": litdata, "litdata_trees": litdata, "tar": webdataset}


def run_one(folder, name, system, workers, seconds):
    path = str(folder / name)
    batches = OWN[name](path, workers) if system == "own" else zephon(path, system, workers)
    end = time.perf_counter() + 1.5
    while time.perf_counter() < end:
        next(batches)
    begin, count, nbytes = time.perf_counter(), 0, 0
    while time.perf_counter() < begin + seconds:
        batch = next(batches)
        count += len(batch)
        nbytes += sum(len(row["jpg" if name == "tar" else "image"]) for row in batch)
    print(json.dumps([count / (time.perf_counter() - begin), nbytes / max(1, count)]), flush=True)
    os._exit(0)  # the loaders' workers needn't be waited for


def timed_run(command):
    """Samples/s that a run printed, or None and why not. Workers that outlive it are ended."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0), errors.seek(0)
        lines, said = out.read().strip().splitlines(), errors.read().strip().splitlines()
    return (json.loads(lines[-1])[0], "") if lines else (None, said[-1:])


def own(folder, names, repeat=3, seconds=3.0):
    print("samples/s, medians; ratio: the best of this project's with random order over the best of the format's own")
    for name, loader in ((name, OWN[name]) for name in names or OWN):
        found = {}
        plan = [("own", 0), ("own", 2), ("windows", 0), ("windows", 2), ("global", 0), ("global", 2)]
        for _, (system, workers) in itertools.product(range(repeat), plan):
            command = [sys.executable, __file__, "run", str(folder), name, system, str(workers), str(seconds)]
            rate, why = timed_run(command)
            if rate is None:
                print(name, system, workers, "failed:", why, flush=True)
            else:
                found.setdefault((system, workers), []).append(rate)
        best = {key: statistics.median(rates) for key, rates in found.items()}
        cells = "  ".join(
            f"{loader.__name__ if system == 'own' else system}/{workers} {rate:,.0f}"
            for (system, workers), rate in best.items()
        )
        theirs = max((rate for (system, _), rate in best.items() if system == "own"), default=float("nan"))
        ratios = "  ".join(
            f"{order} {max(best[order, workers] for workers in (0, 2)) / theirs:.2f}" for order in ("windows", "global")
        )
        print(f"{name}: {cells}   ratio: {ratios}", flush=True)


if __name__ == "__main__":
    what, target = sys.argv[1], Path(sys.argv[2])
    if what == "run":
        run_one(target, sys.argv[3], sys.argv[4], int(sys.argv[5]), float(sys.argv[6]))
    {"make": make, "bytes": count_bytes, "own": lambda folder: own(folder, sys.argv[3:])}[what](target)
