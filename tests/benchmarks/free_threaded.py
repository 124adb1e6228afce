"""The project on a Python without the GIL: same data with any number of threads, and what they gain.

bash tests/benchmarks/free_threaded.sh    (builds the interpreter first)

`tokenizers` has no wheel for it, so a stand-in that only can be imported takes its place; the graph has functions of plain
Python, packing and batching. The figures are ratios within one run.
"""

import sys
import tempfile
import time
import types
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def stand_in() -> None:
    """Makes ``import tokenizers`` work, and nothing else of it."""
    top = types.ModuleType("tokenizers")
    for name in ("Tokenizer", "AddedToken", "Encoding", "Regex"):
        setattr(top, name, type(name, (), {}))
    for name in ("decoders", "models", "normalizers", "pre_tokenizers", "processors", "trainers"):
        module = types.ModuleType(f"tokenizers.{name}")
        setattr(top, name, module)
        sys.modules[f"tokenizers.{name}"] = module
    for path, name in (("implementations", "BaseTokenizer"), ("implementations.base_tokenizer", "BaseTokenizer")):
        sys.modules[f"tokenizers.{path}"] = module = types.ModuleType(f"tokenizers.{path}")
        setattr(module, name, type(name, (), {}))
    sys.modules["tokenizers"] = top


try:
    import tokenizers  # noqa: F401
except ImportError:
    stand_in()

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource  # noqa: E402
from zephon_nodes.digest import content_digest  # noqa: E402

ROWS, ROUNDS = 3000, 15


def written(root: Path) -> Path:
    for part in range(4):
        texts = [f"row {i} of {part} " * 20 for i in range(ROWS // 4)]
        pq.write_table(pa.table({"text": texts}), root / f"{part}.parquet", row_group_size=64)
    return root


def spelled(row: dict) -> dict:
    """Python-bound work: what only threads without a GIL do side by side."""
    value = 7
    for _ in range(ROUNDS):
        ids = []
        for letter in row["text"]:
            value = (value * 31 + ord(letter)) % 65521
            ids.append(value)
    return {"input_ids": np.array(ids, np.int32)}


def graph(root: Path, **options) -> Pipeline:
    source = StaticMixtureWorkSource([Dataset.from_path("d", root)], num_lanes=4, chunk_size=64, flush_every=4, seed=1)
    return Pipeline(source, **options).map(spelled).pack_flat(1024).shuffle(16).batch(4)


def timed(root: Path, **options) -> tuple[float, str]:
    begin = time.perf_counter()
    with graph(root, **options) as pipeline:
        hashes = [content_digest(batch.to_training()) for batch in pipeline]
    return time.perf_counter() - begin, content_digest(hashes)


def main() -> None:
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"Python {sys.version.split()[0]}, GIL {'on' if gil else 'off'}, torch {sys.modules['torch'].__version__}")
    with tempfile.TemporaryDirectory() as folder:
        root = written(Path(folder))
        runs = {"inline": {"runner": "inline"}} | {f"{n} threads": {"parallelism": n} for n in (1, 2, 4)}
        timed(root, runner="inline")
        found = {name: [] for name in runs}
        for _ in range(5):  # in turns, since the machine has better and worse moments
            for name, options in runs.items():
                found[name].append(timed(root, **options))
    base = min(seconds for seconds, _ in found["inline"])
    for name, times in found.items():
        print(f"{name:10s} {base / min(seconds for seconds, _ in times):.2f} of inline")
    hashes = {each for times in found.values() for _, each in times}
    print("the same batches in all runs" if len(hashes) == 1 else f"DIFFERENT batches: {hashes}")
    raise SystemExit(len(hashes) != 1)


if __name__ == "__main__":
    main()
