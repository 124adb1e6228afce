"""Writes the Megatron golden files with megatron-core: ``pip install --no-deps megatron-core``, beside a CPU torch."""

import itertools
import os

import numpy as np
import torch
from golden_rows import megatron_documents
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "megatron")
os.makedirs(HERE, exist_ok=True)
for dtype in (np.uint16, np.int32, np.uint8, np.int64):
    name = os.path.join(HERE, np.dtype(dtype).name)
    builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype)
    for sequences in megatron_documents():
        builder.add_document(
            torch.tensor([*itertools.chain(*sequences)], dtype=torch.int64), [len(part) for part in sequences]
        )
    builder.finalize(f"{name}.idx")
