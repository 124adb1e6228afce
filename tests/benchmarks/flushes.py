"""What a flush costs in padding and saves in restoring: python tests/benchmarks/flushes.py

Image-text samples as in the harness's W2 (196 image positions and a caption each) packed first-fit into 2,048 with 16 open
bins, one lane, chunks of 256 samples. Padding: the share of positions, for each flush interval. Restore: seconds to the
first batch from a state in the middle of a span, over those that the same part of the span took the first time, when a
sample takes ``WORK`` seconds.
"""

from __future__ import annotations

import time

import numpy as np

from zephon_nodes import Dataset, Loader, Pipeline, StaticMixtureWorkSource

SAMPLES, IMAGE, LENGTH, BINS, CHUNK = 64_000, 196, 2048, 16, 256
INTERVALS = (1, 2, 4, 8, 16, 32, 64, None)
WORK, WORKED = 0.0005, (2, 8, 32)


def lengths() -> np.ndarray:
    """Captions as in web data: half of them below 20 tokens, few above 100."""
    draw = np.random.Generator(np.random.Philox(7))
    return IMAGE + 1 + np.clip(draw.lognormal(3.0, 0.8, SAMPLES), 2, 400).astype(np.int64)


def source(rows: list[dict], interval: int | None) -> StaticMixtureWorkSource:
    return StaticMixtureWorkSource([Dataset.from_rows("d", rows)], None, 1, CHUNK, interval or 10**6)


def padding(rows: list[dict], interval: int | None) -> float:
    pipeline = Pipeline(source(rows, interval), runner="inline").pack_sequences(
        LENGTH, num_bins=BINS, length_fn=lambda row: row["n"]
    )
    used = packed = 0
    for row in pipeline:
        used += sum(one["n"] for one in row["sequences"])
        packed += LENGTH
    return 1 - used / packed


def slow(row: dict) -> dict:
    end = time.perf_counter() + WORK
    while time.perf_counter() < end:
        pass
    return row


def restore(rows: list[dict], interval: int) -> tuple[float, float, float]:
    """(share of the span that was done, seconds to its next batch the first time, and from the state)."""
    pipeline = (
        Pipeline(source(rows, interval), runner="inline")
        .map(slow)
        .pack_sequences(LENGTH, num_bins=BINS, length_fn=lambda row: row["n"])
        .batch(4)
    )
    loader = Loader(pipeline.node, runner="inline")
    iterator, begin = iter(loader), time.perf_counter()
    samples = 0
    while samples < 0.7 * interval * CHUNK:
        samples += sum(len(row["sequences"]) for row in next(iterator))
    state = loader.state_dict()
    next(iterator)
    first = time.perf_counter() - begin
    fresh = Loader(pipeline.node, runner="inline")
    begin = time.perf_counter()
    fresh.load_state_dict(state)
    next(iter(fresh))
    return samples / (interval * CHUNK), first, time.perf_counter() - begin


def main() -> None:
    rows = [{"n": int(n)} for n in lengths()]
    none = padding(rows, None)
    print("samples between flushes   padding   of it by flushes")
    for interval in INTERVALS:
        share = none if interval is None else padding(rows, interval)
        name = f"{interval * CHUNK:,}" if interval else "no flush"
        print(f"{name:>23s}   {100 * share:6.2f}%   {100 * (share - none):6.2f} points")
    print("samples between flushes   done of the span   first time   restored   ratio")
    for interval in WORKED:
        done, first, again = restore(rows, interval)
        print(f"{interval * CHUNK:23,d}   {done:15.0%}   {first:8.2f} s   {again:6.2f} s   {again / first:5.2f}")


if __name__ == "__main__":
    main()
