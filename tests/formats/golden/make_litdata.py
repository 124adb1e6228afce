"""Writes the LitData golden files with litdata: ``python make_litdata.py`` in an environment that has it.

``pip install torch`` (a CPU build) first, then ``pip install --no-deps litdata==0.2.76`` with
``lightning-utilities obstore boto3 requests filelock``.
"""

import os
import shutil
import warnings

import numpy as np
import torch
from golden_rows import litdata_tree, small
from litdata.streaming.item_loader import TokensLoader
from litdata.streaming.writer import BinaryWriter

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "litdata")
warnings.simplefilter("ignore")  # "the current chunk will be larger"


def write(name, rows, **options):
    out = os.path.join(HERE, name)
    shutil.rmtree(out, ignore_errors=True)
    writer = BinaryWriter(out, **options)
    for i, row in enumerate(rows):
        writer[i] = row
    writer.done()
    writer.merge()
    for left in os.listdir(out):
        if not left.endswith((".bin", "index.json")):
            os.unlink(os.path.join(out, left))


def with_array(i):
    """Arrays keep litdata from its Arrow layout."""
    return small(i) | {"a": np.arange(i, dtype=np.int64)}


write("tree", [litdata_tree(i, torch.tensor) for i in range(5)], chunk_size=2)
write("arrow", map(small, range(12)), chunk_size=5)
write("arrow_zstd", map(small, range(12)), chunk_size=5, compression="zstd")
write("plain", map(with_array, range(12)), chunk_size=5)
for level in ("chunk", "sample"):
    write(level, map(with_array, range(12)), chunk_size=5, compression="zstd", compression_level=level)
write(
    "batch",
    map(with_array, range(12)),
    chunk_size=8,
    compression="zstd",
    compression_level="batch",
    compression_batch_size=3,
)
write("values", [f"ü {i}" for i in range(3)], chunk_size=2)
for name, make in {
    "tokens_numpy": lambda n: np.arange(n, dtype=np.uint16),
    "tokens_torch": lambda n: torch.arange(n, dtype=torch.int32),
}.items():
    write(name, [make(n) for n in (10, 25, 3, 9)], chunk_bytes=80, item_loader=TokensLoader(block_size=8))
write(
    "tokens_zstd",
    [np.arange(n, dtype=np.uint16) for n in (10, 25)],
    chunk_bytes=80,
    item_loader=TokensLoader(),
    compression="zstd",
    compression_level="chunk",
)
