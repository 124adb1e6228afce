"""What happens to an image on its way into a vision encoder, and how many positions it then takes in the text.

Two kinds of models, two classes. Both hold plain settings and nothing else. They are called with a uint8 (H, W, 3) image
and give one; values stay uint8 until the batch is made. S is ``size``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, floor, sqrt
from typing import Any, Literal, TypeAlias, final

from multimodal.image import MAX_PIXELS, decode, decode_scaled, size_of
from multimodal.transform import (
    FILTERS,
    Box,
    Colour,
    Image,
    Resample,
    Size,
    center_crop,
    pad_to_square,
    resize,
    shortest_side_size,
)
from zephon_nodes.errors import ConfigError
from zephon_nodes.work.base import check_at_least

Channels: TypeAlias = tuple[float, float, float]
Fit: TypeAlias = Literal["crop", "pad", "squash"]

CLIP_MEAN: Channels = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Channels = (0.26862954, 0.26130258, 0.27577711)
SIGLIP_MEAN: Channels = (0.5, 0.5, 0.5)
SIGLIP_STD: Channels = (0.5, 0.5, 0.5)

MAX_ASPECT = 200
"""The longest images that ``DynamicResolution`` takes: longer side by shorter side."""

_LONGEST_CROP = 8


@final
@dataclass(frozen=True)
class FixedGrid:
    """Every image becomes (S, S, 3): CLIP, SigLIP, and models that put such an encoder before a language model.

    ``size`` (224): S. ``patch`` (16): side of the encoder's patches. ``tokens`` (None): positions of an image, by default
    one a patch, (S // patch)^2; fewer if a projector merges patches.
    ``mean``, ``std``: of values between 0 and 1, by default CLIP's; SigLIP has 0.5 for all.
    ``resample`` ("bicubic"): see ``transform.resize``.
    ``fit`` ("crop"): "crop" cuts the middle out, as CLIP does: what is at the ends of long images is lost. "squash"
    changes the aspect, as SigLIP does. "pad" keeps all of it, between bars of the mean colour, at less resolution.
    Raises ``ConfigError`` for settings that can't work.

    >>> vision = FixedGrid(size=336, patch=14)
    >>> vision.token_count(480, 640), vision(np.zeros((480, 640, 3), np.uint8)).shape
    (576, (336, 336, 3))
    """

    size: int = 224
    patch: int = 16
    tokens: int | None = None
    mean: Channels = CLIP_MEAN
    std: Channels = CLIP_STD
    resample: Resample = "bicubic"
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        check_at_least("patch", self.patch, 1)
        check_at_least("size", self.size, self.patch)
        if self.tokens is not None:
            check_at_least("tokens", self.tokens, 1)
        if self.fit not in ("crop", "pad", "squash"):
            raise ConfigError(f'fit must be "crop", "pad" or "squash", got {self.fit!r}')
        _check_look(self)

    def target_size(self, height: int, width: int) -> Size:
        """The (height, width) of any image afterwards: (S, S)."""
        return self.size, self.size

    def token_count(self, height: int, width: int) -> int:
        """Positions that an image of any size takes in the text."""
        return (self.size // self.patch) ** 2 if self.tokens is None else self.tokens

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """Patches along time, height and width: (1, S // patch, S // patch)."""
        return 1, self.size // self.patch, self.size // self.patch

    def scaled_size(self, height: int, width: int) -> Size:
        """The (height, width) that an image is resized to, before it is cropped or padded."""
        if self.fit == "crop":
            return shortest_side_size(height, width, self.size)
        if self.fit == "squash":
            return self.size, self.size
        longest = max(height, width)
        return max(1, round(self.size * height / longest)), max(1, round(self.size * width / longest))

    def __call__(self, image: Image) -> Image:
        """The image as (S, S, 3)."""
        height, width = image.shape[:2]
        if (height, width) == (self.size, self.size):
            return image
        limit = _LONGEST_CROP * min(height, width)
        if self.fit == "crop" and max(height, width) > limit:  # a line of many pixels would grow without bound
            height, width = min(height, limit), min(width, limit)
            image = center_crop(image, (height, width))
        return self._place(image, (height, width))

    def _place(self, image: Image, original: Size, box: Box | None = None) -> Image:
        image = resize(image, self.scaled_size(*original), self.resample, box)
        return center_crop(image, (self.size, self.size)) if self.fit == "crop" else pad_to_square(image, self.colour)

    @property
    def colour(self) -> Colour:
        """The mean colour, which the encoder sees as zeros."""
        red, green, blue = (min(255, max(0, round(255 * value))) for value in self.mean)
        return red, green, blue

    def recipe(self) -> dict[str, Any]:
        """All settings, JSON-able."""
        return _recipe(self)


@final
@dataclass(frozen=True)
class DynamicResolution:
    """An image keeps its aspect and, within a budget, its size: Qwen2-VL and models like it.

    Sides become multiples of ``patch * merge``; their product stays between ``min_pixels`` and ``max_pixels``. An image
    takes h * w / (patch * merge)^2 positions.

    ``patch`` (14): side of the encoder's patches. ``merge`` (2): merge x merge patches become one position.
    ``min_pixels`` (3,136), ``max_pixels`` (1,003,520): 4 to 1,280 positions. Most photos are larger, so the most decides
    what an image costs.
    ``temporal_patch`` (2): frames of a patch; an image is repeated so often. ``mean``, ``std`` (CLIP's) and ``resample``
    ("bicubic"): as in ``FixedGrid``.

    Sizes are those of Qwen2-VL, with two differences. Very long images stay within ``max_pixels``, where it goes over.
    And an image that has been resized is left as it is, whatever the settings.
    Raises ``ConfigError`` for settings that can't work.

    >>> vision = DynamicResolution()
    >>> vision.target_size(480, 640), vision.token_count(480, 640), vision.grid(480, 640)
    ((476, 644), 391, (1, 34, 46))
    """

    patch: int = 14
    merge: int = 2
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    temporal_patch: int = 2
    mean: Channels = CLIP_MEAN
    std: Channels = CLIP_STD
    resample: Resample = "bicubic"

    def __post_init__(self) -> None:
        for name in ("patch", "merge", "temporal_patch", "min_pixels"):
            check_at_least(name, getattr(self, name), 1)
        check_at_least("max_pixels", self.max_pixels, max(self.min_pixels, self._factor**2))
        _check_look(self)

    @property
    def _factor(self) -> int:
        return self.patch * self.merge

    def target_size(self, height: int, width: int) -> Size:
        """The (height, width) of an image afterwards. A size that it has given, it gives again.

        Raises ``ValueError`` if one side is more than 200 times the other.
        """
        factor, size = self._factor, (height, width)
        fits = height % factor == 0 and width % factor == 0 and height * width <= self.max_pixels
        if not fits and max(size) > MAX_ASPECT * min(size):
            raise ValueError(f"image of {height} x {width}: one side is more than {MAX_ASPECT} times the other")
        nearest = round(height / factor) * factor, round(width / factor) * factor
        if nearest[0] * nearest[1] > self.max_pixels:
            nearest = self._shrunk(height, width)
        if nearest[0] * nearest[1] >= self.min_pixels:
            return nearest
        least = max(factor, nearest[0]), max(factor, nearest[1])
        if least[0] * least[1] > self.max_pixels:
            least = self._shrunk(height, width)
        grown = self._grown(*size), self._grown(*least)  # neither fits where the two budgets are hardly apart
        return next((one for one in grown if one[0] * one[1] <= self.max_pixels), least)

    def _shrunk(self, height: int, width: int) -> Size:
        """The largest multiples below, at ``max_pixels``."""
        factor, by = self._factor, sqrt(height * width / self.max_pixels)
        most = self.max_pixels // factor**2  # matters where the other side would have been less than one factor
        rows, columns = (min(most, max(1, floor(side / by / factor))) for side in (height, width))
        return rows * factor, columns * factor

    def _grown(self, height: int, width: int) -> Size:
        """The smallest multiples above, at ``min_pixels``."""
        factor, by = self._factor, sqrt(self.min_pixels / (height * width))
        return ceil(height * by / factor) * factor, ceil(width * by / factor) * factor

    def token_count(self, height: int, width: int) -> int:
        """Positions that an image of a size takes in the text; the same before and after resizing."""
        height, width = self.target_size(height, width)
        return height * width // self._factor**2

    def grid(self, height: int, width: int) -> tuple[int, int, int]:
        """Patches of an image of a size along time, height and width; the same before and after resizing."""
        height, width = self.target_size(height, width)
        return 1, height // self.patch, width // self.patch

    def scaled_size(self, height: int, width: int) -> Size:
        """The (height, width) that an image is resized to: ``target_size``."""
        return self.target_size(height, width)

    def __call__(self, image: Image) -> Image:
        """The image, resized."""
        return self._place(image, (image.shape[0], image.shape[1]))

    def _place(self, image: Image, original: Size, box: Box | None = None) -> Image:
        return resize(image, self.target_size(*original), self.resample, box)

    def recipe(self) -> dict[str, Any]:
        """All settings, JSON-able."""
        return _recipe(self)


Vision: TypeAlias = FixedGrid | DynamicResolution


def check_vision(kind: str, vision: Any) -> None:
    """Raises ``ConfigError`` unless it is one of the two classes."""
    if not isinstance(vision, (FixedGrid, DynamicResolution)):
        raise ConfigError(f"{kind}: vision must be a FixedGrid or a DynamicResolution, got {vision!r}")


def load(
    data: bytes,
    vision: Vision,
    *,
    scaled: bool = False,
    background: Colour = (255, 255, 255),
    max_pixels: int = MAX_PIXELS,
) -> Image:
    """An image file, decoded and resized by ``vision``.

    ``scaled`` (False): JPEGs may be decoded at 1/2, 1/4 or 1/8 of their size, to at least that which they are resized to.
    Faster, above all for large photos; pixels differ as ``image.decode_scaled`` says, sizes and token counts never do.
    ``background``, ``max_pixels``: as in ``image.decode``. Raises ``ImageError``, and ``ValueError`` as ``vision`` does.
    """
    height, width = size_of(data)
    if not scaled or max(height, width) > _LONGEST_CROP * min(height, width):
        return vision(decode(data, background=background, max_pixels=max_pixels))
    target = vision.scaled_size(height, width)
    got = decode_scaled(data, target, background=background, max_pixels=max_pixels)
    return vision._place(got.pixels, got.size, got.box)


def _check_look(vision: Vision) -> None:
    for name, values in (("mean", vision.mean), ("std", vision.std)):
        if len(values) != 3 or not all(isinstance(value, (int, float)) for value in values):
            raise ConfigError(f"{name} must be three numbers, one a channel, got {values!r}")
    if min(vision.std) <= 0:
        raise ConfigError(f"std must be above 0, got {vision.std!r}")
    if vision.resample not in FILTERS:
        raise ConfigError(f"resample must be one of {', '.join(FILTERS)}, got {vision.resample!r}")


def _recipe(vision: Vision) -> dict[str, Any]:
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(vision).items()}
    return {"class": type(vision).__name__, **settings}
