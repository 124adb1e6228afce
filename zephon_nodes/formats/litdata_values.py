"""Rows of LitData: from the bytes of leaves to values, and from values to trees. Numbers are little-endian unless said.

``tensor`` and ``numpy``: u32 code of the dtype, u32 dimensions, u32 each, data; newer tensors have these big-endian.
``no_header_*:code``: data alone, one dimension. ``json``: a byte that says what follows: 0 a u32 length and JSON; 1 a list
of texts (u32 count, then a u32 length and UTF-8 for each); 2, 3, 4 a u32 count and int64, float64, one byte each for booleans.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.formats.mds_values import raw_picture
from zephon_nodes.formats.pickles import unpickled
from zephon_nodes.formats.spans import BAD_VALUE, Parts, chosen

Value: TypeAlias = Callable[[memoryview], Any]
Build: TypeAlias = Callable[[Iterator[Any]], Any]

DICTS = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")
VALUE = "value"  # the column of rows that aren't dicts

_NUMPY = dict(
    enumerate(["<i1", "<i2", "<i4", "<i8", "<u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16", "?"])
)
_TORCH = {
    **{1: "<f4", 2: "<f4", 3: "<f8", 4: "<f8", 5: "<c8", 6: "<c8", 7: "<c16", 8: "<c16", 9: "<f2", 10: "<f2"},
    **{11: "<u1", 12: "<i1", 14: "<i2", 15: "<i2", 16: "<i4", 17: "<i4", 18: "<i8", 19: "?", 20: "<u2"},
}
_FILES = ("bytes", "jpeg", "image", "video", "audio", "pdf", "file", "tifffile", "nifti", "mesh", "graph")
_SMALL = 1 << 16


def value_reader(kind: str, allow_pickle: bool) -> Value:
    """The reader of a leaf of ``kind``, as ``data_format`` names it. Raises ValueError for one that isn't known."""
    name = kind.partition(":")[0]
    if name in _FILES:
        return bytes
    if name in ("no_header_numpy", "no_header_tensor"):
        dtype = dtype_of(kind)
        return lambda piece: np.frombuffer(piece, dtype).copy()
    if name == "pickle":
        return lambda piece: unpickled(piece, allow_pickle)
    if name in _READERS:
        return _READERS[name]
    raise ValueError(f"serialiser {kind!r} isn't known")


def dtype_of(kind: str) -> np.dtype[Any]:
    """The dtype of a ``no_header_*`` leaf. Raises ValueError if it has none that is known."""
    name, _, code = kind.partition(":")
    if name not in ("no_header_numpy", "no_header_tensor"):
        raise ValueError(f"{kind!r} isn't a serialiser of arrays without a head")
    return _dtype(_TORCH if name == "no_header_tensor" else _NUMPY, int(code))


def _dtype(codes: dict[int, str], code: int) -> np.dtype[Any]:
    if code not in codes:
        raise ValueError(f"dtype code {code} isn't known")
    return np.dtype(codes[code])


def _array(piece: memoryview, codes: dict[int, str]) -> npt.NDArray[Any]:
    order = "<" if max(struct.unpack_from("<2I", piece)) < _SMALL else ">"
    code, count = struct.unpack_from(f"{order}2I", piece)
    shape = struct.unpack_from(f"{order}{count}I", piece, 8)
    array: npt.NDArray[Any] = np.frombuffer(piece[8 + 4 * count :], _dtype(codes, code)).copy()
    return array.reshape(shape)


def _json(piece: memoryview) -> Any:
    tag, count = struct.unpack_from("<BI", piece)
    rest = piece[5:]
    if tag == 1:
        return _texts(rest, count)
    if tag in (2, 3, 4):
        array: npt.NDArray[Any] = np.frombuffer(rest, ("<i8", "<f8", "?")[tag - 2]).copy()
        if len(array) != count:
            raise ValueError(f"a list of {count} was announced and {len(array)} came")
        return array
    if tag or count != len(rest):
        raise ValueError(f"json of kind {tag}, {count} bytes, in {len(rest)} bytes can't be read")
    return json.loads(str(rest, "utf-8"))


