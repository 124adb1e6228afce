"""The promises of the core, on graphs of images chained at random: any schedule, any stop, any world; nothing lost or twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, partial

import mm_pictures as mm
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, PLACEHOLDER
from PIL import Image

from multimodal import (
    CollateImages,
    DecodeImages,
    ExpandImages,
    LoadImages,
    PackImages,
    ResizeImages,
    compose,
    random_flip,
    random_resized_crop,
)
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

ROWS = 40
LENGTH = 40
AUGMENT = compose(partial(random_resized_crop, size=(12, 16), scale=(0.3, 1.0)), random_flip)
BAD = (b"", b"no image", mm.written(Image.fromarray(mm.drawn(9, 9)), "PNG")[:40])


@cache
def file(i):
    image = Image.fromarray(mm.drawn(6 + i % 5 * 4, 7 + i % 4 * 5, seed=i))
    return mm.written(image, ("PNG", "JPEG", "WEBP", "GIF")[i % 4])


def row(i, bad):
    """Row i: 0 to 3 images, each behind a word that tells the row, and a word at the end. Some have a bad image."""
    n = (1, 0, 2, 3, 1)[i % 5]
    files = [file(i * 3 + k) for k in range(n)]
    if bad and i % 7 == 3 and files:
        files[-1] = BAD[i % 3]
    ids = [token for _ in files for token in (10 + i, PLACEHOLDER)] + [10 + i, 10 + i]
    return {"image": files or None, "input_ids": np.array(ids, np.int32)}


def even(payload):
    return len(payload["images"]) != 1


LOADS = {
    "load": lambda p, vision: p.then(LoadImages, vision),
    "exact": lambda p, vision: p.then(LoadImages, vision, scaled=False),
    "augment": lambda p, vision: p.then(DecodeImages).then(ResizeImages, vision, AUGMENT),
    "frames": lambda p, vision: p.then(DecodeImages, background=(0, 0, 0)).then(ResizeImages, vision),
}
STEPS = {"shuffle": lambda p: p.shuffle(5), "filter": lambda p: p.filter(even)}
PACKS = {
    "tokens": lambda p, vision: p.then(PackImages, LENGTH, num_bins=3),
    "images": lambda p, vision: p.then(PackImages, LENGTH, num_bins=3, max_images=3, algorithm="best_fit"),
    "patches": lambda p, vision: p.then(PackImages, LENGTH, num_bins=2, max_patches=60, vision=vision),
    "none": lambda p, vision: p,
}
ENDS = {
    "size": lambda p: p.batch(2),
    "tokens": lambda p: p.batch(max_tokens=90),
    "last": lambda p: p.batch(3, drop_last=True),
}


@dataclass(frozen=True)
class Images:
    load: str
    before: tuple[str, ...]
    pack: str
    after: tuple[str, ...]
    end: str
    vision: str
    pixels: str
    flat: bool
    bad: bool
    lanes: int
    flush_every: int
    passes: int
    seed: int

    def pipeline(self):
        vision = {"fixed": FIXED, "dynamic": DYNAMIC}[self.vision]
        rows = Dataset.from_rows("pictures", [row(i, self.bad) for i in range(ROWS)])
        source = StaticMixtureWorkSource(
            [rows], None, self.lanes, chunk_size=4, flush_every=self.flush_every, passes=self.passes, seed=self.seed
        )
        pipeline = LOADS[self.load](Pipeline(source, on_error="skip"), vision)
        for name in self.before:
            pipeline = STEPS[name](pipeline)
        pipeline = PACKS[self.pack](pipeline.then(ExpandImages, vision, PLACEHOLDER), vision)
        for name in self.after:
            pipeline = STEPS[name](pipeline)
        rope = "3d" if self.vision == "dynamic" else "1d"
        return ENDS[self.end](pipeline).then(
            CollateImages, vision, PLACEHOLDER, pixels=self.pixels, rope=rope, flat=self.flat, extra=["document_ids"]
        )


@st.composite
def graphs(draw, **fixed):
    steps = st.lists(st.sampled_from(["shuffle", "filter"]), max_size=2).map(tuple)
    drawn = {
        "load": st.sampled_from(list(LOADS)),
        "before": steps,
        "pack": st.sampled_from(list(PACKS)),
        "after": st.sampled_from([(), ("shuffle",)]),
        "end": st.sampled_from(list(ENDS)),
        "vision": st.sampled_from(["fixed", "dynamic"]),
        "pixels": st.sampled_from(["uint8", "float32", "bfloat16"]),
        "flat": st.booleans(),
        "bad": st.booleans(),
        "lanes": st.sampled_from([1, 2, 4]),
        "flush_every": st.sampled_from([1, 3]),
        "passes": st.sampled_from([1, 2]),
        "seed": st.integers(0, 3),
    }
    return Images(**{name: draw(fixed.get(name, strategy)) for name, strategy in drawn.items()})


@given(graphs())
def test_knobs_never_change_data(graph):
    assert_any_schedule(graph.pipeline, schedules=1)


@given(graphs())
def test_stop_anywhere_and_resume(graph):
    assert_resumes_everywhere(graph.pipeline, steps=8)


@given(graphs())
def test_any_world_gives_the_same_global_batches(graph):
    assert_any_world(graph.pipeline, [world for world in (1, 2, 4) if graph.lanes % world == 0])


@given(graphs(before=st.just(()), end=st.sampled_from(["size", "tokens"]), flat=st.just(False)))
def test_every_row_arrives_once_with_its_images_or_stands_in_the_drop_report(graph):
    want, bad = Counter(), 0
    for i in range(ROWS):
        files = row(i, graph.bad)["image"] or []
        if any(one in BAD for one in files):
            bad += 1
        else:
            want[10 + i] = graph.passes * (len(files) + 2)
    got = Counter()
    with graph.pipeline().options(runner="inline") as pipeline:
        for step in pipeline:
            ids = step["input_ids"][step["document_ids"] >= 0]
            got.update(ids[ids != PLACEHOLDER].tolist())
            before = step["input_ids"][step["image_positions"][:, 0], (step["image_positions"][:, 1] - 1)]
            assert (before != PLACEHOLDER).all()  # each image begins behind the word of its row
        failed, over = pipeline.drops.failed, pipeline.drops.total - pipeline.drops.failed
        lost = {at for at in want if got[at] != want[at]}
    assert failed == bad * graph.passes
    assert over == len(lost) * graph.passes and not set(got) - set(want) and all(got[at] == 0 for at in lost)
