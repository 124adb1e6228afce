"""Drawn scenes: the same every time, and as many things in them as the caption says."""

from __future__ import annotations

import re

import numpy as np
import pytest

from multimodal import decode
from multimodal.scenes import image_file, scene

NUMBERS = {"one": 1, "two": 2, "three": 3}
COLOURS = {"red": (206, 52, 48), "blue": (48, 92, 200), "yellow": (240, 196, 40), "purple": (132, 70, 170)}


def told(caption):
    """(number, colour, kind) of everything in a caption."""
    found = re.findall(r"(one|two|three) (red|blue|yellow|purple) (house|car|flower|balloon)s?", caption.lower())
    return [(NUMBERS[number], colour, kind) for number, colour, kind in found]


def blobs(image, colour):
    """How many connected areas of a colour there are, above a size."""
    mask = (np.abs(image.astype(int) - COLOURS[colour]).max(-1) < 12).astype(np.uint8)
    seen, count = np.zeros_like(mask), 0
    for y, x in zip(*np.nonzero(mask), strict=True):
        if seen[y, x]:
            continue
        size, todo = 0, [(y, x)]
        seen[y, x] = 1
        while todo:
            at, to = todo.pop()
            size += 1
            for i, j in ((at + 1, to), (at - 1, to), (at, to + 1), (at, to - 1)):
                if 0 <= i < mask.shape[0] and 0 <= j < mask.shape[1] and mask[i, j] and not seen[i, j]:
                    seen[i, j] = 1
                    todo.append((i, j))
        count += size > 12
    return count


@pytest.mark.parametrize("number", range(12))
def test_the_caption_is_true(number):
    """Each thing is at least one area of its colour; flowers have four leaves and balloons two sides."""
    image, caption = scene(number)
    pieces = {"house": (1, 1), "car": (1, 2), "flower": (1, 5), "balloon": (1, 3)}
    things = told(caption)
    assert things and caption.endswith(".") and caption[0].isupper()
    for colour in {colour for _, colour, _ in things}:
        named = [(n, kind) for n, of, kind in things if of == colour]
        least = sum(n * pieces[kind][0] for n, kind in named)
        most = sum(n * pieces[kind][1] for n, kind in named)
        extra = 2 if colour == "yellow" else 0  # the sun and lit windows are near to it
        assert least <= blobs(np.asarray(image), colour) <= most + extra, (caption, colour)
    for colour in COLOURS.keys() - {colour for _, colour, _ in things} - {"yellow"}:
        assert blobs(np.asarray(image), colour) == 0, (caption, colour)


def test_scenes_are_many_and_always_the_same():
    captions = [scene(number).caption for number in range(60)]
    assert captions == [scene(number).caption for number in range(60)] and len(set(captions)) > 50
    assert {scene(n).image.size for n in range(60)} >= {(480, 360), (360, 480), (320, 240)}
    assert np.array_equal(np.asarray(scene(5).image), np.asarray(scene(5).image))


def test_files_are_of_three_formats_and_some_are_stored_turned():
    files = {number: image_file(number, scene(number).image) for number in range(12)}
    kinds = {number: "PNG" if data[:4] == b"\x89PNG" else data[:4] for number, data in files.items()}
    assert kinds[4] == "PNG" and kinds[9] == b"RIFF" and kinds[0][:2] == b"\xff\xd8"
    for number, data in files.items():
        drawn, got = np.asarray(scene(number).image), decode(data)
        assert got.shape == drawn.shape and np.abs(got.astype(int) - drawn).mean() < 4
