"""The rows that the golden files hold. Shared by the scripts that wrote the files and the tests that read them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

MDS_COLUMNS = {
    "a_bytes": "bytes",
    "b_str": "str",
    "c_int": "int",
    "d_any": "ndarray",
    "e_typed": "ndarray:int16",
    "f_fixed": "ndarray:float32:2,3",
    **{f"g_{kind}": kind for kind in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    **{f"h_{kind}": kind for kind in ("float16", "float32", "float64")},
    "i_str_int": "str_int",
    "j_str_float": "str_float",
    "k_str_decimal": "str_decimal",
    "l_pil": "pil",
    "m_png": "png",
    "n_jpeg": "jpeg",
    "o_jpeg_array": "jpeg_array",
    "p_list_png": "list[png]",
    "q_json": "json",
    "r_pkl": "pkl",
    "s_list_jpeg": "list[jpeg]",
    "t_list_pil": "list[pil]",
    "u_jpegarray": "jpegarray",
}


def picture(i: int, mode: str = "RGB") -> Image.Image:
    """A small picture of its own for each row, of a shape that differs from row to row."""
    height, width = 2 + i % 3, 3 + i % 2
    pixels = (np.arange(height * width * 3) * (i + 3) % 256).astype(np.uint8).reshape(height, width, 3)
    return Image.fromarray(pixels).convert(mode)


def encoded(i: int, kind: str) -> bytes:
    """``picture(i)`` as a file."""
    out = io.BytesIO()
    picture(i).save(out, kind)
    return out.getvalue()


def text(i: int) -> str:
    return ["", "plain", "ünïcödé \u2028 日本", "x" * 300, "\x00\n"][i % 5]


def small(i: int) -> dict[str, object]:
    """A row that needs no picture: bytes, text, a number."""
    return {"id": i - 2, "image": bytes(range(i % 7)) * 9, "caption": text(i)}


def megatron_documents() -> list[list[list[int]]]:
    """Documents, each a list of sequences of token ids; the second has no tokens, the last two sequences."""
    return [[[1, 2, 3]], [[]], [[255] * 40], [[7], [8, 9]]]


LITDATA_DTYPES = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
)


def litdata_tree(i: int, tensor=np.array) -> dict[str, object]:
    """A row of every kind of leaf and container. ``tensor``: ``torch.tensor``, or nothing to have arrays in its place."""
    pixels = picture(i)
    jpeg = Image.open(io.BytesIO(encoded(i, "jpeg")))
    return {
        "int": i - 2,
        "float": i / 3,
        "bool": i % 2 == 0,
        "str": text(i),
        "bytes": bytes([i]) * i,
        "none": None,
        "pickled": {1, i},
        "json": [text(i), None, {"deep": [i]}],
        "texts": [text(j) for j in range(i)],
        "ints": [i, -1],
        "floats": [i / 2],
        "bools": [True, i == 1],
        "tree": {"list": [(i, "a"), {"x": b"y"}]},
        "pil": pixels,
        "jpeg": jpeg,
        "jpegs": [jpeg] * (i + 1),
        "two": tensor(np.arange(2 * i, dtype=np.float32).reshape(2, i)),
        "no_dims": tensor(np.array(i, np.int64)),
        "array_two": np.arange(2 * i, dtype=np.uint16).reshape(2, i),
        **{f"t_{kind}": tensor(np.arange(i + 1).astype(kind)) for kind in LITDATA_DTYPES},
        **{f"n_{kind}": np.arange(i + 1).astype(kind) for kind in (*LITDATA_DTYPES, "uint32", "uint64", "complex128")},
    }
