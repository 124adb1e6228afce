"""Drawn scenes with captions that are true: small pictures for demos and tests, the same on every machine with one Pillow.

A scene has a time of day, a ground, up to three kinds of things that stand on it and perhaps balloons in the sky. What is
drawn is what the caption counts.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from PIL import Image, ImageDraw

from zephon_nodes.hashing import draw, key

Draw: TypeAlias = ImageDraw.ImageDraw
Colour: TypeAlias = tuple[int, int, int]

_SIZES = ((480, 360), (360, 480), (400, 400), (560, 315), (640, 360), (320, 240))
_TIMES = {
    "by day": ((104, 176, 240), (206, 232, 250)),
    "at sunset": ((88, 72, 140), (250, 160, 96)),
    "at night": ((12, 16, 44), (44, 56, 104)),
}
_GROUNDS = {"on a meadow": (96, 160, 72), "on a beach": (232, 208, 150), "on snow": (238, 242, 248)}
_COLOURS = {"red": (206, 52, 48), "blue": (48, 92, 200), "yellow": (240, 196, 40), "purple": (132, 70, 170)}
_NUMBERS = ("no", "one", "two", "three")
_TURNED = 6


class Scene(NamedTuple):
    """``image``: RGB. ``caption``: one or two sentences, true."""

    image: Image.Image
    caption: str


class _Things(NamedTuple):
    number: int
    colour: str
    kind: str

    def __str__(self) -> str:
        return f"{_NUMBERS[self.number]} {self.colour} {self.kind}" + "s" * (self.number > 1)


def scene(number: int) -> Scene:
    """Scene ``number``, an int. There are many thousands of different ones."""
    key_ = key("scene", number)

    def pick(what: str, count: int) -> int:
        return draw(key_, key(what)) % count

    time, ground = list(_TIMES)[pick("time", 3)], list(_GROUNDS)[pick("ground", 3)]
    first = pick("first", 3)
    kinds = [list(_KINDS)[(first + i) % 3] for i in range(1 + pick("kinds", 2))]
    standing = [_Things(1 + pick(kind, 3), list(_COLOURS)[pick(f"{kind} colour", 4)], kind) for kind in kinds]
    balloons = _Things(pick("balloons", 4), list(_COLOURS)[pick("balloon colour", 4)], "balloon")
    image = _drawn(_SIZES[pick("size", len(_SIZES))], time, ground, standing, balloons)
    caption = f"{' and '.join(map(str, standing)).capitalize()} {ground} {time}."
    if balloons.number:
        verb = "is" if balloons.number == 1 else "are"
        caption += f" {str(balloons).capitalize()} {verb} in the sky."
    return Scene(image, caption)


def image_file(number: int, image: Image.Image) -> bytes:
    """The image of scene ``number`` as a file: JPEG, every fifth one PNG or WebP, every seventh stored turned, as cameras do."""
    exif = Image.Exif()
    if number % 7 == 3:
        image = image.transpose(Image.Transpose.ROTATE_90)
        exif[0x0112] = _TURNED
    format_ = ("PNG", "WEBP")[number // 5 % 2] if number % 5 == 4 else "JPEG"
    out = io.BytesIO()
    image.save(out, format_, quality=90, exif=exif)
    return out.getvalue()


def _drawn(size: tuple[int, int], time: str, ground: str, standing: list[_Things], balloons: _Things) -> Image.Image:
    """Drawn at twice the size, and made smaller, so that edges are smooth."""
    width, height = 2 * size[0], 2 * size[1]
    horizon = height * 5 // 8
    image = _sky(width, height, *_TIMES[time])
    canvas = ImageDraw.Draw(image)
    unit = min(width, height) / 16
    _sun(canvas, width, horizon, unit, time)
    for i in range(balloons.number):
        x, y = width * (2 * i + 1) / 8 + unit, unit * (3 + 1.2 * (i % 2))
        _balloon(canvas, x, y, unit, _COLOURS[balloons.colour])
    canvas.rectangle([0, horizon, width, height], fill=_shaded(_GROUNDS[ground], 0.45 if time == "at night" else 1.0))
    every = [things for things in standing for _ in range(things.number)]
    for i, things in enumerate(every):
        x = width * (i + 0.5) / len(every)
        y = horizon + (height - horizon) * (0.35 if i % 2 else 0.75)
        _KINDS[things.kind](canvas, x, y, min(1.1 * unit, width / (6.5 * len(every))), _COLOURS[things.colour])
    return image.reduce(2)


def _sky(width: int, height: int, top: Colour, bottom: Colour) -> Image.Image:
    slope = Image.linear_gradient("L").resize((width, height))
    return Image.composite(Image.new("RGB", (width, height), bottom), Image.new("RGB", (width, height), top), slope)


def _shaded(colour: Colour, by: float) -> Colour:
    red, green, blue = (min(255, round(value * by)) for value in colour)
    return red, green, blue


def _sun(canvas: Draw, width: int, horizon: int, unit: float, time: str) -> None:
    x, y = width - 2.2 * unit, (horizon - 1.2 * unit if time == "at sunset" else 2 * unit)
    colour = {"by day": (255, 236, 120), "at sunset": (255, 120, 60), "at night": (236, 238, 220)}[time]
    canvas.ellipse([x - unit, y - unit, x + unit, y + unit], fill=colour)


def _house(canvas: Draw, x: float, y: float, unit: float, colour: Colour) -> None:
    left, right, top = x - 2 * unit, x + 2 * unit, y - 2.6 * unit
    canvas.rectangle([left, top, right, y], fill=colour)
    canvas.polygon([(left - 0.4 * unit, top), (x, top - 1.9 * unit), (right + 0.4 * unit, top)], fill=(110, 66, 48))
    canvas.rectangle([x - 0.5 * unit, y - 1.5 * unit, x + 0.5 * unit, y], fill=(84, 52, 38))
    for at in (x - 1.4 * unit, x + 1.4 * unit):
        canvas.rectangle([at - 0.4 * unit, y - 2 * unit, at + 0.4 * unit, y - 1.2 * unit], fill=(255, 240, 190))


def _car(canvas: Draw, x: float, y: float, unit: float, colour: Colour) -> None:
    canvas.rounded_rectangle([x - 1.3 * unit, y - 2.2 * unit, x + 1.3 * unit, y - 1 * unit], 0.4 * unit, fill=colour)
    canvas.rectangle([x - 0.9 * unit, y - 1.9 * unit, x + 0.9 * unit, y - 1.2 * unit], fill=(214, 234, 246))
    canvas.rounded_rectangle([x - 2.3 * unit, y - 1.3 * unit, x + 2.3 * unit, y - 0.3 * unit], 0.3 * unit, fill=colour)
    for at in (x - 1.3 * unit, x + 1.3 * unit):
        canvas.ellipse([at - 0.5 * unit, y - 0.8 * unit, at + 0.5 * unit, y + 0.2 * unit], fill=(34, 34, 40))


def _flower(canvas: Draw, x: float, y: float, unit: float, colour: Colour) -> None:
    canvas.rectangle([x - 0.12 * unit, y - 2.6 * unit, x + 0.12 * unit, y], fill=(40, 110, 50))
    canvas.ellipse([x, y - 1.1 * unit, x + 1.1 * unit, y - 0.6 * unit], fill=(40, 110, 50))
    for dx, dy in ((-0.75, 0), (0.75, 0), (0, -0.75), (0, 0.75)):
        at, up = x + dx * unit, y - 3 * unit + dy * unit
        canvas.ellipse([at - 0.6 * unit, up - 0.6 * unit, at + 0.6 * unit, up + 0.6 * unit], fill=colour)
    canvas.ellipse([x - 0.45 * unit, y - 3.45 * unit, x + 0.45 * unit, y - 2.55 * unit], fill=(250, 246, 220))


def _balloon(canvas: Draw, x: float, y: float, unit: float, colour: Colour) -> None:
    for side in (-0.5, 0.5):
        canvas.line([(x + 1.6 * side * unit, y + unit), (x + side * unit, y + 2.6 * unit)], fill=(70, 60, 50), width=3)
    canvas.ellipse([x - 1.5 * unit, y - 1.7 * unit, x + 1.5 * unit, y + 1.7 * unit], fill=colour)
    canvas.ellipse([x - 0.5 * unit, y - 1.7 * unit, x + 0.5 * unit, y + 1.7 * unit], fill=_shaded(colour, 1.25))
    canvas.rectangle([x - 0.55 * unit, y + 2.4 * unit, x + 0.55 * unit, y + 3.1 * unit], fill=(130, 92, 52))


_KINDS: dict[str, Callable[[Draw, float, float, float, Colour], None]] = {
    "house": _house,
    "car": _car,
    "flower": _flower,
}
