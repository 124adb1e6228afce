"""Tags of TIFF structures, written by hand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multimodal.tiff_tags import ORIENTATION, Tiff, exif_orientation, read_page

KINDS = {1: "B", 3: "H", 4: "I", 16: "Q"}


def structure(order, big, entries):
    """A TIFF structure with one directory of (tag, type, values)."""
    offset, counter, head, inline = ("Q", "Q", 16, 8) if big else ("I", "H", 8, 4)
    size = struct.calcsize(order + counter) + len(entries) * (20 if big else 12) + inline
    directory, rest = struct.pack(order + counter, len(entries)), b""
    for tag, kind, values in entries:
        body = struct.pack(f"{order}{len(values)}{KINDS[kind]}", *values)
        if len(body) > inline:
            body, rest = struct.pack(order + offset, head + size + len(rest)), rest + body
        directory += struct.pack(f"{order}HH{offset}", tag, kind, len(values)) + body.ljust(inline, b"\0")
    magic = (b"II" if order == "<" else b"MM") + struct.pack(order + "H", 43 if big else 42)
    start = magic + (struct.pack(order + "HH", 8, 0) if big else b"") + struct.pack(order + offset, head)
    return start + directory + bytes(inline) + rest


orders, sizes = st.sampled_from("<>"), st.booleans()


@given(orders, sizes, st.sampled_from([1, 3, 4]), st.integers(0, 20))
def test_the_orientation_is_found(order, big, kind, value):
    data = structure(order, big, [(271, 3, [7] * 40), (ORIENTATION, kind, [value])])
    assert exif_orientation(data) == (value if 1 <= value <= 8 else 1)


@given(st.binary(max_size=60), st.sampled_from([b"", b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"]))
def test_garbage_has_no_orientation_but_no_error_either(data, magic):
    assert 1 <= exif_orientation(magic + data) <= 8


def test_an_orientation_before_the_data_breaks_off_counts():
    data = structure("<", False, [(ORIENTATION, 3, [6]), (400, 3, [1])])
    assert exif_orientation(data[: 8 + 2 + 12]) == 6


@given(orders, sizes, st.integers(1, 9), st.integers(1, 9), st.sampled_from([3, 4]), st.integers(1, 3))
def test_a_page_keeps_what_makes_pixels(order, big, width, height, kind, count):
    entries = [(256, kind, [width] * count), (257, kind, [height]), (258, 3, [8, 8, 8]), (270, 1, [65] * 30)]
    entries += [(273, 4, [8, 8, 8]), (ORIENTATION, 3, [6]), (34665, 4, [8])]
    data = structure(order, big, entries)
    page = read_page(Tiff(data), Tiff(data).first)
    assert page.facts == {256: width, 257: height, 258: 8, ORIENTATION: 6} and page.next == 0
    alone = Tiff(b"".join(page.parts))
    assert len(alone.data) == len(data)
    kept = {entry.tag: (alone.number(entry), entry.nbytes) for entry in alone.entries(alone.first)}
    assert kept == {
        256: (width, 4 if kind == 4 else 2),
        257: (height, 4 if kind == 4 else 2),
        258: (8, 6),
        273: (8, 12),
    }


def test_values_outside_of_the_file_are_not_listed():
    data = structure("<", False, [(256, 4, [5]), (273, 4, [1, 2, 3])])
    assert [entry.tag for entry in Tiff(data[:-1]).entries(8)] == [256]


def test_a_directory_that_breaks_off():
    with pytest.raises(struct.error):
        read_page(Tiff(structure("<", False, [(256, 4, [5])])[:15]), 8)
