"""The ready graphs, each in both styles: every image at its placeholders, every text once, and the promises of the core."""

from __future__ import annotations

from collections import Counter

import mm_pictures as mm
import numpy as np
import pytest
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from multimodal import (
    CollateImages,
    DecodeImages,
    DynamicResolution,
    ExpandImages,
    FixedGrid,
    PackImages,
    ResizeImages,
    caption_text,
    graphs,
    tiles,
)
from multimodal.transform import resize
from zephon_nodes import ConfigError, Dataset, Pipeline, RowError, StaticMixtureWorkSource
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, digest

VISIONS = {"fixed": FixedGrid(size=16, patch=8, fit="squash"), "dynamic": DynamicResolution(4, 2, 64, 640)}
WORDS = ["<|endoftext|>", "<image>", "user", "assistant", "?", *(f"w{i}" for i in range(40))]
END, IMAGE, USER, ASSISTANT, UNKNOWN, FIRST = range(6)
LENGTH = 48
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {% for p in m.content %}{% if p.type == 'image' %}<image>{% elif m.role == "
    "'assistant' %}{% generation %}{{ p.text }}{% endgeneration %}{% else %}{{ p.text }}{% endif %}{% endfor %} {% endfor %}"
)


def tokenizer():
    out = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="?"))
    out.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    out.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:2]])
    return out


def file(i):
    """A picture of one colour, which tells its row, in one of three formats and of many shapes."""
    image = Image.fromarray(np.full((9 + i % 5 * 4, 12 + i % 7 * 3, 3), 5 * i, np.uint8))
    return mm.written(image, ("PNG", "WEBP", "BMP")[i % 3], **({"lossless": True} if i % 3 == 1 else {}))


def count(i):
    return (1, 0, 2, 1)[i % 4]


def row(kind, i):
    """Row i: its pictures, ``count(i)`` of them, and word i."""
    files = [file(i)] * count(i)
    if kind == "caption_pretraining":
        return {"image": files or None, "caption": f"w{i}"}
    if kind == "interleaved":
        return {"images": files, "texts": [f"w{i} ", *[None] * count(i), f" w{i}"]}
    asked = "".join("<image>" * count(i)) + "w39"
    return {
        "images": files or None,
        "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": f"w{i}"}],
    }


def source(kind, rows=None, lanes=2):
    rows = [row(kind, i) for i in range(30)] if rows is None else rows
    return StaticMixtureWorkSource([Dataset.from_rows(kind, rows)], num_lanes=lanes, chunk_size=4, flush_every=2)


def graph(kind, vision, rows=None, lanes=2, **settings):
    more = {"chat_template": TEMPLATE} if kind == "visual_chat" else {}
    build = getattr(graphs, kind)
    return build(
        source(kind, rows, lanes),
        tokenizer(),
        VISIONS[vision],
        **{"max_length": LENGTH, "microbatch_size": 2, **more, **settings},
    )


KINDS = pytest.mark.parametrize("kind", graphs.__all__)
STYLES = pytest.mark.parametrize("vision", VISIONS)


def images_of_step(step, vision):
    """The colour of each image of a step, by the rows of ``pixel_values`` that are its own."""
    pixels = step["pixel_values"]
    if vision == "fixed":
        return [image.unique().tolist() for image in pixels]
    sizes = [int(grid.prod()) for grid in step["image_grid_thw"]]
    return [image.unique().tolist() for image in pixels.split(sizes)] if sizes else []


@KINDS
@STYLES
def test_every_image_stands_beside_its_text_and_every_row_comes_once(kind, vision):
    seen = Counter()
    for step in graph(kind, vision, runner="inline"):
        assert step["input_ids"].shape[1] == LENGTH
        assert step["image_counts"].sum() == len(step["image_positions"]) == len(images_of_step(step, vision))
        colours = iter(images_of_step(step, vision))
        for ids, documents in zip(step["input_ids"].tolist(), step["document_ids"].tolist(), strict=True):
            for document in range(max(documents, default=-1) + 1):
                text = [token for token, of in zip(ids, documents, strict=True) if of == document]
                words = {token - FIRST for token in text if FIRST <= token < FIRST + 39}
                (word,) = words
                assert UNKNOWN not in text
                for _ in range(count(word)):
                    assert next(colours) == [5 * word]
                seen[word] += 1
        assert next(colours, None) is None
    assert seen == Counter(range(30))


