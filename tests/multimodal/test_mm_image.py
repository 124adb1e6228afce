"""Decoding, against Pillow's straightforward conversion."""

import struct
import warnings

import mm_pictures as mm
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps, ImageSequence

from multimodal import decoders
from multimodal.image import ImageError, decode, decode_scaled, size_of

BACKGROUND = (10, 200, 90)
MODES = {
    "JPEG": ("L", "RGB", "CMYK", "YCbCr"),
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("1", "L", "P"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
}


def on_background(image, background):
    """The rule for transparency, in floating point."""
    rgba = np.asarray(image.convert("RGBA")).astype(float)
    share = rgba[..., 3:] / 255
    return np.floor(rgba[..., :3] * share + np.array(background) * (1 - share) + 0.5).astype(np.uint8)


@pytest.fixture(autouse=True)
def no_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@st.composite
def files(draw):
    format = draw(st.sampled_from(sorted(MODES)))
    mode = draw(st.sampled_from(MODES[format]))
    height, width, seed = draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(st.integers(0, 99))
    if mode in ("LA", "RGBA"):
        image = Image.fromarray(mm.drawn(height, width, len(mode), seed), mode)
    else:
        image = Image.fromarray(mm.drawn(height, width, 3, seed))
        image = image.quantize(draw(st.integers(2, 40))) if mode == "P" else image.convert(mode)
    options = {}
    if mode == "P" and format in ("PNG", "GIF") and draw(st.booleans()):
        levels = st.lists(st.integers(0, 255), min_size=1, max_size=12).map(bytes)
        options["transparency"] = draw(st.integers(0, 5) if format == "GIF" else st.integers(0, 5) | levels)
    if mode == "L" and format == "PNG" and draw(st.booleans()):
        options["transparency"] = int(np.asarray(image)[0, 0])
    return mm.written(image, format, **options)


@settings(max_examples=150)
@given(files())
def test_any_file_that_pillow_writes(data):
    given_by_pillow = mm.opened(data)
    out = decode(data, background=BACKGROUND)
    assert out.dtype == np.uint8 and out.flags.writeable and out.flags.c_contiguous
    np.testing.assert_array_equal(out, on_background(given_by_pillow, BACKGROUND))
    assert size_of(data) == out.shape[:2]


UPRIGHT = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: lambda a: np.rot90(a),
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(format, orientation):
    image = Image.fromarray(mm.smooth(24, 40))
    options = {"lossless": True} if format == "WEBP" else {}
    data = mm.written(image, format, exif=mm.exif(orientation), **options)
    stored = decode(mm.written(image, format, **options))
    out = decode(data)
    np.testing.assert_array_equal(out, UPRIGHT[orientation](stored))
    if format != "TIFF":  # which some versions of Pillow turn twice, or not at all
        np.testing.assert_array_equal(out, np.asarray(ImageOps.exif_transpose(mm.opened(data)).convert("RGB")))
    assert size_of(data) == out.shape[:2]
    np.testing.assert_array_equal(decode(data, apply_orientation=False), stored)
    assert size_of(data, apply_orientation=False) == stored.shape[:2] == (24, 40)


@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 60), st.integers(1, 60), st.integers(1, 8))
def test_a_scaled_jpeg_is_never_smaller_than_the_target(height, width, high, wide, orientation):
    data = mm.written(Image.fromarray(mm.smooth(height, width)), "JPEG", exif=mm.exif(orientation))
    full, out = size_of(data), decode(data, target=(high, wide)).shape
    for side, all_of_it, least in zip(out[:2], full, (high, wide), strict=True):
        assert side >= min(all_of_it, least)
    scales = {s for s in (1, 2, 4, 8) if out[:2] == tuple(-(-side // s) for side in full)}
    assert scales
    if full[0] >= 2 * high and full[1] >= 2 * wide:
        assert max(scales) > 1


def resized(image, size, box=None):
    return np.asarray(Image.fromarray(image).resize(size[::-1], Image.Resampling.BICUBIC, box)).astype(int)


@pytest.mark.parametrize("share, margin, most, mean", [(0.35, 1, 30, 1.1), (0.2, 1, 45, 1.9), (0.2, 2, 12, 0.5)])
@pytest.mark.parametrize("name", ["astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field", "retina"])
def test_how_much_scaled_decoding_changes_photos(name, share, margin, most, mean):
    photo = getattr(pytest.importorskip("skimage.data"), name)()
    data = mm.written(Image.fromarray(photo), "JPEG", quality=92)
    size = tuple(int(side * share) for side in photo.shape[:2])
    plain, scaled = decode(data), decode_scaled(data, (margin * size[0], margin * size[1]))
    assert scaled.pixels.shape < plain.shape
    top, left, bottom, right = scaled.box
    off = np.abs(resized(plain, size) - resized(scaled.pixels, size, (left, top, right, bottom)))
    assert off.max() <= most and off.mean() <= mean


def test_broken_metadata_does_not_kill_pixels():
    jpeg = mm.written(Image.fromarray(mm.drawn(20, 30)), "JPEG")
    for marker, body in (
        (0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
        (0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x02\0\xff\xff\xff\xff\xff\xff\xff\xff" * 9),
        (0xE1, b"Exif\0\0garbage"),
        (0xE2, b"ICC_PROFILE\0\x01\x05broken"),
        (0xE2, b"MPF\0MM\0*\0\0\0\x08\xff\xff"),
        (0xE0, b"JFIF"),
        (0xEE, b"Adobe"),
        (0xED, b"Photoshop 3.0\x008BIM"),
        (0xFE, b"\xff" * 50),
    ):
        np.testing.assert_array_equal(decode(mm.with_segment(jpeg, marker, body)), decode(jpeg))
    samples = mm.drawn(6, 6)
    wrong = mm.chunk(b"tEXt", b"a\0b")[:-1] + b"?"
    bomb = mm.chunk(b"iCCP", b"name\0\0garbage")
    counted_twice = mm.chunk(b"acTL", b"\0\0\0\2\0\0\0\0") * 2
    data = mm.png(samples, 8, wrong, bomb, mm.chunk(b"eXIf", b"II*\0"), counted_twice)
    np.testing.assert_array_equal(decode(data), samples)
    np.testing.assert_array_equal(decode(data, frames="all"), samples[None])


def test_broken_tags_do_not_kill_a_tiff():
    data = bytearray(mm.FILES["lzw"])
    at = struct.unpack_from("<I", data, 4)[0]
    count = struct.unpack_from("<H", data, at)[0]
    tags = [struct.unpack_from("<HHII", data, at + 2 + 12 * i) for i in range(count)]
    widened = [
        (tag, kind, 2, value) if tag == 256 and kind == 3 else (tag, kind, n, value) for tag, kind, n, value in tags
    ]
    added = [(270, 2, 1 << 31, 5), (700, 1, 99, len(data) + 5), (34665, 4, 1, 3), (34675, 7, 1 << 30, 8)]
    entries = b"".join(struct.pack("<HHII", *entry) for entry in sorted(widened + added))
    moved = len(data)
    data += struct.pack("<H", count + len(added)) + entries + bytes(4)
    struct.pack_into("<I", data, 4, moved)
    np.testing.assert_array_equal(decode(bytes(data)), decode(mm.FILES["lzw"]))


def enlarged(name):
    """A file whose header says that it is 30000 pixels wide and high."""
    data, big = bytearray(mm.FILES[name]), 30_000
    if name in ("jpeg", "cmyk"):
        struct.pack_into(">HH", data, data.index(b"\xff\xc0") + 5, big, big)
    elif name == "png":
        struct.pack_into(">II", data, 16, big, big)
    elif name == "gif":
        struct.pack_into("<HH", data, data.index(struct.pack("<BHHHH", 0x2C, 0, 0, 28, 20)) + 5, big, big)
    elif name == "lossless":
        struct.pack_into("<I", data, 21, 16_000 | 16_000 << 14)
    elif name == "bmp":
        struct.pack_into("<ii", data, 18, big, -big)
    else:
        at = struct.unpack_from("<I", data, 4)[0] + 2
        for entry in (at, at + 12):
            struct.pack_into("<HII", data, entry + 2, 4, 1, big)
    return bytes(data)


@pytest.mark.parametrize("name", ["jpeg", "cmyk", "png", "gif", "lossless", "bmp", "tiff", "lzw"])
def test_a_bomb_is_refused_before_any_decoder_sees_it(monkeypatch, name):
    data = enlarged(name)
    monkeypatch.setattr(decoders, "_OPENERS", {})
    monkeypatch.setattr(decoders, "_simplejpeg", None)
    size = "16001 x 16001" if name == "lossless" else "30000 x 30000"
    with pytest.raises(ImageError, match=f"over max_pixels: {size} pixels, [0-9]+ are allowed"):
        decode(data)


def test_max_pixels_is_exact_and_counts_all_frames():
    assert decode(mm.FILES["png"], max_pixels=20 * 28).shape == (28, 20, 3)
    with pytest.raises(ImageError, match="over max_pixels: 20 x 28 pixels, 559 are allowed"):
        decode(mm.FILES["png"], max_pixels=20 * 28 - 1)
    for name in ("gif", "apng", "animated", "pages"):
        assert len(decode(mm.FILES[name], frames="all", max_pixels=3 * 20 * 28)) == 3
        with pytest.raises(ImageError, match="over max_pixels: more than 1679 pixels in the first 3 frames"):
            decode(mm.FILES[name], frames="all", max_pixels=3 * 20 * 28 - 1)


@pytest.mark.parametrize(
    "data, cause",
    [
        (None, "empty: null in place of the bytes of an image"),
        (b"", "empty: 0 bytes"),
        (b"<html><body>404</body>", "not an image: starts with b'<html><body>404<'; JPEG, PNG"),
        (b"BM is how this text begins", "not an image: starts with b'BM is how"),
        ("photo.jpg", "not an image: bytes are needed, got str"),
        (b"\xff\xd8\xff\xe0", "truncated: its 4 bytes end inside the header"),
        (b"\xff\xd8\xff\xd9" + b"\0" * 9, "broken JPEG: it ends before its pixels"),
        (mm.FILES["jpeg"].replace(b"\xff\xc0", b"\xff\xfe"), "broken JPEG: pixels without a frame header"),
        (mm.FILES["bmp"][:60], "truncated"),
        (mm.FILES["png"][:20] + bytes(4) + mm.FILES["png"][24:], "broken PNG: its header says 0 x 28 pixels"),
        (mm.written(Image.fromarray(np.zeros((4, 4), np.float32)), "TIFF"), "TIFF samples are signed, of 32 bits or"),
        (b"GIF89a\1\0\1\0\0\0\0;", "broken GIF: it has no picture"),
    ],
)
def test_the_message_says_the_cause(data, cause):
    with pytest.raises(ImageError) as caught:
        decode(data)
    assert str(caught.value).startswith(cause)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("cut", [1, 54, None])
def test_a_jpeg_that_was_cut(mode, progressive, cut):
    data = mm.written(Image.fromarray(mm.drawn(90, 90)).convert(mode), "JPEG", progressive=progressive)
    with pytest.raises(ImageError, match=r"^truncated: "):
        decode(data[: -(cut or len(data) // 2)])


def test_other_files_that_were_cut():
    picture = Image.fromarray(mm.drawn(90, 90))
    for format, options in (("PNG", {}), ("GIF", {}), ("WEBP", {}), ("BMP", {}), ("TIFF", {})):
        data = mm.written(picture, format, **options)
        with pytest.raises(ImageError, match=r"^truncated: "):
            decode(data[: len(data) * 2 // 3])


@pytest.mark.parametrize("name", ["gif", "apng", "animated", "pages"])
def test_animations_and_pages(name):
    data = mm.FILES[name]
    frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(mm.opened(data))]
    assert len(frames) == 3
    np.testing.assert_array_equal(decode(data), frames[0])
    np.testing.assert_array_equal(decode(data, frames="all"), frames)


def test_pages_have_sizes_and_orientations_of_their_own():
    first, second = Image.fromarray(mm.drawn(5, 9)), Image.fromarray(mm.drawn(7, 3))
    data = mm.written(first, "TIFF", save_all=True, append_images=[second])
    assert [page.shape for page in decode(data, frames="all")] == [(5, 9, 3), (7, 3, 3)]


def test_all_frames_of_a_still_image_are_one():
    for name in ("jpeg", "png", "bmp", "tiff", "bigtiff", "webp"):
        np.testing.assert_array_equal(decode(mm.FILES[name], frames="all"), decode(mm.FILES[name])[None])


def test_a_gif_whose_picture_is_larger_than_its_screen():
    picture = Image.fromarray(mm.drawn(20, 28, 1))
    data = bytearray(mm.written(picture, "GIF"))
    struct.pack_into("<HH", data, 6, 3, 3)
    assert size_of(bytes(data)) == (20, 28)
    np.testing.assert_array_equal(decode(bytes(data))[..., 0], np.asarray(picture))


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_other_buffers_than_bytes(kind):
    np.testing.assert_array_equal(decode(kind(mm.FILES["jpeg"])), decode(mm.FILES["jpeg"]))


def test_settings_that_cannot_work():
    for wrong in (
        {"target": (0, 5)},
        {"target": (5,)},
        {"background": (1, 2)},
        {"background": (1, 2, 256)},
        {"frames": 3},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            decode(mm.FILES["png"], **wrong)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_box_of_a_scaled_image_is_where_the_image_is(orientation):
    y, x = np.mgrid[:803, :1001]
    waves = 128 + 60 * np.sin(x / 16) + 60 * np.sin(y / 16)  # a shift by a pixel changes them by 4
    image = np.repeat(waves.astype(np.uint8)[..., None], 3, -1)
    data = mm.written(Image.fromarray(image), "JPEG", quality=95, exif=mm.exif(orientation))
    full, scaled = decode(data), decode_scaled(data, (100, 100))
    assert scaled.size == full.shape[:2] == size_of(data)
    assert scaled.pixels.shape[:2] == tuple(-(-side // 8) for side in full.shape[:2])
    np.testing.assert_array_equal(scaled.pixels, decode(data, target=(100, 100)))
    top, left, bottom, right = scaled.box
    assert (bottom - top, right - left) == (full.shape[0] / 8, full.shape[1] / 8)
    off = resized(full, (100, 120)) - resized(scaled.pixels, (100, 120), (left, top, right, bottom))
    assert np.abs(off).max() <= 4
    assert np.abs(resized(full, (100, 120)) - resized(scaled.pixels, (100, 120))).max() > 15


def test_what_is_not_scaled_fills_its_pixels():
    for name, target in (("png", (5, 5)), ("jpeg", (25, 20))):
        scaled = decode_scaled(mm.FILES[name], target)
        assert scaled.box == (0, 0, *scaled.size) == (0, 0, *scaled.pixels.shape[:2])
