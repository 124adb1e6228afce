"""What the counters cost that are always on: python tests/benchmarks/counters.py

Their own steps are timed alone, many times over, and multiplied by how often a run takes them: a difference of two runs
would drown in the noise of a shared machine. The share is of the processor time of that run.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from zephon_nodes import Pipeline, demo
from zephon_nodes.counters import HopCounters, Lap, RunCounters
from zephon_nodes.plan import _records
from zephon_nodes.stream import Record
from zephon_nodes.tally import Tally

STEPS = 20_000


def each(step: Callable[[], object]) -> float:
    """Processor seconds of a step: the best of five rounds."""
    rounds = []
    for _ in range(5):
        begin = time.process_time()
        for _ in range(STEPS):
            step()
        rounds.append(time.process_time() - begin)
    return min(rounds) / STEPS


def of_a_task(nodes: int) -> float:
    """Seconds that counting adds to a task: its clock readings, laps and sums."""
    counters, clock, cpu = HopCounters(), time.perf_counter, time.thread_time

    def counted() -> None:
        counters.began()
        begin, _ = clock(), cpu()
        laps = []
        for _ in range(nodes):
            laps.append(Lap(clock() - begin, 64))
        cpu()
        counters.ended(laps, 0.001)

    return each(counted)


def measure(pipeline: Pipeline, title: str) -> None:
    begin = time.process_time()
    with pipeline:
        batches = list(pipeline)
        spent = time.process_time() - begin
        plan = pipeline.loader.plan
    assert plan is not None
    tasks = sum(of_a_task(len(hop.names)) * hop.counters.tasks for hop in plan.hops)
    items = [Record({}, 0, ())] * 256
    records = each(lambda: _records(items)) / 256 * sum(lap.records for hop in plan.hops for lap in hop.counters.laps)
    run, tally, batch = RunCounters(), Tally(), batches[1]
    origins = [at for row in batch.pointers for at in row]
    got = each(lambda: run.got(1.0, 2.0, 3)) + 2 * each(time.perf_counter)
    output = got + each(lambda: tally.add(batch, origins, {"code": 0.7, "prose": 0.3}))
    outputs = output * len(batches)
    parts = f"tasks {1e3 * tasks:.1f}, records {1e3 * records:.1f}, outputs {1e3 * outputs:.1f} ms"
    share = (tasks + records + outputs) / spent
    print(f"{title}: {len(batches)} batches, {spent:.2f} s of processors; counting {share:.2%} of it ({parts})")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        demo.make_data(root)
        measure(demo.pipeline(root), "4 rows of 512 tokens")
        lower = demo.pipeline(root).node.source.source.source  # what lies below packing
        measure(Pipeline(lower).pack_flat(2048, "best_fit_wrap").shuffle(64).batch(8), "8 rows of 2048 tokens")


if __name__ == "__main__":
    main()
