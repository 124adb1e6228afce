"""Small image-text samples, drawn, for tests of what comes behind the tokenizer."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from multimodal.placeholders import expand
from multimodal.vision import DynamicResolution, FixedGrid

PLACEHOLDER = 5
FIXED = FixedGrid(size=8, patch=4)
DYNAMIC = DynamicResolution(patch=2, merge=2, min_pixels=16, max_pixels=256)
visions = st.sampled_from([FIXED, DYNAMIC])


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@st.composite
def samples(draw, vision=FIXED, max_images=3, least_text=0):
    """A sample as it goes to the packer: token ids from 10 on, with placeholders expanded, and resized images."""
    sides, seed = st.integers(3, 24), draw(st.integers(0, 2**16))
    sizes = draw(st.lists(st.tuples(sides, sides), max_size=max_images))
    text = draw(st.lists(st.integers(10, 99), min_size=least_text, max_size=9))
    for _ in sizes:
        text.insert(draw(st.integers(0, len(text))), PLACEHOLDER)
    counts = [vision.token_count(*size) for size in sizes]
    ids, mask = expand(text, counts, PLACEHOLDER)
    out = {"input_ids": ids, "images": [vision(picture(*size, seed + i)) for i, size in enumerate(sizes)]}
    if draw(st.booleans()):
        out["loss_mask"] = mask
    if not sizes and draw(st.booleans()):
        out["images"] = None
    return out


def images_in(payload):
    return list(payload.get("images") or [])
