"""Sizes, token counts and pixels, against what users run: the Pillow-backed processors of transformers."""

import json
import pickle
from dataclasses import FrozenInstanceError

import mm_pictures as mm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multimodal.image import decode
from multimodal.transform import normalise
from multimodal.vision import (
    CLIP_MEAN,
    SIGLIP_MEAN,
    SIGLIP_STD,
    DynamicResolution,
    FixedGrid,
    load,
)
from zephon_nodes import ConfigError

sides = st.integers(1, 4000)


@st.composite
def dynamic(draw):
    patch, merge = draw(st.integers(1, 20)), draw(st.integers(1, 4))
    least = draw(st.integers(1, 5000))
    most = draw(st.integers(max(least, (patch * merge) ** 2), 200_000))
    return DynamicResolution(patch=patch, merge=merge, min_pixels=least, max_pixels=most)


def is_long(height, width):
    return max(height, width) > 200 * min(height, width)


@settings(max_examples=500)
@given(dynamic(), sides, sides)
def test_dynamic_sizes(vision, height, width):
    if is_long(height, width):
        return
    factor = vision.patch * vision.merge
    high, wide = vision.target_size(height, width)
    assert high % factor == 0 and wide % factor == 0 and min(high, wide) > 0
    assert high * wide <= vision.max_pixels
    assert vision.target_size(high, wide) == (high, wide)
    assert vision.token_count(height, width) == vision.token_count(high, wide) == high * wide // factor**2
    assert vision.grid(height, width) == vision.grid(high, wide) == (1, high // vision.patch, wide // vision.patch)
    if vision.max_pixels >= 4 * vision.min_pixels + 20 * factor**2 and max(height, width) <= 8 * min(height, width):
        assert high * wide >= vision.min_pixels


@settings(max_examples=500)
@given(sides, sides, st.sampled_from([(56 * 56, 28 * 28 * 1280), (256 * 28 * 28, 512 * 28 * 28), (784, 784 * 200)]))
def test_dynamic_sizes_are_qwen2_vls(height, width, budget):
    qwen = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    vision = DynamicResolution(min_pixels=budget[0], max_pixels=budget[1])
    if is_long(height, width):
        with pytest.raises(ValueError, match=f"image of {height} x {width}: one side is more than 200 times"):
            vision.target_size(height, width)
        return
    theirs = qwen.smart_resize(height, width, 28, *budget)
    if theirs[0] * theirs[1] <= budget[1]:
        assert vision.target_size(height, width) == theirs


def test_a_very_long_image_stays_within_the_budget():
    qwen = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    vision = DynamicResolution(max_pixels=28 * 28 * 64)
    assert qwen.smart_resize(50, 9000, 28, 56 * 56, 28 * 28 * 64) == (28, 2996)
    assert vision.target_size(50, 9000) == (28, 28 * 64) == vision.target_size(28, 28 * 64)


def test_a_resized_image_is_taken_even_if_it_is_very_long():
    vision = DynamicResolution()
    assert vision.target_size(100, 20_000) == (56, 14_140) == vision.target_size(56, 14_140)


def processors():
    return pytest.importorskip("transformers.models.clip.image_processing_pil_clip").CLIPImageProcessorPil


@pytest.mark.parametrize("shape", [(40, 60), (61, 40), (37, 37), (224, 224), (300, 451), (480, 640), (30, 200)])
@pytest.mark.parametrize("size, patch", [(224, 16), (30, 7)])
def test_pixels_are_clips(shape, size, patch):
    clip = processors()(size={"shortest_edge": size}, crop_size={"height": size, "width": size})
    image = mm.drawn(*shape)
    vision = FixedGrid(size=size, patch=patch)
    theirs = clip(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(normalise(vision(image), vision.mean, vision.std), theirs, atol=3e-6)
    assert theirs.shape[1:] == vision.target_size(*shape)
    raw = clip(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(vision(image), raw.transpose(1, 2, 0))


@pytest.mark.parametrize("shape", [(40, 60), (61, 40), (224, 224), (300, 451), (30, 200)])
def test_pixels_are_siglips(shape):
    module = pytest.importorskip("transformers.models.siglip.image_processing_pil_siglip")
    siglip = module.SiglipImageProcessorPil(size={"height": 96, "width": 96})
    vision = FixedGrid(size=96, mean=SIGLIP_MEAN, std=SIGLIP_STD, fit="squash")
    image = mm.drawn(*shape)
    theirs = siglip(image, return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(normalise(vision(image), vision.mean, vision.std), theirs, atol=3e-6)
    raw = siglip(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(vision(image), raw.transpose(1, 2, 0))


def unpatched(patches, grid, vision):
    """The image that patches of Qwen2-VL's processor are of: (3, H, W), of their first frame."""
    _, high, wide = grid
    p, m = vision.patch, vision.merge
    blocks = patches.reshape(high // m, wide // m, m, m, 3, vision.temporal_patch, p, p)[:, :, :, :, :, 0]
    return blocks.transpose(4, 0, 2, 5, 1, 3, 6).reshape(3, high * p, wide * p)


@pytest.mark.parametrize("shape", [(30, 40), (300, 420), (200, 33), (480, 640), (56, 56)])
@pytest.mark.parametrize("budget", [(56 * 56, 28 * 28 * 1280), (28 * 28 * 9, 28 * 28 * 40)])
def test_pixels_and_grids_are_qwen2_vls(shape, budget):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    qwen = module.Qwen2VLImageProcessorPil(size={"shortest_edge": budget[0], "longest_edge": budget[1]})
    vision = DynamicResolution(min_pixels=budget[0], max_pixels=budget[1])
    image = mm.drawn(*shape)
    theirs = qwen(image, return_tensors="np")
    grid = tuple(theirs["image_grid_thw"][0].tolist())
    assert grid == vision.grid(*shape)
    assert vision.token_count(*shape) == grid[1] * grid[2] // 4
    ours = normalise(vision(image), vision.mean, vision.std)
    np.testing.assert_allclose(ours, unpatched(theirs["pixel_values"], grid, vision), atol=3e-6)
    raw = qwen(image, do_rescale=False, do_normalize=False, return_tensors="np")["pixel_values"]
    np.testing.assert_array_equal(vision(image), unpatched(raw, grid, vision).transpose(1, 2, 0))


@given(st.integers(1, 90), st.integers(1, 90), st.integers(4, 40), st.sampled_from(["crop", "pad", "squash"]))
def test_a_fixed_grid_is_always_square(height, width, size, fit):
    vision = FixedGrid(size=size, patch=4, fit=fit)
    out = vision(mm.drawn(height, width))
    assert out.shape == (size, size, 3) and out.dtype == np.uint8
    assert vision(out) is out
    assert vision.target_size(height, width) == vision.target_size(size, size) == (size, size)
    assert vision.token_count(height, width) == (size // 4) ** 2
    assert vision.grid(height, width) == (1, size // 4, size // 4)


def test_a_line_of_pixels_does_not_grow_without_bound():
    out = FixedGrid(size=224)(np.zeros((1, 200_000, 3), np.uint8))
    assert out.shape == (224, 224, 3)


def test_pad_keeps_all_of_the_image_between_bars_of_the_mean():
    vision = FixedGrid(size=40, patch=4, fit="pad")
    out = vision(np.full((10, 40, 3), 7, np.uint8))
    assert vision.colour == (123, 117, 104)
    assert (out[:15] == vision.colour).all() and (out[25:] == vision.colour).all() and (out[15:25] == 7).all()
    assert np.abs(normalise(out, vision.mean, vision.std)[:, :15]).max() < 0.01


def test_tokens():
    assert FixedGrid(size=384, patch=14).token_count(5, 5) == 27 * 27
    assert FixedGrid(size=336, patch=14, tokens=144).token_count(5, 5) == 144
    assert FixedGrid(size=336, patch=14, tokens=144).grid(5, 5) == (1, 24, 24)


@pytest.mark.parametrize(
    "vision",
    [FixedGrid(96), FixedGrid(96, fit="pad"), FixedGrid(96, fit="squash"), DynamicResolution(max_pixels=28 * 28 * 20)],
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_load(vision, orientation):
    data = mm.written(mm.Image.fromarray(mm.smooth(401, 523)), "JPEG", quality=95, exif=mm.exif(orientation))
    plain = load(data, vision)
    np.testing.assert_array_equal(plain, vision(decode(data)))
    scaled = load(data, vision, scaled=True)
    assert scaled.shape == plain.shape
    off = np.abs(scaled.astype(int) - plain)
    assert off.max() > 0 and off.mean() < 1


def test_load_with_transparency():
    data = mm.written(mm.Image.new("RGBA", (30, 30), (9, 9, 9, 0)), "PNG")
    for scaled in (False, True):
        assert (load(data, FixedGrid(16), scaled=scaled, background=(1, 2, 3)) == (1, 2, 3)).all()


@pytest.mark.parametrize("vision", [FixedGrid(), DynamicResolution(resample="bilinear_fast")])
def test_a_vision_is_plain_data(vision):
    recipe = vision.recipe()
    assert json.loads(json.dumps(recipe)) == recipe
    assert recipe["class"] == type(vision).__name__ and recipe["mean"] == list(CLIP_MEAN)
    assert pickle.loads(pickle.dumps(vision)) == vision and hash(vision) == hash(type(vision)(**vision.__dict__))
    with pytest.raises(FrozenInstanceError):
        vision.patch = 3
    assert "resample" in recipe and set(recipe) == {"class", *vision.__dict__}


@pytest.mark.parametrize(
    "kind, wrong, message",
    [
        (FixedGrid, {"size": 0}, "size must be an integer of at least 16"),
        (FixedGrid, {"patch": 0}, "patch must be"),
        (FixedGrid, {"patch": 1.5}, "patch must be"),
        (FixedGrid, {"tokens": 0}, "tokens must be"),
        (FixedGrid, {"fit": "stretch"}, 'fit must be "crop", "pad" or "squash"'),
        (FixedGrid, {"mean": (0.5, 0.5)}, "mean must be three numbers"),
        (FixedGrid, {"std": (0.5, 0.5, 0)}, "std must be above 0"),
        (FixedGrid, {"resample": "cubic"}, "resample must be one of nearest, box"),
        (DynamicResolution, {"merge": 0}, "merge must be"),
        (DynamicResolution, {"max_pixels": 783}, "max_pixels must be an integer of at least 3136"),
        (DynamicResolution, {"min_pixels": 1, "max_pixels": 783}, "max_pixels must be an integer of at least 784"),
        (DynamicResolution, {"temporal_patch": -1}, "temporal_patch must be"),
        (DynamicResolution, {"std": (1, "a", 1)}, "std must be three numbers"),
    ],
)
def test_settings_that_cannot_work(kind, wrong, message):
    with pytest.raises(ConfigError, match=message):
        kind(**wrong)
