"""Geometry against slices and Pillow, and arithmetic against the plain formula."""

import warnings

import mm_pictures as mm
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from multimodal import transform
from multimodal.vision import CLIP_MEAN, CLIP_STD

sides = st.integers(1, 60)
pillow_filters = st.sampled_from([name for name in transform.FILTERS if name not in transform.FAST])


def is_own(array, source):
    return array.flags.c_contiguous and array.flags.writeable and not np.shares_memory(array, source)


@given(sides, sides, sides, sides, pillow_filters)
def test_resize_is_pillows(height, width, high, wide, resample):
    image = mm.drawn(height, width)
    out = transform.resize(image, (high, wide), resample)
    expected = Image.fromarray(image).resize((wide, high), Image.Resampling[resample.upper()])
    np.testing.assert_array_equal(out, np.asarray(expected))
    assert out is image or is_own(out, image)


@settings(max_examples=60)
@given(
    st.integers(1, 120), st.integers(1, 120), st.integers(1, 120), st.integers(1, 120), st.sampled_from(transform.FAST)
)
def test_fast_resize_is_close_to_pillows(height, width, high, wide, resample):
    image = mm.smooth(height, width)
    plain = transform.resize(image, (high, wide), resample.removesuffix("_fast")).astype(int)
    out = transform.resize(image, (high, wide), resample)
    assert out.shape == (high, wide, 3) and out.dtype == np.uint8 and (out is image or is_own(out, image))
    assert np.abs(out - plain).max() <= 2


@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket"])
@pytest.mark.parametrize("resample", transform.FAST)
def test_fast_resize_of_photos(name, resample):
    photo = getattr(pytest.importorskip("skimage.data"), name)()
    for size in ((224, 224), (448, 336), (100, 700)):
        plain = transform.resize(photo, size, resample.removesuffix("_fast")).astype(int)
        off = np.abs(transform.resize(photo, size, resample) - plain)
        assert off.max() <= 12 and off.mean() <= 0.3
    square = [transform.resize(photo[:300, :300], (224, 224), name).astype(int) for name in (resample, resample[:-5])]
    assert np.abs(square[0] - square[1]).max() <= 2


def test_fast_resize_takes_views_and_read_only_arrays_without_a_warning():
    image = mm.smooth(20, 30)
    expected = transform.resize(image, (10, 9), "bicubic_fast")
    frozen = image.copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for other in (frozen, np.repeat(image, 2, 0)[::2], np.ascontiguousarray(image[::-1])[::-1]):
            np.testing.assert_array_equal(transform.resize(other, (10, 9), "bicubic_fast"), expected)


def test_resize_says_what_is_wrong():
    with pytest.raises(ValueError, match="resample='cubic' is unknown; use one of nearest, box"):
        transform.resize(mm.drawn(4, 4), (2, 2), "cubic")
    with pytest.raises(ValueError, match="resize to 0 x 5: both sides"):
        transform.resize(mm.drawn(4, 4), (0, 5))


@given(sides, sides, sides)
def test_shortest_side(height, width, length):
    out = transform.shortest_side(mm.drawn(height, width), length)
    assert min(out.shape[:2]) == length
    assert max(out.shape[:2]) == int(length * max(height, width) / min(height, width))
    assert (out.shape[0] > out.shape[1]) <= (height > width)


@given(sides, sides, st.data())
def test_crops_are_slices(height, width, data):
    image = mm.drawn(height, width)
    high, wide = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    top, left = data.draw(st.integers(0, height - high)), data.draw(st.integers(0, width - wide))
    out = transform.crop(image, top, left, (high, wide))
    np.testing.assert_array_equal(out, image[top : top + high, left : left + wide])
    assert out is image or is_own(out, image)
    middle = transform.center_crop(image, (high, wide))
    first = (height - high) // 2, (width - wide) // 2
    np.testing.assert_array_equal(middle, image[first[0] : first[0] + high, first[1] : first[1] + wide])


@pytest.mark.parametrize("top, left, size", [(0, 0, (5, 4)), (-1, 0, (2, 2)), (3, 0, (2, 2)), (0, 2, (2, 3))])
def test_a_crop_outside_of_the_image(top, left, size):
    with pytest.raises(ValueError, match="isn't inside the image of 4 x 4; resize it first"):
        transform.crop(mm.drawn(4, 4), top, left, size)


