"""Resized images to the pixels that a vision encoder takes: one tensor for a whole batch. Pure functions.

N is the number of images, P the number of their patches. Images are uint8 (H, W, 3) as a ``Vision`` has resized them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from multimodal.transform import normalise_on_device
from multimodal.vision import DynamicResolution, FixedGrid, Vision
from zephon_nodes.errors import ConfigError

if TYPE_CHECKING:
    import torch

Pixels: TypeAlias = Literal["uint8", "float32", "bfloat16"]
Image: TypeAlias = "npt.NDArray[np.uint8]"
Array: TypeAlias = "npt.NDArray[Any]"

PIXELS = ("uint8", "float32", "bfloat16")


def pixel_values(images: Sequence[Image], vision: Vision, pixels: Pixels = "uint8") -> torch.Tensor:
    """The pixels of all images, written once into one tensor.

    For ``FixedGrid``: (N, 3, S, S). For ``DynamicResolution``: (P, 3 * T * patch * patch), a row for each patch, with
    T = ``temporal_patch`` and the axes of a row in the order channel, time, y, x; the image is repeated T times. Patches
    stand image by image; inside one, those that are merged into a position stand together: (h / merge, w / merge, merge,
    merge). That is what Qwen2-VL takes.

    ``pixels``: "uint8" (default) as they are: a fourth of the bytes to move, to be normalised on the device by
    ``normalise_pixel_values``. "float32" and "bfloat16" are normalised here: (value / 255 - mean) / std.
    Raises ``ConfigError`` for other ``pixels``.
    """
    import torch

    table = _table(vision, pixels)
    dtype = np.dtype(np.uint8) if table is None else table.dtype
    if isinstance(vision, DynamicResolution):
        tensor = torch.from_numpy(_patches(images, vision, table, dtype))
    else:
        tensor = torch.from_numpy(_stacked(images, vision, table, dtype))
    return tensor.view(torch.bfloat16) if pixels == "bfloat16" else tensor


def normalise_pixel_values(
    pixel_values: torch.Tensor, vision: Vision, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """uint8 pixels of either shape as numbers, (value / 255 - mean) / std, on the device where they are.

    ``dtype`` (None: float32): of the result; computed in float32.

    >>> vision = FixedGrid(size=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> white = pixel_values([np.full((32, 32, 3), 255, np.uint8)], vision)
    >>> white.dtype, normalise_pixel_values(white, vision).unique().tolist()
    (torch.uint8, [1.0])
    """
    shape = pixel_values.shape
    planes = pixel_values if len(shape) == 4 else pixel_values.reshape(shape[0], 3, shape[1] // 3, 1)
    return normalise_on_device(planes, vision.mean, vision.std, dtype).reshape(shape)


def check_pixels(pixels: str) -> None:
    """Raises ``ConfigError`` for what isn't in ``PIXELS``."""
    if pixels not in PIXELS:
        raise ConfigError(f"pixels={pixels!r} is unknown; use one of {', '.join(map(repr, PIXELS))}")


def _scale_and_shift(vision: Vision) -> tuple[Array, Array]:
    mean, std = np.asarray(vision.mean, np.float64), np.asarray(vision.std, np.float64)
    return 1 / (255 * std), -mean / std


def _table(vision: Vision, pixels: str) -> Array | None:
    """What each of the 256 values of a channel becomes, (3, 256); bfloat16 as the int16 of its bits. None: itself."""
    import torch

    check_pixels(pixels)
    if pixels == "uint8":
        return None
    scale, shift = _scale_and_shift(vision)
    table = (np.arange(256) * scale[:, None] + shift[:, None]).astype(np.float32)
    if pixels == "float32":
        return table
    bits: Array = torch.from_numpy(table).to(torch.bfloat16).view(torch.int16).numpy()
    return bits


def _stacked(images: Sequence[Image], vision: FixedGrid, table: Array | None, dtype: np.dtype[Any]) -> Array:
    out = np.empty((len(images), 3, vision.size, vision.size), dtype)
    for image, target in zip(images, out, strict=True):
        _paint(image, table, target)
    return out


def _patches(images: Sequence[Image], vision: DynamicResolution, table: Array | None, dtype: np.dtype[Any]) -> Array:
    grids = [vision.grid(*image.shape[:2]) for image in images]
    patch, merge, times = vision.patch, vision.merge, vision.temporal_patch
    out = np.empty((sum(map(prod, grids)), 3 * times * patch * patch), dtype)
    start = 0
    for image, (_, h, w) in zip(images, grids, strict=True):
        planes = image.transpose(2, 0, 1)
        if table is not None:
            planes = _paint(image, table, np.empty(planes.shape, dtype))
        cut = planes.reshape(3, h // merge, merge, patch, w // merge, merge, patch).transpose(1, 4, 2, 5, 0, 3, 6)
        target = out[start : start + h * w].reshape(*cut.shape[:5], times, patch, patch)
        target[...] = cut[:, :, :, :, :, None]
        start += h * w
    return out


def _paint(image: Image, table: Array | None, target: Array) -> Array:
    """Writes an image (H, W, 3) into ``target`` (3, H, W)."""
    if table is None:
        target[...] = image.transpose(2, 0, 1)
    else:
        for channel in range(3):
            np.take(table[channel], image[..., channel], out=target[channel], mode="clip")
    return target
