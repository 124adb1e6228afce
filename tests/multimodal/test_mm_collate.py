"""A batch of image-text rows to the tensors of a training step."""

import doctest
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, PLACEHOLDER, images_in, picture, samples, visions
from runs import run, source

from multimodal.collate import collate
from multimodal.packing import PackImages
from multimodal.placeholders import expand_images
from zephon_nodes import ConfigError, Microbatch, Pipeline, RowError
from zephon_nodes.collate import BlankRow
from zephon_nodes.stream import Pointer

LENGTH = 60


def batch_of(payloads, origins=None):
    pointers = origins or [tuple(Pointer("d", 0, i) for i in range(2))] * len(payloads)
    return Microbatch(payloads, pointers, 0, {"d": ("a.parquet",)})


@st.composite
def batches(draw):
    """(vision, a batch of packed, unpacked and blank rows)."""
    vision = draw(visions)
    packed = st.builds(
        lambda sequences: {"sequences": sequences[:2], "target_length": 220}, st.lists(samples(vision), max_size=3)
    )
    blank = st.sampled_from([{"input_ids": np.zeros(0, np.int32)}, {"sequences": [], "target_length": 220}]).map(
        BlankRow
    )
    return vision, batch_of(draw(st.lists(st.one_of(packed, samples(vision), blank), max_size=4)))


def documents(payload):
    return payload.get("sequences", [payload])


