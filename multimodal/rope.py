"""Positions on three axes, time, height and width, for models of dynamic resolution such as Qwen2-VL. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

I64: TypeAlias = "npt.NDArray[np.int64]"


def rope_positions(position_ids: I64, documents: Iterable[tuple[int, Sequence[tuple[int, tuple[int, int]]]]]) -> I64:
    """The three positions of each token: int64 (3, n).

    ``position_ids``: int64 (n,), from 0 in each document. ``documents``: for each document with images, where it stops,
    and for each image the place of its first token and its grid (h, w) of tokens, in order.

    In text all three positions are equal and count on. An image of h * w tokens begins at the largest position before it
    plus 1, p: its tokens have time p, height p + y and width p + x. The text behind it goes on at p + max(h, w).
    """
    out = np.repeat(position_ids[None], 3, axis=0)
    for stop, images in documents:
        saved = 0  # positions that images have not used up, though they have as many tokens
        ends = [first for first, _ in images[1:]] + [stop]
        for (first, (h, w)), end in zip(images, ends, strict=True):
            start, behind = position_ids[first] - saved, first + h * w
            time, height, width = out[:, first:behind].reshape(3, h, w)
            time[...] = start
            height[...] = start + np.arange(h)[:, None]
            width[...] = start + np.arange(w)
            saved += h * w - max(h, w)
            out[:, behind:end] -= saved
    return out
