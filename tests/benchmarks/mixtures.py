"""How well mixtures hold and how full sequences get: python tests/benchmarks/mixtures.py. Real document lengths: Python's
own library and its docstrings (as in ``python -m zephon_nodes demo``), 4 characters a token.

mixture   error against a 0.5/0.5 mixture in tokens, in windows of 100 steps, with and without ensure_mixture
estimate  time and standard error of the token estimation
packing   padding share of the four algorithms at 2k and 8k, and the part of it that flushes cause
"""

from __future__ import annotations

import itertools
import time

import numpy as np

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.demo import _docstrings, _sources


def lengths() -> tuple[list[int], list[int]]:
    texts = list(_sources())
    return [len(text) // 4 + 1 for text in texts], [len(doc) // 4 + 1 for text in texts for doc in _docstrings(text)]


def dataset(name: str, tokens: list[int]) -> Dataset:
    return Dataset.from_rows(name, [{"input_ids": np.full(n, i % 30_000, np.int32)} for i, n in enumerate(tokens)])


def error(pipeline: Pipeline, steps: int, rows: int) -> tuple[float, float]:
    """Mean and largest |share of code - 1/2| over windows of 100 steps of one lane each."""
    shares = []
    with pipeline as graph:
        batches = itertools.islice(itertools.chain.from_iterable(itertools.repeat(graph)), steps)
        while window := list(itertools.islice(batches, 100)):
            count = {"code": 0, "prose": 0}
            for batch in window:
                for row, pointers in zip(batch.payloads, batch.pointers, strict=True):
                    sizes = np.bincount(row["document_ids"][row["document_ids"] >= 0], minlength=len(pointers))
                    for at, size in zip(pointers, sizes.tolist(), strict=True):
                        count[at.dataset] += size
            shares.append(abs(count["code"] / sum(count.values()) - 0.5))
    return float(np.mean(shares)), float(np.max(shares))


def mixture(code: list[int], prose: list[int]) -> None:
    def source() -> StaticMixtureWorkSource:
        datasets = [dataset("code", code), dataset("prose", prose)]
        half = {"code": 0.5, "prose": 0.5}
        return StaticMixtureWorkSource(datasets, half, passes=None, seed=3, token_estimation=TokenEstimation())

    begin = time.perf_counter()
    probe = Pipeline(source()).pack_flat(2048).batch(1)
    with probe:
        next(iter(probe))
    print(f"estimate: {time.perf_counter() - begin:.2f} s to the first batch, measured in it:")
    for name, found in probe.estimates.items():
        print(
            f"          {name}: {float(found.tokens_per_row):.1f} tokens a row, error {found.error:.2%}, {found.rows} rows"
        )
    variants = {
        "as drawn": lambda p: p,
        "after a filter of 30%": lambda p: p.filter(lambda row: row["input_ids"][0] % 10 > 2),
        "with ensure_mixture before packing": lambda p: p.ensure_mixture(256),
    }
    for name, change in variants.items():
        graph = change(Pipeline(source(), runner="inline")).pack_flat(2048).batch(2)
        print("mixture:  {:38s} mean error {:.4f}, largest {:.4f}".format(name, *error(graph, 600, 2)))
    graph = Pipeline(source(), runner="inline").pack_flat(2048, homogeneity="component").batch(2)
    print("mixture:  {:38s} mean error {:.4f}, largest {:.4f}".format("packed by component", *error(graph, 600, 2)))
    graph = Pipeline(source(), runner="inline").pack_flat(2048, homogeneity="component").ensure_mixture(64).batch(2)
    print(
        "mixture:  {:38s} mean error {:.4f}, largest {:.4f}".format(
            "  and ensure_mixture behind it", *error(graph, 600, 2)
        )
    )


def packing(code: list[int], prose: list[int]) -> None:
    def share(algorithm: str, length: int, flush_every: int, passes: int = 1) -> float:
        source = StaticMixtureWorkSource(
            [dataset("all", code + prose)], None, 1, 256, flush_every, seed=1, passes=passes
        )
        rows = list(Pipeline(source, runner="inline").pack_flat(length, algorithm, num_bins=32))
        return sum(row["padding_length"] for row in rows) / (len(rows) * length)

    rows = len(code) + len(prose)
    print(f"packing:  {rows} documents, mean {np.mean(code + prose):.0f} tokens, one lane, 32 bins")
    print("          algorithm        2k: no flush, every 8192 rows, every 1024   8k: the same")
    for algorithm in ("wrap", "first_fit", "best_fit", "best_fit_wrap"):
        found = [share(algorithm, n, flush) for n in (2048, 8192) for flush in (10**6, 32, 4)]
        print(f"          {algorithm:15s}" + "".join(f"{100 * value:9.3f}%" for value in found))


if __name__ == "__main__":
    found = lengths()
    mixture(*found)
    packing(*found)