def images_plainly(out, vision):
    """The images of a batch, from its tensors, by loops."""
    if vision is FIXED:
        return [image.permute(1, 2, 0).numpy() for image in out["pixel_values"]]
    images, rows = [], iter(out["pixel_values"].tolist())
    p, m = vision.patch, vision.merge
    for t, h, w in out["image_grid_thw"].tolist():
        image = np.zeros((h * p, w * p, 3), np.uint8)
        for by, bx, y0, x0 in np.ndindex(h // m, w // m, m, m):
            row = np.array(next(rows)).reshape(3, vision.temporal_patch, p, p)
            assert t == 1 and all((row[:, k] == row[:, 0]).all() for k in range(vision.temporal_patch))
            y, x = (by * m + y0) * p, (bx * m + x0) * p
            image[y : y + p, x : x + p] = row[:, 0].transpose(1, 2, 0)
        images.append(image)
    assert next(rows, None) is None
    return images


def rope_plainly(payload, vision, length):
    """Triples of a row, token by token; an image is known by its first placeholder."""
    out = []
    for one in documents(payload):
        images, positions, ids = images_in(one), [], one["input_ids"].tolist()
        while len(positions) < len(ids):
            at = max((max(triple) for triple in positions), default=-1) + 1
            if ids[len(positions)] != PLACEHOLDER:
                positions.append((at, at, at))
            else:
                _, h, w = vision.grid(*images.pop(0).shape[:2])
                merge = getattr(vision, "merge", 1)
                positions += [(at, at + y, at + x) for y in range(h // merge) for x in range(w // merge)]
        out += positions
    return out + [(i, i, i) for i in range(length - len(out))]


@given(batches(), st.booleans())
def test_every_image_stands_where_its_placeholders_are(drawn, flat):
    vision, batch = drawn
    out = collate(batch, vision, PLACEHOLDER, flat=flat, extra=["document_ids"])
    assert out["pixel_values"].dtype == torch.uint8
    given_images = [image for row in batch for one in documents(row) for image in images_in(one)]
    got = images_plainly(out, vision)
    assert len(got) == len(given_images)
    assert all(np.array_equal(a, b) for a, b in zip(got, given_images, strict=True))
    assert out["image_counts"].tolist() == [sum(len(images_in(one)) for one in documents(row)) for row in batch]
    ids = out["input_ids"].reshape(1, -1) if flat else out["input_ids"]
    left = ids == PLACEHOLDER
    assert out["image_positions"].dtype == torch.int64 and out["image_positions"].shape == (len(got), 2)
    for (row, first), image in zip(out["image_positions"].tolist(), got, strict=True):
        behind = first + vision.token_count(*image.shape[:2])
        assert left[row, first:behind].all(), "its tokens are placeholders, and nobody else's"
        left[row, first:behind] = False
    assert not left.any(), "no placeholder is without an image"
    places = [row * ids.shape[1] + first for row, first in out["image_positions"].tolist()]
    assert places == sorted(places)


@given(batches(), st.booleans())
def test_tokens_are_as_to_training_gives_them(drawn, flat):
    vision, batch = drawn
    extra = ["cu_seqlens", "document_ids", "loss_mask", "num_valid_tokens", "padding_mask"]
    want = batch.to_training(extra, flat=flat)
    out = collate(batch, vision, PLACEHOLDER, flat=flat, extra=extra)
    for name, value in want.items():
        assert torch.equal(torch.as_tensor(out[name]), torch.as_tensor(value)), name
    images = {"pixel_values", "image_positions", "image_counts"}
    assert out.keys() - want.keys() == images | ({"image_grid_thw"} if vision is DYNAMIC else set())


@given(batches(), st.booleans())
def test_rope_positions_are_counted_from_0_in_each_document(drawn, flat):
    vision, batch = drawn
    out = collate(batch, vision, PLACEHOLDER, rope="3d", flat=flat)
    shape = out["position_ids"].shape
    length = out["position_ids"].numel() // max(1, len(batch))
    got = out["rope_positions"]
    assert got.dtype == torch.int64 and got.shape == (3, *shape)
    want = [triple for row in batch for triple in rope_plainly(row, vision, length)]
    padding = collate(batch, vision, PLACEHOLDER, extra=["padding_mask"])["padding_mask"].reshape(-1)
    triples = list(map(tuple, got.reshape(3, -1).T.tolist()))
    assert [a for a, p in zip(triples, padding, strict=True) if not p] == [
        b for b, p in zip(want, padding, strict=True) if not p
    ]
    assert (got.reshape(3, -1)[:, padding] == out["position_ids"].reshape(-1)[padding]).all()


@pytest.mark.parametrize("pixels", ["float32", "bfloat16"])
def test_pixels_may_be_normalized_here(pixels):
    sample = expand_images({"input_ids": [1, PLACEHOLDER], "images": [FIXED(picture(9, 9))]}, FIXED, PLACEHOLDER)
    out = collate(batch_of([sample]), FIXED, PLACEHOLDER, pixels=pixels)["pixel_values"]
    want = (sample["images"][0].transpose(2, 0, 1) / 255 - np.reshape(FIXED.mean, (3, 1, 1))) / np.reshape(
        FIXED.std, (3, 1, 1)
    )
    assert out.dtype == getattr(torch, pixels) and np.allclose(out[0].float(), want, rtol=1e-2)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("payloads", [[], [BlankRow({"input_ids": np.zeros(0, np.int32)})], [{"input_ids": [1, 2]}]])
def test_batches_without_images_have_tensors_without_rows(payloads, flat):
    batch = batch_of(payloads)
    fixed = collate(batch, FIXED, PLACEHOLDER, flat=flat, rope="3d")
    assert fixed["pixel_values"].shape == (0, 3, 8, 8) and fixed["image_positions"].shape == (0, 2)
    assert fixed["image_counts"].tolist() == [0] * len(payloads)
    dynamic = collate(batch, DYNAMIC, PLACEHOLDER, flat=flat, rope="3d", pixels="bfloat16")
    assert dynamic["pixel_values"].shape == (0, 24) and dynamic["image_grid_thw"].shape == (0, 3)
    assert dynamic["image_grid_thw"].dtype == dynamic["image_positions"].dtype == torch.int64
    assert dynamic["rope_positions"].shape == (3, *dynamic["input_ids"].shape)


# errors

IMAGE = FIXED(picture(8, 8))
GOOD = {"input_ids": [1, 5, 5, 5, 5, 2], "images": [IMAGE]}
FEW = "it has 3 placeholders (id 5), but its 1 images take 4 positions, one run for each: 4; expand placeholders"


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"input_ids": [1, 5, 5, 5], "images": [IMAGE]}, FEW),
        ({"input_ids": [5] * 8, "images": [IMAGE]}, "it has 8 placeholders (id 5), but its 1 images take 4 positions"),
        ({"input_ids": [5], "images": []}, "it has 1 placeholders (id 5), but its 0 images take 0 positions"),
        ({"input_ids": [5]}, "it has 1 placeholders (id 5), but its 0 images"),
        ({"input_ids": [1], "images": [IMAGE]}, "it has 0 placeholders (id 5), but its 1 images"),
        (
            {"input_ids": [5, 5, 1, 5, 5], "images": [IMAGE]},
            "it has 4 placeholders (id 5), but its 1 images take 4 positions",
        ),
        (
            {"input_ids": [5] * 3 + [1] + [5] * 5, "images": [IMAGE] * 2},
            "it has 8 placeholders (id 5), but its 2 images take 8 positions, one run for each: 4, 4",
        ),
        (
            {"input_ids": [5] * 4, "images": [picture(9, 8)]},
            "image 0 is uint8 of 9 x 8, but uint8 of 8 x 8 is needed; resize images with the same vision",
        ),
        ({"input_ids": [5] * 4, "images": [IMAGE.astype(np.float32)]}, "image 0 is float32 of 8 x 8"),
        ({"input_ids": [5] * 4, "images": [b"JPEG"]}, "image 0 must be an array (H, W, 3), got bytes"),
        ({"input_ids": [5] * 4, "images": IMAGE}, "images must be a list"),
    ],
)
def test_documents_that_do_not_fit_their_images_are_named(bad, message):
    rows = [{"sequences": [GOOD, GOOD], "target_length": 20}, {"sequences": [GOOD, bad], "target_length": 20}]
    origins = [(Pointer("d", 0, 3), Pointer("d", 0, 4)), (Pointer("d", 0, 7), Pointer("d", 0, 9))]
    with pytest.raises(RowError) as raised:
        collate(batch_of(rows, origins), FIXED, PLACEHOLDER)
    text = str(raised.value)
    assert message in text and text.startswith("collate: document 1 of row 1 (row 9 of a.parquet): ")
    assert raised.value.origins == origins[1] and raised.value.node == "collate"


