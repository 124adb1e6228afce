"""Deep samples, transparency by a key, and inks, against the formulas."""

import struct

import mm_pictures as mm
import numpy as np
import pytest
from PIL import Image

from multimodal.image import ImageError, decode

BACKGROUND = (10, 200, 90)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_deep_grey_is_scaled_and_not_clipped(format):
    samples = np.array([[0, 255, 256, 32768, 65279, 65535]], np.uint16)
    out = decode(mm.written(Image.fromarray(samples), format))
    assert out[0].tolist() == [[v] * 3 for v in (0, 0, 1, 128, 254, 255)]


def test_deep_colour_is_scaled_like_deep_grey():
    samples = np.random.default_rng(0).integers(0, 1 << 16, (5, 7, 3), dtype=np.uint16)
    np.testing.assert_array_equal(decode(mm.png(samples, 16)), samples >> 8)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_grey_that_stands_for_transparency(bits):
    samples = np.arange(min(1 << bits, 64), dtype=np.uint16).reshape(1, -1) * max(1, (1 << bits) // 64)
    key = int(samples[0, 1])
    data = mm.png(samples, bits, mm.chunk(b"tRNS", struct.pack(">H", key)))
    grey = samples * 255 // ((1 << bits) - 1) if bits <= 8 else samples >> 8
    expected = np.where((samples == key)[..., None], BACKGROUND, grey[..., None])
    np.testing.assert_array_equal(decode(data, background=BACKGROUND), expected)


def test_a_colour_that_stands_for_transparency():
    samples = mm.drawn(6, 6)
    key = samples[2, 3]
    data = mm.png(samples, 8, mm.chunk(b"tRNS", key.astype(">u2").tobytes()))
    out = decode(data, background=BACKGROUND)
    assert out[2, 3].tolist() == list(BACKGROUND)
    np.testing.assert_array_equal(out, np.where((samples == key).all(-1, keepdims=True), BACKGROUND, samples))


INKS = np.array([[[0, 0, 0, 0], [255, 0, 0, 0], [0, 255, 0, 0], [0, 0, 255, 0], [0, 0, 0, 255], [90, 30, 200, 40]]])


def from_inks(inks):
    return ((255 - inks[..., :3]) * (255 - inks[..., 3:]) / 255).round().astype(int)


def large(inks):
    return np.kron(inks, np.ones((16, 16, 1))).round().astype(np.uint8)


def ycck(inks):
    """The inverted inks of an Adobe JPEG as luminance, colour differences and black."""
    c, m, y = (inks[..., i].astype(float) for i in range(3))
    luma = 0.299 * c + 0.587 * m + 0.114 * y
    return np.stack([luma, 128 + (y - luma) / 1.772, 128 + (c - luma) / 1.402, 255 - inks[..., 3]], -1).clip(0, 255)


def test_cmyk_jpeg_with_and_without_adobe_marker():
    data = mm.written(Image.fromarray(large(INKS), "CMYK"), "JPEG", quality=100)
    for one in (data, mm.without_segment(data, 0xEE)):
        assert np.abs(decode(one)[8, 8::16].astype(int) - from_inks(INKS)[0]).max() <= 3


def test_ycck_jpeg():
    stored = 255 - large(ycck(INKS))  # Pillow inverts what it writes
    data = mm.written(Image.fromarray(stored, "CMYK"), "JPEG", quality=100)
    at = data.index(b"Adobe") + 11
    assert data[at] == 0
    data = data[:at] + b"\2" + data[at + 1 :]
    assert np.abs(decode(data)[8, 8::16].astype(int) - from_inks(INKS)[0]).max() <= 4


@pytest.mark.parametrize("alpha", [0, 1, 127, 128, 254, 255])
@pytest.mark.parametrize("format", ["PNG", "WEBP", "TIFF"])
def test_transparency_is_laid_on_the_background(format, alpha):
    rgba = np.concatenate([mm.drawn(8, 8), np.full((8, 8, 1), alpha, np.uint8)], -1)
    options = {"lossless": True, "exact": True} if format == "WEBP" else {}
    out = decode(mm.written(Image.fromarray(rgba), format, **options), background=BACKGROUND)
    exact = (rgba[..., :3].astype(float) * alpha + np.array(BACKGROUND) * (255.0 - alpha)) / 255
    assert np.abs(out - exact).max() <= 0.5


def test_a_palette_with_transparency_of_either_kind():
    picture = Image.fromarray(mm.drawn(12, 12)).quantize(8)
    index, colours = np.asarray(picture), np.array(picture.getpalette()).reshape(-1, 3)
    one = decode(mm.written(picture, "PNG", transparency=2), background=BACKGROUND)
    np.testing.assert_array_equal(one, np.where((index == 2)[..., None], BACKGROUND, colours[index]))
    levels = np.array([0, 60, 120, 255, 255, 255, 255, 255])
    many = decode(mm.written(picture, "PNG", transparency=bytes(levels[:4].tolist())), background=BACKGROUND)
    share = levels[index][..., None] / 255
    assert np.abs(many - (colours[index] * share + np.array(BACKGROUND) * (1 - share))).max() <= 0.5 + 1e-9


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_samples_without_a_fixed_range_are_refused(dtype):
    data = mm.written(Image.fromarray(np.ones((4, 4), dtype)), "TIFF")
    with pytest.raises(ImageError, match="TIFF samples are signed, of 32 bits or floating-point"):
        decode(data)
