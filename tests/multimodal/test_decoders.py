"""The optional decoder, damaged files, threads and descriptors."""

import subprocess
import sys
import threading
import warnings

import mm_pictures as mm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from multimodal import decoders
from multimodal.containers import read_headers
from multimodal.image import ImageError, decode, size_of


@pytest.fixture(autouse=True)
def no_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def jpegs():
    simplejpeg = pytest.importorskip("simplejpeg")
    for height, width in ((1, 1), (17, 31), (64, 48), (129, 200)):
        picture = mm.drawn(height, width)
        for sampling in ("444", "422", "420", "440", "411"):
            yield simplejpeg.encode_jpeg(picture, quality=88, colorsubsampling=sampling)
        for options in ({"progressive": True}, {"restart_marker_blocks": 2}, {"keep_rgb": True}, {"quality": 20}):
            yield mm.written(Image.fromarray(picture), "JPEG", **options)
        yield mm.written(Image.fromarray(picture).convert("L"), "JPEG")


@pytest.mark.parametrize("target", [None, (100, 60), (30, 30), (8, 25), (1, 1)])
def test_simplejpeg_gives_what_pillow_gives(monkeypatch, target):
    files = list(jpegs())
    fast = [decode(data, target=target) for data in files]
    monkeypatch.setattr(decoders, "_simplejpeg", None)
    for data, one in zip(files, fast, strict=True):
        np.testing.assert_array_equal(one, decode(data, target=target))
        if target is None:
            np.testing.assert_array_equal(one, np.asarray(mm.opened(data).convert("RGB")))


def test_simplejpeg_is_used():
    simplejpeg = pytest.importorskip("simplejpeg")
    assert decoders._simplejpeg is simplejpeg
    data = mm.written(Image.fromarray(mm.drawn(64, 48)), "JPEG")
    assert decoders._decode_common_jpeg(data, read_headers(data)[0], 1) is not None


@st.composite
def damaged(draw):
    data = bytearray(mm.FILES[draw(st.sampled_from(sorted(mm.FILES)))])
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data) - 1) | st.integers(0, min(len(data), 200) - 1))
        data[at] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)) | st.just(len(data)))])


@given(st.lists(damaged(), min_size=40, max_size=40), st.sampled_from(["first", "all"]))
def test_damage_gives_an_array_or_an_image_error(several, frames):
    for data in several:
        try:
            out = decode(data, frames=frames, max_pixels=1_000_000)
        except ImageError as error:
            assert str(error)
        else:
            for one in out if frames == "all" else [out]:
                assert one.dtype == np.uint8 and one.ndim == 3 and one.shape[2] == 3


@given(st.lists(damaged(), min_size=40, max_size=40))
def test_the_size_is_known_of_all_that_can_be_decoded(several):
    for data in several:
        try:
            shape = decode(data, max_pixels=1_000_000).shape
        except ImageError:
            continue
        assert size_of(data) == shape[:2]


def test_sixteen_threads():
    data = mm.written(Image.fromarray(mm.drawn(64, 80)), "JPEG"), mm.FILES["gif"], mm.FILES["png"], mm.FILES["lzw"]
    expected = [decode(one) for one in data]
    wrong = []

    def work():
        for i in range(500 // 4):
            for one, right in zip(data, expected, strict=True):
                if not np.array_equal(decode(one), right):
                    wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_setting_of_pillow_is_touched():
    before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    for data in mm.FILES.values():
        decode(data, frames="all")
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before


MANY = """
import os, resource, sys
sys.path[:0] = {path!r}
import mm_pictures as mm
from multimodal.image import decode
for data in mm.FILES.values():
    decode(data)
before = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
kept = [decode(data, frames="all") for _ in range(3000 // len(mm.FILES) + 1) for data in mm.FILES.values()]
print(len(kept) >= 3000, len(os.listdir("/proc/self/fd")) - before)
"""


def test_no_descriptor_is_kept():
    done = subprocess.run(
        [sys.executable, "-c", MANY.format(path=sys.path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["True", "0"]
