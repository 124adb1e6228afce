"""What each node costs a record, in microseconds of processor time: python tests/benchmarks/costs.py

Rows in memory, the inline runner, so neither threads nor files count. A node's cost is that of a graph with it less that of
the same graph without it; both end in batches of 32. Hops between threads and processes are measured in hops.py.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

ROWS, TOKENS, TIMES = 4096, 200, 5
Change = Callable[[Pipeline], Pipeline]


def rows() -> list[dict]:
    words = "a few plain words that a tokenizer takes apart at blanks"
    return [{"text": words, "messages": [], "input_ids": np.arange(TOKENS, dtype=np.int32)} for _ in range(ROWS)]


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def same(payload):
    return payload


NODES: dict[str, Change] = {
    "map": lambda p: p.map(same),
    "map with rng": lambda p: p.map(lambda payload, rng: payload),
    "filter": lambda p: p.filter(bool),
    "flat_map": lambda p: p.flat_map(lambda payload: [payload]),
    "map_group of 16": lambda p: p.map_group(list, 16),
    "tokenize (12 words)": lambda p: p.tokenize(tokenizer(), bos=None, eos=None, fast=False),
    "shuffle": lambda p: p.shuffle(256),
    "ensure_mixture": lambda p: p.ensure_mixture(256),
    "group_by_length": lambda p: p.group_by_length(1024, 32),
    "pack_flat wrap": lambda p: p.pack_flat(2048),
    "pack_flat first_fit": lambda p: p.pack_flat(2048, "first_fit"),
    "pack_flat best_fit": lambda p: p.pack_flat(2048, "best_fit"),
    "pack_sequences": lambda p: p.pack_sequences(2048),
}


def seconds(change: Change, source: StaticMixtureWorkSource) -> float:
    pipeline = change(Pipeline(source, runner="inline"))
    begin = time.process_time()
    with pipeline:
        for _ in itertools.islice(pipeline, 10 * ROWS):
            pass
    return time.process_time() - begin


def main() -> None:
    source = StaticMixtureWorkSource([Dataset.from_rows("d", rows())])
    graphs: dict[str, Change] = {"alone": lambda p: p, "base": lambda p: p.batch(32)}
    graphs |= {name: lambda p, change=change: change(p).batch(32) for name, change in NODES.items()}
    found: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(TIMES):
        for name, change in graphs.items():
            found[name].append(seconds(change, source))
    least = {name: 1e6 * min(times) / ROWS for name, times in found.items()}
    print(f"processor time a record, least of {TIMES}; records of {TOKENS} tokens")
    print(f"{'read and batch of 32':22s} {least['base']:7.2f} us")
    print(f"{'an output of a loader':22s} {least['alone'] - least['base']:7.2f} us")
    for name in NODES:
        print(f"{name:22s} {least[name] - least['base']:7.2f} us")


if __name__ == "__main__":
    main()
