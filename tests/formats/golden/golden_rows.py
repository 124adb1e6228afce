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
