"""What lies around the pixels of an image file: its size, its orientation, and the file without its metadata.

Headers are read here, from a few bytes, for two reasons. A bomb is known by its size before any decoder has seen it. And
Pillow gets a file that holds what makes pixels and nothing else: metadata that it would trip over, or warn about, is cut
out first (Exif, XMP, colour profiles, comments, text). Python has no way to silence warnings in one thread only.

Facts are those of the formats' own documents: ITU-T T.81 and T.871, PNG third edition, GIF89a, RIFF/WebP, TIFF 6.0 with
BigTIFF, Exif 2.3, BMP.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from multimodal.tiff_tags import BITS, HEIGHT, MAGIC, ORIENTATION, WIDTH, Tiff, exif_orientation, read_page

Frames: TypeAlias = Literal["first", "all"]

_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_PNG_PIXELS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
_PNG_FRAMES = frozenset((b"acTL", b"fcTL", b"fdAT"))


class ImageError(ValueError):
    """An image that can't be decoded. The message says the cause, such as "empty", "truncated" or "over max_pixels"."""


class Header(NamedTuple):
    """What is known of an image before it is decoded.

    ``format``: "JPEG", "PNG", "WEBP", "GIF", "TIFF" or "BMP". ``height``, ``width``: in pixels, as stored.
    ``orientation``: 1 to 8, as in Exif. ``parts``: the file without its metadata, in pieces. ``bits``: of a sample of
    greyscale PNG and TIFF. ``layers``: of a JPEG. ``frames``: of a GIF, if all were asked for.
    """

    format: str
    height: int
    width: int
    parts: tuple[bytes | memoryview, ...]
    orientation: int = 1
    bits: int = 8
    layers: int = 0
    frames: int = 1


def read_headers(data: bytes, frames: Frames = "first") -> list[Header]:
    """The header of an image file; with frames="all" one for each page of a TIFF. Raises ``ImageError``."""
    read = _reader(data)
    try:
        return read(data, frames)
    except (struct.error, IndexError, OverflowError):
        raise ImageError(f"truncated: its {len(data)} bytes end inside the header") from None


def _reader(data: bytes) -> Callable[[bytes, Frames], list[Header]]:
    if not data:
        raise ImageError("empty: 0 bytes")
    if data.startswith(b"\xff\xd8\xff"):
        return _jpeg
    if data.startswith(_PNG_MAGIC):
        return _png
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp
    if data.startswith(MAGIC):
        return _tiff
    if data.startswith(b"BM") and data[15:18] == b"\0\0\0":
        return _bmp
    raise ImageError(f"not an image: starts with {data[:16]!r}; JPEG, PNG, WebP, GIF, TIFF and BMP are read")


def _jpeg(data: bytes, frames: Frames) -> list[Header]:
    view = memoryview(data)
    parts = [view[:2]]
    orientation, frame = 1, None
    for marker, start, stop in _jpeg_segments(data):
        body = view[start + 4 : stop]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            frame = struct.unpack_from(">BHHB", body)
        elif marker == 0xE1 and bytes(body[:6]) == b"Exif\0\0" and orientation == 1:
            orientation = exif_orientation(bytes(body[6:]))
        if _makes_pixels(marker, body):
            parts.append(view[start:stop])
    if frame is None:
        raise ImageError("broken JPEG: pixels without a frame header")
    _, height, width, layers = frame
    return [Header("JPEG", height, width, tuple(parts), orientation, layers=layers)]


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """(marker, start, stop) of each segment; the last one is the scan, with all that follows."""
    at = 2
    while True:
        at = data.find(b"\xff", at)
        if at < 0:
            raise IndexError("no scan")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker <= 0x01 or 0xD0 <= marker <= 0xD8:
            at += 2
        elif marker in (0xD9, 0xDA):
            if marker == 0xD9:
                raise ImageError("broken JPEG: it ends before its pixels")
            yield marker, at, len(data)
            return
        else:
            stop = at + 2 + max(2, struct.unpack_from(">H", data, at + 2)[0])
            if stop > len(data):
                raise IndexError("no scan")
            yield marker, at, stop
            at = stop


