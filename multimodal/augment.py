"""Random changes of images, and how several become one. Pure functions on uint8 (H, W, 3) arrays.

Randomness comes from the ``rng`` that ``Map`` hands to a function: it depends on the record alone, so a crop is the same
after a resume and in any worker. It is used as ``rng.random()`` only, whose values no version of numpy changes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, sqrt
from typing import Any

import numpy as np

from multimodal.transform import Image, Resample, Size, center_crop, crop, flip, resize
from zephon_nodes.errors import ConfigError
from zephon_nodes.function_node import wants_rng
from zephon_nodes.recipe import describe_function


def random_crop(image: Image, size: Size, rng: np.random.Generator) -> Image:
    """A part of an image, (height, width), all places alike. Raises ``ValueError`` for a smaller image.

    >>> random_crop(np.zeros((48, 64, 3), np.uint8), (32, 32), np.random.default_rng(0)).shape
    (32, 32, 3)
    """
    height, width = (max(0, side - part) for side, part in zip(image.shape[:2], size, strict=True))
    return crop(image, int(rng.random() * (height + 1)), int(rng.random() * (width + 1)), size)


def random_resized_crop(
    image: Image,
    size: Size,
    rng: np.random.Generator,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    resample: Resample = "bicubic",
) -> Image:
    """A part of an image, resized to (height, width).

    The part's share of the area is drawn between ``scale``, its width / height between ``ratio`` (alike for a ratio and
    its inverse). After ten parts that don't fit, it is the largest one in the middle within ``ratio``.

    >>> random_resized_crop(np.zeros((48, 64, 3), np.uint8), (32, 32), np.random.default_rng(0)).shape
    (32, 32, 3)
    """
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * rng.random())
        aspect = exp(log(ratio[0]) + (log(ratio[1]) - log(ratio[0])) * rng.random())
        part = round(sqrt(area / aspect)), round(sqrt(area * aspect))
        if 0 < part[0] <= height and 0 < part[1] <= width:
            return resize(random_crop(image, part, rng), size, resample)
    aspect = min(max(width / height, ratio[0]), ratio[1])
    part = min(height, max(1, round(width / aspect))), min(width, max(1, round(height * aspect)))
    return resize(center_crop(image, part), size, resample)


def random_flip(image: Image, rng: np.random.Generator, p: float = 0.5) -> Image:
    """An image, mirrored left to right with probability ``p``. Not for images with text or with "left" in the caption.

    >>> random_flip(np.arange(6, dtype=np.uint8).reshape(1, 2, 3), np.random.default_rng(0), p=1)[0].tolist()
    [[3, 4, 5], [0, 1, 2]]
    """
    return flip(image) if rng.random() < p else image


def checked(step: Callable[..., Any], image: Any) -> Image:
    """What a step has given. Raises ``ValueError`` for anything but uint8 (H, W, 3)."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.shape[2:] != (3,):
        what = f"{image.dtype} {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
        raise ValueError(f"{step!r} must give uint8 (H, W, 3), gave {what}; normalising comes at the collate")
    return image


class Augment:
    """Functions of an image, one after the other. Made by ``compose``.

    Attributes: ``steps``, the functions; ``settings`` (str), what they are and what is bound to them, for the recipe.
    """

    def __init__(self, steps: tuple[Callable[..., Image], ...]) -> None:
        self.steps = steps
        self.settings = repr([describe_function(step) for step in steps])
        self._drawing = tuple(wants_rng(step) for step in steps)

    def __call__(self, image: Image, rng: np.random.Generator) -> Image:
        """The image after all steps. Raises ``ValueError`` if a step gives anything but uint8 (H, W, 3)."""
        for step, draws in zip(self.steps, self._drawing, strict=True):
            image = checked(step, step(image, rng=rng) if draws else step(image))
        return image

    def __repr__(self) -> str:
        return f"Augment({self.settings})"


def compose(*steps: Callable[..., Image]) -> Augment:
    """Functions of an image as one: ``(image, rng) -> image``.

    A step takes an image and, if it has a parameter of that name, ``rng``. Settings are bound with ``functools.partial``,
    so that the recipe sees them. The result can be pickled if the steps can. Raises ``ConfigError`` for what can't be
    called.

    >>> from functools import partial
    >>> augment = compose(partial(random_resized_crop, size=(224, 224), scale=(0.5, 1.0)), random_flip)
    >>> augment(np.zeros((480, 640, 3), np.uint8), rng=np.random.default_rng(0)).shape
    (224, 224, 3)
    """
    for step in steps:
        if not callable(step):
            raise ConfigError(f"compose takes functions of an image, got {step!r}")
    return Augment(steps)


class OnTensor:
    """A transform of uint8 tensors (3, H, W), such as those of ``torchvision.transforms.v2``, as a step of ``compose``.

    Only for those without randomness of their own: they draw from torch's global generator, so that crops would change
    with the number of workers, and after a resume. Attributes: ``transform``; ``settings`` (str), for the recipe.

    >>> augment = compose(OnTensor(lambda tensor: tensor.flip(-1)), random_flip)
    >>> augment(np.zeros((48, 64, 3), np.uint8), np.random.default_rng(0)).shape
    (48, 64, 3)
    """

    def __init__(self, transform: Callable[[Any], Any]) -> None:
        shown = repr(transform)
        self.transform = transform
        self.settings = repr(describe_function(transform)) if " at 0x" in shown else shown

    def __call__(self, image: Image) -> Image:
        """The image after the transform, which must give uint8 (3, H, W)."""
        import torch

        made = self.transform(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        out: Image = made.permute(1, 2, 0).contiguous().numpy()
        return out
