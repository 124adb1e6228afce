"""An image graph as a recipe file: its nodes by import path, their settings as calls."""

from __future__ import annotations

import functools
import json
import sys

import numpy as np
import pytest
from PIL import Image
from tokenizers_for_tests import save_folder, train_tokenizer

from multimodal.augment import compose, random_flip, random_resized_crop
from multimodal.nodes import CollateImages, DecodeImages, ExpandImages, ResizeImages
from multimodal.packing import PackImages
from multimodal.vision import DynamicResolution
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture
def pipeline(tmp_path):
    rows = []
    for i in range(6):
        Image.fromarray(np.full((40, 60, 3), 40 * i, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append({"image": f"{i}.png", "text": f"<s> picture {i}"})
    (tmp_path / "pictures.jsonl").write_text("\n".join(map(json.dumps, rows)))
    save_folder(tmp_path, train_tokenizer())
    vision = DynamicResolution(min_pixels=28 * 28, max_pixels=56 * 56)
    crop = functools.partial(random_resized_crop, size=(28, 56), scale=(0.5, 1.0))
    source = StaticMixtureWorkSource([Dataset.from_path("pictures", tmp_path / "pictures.jsonl")], num_lanes=2)
    return (
        Pipeline(source, runner="inline")
        .then(DecodeImages, root=str(tmp_path))
        .then(ResizeImages, vision, compose(crop, random_flip), seed=4)
        .tokenize(tmp_path / "tokenizer.json", bos=None)
        .then(ExpandImages, vision, 1)
        .then(PackImages, 96, vision=vision)
        .batch(2)
        .then(CollateImages, vision, 1)
    )


def test_an_image_graph_comes_back_with_its_recipe_and_its_batches(pipeline):
    text = pipeline.to_toml()
    assert 'op = "multimodal.nodes:DecodeImages"' in text
    assert 'vision = { call = "multimodal.vision:DynamicResolution", min_pixels = 784' in text
    back = Pipeline.from_toml(text)
    assert back.recipe == pipeline.recipe and back.to_toml() == text
    for one, other in zip(pipeline, back, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert np.array_equal(np.asarray(value), np.asarray(other[name])), name
