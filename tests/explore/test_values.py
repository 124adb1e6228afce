"""One value of a payload as a line and as HTML."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from zephon_nodes.explore.values import html_of, image_kind, is_picture, line_of, thumbnail

LINES = [
    ("text", "text"),
    (b"12345", "bytes, 5 bytes"),
    (b"\xff\xd8\xff\xe0rest", "JPEG, 8 bytes"),
    (np.arange(3, dtype=np.int32), "int32 (3,) [0 1 2]"),
    (np.arange(9.0), "float64 (9,) [0 1 2 3 4 5 …]"),
    (np.zeros((2, 3), np.float32), "float32 (2, 3)"),
    (np.array(["a"]), "<U1 (1,)"),
    (torch.arange(2), "int64 (2,) [0 1]"),
    (torch.zeros(2, dtype=torch.bfloat16), "bfloat16 (2,)"),
    ({"a": 1, "b": [1, 2]}, "{a: 1, b: [1, 2]}"),
    (list(range(9)), "[0, 1, 2, 3, 4, 5, … 9 in all]"),
    ([], "[]"),
    (None, "None"),
    (3.5, "3.5"),
    (Image.new("RGB", (4, 3)), "image 4 x 3 RGB"),
]


@pytest.mark.parametrize("value, line", LINES, ids=[line for _, line in LINES])
def test_lines(value, line):
    assert line_of(value) == line


def test_long_things_are_cut():
    assert line_of("x" * 500) == "x" * 80 + "… +420"
    assert len(line_of({str(i): "y" * 99 for i in range(50)})) < 100
    assert 'title="xxx' in html_of("x" * 500)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"])
def test_kinds_of_files_are_told_by_their_first_bytes(kind):
    stream = io.BytesIO()
    Image.new("RGB", (200, 100), (9, 8, 7)).save(stream, kind)
    assert image_kind(stream.getvalue()) == kind
    uri, wide, high = thumbnail(stream.getvalue())
    assert (wide, high) == (96, 48) and uri.startswith("data:image/png;base64,")


def test_what_is_no_picture():
    for value in (b"", b"text", np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint8), np.zeros((0, 2, 3), np.uint8), "x", 3):
        assert not is_picture(value)
    assert thumbnail(b"\x89PNG and nothing more") is None


def test_several_pictures_stand_side_by_side():
    html = html_of([np.zeros((8, 8, 3), np.uint8)] * 6)
    assert html.count("<img") == 4 and html.endswith("+2")
