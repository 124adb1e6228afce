"""Pillow images of any mode to RGB, by the rules that ``image.decode`` states."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from multimodal.containers import Header, ImageError

Colour: TypeAlias = tuple[int, int, int]


def to_rgb(image: Image.Image, header: Header, background: Colour) -> Image.Image:
    """An image, of the file that ``header`` is of, in mode RGB. Transparency is laid on ``background``.

    Raises ``ImageError`` for samples without a fixed range, and whatever Pillow raises while it loads.
    """
    image.load()
    if image.mode.startswith("I;16") or (image.mode == "I" and header.format == "PNG"):
        samples = np.asarray(image)
        rgb = Image.fromarray((samples >> max(0, header.bits - 8)).astype(np.uint8)).convert("RGB")
        return _without_key(rgb, samples, image.info.get("transparency"), background)
    if image.mode in ("I", "F"):
        raise ImageError(
            f"{header.format} samples are signed, of 32 bits or floating-point: unsigned 8 and 16 bits are read"
        )
    if image.mode in ("1", "L", "RGB"):
        grey = image.convert("L") if image.mode == "1" else image
        return _without_key(grey.convert("RGB"), grey, _key(image, header.bits), background)
    if not _is_transparent(image):
        return image.convert("RGB")
    layer = image.convert("RGBA")
    canvas = Image.new("RGB", image.size, background)
    canvas.paste(layer, mask=layer)
    return canvas


def _is_transparent(image: Image.Image) -> bool:
    palette = image.palette if image.mode == "P" else None
    return "a" in image.mode.lower() or "transparency" in image.info or (palette is not None and "A" in palette.mode)


def _key(image: Image.Image, bits: int) -> Any:
    """The grey or the colour that stands for transparency, in 8 bits; None if there is none."""
    key = image.info.get("transparency")
    if image.mode == "1":
        return key and 255  # some versions of Pillow have scaled it
    if isinstance(key, int) and bits < 8:
        return key * 255 // ((1 << bits) - 1)
    return tuple(value >> 8 for value in key) if isinstance(key, tuple) and bits == 16 else key


def _without_key(rgb: Image.Image, samples: Any, key: Any, background: Colour) -> Image.Image:
    """``rgb`` with the background where ``samples`` are ``key``."""
    if key is not None:
        there = np.asarray(samples) == key
        there = there.all(axis=-1) if there.ndim == 3 else there
        rgb.paste(background, None, Image.fromarray(there.astype(np.uint8) * 255))
    return rgb