def test_a_document_made_of_several_rows_is_named_by_its_place():
    origins = [(Pointer("d", 0, 3), Pointer("d", 0, 4))]
    with pytest.raises(RowError, match="collate: document 0 of row 0: it has 1 placeholders"):
        collate(batch_of([{"input_ids": [5]}], origins), FIXED, PLACEHOLDER)


def test_images_in_rows_that_were_packed_flat_are_refused():
    flat = {"input_ids": [5] * 4, "document_ids": [0] * 4, "images": [IMAGE]}
    with pytest.raises(RowError, match="packed flat"):
        collate(batch_of([flat]), FIXED, PLACEHOLDER)
    del flat["images"]
    text = {**flat, "input_ids": [1] * 4}
    assert collate(batch_of([text]), FIXED, PLACEHOLDER)["image_counts"].tolist() == [0]


@pytest.mark.parametrize(
    ("vision", "settings", "message"),
    [
        (FIXED, {"pixels": "half"}, "pixels='half' is unknown"),
        (FIXED, {"rope": "2d"}, "rope='2d' is unknown"),
        (replace(FIXED, tokens=2), {"rope": "3d"}, r"this FixedGrid has 2 for a grid of \(1, 2, 2\)"),
        (FIXED, {"extra": ["pixel_values"]}, "extra='pixel_values' is a name that collate gives itself"),
        (FIXED, {"extra": "image_counts"}, "extra='image_counts' is a name"),
        (FIXED, {"extra": ["nothing"]}, "extra='nothing': row 0 has no such field"),
    ],
)
def test_settings_that_do_not_fit_are_refused(vision, settings, message):
    with pytest.raises(ConfigError, match=message):
        collate(batch_of([GOOD]), vision, PLACEHOLDER, **settings)


# in a graph


def expanded(vision):
    return lambda payload: expand_images(
        {**payload, "images": [vision(image) for image in payload["images"]]}, vision, PLACEHOLDER
    )


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), visions, st.sampled_from(["first_fit", "best_fit"]))
def test_every_image_of_a_dataset_arrives_once_beside_its_text(counts, vision, algorithm):
    rows = [
        {
            "input_ids": [10 + i, *[PLACEHOLDER] * n, 10 + i],
            "images": [np.full((5 + i, 9, 3), i + 1, np.uint8) for _ in range(n)],
        }
        for i, n in enumerate(counts)
    ]
    pipeline = Pipeline(source(rows, flush=100), runner="inline").map(expanded(vision))
    pipeline = pipeline.then(PackImages, LENGTH, max_images=3, algorithm=algorithm, overlong="raise").batch(2)
    seen = []
    for batch in pipeline:
        out = collate(batch, vision, PLACEHOLDER)
        ids = out["input_ids"]
        assert ids.shape[1] == LENGTH and max(out["image_counts"].tolist()) <= 3
        for (row, first), image in zip(out["image_positions"].tolist(), images_plainly(out, vision), strict=True):
            text = ids[row, :first]
            before = text[text != PLACEHOLDER][-1].item()  # the word before an image says which one it is
            assert (image == before - 9).all()
            seen.append(before - 10)
    assert sorted(seen) == [i for i, n in enumerate(counts) for _ in range(n)]


def test_it_may_stand_in_the_graph_and_name_rows_there():
    rows = [{"input_ids": [10, PLACEHOLDER], "images": [picture(8, 8)]}] * 3
    pipeline = Pipeline(source(rows), runner="inline").map(expanded(FIXED)).then(PackImages, 12).batch(2)
    out, error = run(pipeline.map_batch(lambda batch: collate(batch, FIXED, PLACEHOLDER)))
    assert error is None and [len(one["pixel_values"]) for one in out] == [3]
    wrong = pipeline.map_batch(lambda batch: collate(batch, FIXED, 10))
    error = run(wrong)[1]
    assert isinstance(error, RowError) and "row 0 of" in str(error)


def test_the_examples_run():
    report = doctest.testmod(sys.modules["multimodal.collate"])
    assert report.attempted and not report.failed