@given(sides, sides)
def test_flip(height, width):
    image = mm.drawn(height, width)
    out = transform.flip(image)
    np.testing.assert_array_equal(out, image[:, ::-1])
    assert is_own(out, image)
    np.testing.assert_array_equal(transform.flip(image.transpose(1, 0, 2)), image.transpose(1, 0, 2)[:, ::-1])


@given(sides, sides)
def test_pad_to_square(height, width):
    image, colour = mm.drawn(height, width), (1, 2, 3)
    out = transform.pad_to_square(image, colour)
    side = max(height, width)
    expected = Image.new("RGB", (side, side), colour)
    expected.paste(Image.fromarray(image), ((side - width) // 2, (side - height) // 2))
    np.testing.assert_array_equal(out, np.asarray(expected))


@given(st.integers(10, 90), st.integers(10, 90), st.integers(1, 12), st.booleans())
def test_tiles_are_the_resized_image_cut_up(height, width, most, thumbnail):
    image = mm.drawn(height, width)
    parts, (rows, columns) = transform.tiles(image, 16, most, thumbnail=thumbnail)
    assert 1 <= rows * columns <= most
    if thumbnail and rows * columns > 1:
        np.testing.assert_array_equal(parts.pop(), transform.resize(image, (16, 16)))
    assert len(parts) == rows * columns and all(is_own(part, image) for part in parts)
    whole = np.concatenate([np.concatenate(parts[r * columns : (r + 1) * columns], 1) for r in range(rows)])
    np.testing.assert_array_equal(whole, transform.resize(image, (16 * rows, 16 * columns)))


@settings(max_examples=300)
@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([224, 448]), st.integers(1, 16))
def test_the_grid_of_tiles_is_that_of_transformers(height, width, tile, most):
    theirs = pytest.importorskip("transformers.models.got_ocr2.image_processing_pil_got_ocr2")
    columns, rows = theirs.get_optimal_tiled_canvas((height, width), (tile, tile), 1, most)
    assert transform.tile_grid(height, width, tile, most) == (rows, columns)


def test_no_tiles_is_no_grid():
    with pytest.raises(ValueError, match="max_tiles must be at least 1, got 0"):
        transform.tiles(mm.drawn(4, 4), 2, 0)


def plainly(images):
    moved = np.moveaxis(images.astype(float) / 255, -1, -3)
    mean, std = (np.array(values)[:, None, None] for values in (CLIP_MEAN, CLIP_STD))
    return (moved - mean) / std


@given(st.integers(1, 9), st.integers(1, 9), st.lists(st.integers(0, 3), max_size=2))
def test_normalise(height, width, leading):
    images = np.random.default_rng(0).integers(0, 256, (*leading, height, width, 3), dtype=np.uint8)
    out = transform.normalise(images, CLIP_MEAN, CLIP_STD)
    assert out.dtype == np.float32 and out.flags.c_contiguous
    np.testing.assert_allclose(out, plainly(images), atol=2e-6)
    into = np.empty_like(out)
    assert transform.normalise(images, CLIP_MEAN, CLIP_STD, out=into) is into
    np.testing.assert_array_equal(into, out)


def test_normalise_knows_every_value():
    ramp = np.broadcast_to(np.arange(256, dtype=np.uint8)[:, None, None], (256, 1, 3))
    np.testing.assert_allclose(transform.normalise(ramp, CLIP_MEAN, CLIP_STD), plainly(ramp), atol=2e-6)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 4)])
def test_normalise_refuses_other_shapes(shape):
    with pytest.raises(ValueError, match="takes images"):
        transform.normalise(np.zeros(shape, np.uint8), CLIP_MEAN, CLIP_STD)


@pytest.mark.parametrize("out", [np.zeros((3, 4, 5), np.float64), np.zeros((4, 5, 3), np.float32)])
def test_normalise_refuses_another_place_to_write_to(out):
    with pytest.raises(ValueError, match="out must be float32"):
        transform.normalise(np.zeros((4, 5, 3), np.uint8), CLIP_MEAN, CLIP_STD, out=out)


@pytest.mark.parametrize("dtype, off", [(None, 2e-6), (torch.float32, 2e-6), (torch.bfloat16, 0.01)])
def test_normalise_on_device(dtype, off):
    images = np.random.default_rng(0).integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)
    planes = torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
    out = transform.normalise_on_device(planes, CLIP_MEAN, CLIP_STD, dtype)
    assert out.dtype == (dtype or torch.float32)
    np.testing.assert_allclose(out.float().numpy(), plainly(images), atol=off)
    assert planes.numpy().tobytes() == images.transpose(0, 3, 1, 2).tobytes()
