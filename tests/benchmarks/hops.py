"""What it costs to cross to worker threads and processes: python tests/benchmarks/hops.py [transport inline start hop memory]

transport   GB/s of groups of arrays from a worker process and to one, every page read; beside a plain pipe and fresh memory
inline      time of an exchange against its size, through the socket and through a block, to choose ``transport.INLINE``
start       seconds to the first batch with two workers, import not counted
hop         time per record of a function that does nothing, and of a Python-bound one of 100 us, by runner

Read ratios; absolute times are this machine's.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.concurrency import transport
from zephon_nodes.concurrency.blocks import mapped, new_memory
from zephon_nodes.concurrency.processes import WorkerProcess, pickled_hops
from zephon_nodes.concurrency.tasks import WorkTask
from zephon_nodes.plan import Hop
from zephon_nodes.stream import Record

MIB = 1 << 20


class Echo:
    """A worker process that applies a function to lists of records."""

    def __init__(self, function) -> None:
        self.hop = Hop(["echo"], 1, False, each=[function])
        self.process = WorkerProcess(pickled_hops([self.hop]), str)

    def __enter__(self) -> Echo:
        self.process.__enter__()
        self([0])
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.__exit__()

    def __call__(self, payloads):
        task = WorkTask(self.hop, [Record(payload, 0, ()) for payload in payloads])
        self.process.send(task)
        return self.process.receive().items


def giver(count: int, size: int):
    made = [np.ones(size, np.uint8) for _ in range(count)]
    return lambda records: [record.replaced(array) for record in records for array in made]


def taker():
    def take(records):
        total = sum(int(record.payload[::4096].sum()) for record in records if hasattr(record.payload, "sum"))
        return [records[0].replaced(total)]

    return take


def sender(pipe, count: int, size: int) -> None:
    made = [np.ones(size, np.uint8) for _ in range(count)]
    while pipe.recv():
        pipe.send(made)


def rate(exchange, nbytes: int, times: int) -> float:
    """GB/s, median."""
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        exchange()
        seconds.append(time.perf_counter() - begin)
    return nbytes / statistics.median(seconds) / 1e9


def read(items) -> None:
    for item in items:
        payload = item.payload if isinstance(item, Record) else item
        payload[::4096].sum()


def transport_() -> None:
    print("transport, GB/s           38 MiB a group   2 MiB a group")
    shapes = [(64, 38 * MIB // 64), (64, 2 * MIB // 64)]
    rows: dict[str, list[float]] = {}
    for count, size in shapes:
        total, times = count * size, 60 if count * size > 10 * MIB else 400
        with Echo(giver(count, size)) as echo:
            rows.setdefault("from a process, let go", []).append(rate(lambda: read(echo([0])), total, times))
            held: list = []

            def keep() -> None:
                held.append(echo([0]))
                read(held[-1])
                del held[:-6]

            rows.setdefault("from a process, 6 held", []).append(rate(keep, total, times))
        arrays = [np.ones(size, np.uint8) for _ in range(count)]
        with Echo(taker()) as echo:
            rows.setdefault("to a process", []).append(rate(lambda: echo(arrays), total, times))
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        other = multiprocessing.get_context("spawn").Process(target=sender, args=(theirs, count, size))
        other.start()

        def ask() -> None:
            ours.send(True)
            read(ours.recv())

        ask()
        rows.setdefault("pickle over a pipe", []).append(rate(ask, total, 20))
        ours.send(False)
        other.join()

        def fresh() -> None:
            memory = mapped(new_memory(total), total)
            for i, array in enumerate(arrays):
                np.copyto(memory[i * size : (i + 1) * size], array)
            memory[::4096].sum()

        rows.setdefault("fresh memory, one process", []).append(rate(fresh, total, 20))
    for name, figures in rows.items():
        print(f"  {name:25s}" + "".join(f"{figure:14.2f}" for figure in figures))


def inline() -> None:
    print("inline: us an exchange     socket   block")
    usual = transport.INLINE
    for size in (1 << 10, 4 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10):
        times = []
        for threshold in (1 << 30, 0):
            transport.INLINE = threshold
            arrays = [np.ones(size, np.uint8)]
            with Echo(taker()) as echo:
                times.append(size / rate(lambda: echo(arrays), size, 2000) / 1e3)
        print(f"  {size >> 10:4d} KiB           {times[0]:12.1f}{times[1]:8.1f}")
    transport.INLINE = usual


def start() -> None:
    program = (
        "import time; from zephon_nodes import *; begin = time.perf_counter()\n"
        "d = Dataset.from_rows('d', [{'v': i} for i in range(1000)])\n"
        "def double(row): return {'v': row['v'] * 2}\n"
        "p = Pipeline(StaticMixtureWorkSource([d]), runner='%s', parallelism=2).map(double).batch(4)\n"
        "next(iter(p)); print(time.perf_counter() - begin); p.close()\n"
    )
    for runner in ("thread", "process"):
        found = [
            float(subprocess.run([sys.executable, "-c", program % runner], capture_output=True, text=True).stdout)
            for _ in range(5)
        ]
        print(f"start: first batch, 2 workers, {runner:8s} {statistics.median(found):.3f} s (worst {max(found):.3f})")


def hop() -> None:
    def nothing(row):
        return row

    def bound(row):
        until, n = 0, 0
        while until < 2200:
            until += 1
            n += until % 7
        return row

    for name, function, rows, payload in (
        ("does nothing, 2 ints", nothing, 60_000, lambda i: {"a": i, "b": i}),
        ("does nothing, 1024 int32", nothing, 30_000, lambda i: {"input_ids": np.full(1024, i, np.int32)}),
        ("does nothing, 150 KB image", nothing, 10_000, lambda i: {"image": np.full((224, 224, 3), i % 250, np.uint8)}),
        ("Python-bound, 2 ints", bound, 10_000, lambda i: {"a": i, "b": i}),
    ):
        some = [payload(i) for i in range(min(rows, 500))]
        dataset = Dataset.from_rows("d", [some[i % len(some)] for i in range(rows)])
        source = StaticMixtureWorkSource([dataset], None, 4, shuffle="none")
        print(f"hop: {name:28s}", end="")
        for runner in ("inline", "thread", "process"):
            with Pipeline(source, runner=runner, parallelism=2).map(function).batch(16) as graph:
                batches, count = iter(graph), 0
                for _ in itertools.islice(batches, 20):
                    pass
                begin, cpu = time.perf_counter(), processor_seconds()
                for batch in batches:
                    count += len(batch)
                wall = time.perf_counter() - begin
            print(f"{runner} {wall / count * 1e6:7.1f} ({(processor_seconds() - cpu) / count * 1e6:6.1f})  ", end="")
        print("us a record (of processors)")


def processor_seconds() -> float:
    """Of this process and its children, those that have ended and those that are at work."""
    spent = os.times()
    live = 0
    for task in os.listdir("/proc/self/task"):
        for child in Path(f"/proc/self/task/{task}/children").read_text().split():
            live += sum(map(int, Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))
    ended = spent.children_user + spent.children_system
    return spent.user + spent.system + ended + live / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    chosen = sys.argv[1:] or ["transport", "inline", "start", "hop"]
    for part in chosen:
        {"transport": transport_, "inline": inline, "start": start, "hop": hop}[part]()
