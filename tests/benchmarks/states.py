"""The size of states, and the times of state_dict(), of a DCP save and load, each beside a checkpoint without the loader.

python tests/benchmarks/states.py [LANES]       default: 1024
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed.checkpoint as dcp

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource


def milliseconds(function, times=15):
    took = []
    for i in range(times):
        begin = time.perf_counter()
        function(i)
        took.append(1000 * (time.perf_counter() - begin))
    return statistics.median(took)


def main(lanes):
    rows = Dataset.from_rows("d", [{"v": i} for i in range(64 * lanes)])
    pipeline = Pipeline(StaticMixtureWorkSource([rows], None, lanes, passes=None), runner="inline").batch(2)
    iterator = iter(pipeline)
    for _ in range(3 * lanes):
        next(iterator)
    state, file, model = pipeline.state_dict(), io.BytesIO(), {"weight": torch.zeros(256, 256)}
    torch.save(state, file)
    print(f"lanes {lanes}: JSON {len(json.dumps(state)):,} bytes, torch.save {file.tell():,} bytes")
    print(f"state_dict() {1000 * milliseconds(lambda i: pipeline.state_dict(), 200):.0f} microseconds (median of 200)")
    with tempfile.TemporaryDirectory() as folder:
        for name, what in (("without the loader", {"model": model}), ("with it", {"model": model, "data": pipeline})):
            save = milliseconds(lambda i, n=name, w=what: dcp.save(w, checkpoint_id=f"{folder}/{n}{i}", no_dist=True))
            load = milliseconds(lambda i, n=name, w=what: dcp.load(w, checkpoint_id=f"{folder}/{n}{i}", no_dist=True))
            print(f"DCP {name}: save {save:.1f} ms, load {load:.1f} ms (median of 15)")
    pipeline.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1024)
