"""Pixels of a batch in one tensor."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, picture

from multimodal.pixels import PIXELS, normalise_pixel_values, pixel_values
from multimodal.vision import DynamicResolution, FixedGrid
from zephon_nodes import ConfigError

sizes = st.lists(st.tuples(st.integers(3, 24), st.integers(3, 24)), max_size=4)
KINDS = {"uint8": torch.uint8, "float32": torch.float32, "bfloat16": torch.bfloat16}


def normalized(image, vision):
    return (image / 255.0 - np.array(vision.mean)) / np.array(vision.std)


def patches_plainly(image, patch, merge, times):
    """A list of rows, by loops."""
    height, width = image.shape[0] // patch, image.shape[1] // patch
    rows = []
    for by in range(height // merge):
        for bx in range(width // merge):
            for y0 in range(by * merge, by * merge + merge):
                for x0 in range(bx * merge, bx * merge + merge):
                    block = image[y0 * patch : (y0 + 1) * patch, x0 * patch : (x0 + 1) * patch]
                    rows.append([v for c in range(3) for _ in range(times) for v in block[..., c].ravel().tolist()])
    return rows


@given(sizes, st.sampled_from(PIXELS))
def test_images_of_one_size_are_stacked_with_channels_first(shapes, pixels):
    images = [FIXED(picture(*shape, i)) for i, shape in enumerate(shapes)]
    out = pixel_values(images, FIXED, pixels)
    assert out.dtype == KINDS[pixels] and out.shape == (len(images), 3, 8, 8) and out.is_contiguous()
    for image, got in zip(images, out, strict=True):
        want = image if pixels == "uint8" else normalized(image, FIXED)
        assert np.allclose(got.permute(1, 2, 0).double().numpy(), want, rtol=1e-2 if pixels == "bfloat16" else 1e-5)


@given(sizes, st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2]))
def test_images_of_many_sizes_are_cut_into_patches(shapes, patch, merge, times):
    vision = replace(DYNAMIC, patch=patch, merge=merge, temporal_patch=times)
    images = [vision(picture(*shape, i)) for i, shape in enumerate(shapes)]
    out = pixel_values(images, vision)
    want = [row for image in images for row in patches_plainly(image, patch, merge, times)]
    assert out.dtype == torch.uint8 and out.shape == (len(want), 3 * times * patch * patch)
    assert out.tolist() == want


@given(sizes, st.sampled_from([FIXED, DYNAMIC]))
def test_numbers_are_the_normalized_bytes_rounded_to_their_kind(shapes, vision):
    images = [vision(picture(*shape, i)) for i, shape in enumerate(shapes)]
    raw, single, half = (pixel_values(images, vision, pixels) for pixels in PIXELS)
    assert torch.equal(single.to(torch.bfloat16), half)
    assert torch.allclose(normalise_pixel_values(raw, vision), single, rtol=1e-5, atol=1e-6)
    assert normalise_pixel_values(raw, vision, torch.bfloat16).dtype == torch.bfloat16
    assert normalise_pixel_values(raw, vision).shape == raw.shape


@pytest.mark.parametrize("pixels", PIXELS)
def test_no_images_give_no_rows(pixels):
    for vision, shape in ((FIXED, (0, 3, 8, 8)), (DYNAMIC, (0, 24))):
        out = pixel_values([], vision, pixels)
        assert tuple(out.shape) == shape and normalise_pixel_values(out, vision).shape == shape


def test_images_may_be_views_that_cannot_be_written_to():
    image = picture(8, 16)[:, ::2].copy().transpose(1, 0, 2)
    image.flags.writeable = False
    for vision in (FIXED, DYNAMIC):
        assert pixel_values([image], vision).sum() == image.sum(dtype=np.int64) * (2 if vision is DYNAMIC else 1)


def test_unknown_kinds_of_numbers_are_refused():
    with pytest.raises(ConfigError, match="pixels='float16' is unknown; use one of 'uint8', 'float32', 'bfloat16'"):
        pixel_values([], FIXED, "float16")


@pytest.mark.parametrize("shapes", [[(300, 420)], [(56, 28), (90, 200), (333, 121)]])
def test_patches_are_those_of_the_qwen2_vl_processor(shapes):
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    processor = module.Qwen2VLImageProcessorPil(do_resize=False)
    vision = DynamicResolution(mean=tuple(processor.image_mean), std=tuple(processor.image_std))
    images = [vision(picture(*shape, i)) for i, shape in enumerate(shapes)]
    want = processor(images, return_tensors="pt")
    assert [vision.grid(*image.shape[:2]) for image in images] == [
        tuple(row) for row in want["image_grid_thw"].tolist()
    ]
    assert torch.allclose(pixel_values(images, vision, "float32"), want["pixel_values"], rtol=1e-5, atol=1e-5)
    assert torch.allclose(
        normalise_pixel_values(pixel_values(images, vision), vision), want["pixel_values"], rtol=1e-5, atol=1e-5
    )


def test_stacks_are_those_of_the_clip_processor():
    module = pytest.importorskip("transformers.models.clip.image_processing_pil_clip")
    processor = module.CLIPImageProcessorPil(do_resize=False, do_center_crop=False)
    vision = FixedGrid(size=28, patch=14, mean=tuple(processor.image_mean), std=tuple(processor.image_std))
    images = [picture(28, 28, seed) for seed in range(3)]
    want = processor(images, return_tensors="pt")["pixel_values"]
    assert torch.allclose(pixel_values(images, vision, "float32"), want, rtol=1e-5, atol=1e-5)
