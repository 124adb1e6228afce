"""One value of a payload, for a person: as a line of text, or as HTML with pictures."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zephon_nodes.explore.grid import Markup, escape, shortened
from zephon_nodes.microbatch import Microbatch

TEXT, ITEMS, PICTURES = 80, 6, 4
THUMBNAIL = 96
_MAGIC = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP", b"II*\0": "TIFF", b"MM\0*": "TIFF"}


def line_of(value: Any, most: int = TEXT) -> str:
    """A short text: strings cut, arrays as dtype, shape and first values, bytes by kind and size."""
    if isinstance(value, str):
        return shortened(value, most)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{image_kind(value) or 'bytes'}, {len(value):,} bytes"
    array = _array(value)
    if array is not None:
        return _array_line(value, array)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{name}: {line_of(part, 20)}" for name, part in list(value.items())[:ITEMS])
        return shortened(f"{{{inner}{', …' * (len(value) > ITEMS)}}}", most)
    if isinstance(value, (list, tuple)) and value:
        inner = ", ".join(line_of(part, 20) for part in value[:ITEMS])
        return shortened(f"[{inner}{f', … {len(value)} in all' * (len(value) > ITEMS)}]", most)
    if isinstance(value, Microbatch):
        return repr(value)
    if is_picture(value):
        return f"image {value.size[0]} x {value.size[1]} {value.mode}"
    return shortened(repr(value), most)


def html_of(value: Any) -> str:
    """``line_of`` with pictures as thumbnails, and the text that was cut on hover."""
    pictures = value if isinstance(value, (list, tuple)) else [value]
    drawn = [thumbnail(one) for one in pictures[:PICTURES]] if _are_pictures(pictures) else []
    if drawn and all(drawn):
        more = f" +{len(pictures) - PICTURES}" if len(pictures) > PICTURES else ""
        return Markup("".join(picture_tag(*one, line_of(value)) for one in drawn if one) + more)
    line = line_of(value)
    if isinstance(value, str) and len(value) > TEXT:
        return Markup(f'<span title="{escape(shortened(value, 20 * TEXT))}">{escape(line)}</span>')
    return line


def image_kind(data: bytes | bytearray | memoryview) -> str | None:
    """The kind of picture that bytes begin as, if any."""
    head = bytes(data[:12])
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        return "WEBP"
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)


def is_picture(value: Any) -> bool:
    """Whether a value is a picture: uint8 of shape (H, W, 3), the bytes of a known kind of file, or one of Pillow's."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return image_kind(value) is not None
    if isinstance(value, np.ndarray):
        return value.dtype == np.uint8 and value.ndim == 3 and value.shape[2] == 3 and value.size > 0
    return type(value).__module__.startswith("PIL.") and hasattr(value, "thumbnail")


def thumbnail(value: Any, most: int = THUMBNAIL) -> tuple[str, int, int] | None:
    """A picture as (URI of a small PNG, width, height); None if it can't be decoded."""
    from PIL import Image

    try:
        if isinstance(value, np.ndarray):
            image = Image.fromarray(np.ascontiguousarray(value))
        elif isinstance(value, (bytes, bytearray, memoryview)):
            image = Image.open(io.BytesIO(bytes(value)))
        else:
            image = value.copy()
        image.thumbnail((most, most))
        image = image.convert("RGB")
    except Exception:  # noqa: BLE001 - decoders raise anything for a broken file; its line says what it is
        return None
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode(), *image.size


def picture_tag(uri: str, width: int, height: int, title: str) -> str:
    size = f'width="{width}" height="{height}"'
    return f'<img src="{uri}" {size} title="{escape(title)}" alt="{escape(title)}" style="margin:1px"/>'


def _are_pictures(values: Sequence[Any]) -> bool:
    return len(values) > 0 and all(map(is_picture, values))


def _array(value: Any) -> Any:
    """An array or tensor as numpy, without asking what torch is; None for other things."""
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__ != "torch" or not hasattr(value, "detach"):
        return None
    try:
        return value.detach().cpu().numpy()
    except (TypeError, RuntimeError):  # bfloat16 and sparse ones have no array; they have a dtype and a shape
        return value


def _array_line(value: Any, array: Any) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    head = f"{kind} {tuple(value.shape)}"
    if not isinstance(array, np.ndarray) or array.ndim > 1 or array.dtype.kind not in "biuf":
        return head
    first = [f"{number:.4g}" if array.dtype.kind == "f" else str(number) for number in array.reshape(-1)[:ITEMS]]
    return f"{head} [{' '.join(first)}{' …' * (array.size > ITEMS)}]"