@KINDS
@STYLES
def test_the_positions_of_an_image_are_never_learned(kind, vision):
    learned = Counter()
    for step in graph(kind, vision, runner="inline"):
        labels = step["labels"]
        learned.update(labels[labels != -100].tolist())
        firsts = step["input_ids"][tuple(step["image_positions"].T)]
        assert (firsts == IMAGE).all()
    assert not learned[IMAGE] and not learned[USER] and not learned[FIRST + 39]
    if kind == "visual_chat":
        assert learned == Counter({FIRST + i: 1 for i in range(30)})
    elif kind == "interleaved":  # the first token of a document has nothing before it that could tell it
        assert learned == Counter({**{FIRST + i: 1 for i in range(30)}, END: 30})
    else:
        assert learned == Counter({**{FIRST + i: 1 for i in range(30) if count(i)}, END: 30})


@KINDS
@STYLES
def test_the_promises_hold_with_bad_images_among_them(kind, vision):
    field = "image" if kind == "caption_pretraining" else "images"
    rows = [row(kind, i) for i in range(30)]
    for i in (3, 4, 17):
        rows[i] = {**rows[i], field: [b"no image"]}
    rows[8] = {**rows[8], field: None} if kind != "caption_pretraining" else {**rows[8], "caption": None}

    def make(**options):
        return graph(kind, vision, rows, 4, on_error="skip", **options)

    assert_resumes_everywhere(make, steps=6)
    assert_any_schedule(make, schedules=1)
    assert_any_world(make, [1, 2, 4])
    with make(runner="inline") as whole:
        assert sum(int((step["document_ids"].max(1).values + 1).sum()) for step in whole) == 26
        assert whole.drops.failed == 4


@KINDS
def test_without_a_policy_a_bad_row_stops_the_run_by_name(kind):
    rows = [row(kind, i) for i in range(4)]
    rows[2] = {**rows[2], "image": b"", "images": [b""]}
    with pytest.raises(RowError, match=r"load_images failed on row 2 of rows \(dataset .*image 0: empty: 0 bytes"):
        list(graph(kind, "fixed", rows))


@KINDS
def test_what_is_too_long_is_left_out_and_counted(kind):
    with graph(kind, "fixed", max_length=8, runner="inline") as short:
        assert list(short)
        assert {node for node, _ in short.drops.counts} == {"pack_images"}
        assert short.drops.total == sum(count(i) == 2 for i in range(30)) and not short.drops.failed


@KINDS
def test_a_tokenizer_without_the_image_token_is_refused(kind):
    with pytest.raises(ConfigError, match="has no token '<picture>'"):
        graph(kind, "fixed", image_token="<picture>")


def test_styles_differ_in_their_tensors():
    fixed, dynamic = (next(iter(graph("interleaved", vision, runner="inline"))) for vision in VISIONS)
    assert fixed["pixel_values"].shape[1:] == (3, 16, 16) and "rope_positions" not in fixed
    assert dynamic["pixel_values"].shape[1] == 3 * 2 * 4 * 4 and dynamic["rope_positions"].shape == (3, 2, LENGTH)
    assert dynamic["pixel_values"].shape[0] == int(dynamic["image_grid_thw"].prod(1).sum())


def tiled(payload):
    return {**payload, "images": [part for image in payload["images"] for part in tiles(image, 16, 4)[0]]}


def test_large_images_as_tiles_have_a_placeholder_each():
    image = mm.written(Image.fromarray(mm.drawn(32, 64)), "PNG")
    rows = Dataset.from_rows("wide", [{"image": image, "caption": "w3"}])
    graph = Pipeline(StaticMixtureWorkSource([rows]), runner="inline").then(DecodeImages).map(tiled)
    graph = graph.then(ResizeImages, VISIONS["fixed"]).map(caption_text).tokenize(tokenizer())
    graph = graph.then(ExpandImages, VISIONS["fixed"], IMAGE).then(PackImages, LENGTH).batch(1)
    (step,) = graph.then(CollateImages, VISIONS["fixed"], IMAGE)
    assert step["image_positions"].tolist() == [[0, 0], [0, 4], [0, 8]]  # a row of two tiles, and the whole
    assert np.array_equal(step["pixel_values"][2].permute(1, 2, 0), resize(mm.drawn(32, 64), (16, 16)))


def test_worker_processes_give_the_same():
    """Arrays of images cross to the trainer as they are."""
    inline = list(map(digest, graph("interleaved", "dynamic", runner="inline")))
    with graph("interleaved", "dynamic", runner="process", parallelism=1) as in_processes:
        assert list(map(digest, in_processes)) == inline
