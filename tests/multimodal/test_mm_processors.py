"""From files to a step by a ready graph, against the processors of ``transformers`` on the same files: sizes, grids, counts,
and pixels, which may differ by 1e-5 after normalising."""

from __future__ import annotations

import mm_pictures as mm
import pytest
import torch
from PIL import Image, ImageOps
from tokenizers import Tokenizer, models, pre_tokenizers

from multimodal import CollateImages, DynamicResolution, ExpandImages, FixedGrid, LoadImages
from multimodal.vision import SIGLIP_MEAN, SIGLIP_STD
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

SHAPES = [(300, 420), (200, 133), (90, 90)]
FILES = [
    mm.written(Image.fromarray(mm.drawn(*shape, seed=i)), format, **({"exif": mm.exif(6)} if i == 0 else {}))
    for i, (shape, format) in enumerate(zip(SHAPES, ("JPEG", "PNG", "WEBP"), strict=True))
]
OPENED = [ImageOps.exif_transpose(mm.opened(data)).convert("RGB") for data in FILES]


def processor(model, **settings):
    module = pytest.importorskip(f"transformers.models.{model}.image_processing_pil_{model}")
    name = {"clip": "CLIP", "siglip": "Siglip", "qwen2_vl": "Qwen2VL"}[model]
    return getattr(module, f"{name}ImageProcessorPil")(**settings)


def step_of(vision):
    tokenizer = Tokenizer(models.WordLevel({"<image>": 0, "a": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rows = [{"image": FILES[:1], "text": "<image> a"}, {"image": FILES[1:], "text": "a <image> a <image>"}]
    source = StaticMixtureWorkSource([Dataset.from_rows("files", rows)], shuffle="none")
    graph = Pipeline(source, runner="inline").then(LoadImages, vision, scaled=False)
    graph = graph.tokenize(tokenizer, bos=None, eos=None).then(ExpandImages, vision, 0).batch(2)
    return next(iter(graph.then(CollateImages, vision, 0, pixels="float32", extra=["document_ids"])))


@pytest.mark.parametrize(
    ("model", "settings", "vision"),
    [
        ("clip", {}, FixedGrid(size=224, patch=14)),
        (
            "siglip",
            {"size": {"height": 64, "width": 64}},
            FixedGrid(size=64, patch=16, mean=SIGLIP_MEAN, std=SIGLIP_STD, fit="squash"),
        ),
        ("qwen2_vl", {}, DynamicResolution()),
        (
            "qwen2_vl",
            {"size": {"shortest_edge": 3136, "longest_edge": 28 * 28 * 30}},
            DynamicResolution(max_pixels=28 * 28 * 30),
        ),
    ],
)
def test_a_step_has_what_the_processor_gives(model, settings, vision):
    want = processor(model, **settings)(OPENED, return_tensors="pt")
    step = step_of(vision)
    assert step["pixel_values"].shape == want["pixel_values"].shape
    assert torch.allclose(step["pixel_values"], want["pixel_values"], rtol=1e-5, atol=1e-5)
    placeholders = int(((step["input_ids"] == 0) & (step["document_ids"] >= 0)).sum())
    if isinstance(vision, DynamicResolution):
        assert torch.equal(step["image_grid_thw"], want["image_grid_thw"])
        assert placeholders == want["image_grid_thw"].prod(1).sum() // vision.merge**2
    else:
        assert placeholders == 3 * (vision.size // vision.patch) ** 2


def test_placeholders_are_as_many_as_qwen2_vls_processor_writes():
    """Of each image, as its own processor counts them."""
    qwen = processor("qwen2_vl")
    vision = DynamicResolution()
    for image in OPENED:
        patches = qwen.get_number_of_image_patches(image.height, image.width, {})
        assert vision.token_count(image.height, image.width) == patches // qwen.merge_size**2