def _texts(piece: memoryview, count: int) -> list[str]:
    texts, place = [], 0
    for _ in range(count):
        start = place + 4
        place = start + int(struct.unpack_from("<I", piece, place)[0])
        texts.append(str(piece[start:place], "utf-8"))
    if place != len(piece):
        raise ValueError(f"its texts add up to {place} bytes, it has {len(piece)}")
    return texts


def _split(piece: memoryview, count: int) -> list[memoryview]:
    """``count`` u32 lengths, then the parts."""
    parts, place = [], 4 * count
    for size in struct.unpack_from(f"<{count}I", piece):
        parts.append(piece[place : place + size])
        place += size
    if place != len(piece):
        raise ValueError(f"its parts add up to {place} bytes, it has {len(piece)}")
    return parts


def _jpegs(piece: memoryview) -> list[bytes]:
    return [bytes(part) for part in _split(piece[4:], struct.unpack_from("<I", piece)[0])]


def _number(kind: str) -> Value:
    number = struct.Struct(kind)
    return lambda piece: number.unpack(piece)[0]


_READERS: dict[str, Value] = {
    "str": lambda piece: str(piece, "utf-8"),
    "text": lambda piece: str(piece, "utf-8"),
    "int": _number("<q"),
    "float": _number("<d"),
    "bool": _number("<?"),
    "json": _json,
    "numpy": lambda piece: _array(piece, _NUMPY),
    "tensor": lambda piece: _array(piece, _TORCH),
    "pil": raw_picture,
    "jpeg_array": _jpegs,
}


def builder(spec: dict[str, Any]) -> Build:
    """From the leaves' values, in order, to the tree. Raises ValueError for a container that isn't known."""
    kind, children = spec["type"], [builder(child) for child in spec["children_spec"]]
    if kind is None:
        return next
    if kind in DICTS:
        names = json.loads(spec["context"])
        return lambda values: {name: child(values) for name, child in zip(names, children, strict=True)}
    if kind == "builtins.list":
        return lambda values: [child(values) for child in children]
    if kind == "builtins.tuple":
        return lambda values: tuple([child(values) for child in children])
    raise ValueError(f"rows hold a {kind}")


def leaves(spec: dict[str, Any]) -> int:
    """How many values a tree has."""
    return 1 if spec["type"] is None else sum(map(leaves, spec["children_spec"]))


def row_parts(
    readers: Sequence[Value], used: Sequence[bool], build: Build, is_dict: bool, wanted: tuple[str, ...] | None
) -> Parts:
    """The reader of rows. ``used``: whether each leaf is wanted. A row whose sizes or values lie raises ValueError."""
    sizes = struct.Struct(f"<{len(readers)}I")

    def places(head: memoryview, nbytes: int) -> list[tuple[int, int]]:
        told = sizes.unpack_from(head)
        if sizes.size + sum(told) != nbytes:
            text = f"its leaves add up to {sizes.size + sum(told)} bytes, the row has {nbytes}: the chunk is broken"
            raise ValueError(text)
        stops = [*itertools.accumulate(told, initial=sizes.size)]
        return [span for span, use in zip(itertools.pairwise(stops), used, strict=True) if use]

    def made(pieces: list[memoryview]) -> Any:
        left, values = iter(pieces), []
        for number, reader in enumerate(readers):
            try:
                values.append(reader(next(left)) if used[number] else None)
            except BAD_VALUE as error:
                raise ValueError(f"leaf {number} can't be decoded: {error}") from error
        tree = build(iter(values))
        return chosen(tree if is_dict else {VALUE: tree}, wanted)

    return Parts(sizes.size, places, made)
