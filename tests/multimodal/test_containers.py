"""Headers of image files, against Pillow's."""

import mm_pictures as mm
import numpy as np
import pytest
from PIL import Image

from multimodal.containers import ImageError, read_headers

FORMATS = {
    "gif": "GIF",
    "apng": "PNG",
    "bmp": "BMP",
    "webp": "WEBP",
    "animated": "WEBP",
    "bigtiff": "TIFF",
    "cmyk": "JPEG",
}


@pytest.mark.parametrize("name", sorted(mm.FILES))
def test_headers_say_what_pillow_says(name):
    data = mm.FILES[name]
    (header,) = read_headers(data)
    image = Image.open(mm.io.BytesIO(data))
    assert header.format == image.format == FORMATS.get(name, header.format)
    size = header.width, header.height
    assert size == image.size or (header.orientation == 6 and name == "tiff" and size == image.size[::-1])
    assert header.orientation == image.getexif().get(mm.ORIENTATION, 1)


@pytest.mark.parametrize("name", sorted(mm.FILES))
def test_a_file_without_its_metadata_has_the_same_pixels(name):
    data = mm.FILES[name]
    (header,) = read_headers(data)
    bare, whole = mm.opened(b"".join(header.parts)), mm.opened(data)
    assert mm.ORIENTATION not in bare.getexif() or header.format == "WEBP"
    whole = np.asarray(whole.convert("RGB"))
    if whole.shape[:2] != (header.height, header.width):  # Pillow turns a TIFF itself
        whole = np.rot90(whole)
    np.testing.assert_array_equal(np.asarray(bare.convert("RGB")), whole)


def test_metadata_is_cut_out():
    picture = Image.fromarray(mm.drawn(8, 8))
    for format, options in (
        ("JPEG", {"comment": b"secret"}),
        ("JPEG", {"icc_profile": b"secret" * 9}),
        ("PNG", {"icc_profile": b"secret" * 9}),
        ("JPEG", {"exif": b"Exif\0\0secret"}),
    ):
        data = mm.written(picture, format, **options)
        (header,) = read_headers(data)
        bare = b"".join(header.parts)
        assert len(bare) < len(data) and b"secret" not in bare
        np.testing.assert_array_equal(np.asarray(mm.opened(bare)), np.asarray(mm.opened(data)))


def test_frames_and_pages_are_counted():
    assert read_headers(mm.FILES["gif"])[0].frames == 1
    assert read_headers(mm.FILES["gif"], "all")[0].frames == 3
    assert len(read_headers(mm.FILES["pages"])) == 1
    assert len(read_headers(mm.FILES["pages"], "all")) == 3


def test_a_gif_without_its_trailer_is_whole_and_one_cut_in_a_block_is_not():
    data = mm.FILES["gif"]
    assert data.endswith(b"\0;")
    assert read_headers(data[:-1], "all")[0].frames == 3
    with pytest.raises(ImageError, match="truncated"):
        read_headers(data[:-3], "all")


def test_pages_that_point_at_each_other_end():
    data = bytearray(mm.FILES["pages"])
    first = int.from_bytes(data[4:8], "little")
    entries = int.from_bytes(data[first : first + 2], "little")
    at = first + 2 + 12 * entries
    data[at : at + 4] = data[4:8]
    assert len(read_headers(bytes(data), "all")) == 1


def test_junk_between_jpeg_segments_is_stepped_over():
    data = mm.FILES["grey"]
    junk = data[:2] + b"\xff\xff\xff" + mm.with_segment(b"\xff\xd8", 0xFE, b"x" * 9)[3:] + b"\0\0\xff\0" + data[2:]
    (header,) = read_headers(junk)
    assert b"".join(header.parts) == b"".join(read_headers(data)[0].parts)
