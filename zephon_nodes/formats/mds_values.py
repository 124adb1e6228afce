"""The column encodings of MDS: from a column's bytes to its value.

An ndarray without a fixed dtype begins with a byte that is its item size times 8 plus 0, 1, 2 for unsigned, signed,
float. One without a fixed shape then has a byte that is 4 times the number of dimensions plus the log2 of the bytes of each,
and the dimensions. All numbers are little-endian.
"""

from __future__ import annotations

import decimal
import json
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from zephon_nodes.formats.pickles import unpickled

Value: TypeAlias = Callable[[memoryview], Any]

_SCALARS = {
    **{"int": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I", "uint64": "<Q", "int8": "<b", "int16": "<h"},
    **{"int32": "<i", "int64": "<q", "float16": "<e", "float32": "<f", "float64": "<d"},
}
_BYTES = ("bytes", "jpeg", "png")


def value_reader(encoding: str, allow_pickle: bool = False) -> Value:
    """The function from a column's bytes to its value. Raises ValueError for an encoding that isn't known."""
    kind, _, rest = encoding.partition(":")
    if encoding in _BYTES:
        return bytes
    if encoding in _SCALARS:
        number = struct.Struct(_SCALARS[encoding])
        return lambda piece: number.unpack(piece)[0]
    if encoding == "pkl":
        return lambda piece: unpickled(piece, allow_pickle)
    if encoding in _OTHERS:
        return _OTHERS[encoding]
    if kind == "ndarray":
        return _array_reader(rest)
    if encoding.startswith("list[") and encoding.endswith("]"):
        item = value_reader(encoding[5:-1], allow_pickle)
        return lambda piece: [item(part) for part in _list(piece)]
    raise ValueError(f"encoding {encoding!r} isn't known")


def _array_reader(rest: str) -> Value:
    """``rest``: what follows "ndarray:": nothing, a dtype, or a dtype and a shape. What it lacks, each value begins with."""
    dtype, _, shape = rest.partition(":")
    fixed_type = np.dtype(dtype).newbyteorder("<") if dtype else None
    fixed_shape = tuple(int(size) for size in shape.split(",")) if shape else None

    def read(piece: memoryview) -> npt.NDArray[Any]:
        kind = fixed_type
        if kind is None:
            kind, piece = np.dtype(f"<{'uif'[piece[0] & 7]}{piece[0] >> 3}"), piece[1:]
        dims = fixed_shape
        if dims is None:
            count, width = piece[0] >> 2, 1 << (piece[0] & 3)
            dims = tuple(np.frombuffer(piece[1:], f"<u{width}", count).tolist())
            piece = piece[1 + count * width :]
        array: npt.NDArray[Any] = np.frombuffer(piece, kind).copy()
        return array.reshape(dims)

    return read


def _list(piece: memoryview) -> Iterator[memoryview]:
    """A u32 that is 0, then parts."""
    if bytes(piece[:4]) != bytes(4):
        raise ValueError(f"a list should begin with 0, it begins with {bytes(piece[:4])!r}")
    return _parts(piece[4:])


def _parts(piece: memoryview) -> Iterator[memoryview]:
    """A u32 count, that many u32 sizes, then the parts."""
    (count,) = struct.unpack_from("<I", piece)
    place = 4 + 4 * count
    for size in struct.unpack_from(f"<{count}I", piece, 4):
        yield piece[place : place + size]
        place += size
    if place != len(piece):
        raise ValueError(f"its parts add up to {place} bytes, it has {len(piece)}")


def raw_picture(piece: memoryview) -> Image.Image:
    """u32 width, height and length of the mode's name; the name; the pixels. LitData has the same."""
    width, height, letters = struct.unpack_from("<3I", piece)
    pixels = bytes(piece[12 + letters :])
    if width * height > 8 * len(pixels):  # a pixel has at least a bit; pillow would allocate before it looks
        raise ValueError(f"{width} x {height} pixels can't be in {len(pixels)} bytes")
    return Image.frombytes(str(piece[12 : 12 + letters], "utf-8"), (width, height), pixels)


def _text(piece: memoryview) -> str:
    return str(piece, "utf-8")


_OTHERS: dict[str, Value] = {
    "str": _text,
    "str_int": lambda piece: int(_text(piece)),
    "str_float": lambda piece: float(_text(piece)),
    "str_decimal": lambda piece: decimal.Decimal(_text(piece)),
    "json": lambda piece: json.loads(_text(piece)),
    "pil": raw_picture,
    **dict.fromkeys(("jpeg_array", "jpegarray"), lambda piece: list(map(bytes, _parts(piece)))),
}
