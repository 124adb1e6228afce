"""Geometry of images, and arithmetic on their values: pure functions on uint8 (H, W, 3) arrays.

A result is contiguous and never a view into a larger array, so that a crop doesn't keep a photo alive. Where nothing
changes, the image itself is given back.

The resize costs more than the decode. Measured here from 512x512 to 224x224: 2.2 ms by Pillow's bicubic and 0.5 ms by
torch's, on a CPU with AVX2; from 2048x1536: 17 and 2.4 ms. Both weigh in integers. They differ by at most 2 of 255 where
both filter rows and columns in the same order; else by up to 10 at edges in photos, and 31 in black-and-white noise.
Pillow's is the default: it gives the same on every machine. torch's, "bicubic_fast", is slow without AVX2, and may differ there in
a last bit. Pillow's ``reducing_gap`` isn't offered: it gains less and costs more, 4.1 ms from 2048x1536 and 8 of 255.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

if TYPE_CHECKING:
    import torch

Image: TypeAlias = "npt.NDArray[np.uint8]"
Size: TypeAlias = tuple[int, int]
Colour: TypeAlias = tuple[int, int, int]
Box: TypeAlias = tuple[float, float, float, float]
Resample: TypeAlias = Literal[
    "nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", "bilinear_fast", "bicubic_fast"
]

FAST = ("bilinear_fast", "bicubic_fast")
FILTERS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos", *FAST)


def resize(image: Image, size: Size, resample: Resample = "bicubic", box: Box | None = None) -> Image:
    """An image in another size, (height, width), filtered as ``resample`` says.

    "nearest", "box", "bilinear", "hamming", "bicubic" (default) and "lanczos" are Pillow's, in order of cost and
    sharpness. "bilinear_fast" and "bicubic_fast" are torch's: see the head of this file.
    ``box`` (None): the part to take, (top, left, bottom, right), by default all; the fast filters round it to whole pixels.
    Raises ``ValueError`` for sides below 1, for other filters, and for a box that isn't inside the image.
    """
    height, width = size
    if resample not in FILTERS:
        raise ValueError(f"resample={resample!r} is unknown; use one of {', '.join(FILTERS)}")
    if min(size) < 1:
        raise ValueError(f"resize to {height} x {width}: both sides must be at least 1")
    top, left, bottom, right = box or (0, 0, *image.shape[:2])
    if (top, left, bottom, right) == (0, 0, height, width) == (0, 0, *image.shape[:2]):
        return image
    if resample in FAST:
        part = image[round(top) : round(bottom), round(left) : round(right)]
        return _resized_by_torch(part, size, resample.removesuffix("_fast"))
    method = PillowImage.Resampling[resample.upper()]
    return np.array(PillowImage.fromarray(image).resize((width, height), method, (left, top, right, bottom)))


def _resized_by_torch(image: Image, size: Size, mode: str) -> Image:
    import torch

    # torch can neither take negative strides nor, without a warning, what is read-only
    source = image if image.flags.writeable and min(image.strides) > 0 else np.array(image, order="C")
    planes = torch.from_numpy(source).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(planes, size=size, mode=mode, antialias=True)
    out: Image = resized[0].permute(1, 2, 0).contiguous().numpy()
    return out


def shortest_side(image: Image, length: int, resample: Resample = "bicubic") -> Image:
    """An image whose shorter side has ``length`` pixels; the other one keeps the aspect, rounded down, as CLIP does."""
    height, width = image.shape[:2]
    return resize(image, shortest_side_size(height, width, length), resample)


def shortest_side_size(height: int, width: int, length: int) -> Size:
    """The (height, width) that ``shortest_side`` gives."""
    short = min(height, width)
    return length * height // short, length * width // short


def crop(image: Image, top: int, left: int, size: Size) -> Image:
    """The part of ``size`` whose upper left corner is at (top, left).

    Raises ``ValueError`` if it isn't inside the image.
    """
    height, width = size
    if not (0 <= top <= image.shape[0] - height and 0 <= left <= image.shape[1] - width):
        raise ValueError(
            f"crop of {height} x {width} at ({top}, {left}) isn't inside the image of {image.shape[0]} x "
            f"{image.shape[1]}; resize it first, for instance with shortest_side"
        )
    return image if image.shape[:2] == size else _copied(image[top : top + height, left : left + width])


def center_crop(image: Image, size: Size) -> Image:
    """The middle of an image, (height, width); half pixels go to the upper left, as in CLIP.

    Raises ``ValueError`` for a smaller image.
    """
    height, width = size
    return crop(image, (image.shape[0] - height) // 2, (image.shape[1] - width) // 2, size)


def flip(image: Image) -> Image:
    """An image mirrored left to right."""
    return _copied(image[:, ::-1])


def _copied(view: Image) -> Image:
    """A contiguous copy, made pixel by pixel where possible: twice as fast as value by value."""
    pixels: Any = view.view("V3") if view.strides[2] == 1 else view
    copy: Image = np.array(pixels, order="C").view(np.uint8).reshape(view.shape)
    return copy


def pad_to_square(image: Image, colour: Colour = (0, 0, 0)) -> Image:
    """An image in the middle of a square of a colour, as large as its longer side; half pixels go to the lower right."""
    height, width = image.shape[:2]
    side = max(height, width)
    if height == width:
        return image
    out = np.empty((side, side, 3), np.uint8)
    out[:] = colour
    top, left = (side - height) // 2, (side - width) // 2
    out[top : top + height, left : left + width] = image
    return out


def tiles(
    image: Image, tile: int = 448, max_tiles: int = 12, *, thumbnail: bool = True, resample: Resample = "bicubic"
) -> tuple[list[Image], Size]:
    """A large image as square tiles, row by row, and the grid (rows, columns) of them: dynamic tiling, as InternVL does.

    Of all grids of at most ``max_tiles`` tiles the one is taken whose aspect is nearest to the image's. Among grids of
    the same aspect the largest whose pixels are less than twice the image's. The image is resized to it, so its aspect
    changes a little. ``thumbnail`` (True): the whole image in one tile follows, if there is more than one tile.
    In a graph, behind ``DecodeImages``, it is a function for ``map`` that makes ``images`` longer: put it before the text
    is written, so that each tile gets a placeholder.
    Raises ``ValueError`` if ``max_tiles`` is below 1.

    >>> parts, grid = tiles(np.zeros((448, 896, 3), np.uint8))
    >>> len(parts), grid
    (3, (1, 2))
    """
    height, width = image.shape[:2]
    rows, columns = tile_grid(height, width, tile, max_tiles)
    whole = resize(image, (rows * tile, columns * tile), resample)
    parts = [crop(whole, row * tile, column * tile, (tile, tile)) for row in range(rows) for column in range(columns)]
    if thumbnail and len(parts) > 1:
        parts.append(resize(image, (tile, tile), resample))
    return parts, (rows, columns)


def tile_grid(height: int, width: int, tile: int, max_tiles: int) -> Size:
    """The grid (rows, columns) that ``tiles`` takes for an image of a size."""
    if max_tiles < 1:
        raise ValueError(f"max_tiles must be at least 1, got {max_tiles}")
    grids = [
        (rows, count // rows) for count in range(1, max_tiles + 1) for rows in range(1, count + 1) if count % rows == 0
    ]
    off = {grid: abs(width / height - grid[1] / grid[0]) for grid in grids}
    nearest = [grid for grid in grids if off[grid] == min(off.values())]
    fitting = [grid for grid in nearest if height * width > grid[0] * grid[1] * tile * tile / 2]
    return fitting[-1] if fitting else nearest[0]


def normalise(pixels: Image, mean: Sequence[float], std: Sequence[float], out: Any = None) -> npt.NDArray[np.float32]:
    """(value / 255 - mean) / std of each channel: uint8 (..., H, W, 3) to float32 (..., 3, H, W).

    ``out`` (None): an array to write into, contiguous, in place of a new one. Raises ``ValueError`` for other shapes.
    """
    if pixels.ndim < 3 or pixels.shape[-1] != 3:
        raise ValueError(f"normalise takes images (..., H, W, 3), got the shape {pixels.shape}")
    shape = (*pixels.shape[:-3], 3, *pixels.shape[-3:-1])
    result: npt.NDArray[np.float32] = np.empty(shape, np.float32) if out is None else out
    if result.shape != shape or result.dtype != np.float32:
        raise ValueError(f"out must be float32 {shape}, got {result.dtype} {result.shape}")
    for channel in range(3):
        plane = result[..., channel, :, :]
        np.subtract(pixels[..., channel], np.float32(255 * mean[channel]), out=plane, dtype=np.float32)
        plane *= np.float32(1 / (255 * std[channel]))
    return result


def normalise_on_device(
    pixel_values: torch.Tensor, mean: Sequence[float], std: Sequence[float], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """``normalise`` of uint8 (..., 3, H, W), on the device where it is: a fourth of the bytes to move there.

    Computed in float32, given in ``dtype``, float32 by default.
    """
    import torch

    means, stds = (torch.tensor(values, device=pixel_values.device).view(3, 1, 1) for values in (mean, std))
    scaled = pixel_values.to(torch.float32).sub_(means * 255).mul_(1 / (stds * 255))
    return scaled.to(dtype or torch.float32)