def _makes_pixels(marker: int, body: memoryview) -> bool:
    """Of the application segments only JFIF and Adobe say anything about colours, and only when whole."""
    if marker == 0xE0:
        return len(body) >= 14
    if marker == 0xEE:
        return len(body) >= 12
    return not (0xE0 <= marker <= 0xEF or marker == 0xFE)


def _png(data: bytes, frames: Frames) -> list[Header]:
    width, height, bits = struct.unpack_from(">IIB", data, 16)
    if data[12:16] != b"IHDR":
        raise ImageError(f"broken PNG: begins with the chunk {data[12:16]!r}")
    view, orientation, at = memoryview(data), 1, 8
    chunks = list[tuple[bytes, memoryview]]()
    while at + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks.append((kind, view[at : at + 12 + length]))
        if kind == b"eXIf":
            orientation = exif_orientation(data[at + 8 : at + 8 + length])
        if kind == b"IEND":
            break
        at += 12 + length
    wanted = _PNG_PIXELS | _PNG_FRAMES if frames == "all" and _is_animated(chunks) else _PNG_PIXELS
    parts = (view[:8], *(chunk for kind, chunk in chunks if kind in wanted))
    return [Header("PNG", height, width, parts, orientation, bits=bits)]


def _is_animated(chunks: list[tuple[bytes, memoryview]]) -> bool:
    """Whether a PNG says once, and rightly, how many frames it has."""
    counts = [int.from_bytes(chunk[8:12], "big") for kind, chunk in chunks if kind == b"acTL"]
    return len(counts) == 1 and 1 <= counts[0] <= 1 << 31


def _gif(data: bytes, frames: Frames) -> list[Header]:
    """The canvas is grown to hold the frames, as all viewers do; the file then says so itself."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at, count = 13 + _palette_bytes(flags), 0
    while (kind := data[at]) != 0x3B:
        if kind == 0x2C:
            left, top, wide, high, flags = struct.unpack_from("<4HB", data, at + 1)
            width, height, count = max(width, left + wide), max(height, top + high), count + 1
            if frames == "first":
                break
            at = _after_blocks(data, at + 11 + _palette_bytes(flags))
            if at >= len(data):  # many files lack the trailer
                break
        else:
            at = _after_blocks(data, at + 2) if kind == 0x21 else at + 1
    if not count:
        raise ImageError("broken GIF: it has no picture")
    view = memoryview(data)
    parts = (view[:6], struct.pack("<HH", *(min(side, 0xFFFF) for side in (width, height))), view[10:])
    return [Header("GIF", height, width, parts, frames=count)]


def _palette_bytes(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, at: int) -> int:
    while data[at]:
        at += 1 + data[at]
    return at + 1


def _webp(data: bytes, frames: Frames) -> list[Header]:
    size, kind = struct.unpack_from("<I4x4s", data, 4)
    if size + 8 > len(data):
        raise ImageError(f"truncated: {len(data)} of {size + 8} bytes")
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        packed = struct.unpack_from("<I", data, 21)[0]
        width, height = 1 + (packed & 0x3FFF), 1 + (packed >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise ImageError(f"broken WEBP: begins with the chunk {kind!r}")
    orientation, at = 1, 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            orientation = exif_orientation(data[at + 8 : at + 8 + length].removeprefix(b"Exif\0\0"))
        at += 8 + length + (length & 1)
    return [Header("WEBP", height, width, (data,), orientation)]


def _bmp(data: bytes, frames: Frames) -> list[Header]:
    old = data[14] == 12
    width, height = struct.unpack_from("<HH" if old else "<ii", data, 18)
    return [Header("BMP", abs(height), width, (data,))]


def _tiff(data: bytes, frames: Frames) -> list[Header]:
    tiff, seen, headers = Tiff(data), set[int](), list[Header]()
    at = tiff.first
    while at and at not in seen and (frames == "all" or not seen):
        if at < 2 * tiff.inline:
            raise ImageError("broken TIFF: a directory lies in the file's head")
        seen.add(at)
        facts, parts, at = read_page(tiff, at)
        turned = facts[ORIENTATION] if 1 <= facts[ORIENTATION] <= 8 else 1
        headers.append(Header("TIFF", facts[HEIGHT], facts[WIDTH], parts, turned, facts[BITS]))
    if not headers:
        raise ImageError("broken TIFF: it has no picture")
    return headers
