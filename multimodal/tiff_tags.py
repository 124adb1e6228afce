"""The tags of a TIFF structure, in TIFF files and in Exif data; and a page of a TIFF with those that make pixels only.

Facts are those of TIFF 6.0, of BigTIFF and of Exif 2.3. Nothing here decodes pixels. Reading outside of the data raises
``struct.error``, or ``OverflowError`` far outside.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
WIDTH, HEIGHT, BITS, ORIENTATION = 256, 257, 258, 274

_ONE_VALUE = frozenset((WIDTH, HEIGHT, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 332, 512, 513, 514, 531))
_SEVERAL = frozenset((BITS, 273, 279, 320, 324, 325, 338, 339, 347, 519, 520, 521, 529, 530, 532))
_NUMBERS = {1: "B", 3: "H", 4: "I", 16: "Q"}
_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}


class Entry(NamedTuple):
    """One entry of a directory: where it begins, and where its value of ``nbytes`` bytes does."""

    at: int
    tag: int
    type: int
    nbytes: int
    value_at: int


class Tiff:
    """A TIFF structure: its byte order, and the sizes that differ in BigTIFF.

    Attributes: ``first`` (int), where the first directory is; ``inline`` (int), bytes of the longest value that stands in
    its entry.
    """

    def __init__(self, data: bytes) -> None:
        self.data, big = data, b"+" in data[2:4]
        self.order = "<" if data.startswith(b"I") else ">"
        self.offset, self.counter, self.entry = ("Q", "Q", "HHQQ") if big else ("I", "H", "HHII")
        self.inline = 8 if big else 4
        self.first = int(self.unpack(self.offset, self.inline))

    def unpack(self, kind: str, at: int) -> Any:
        """The first of the values at a place."""
        return struct.unpack_from(self.order + kind, self.data, at)[0]

    def size(self, kind: str) -> int:
        return struct.calcsize(self.order + kind)

    def entries(self, at: int) -> Iterator[Entry]:
        """The entries of the directory at a place, without those whose value lies outside of the data."""
        length, first = self.size(self.entry), at + self.size(self.counter)
        for start in range(first, first + length * self.unpack(self.counter, at), length):
            tag, kind, count, offset = struct.unpack_from(self.order + self.entry, self.data, start)
            size = count * _BYTES.get(kind, 0)
            value_at = start + length - self.inline if size <= self.inline else offset
            if size and value_at + size <= len(self.data):
                yield Entry(start, tag, kind, size, value_at)

    def number(self, entry: Entry) -> int:
        """The first number of an entry, 0 if it holds none."""
        return int(self.unpack(_NUMBERS[entry.type], entry.value_at)) if entry.type in _NUMBERS else 0

    def shortened(self, entry: Entry) -> bytes:
        """An entry of numbers with the first one only."""
        head = struct.pack(self.order + self.entry[:3], entry.tag, entry.type, 1)
        return head + struct.pack(self.order + _NUMBERS[entry.type], self.number(entry)).ljust(self.inline, b"\0")


class Page(NamedTuple):
    """A page of a TIFF. ``facts``: tag to number. ``parts``: a file with this page only. ``next``: where the next
    directory is, 0 if there is none."""

    facts: dict[int, int]
    parts: tuple[bytes | memoryview, ...]
    next: int


def exif_orientation(exif: bytes) -> int:
    """The orientation that Exif data tells, 1 to 8. Broken data tells 1."""
    if not exif.startswith(MAGIC):
        return 1
    try:
        tiff = Tiff(exif)
        told = next((tiff.number(entry) for entry in tiff.entries(tiff.first) if entry.tag == ORIENTATION), 1)
    except (struct.error, OverflowError):
        return 1
    return told if 1 <= told <= 8 else 1


def read_page(tiff: Tiff, at: int) -> Page:
    """The page whose directory is at a place.

    The orientation isn't among the tags that are kept, or Pillow would turn the page itself.
    """
    facts, kept, room = {WIDTH: 0, HEIGHT: 0, BITS: 1, ORIENTATION: 1}, list[bytes](), len(tiff.data)
    for entry in tiff.entries(at):
        if entry.tag in facts:
            facts[entry.tag] = tiff.number(entry)
        if entry.tag in _ONE_VALUE and entry.type in _NUMBERS and _BYTES[entry.type] <= tiff.inline:
            kept.append(tiff.shortened(entry))
        elif entry.tag in _SEVERAL and entry.nbytes <= room:
            room -= entry.nbytes
            kept.append(tiff.data[entry.at : entry.at + tiff.size(tiff.entry)])
    end = at + tiff.size(tiff.counter) + tiff.size(tiff.entry) * tiff.unpack(tiff.counter, at)
    following = tiff.unpack(tiff.offset, end)
    directory = struct.pack(tiff.order + tiff.counter, len(kept)) + b"".join(kept) + bytes(tiff.inline)
    pointer = struct.pack(tiff.order + tiff.offset, at)
    view = memoryview(tiff.data)
    body = 2 * tiff.inline  # the file's head: four or eight bytes, and the pointer
    parts = (view[: tiff.inline], pointer, view[body:at], directory, view[at + len(directory) :])
    return Page(facts, parts, following)
