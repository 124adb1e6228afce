"""A recipe file, the same as a Python function, and what a plain pipeline gives for it. Shared by the tests of trainers."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

import numpy as np
import torch
from graphs import keep
from recipes_for_tests import datasets, write_files

from zephon_nodes import Pipeline, StaticMixtureWorkSource

LENGTH, LANES, ROWS = 32, 4, 2


def write_recipe(folder: Path, passes: int | None = None) -> Path:
    """Three datasets, and a filtered, shuffled, packed mixture of them, as FOLDER/recipe.toml."""
    write_files(folder)
    source = StaticMixtureWorkSource(
        datasets(folder), {"code": 1, "news": 0.5, "wiki": "1/3"}, LANES, 16, 2, seed=3, passes=passes
    )
    pipeline = Pipeline(source).filter(functools.partial(keep, n=3)).shuffle(16, seed=2)
    pipeline = pipeline.tokenize(folder / "tokenizer.json").pack_flat(LENGTH)
    (folder / "recipe.toml").write_text(pipeline.to_toml())
    return folder / "recipe.toml"


def python_recipe() -> Pipeline:
    """A recipe in Python: "recipe_for_trainers:python_recipe"."""
    from zephon_nodes import Dataset

    rows = [{"input_ids": np.arange(1, 2 + i % 9, dtype=np.int32)} for i in range(80)]
    return Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", rows)], num_lanes=LANES)).pack_flat(LENGTH)


def python_node():
    return python_recipe().node


def no_recipe():
    return 3


def sha(*tensors: torch.Tensor) -> str:
    """SHA-256 of the bytes of tensors, with their shapes and dtypes."""
    out = hashlib.sha256()
    for tensor in tensors:
        out.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        out.update(tensor.contiguous().numpy().tobytes())
    return out.hexdigest()


def expected(recipe: Path, microbatches: int, names=("input_ids", "position_ids", "labels"), **settings) -> list[str]:
    """SHA-256 of the first microbatches of one rank with all lanes."""
    out = []
    with Pipeline.from_toml(recipe, runner="inline").batch(ROWS) as pipeline:
        for batch in pipeline:
            tensors = batch.to_training(**settings)
            out.append(sha(*(tensors[name] for name in names)))
            if len(out) == microbatches:
                break
    return out
