"""Ready graphs of image-text data, for models of a fixed grid (CLIP or SigLIP before a language model) and of dynamic
resolution (Qwen2-VL and its like). Copy the one that is nearest to what you want, and change it.

All have the same steps, and none is more than those steps:

    images    decoded and resized, ``images``: a list of uint8 (H, W, 3) a record
    text      with a mark for each image, then token ids, then as many ids for a mark as its image has positions
    packing   whole samples into sequences of ``max_length`` tokens; samples that are longer are left out and counted
    batch     of ``microbatch_size`` sequences, as tensors: see ``collate`` for names, shapes and dtypes

Rows come shuffled from the source. To mix further, put ``.shuffle(...)`` before the images, where a record is a file:
what it holds is let go at once at the end of a span, and then decoded, so its size bounds memory.

Memory, besides the records under way: a lane holds 16 open sequences with their images. A position of an image is 768
bytes for ``FixedGrid()`` and 2,352 for ``DynamicResolution()``, so at 2,048 positions 25 and 77 MB a lane; ``num_bins`` of
``PackImages`` sets it against padding. A finished step has the pixels once more (twice with a ``temporal_patch`` of 2).

``vision`` decides about the style: a ``FixedGrid`` or a ``DynamicResolution``. ``tokenizer``: as of ``Tokenize``; it needs
the token ``image_token`` ("<image>"), of which one is written for each image. Rows may have several images, one, or none
(null). A model that has ids around each image gets them by ``start_id`` and ``end_id`` of ``ExpandImages``.
``options``: how the graph is run, see ``Options``; with on_error="skip" rows that can't be used are left out, counted and
named, among them those that mention more images than they have, or fewer.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from multimodal.nodes import CollateImages, ExpandImages, LoadImages
from multimodal.packing import PackImages
from multimodal.placeholders import caption_text, chat, interleaved_text
from multimodal.vision import DynamicResolution, Vision
from zephon_nodes import Node, Pipeline, WorkSource
from zephon_nodes.tokenizer import load_tokenizer

__all__ = ["caption_pretraining", "interleaved", "visual_chat"]


def caption_pretraining(
    source: WorkSource | Node,
    tokenizer: Any,
    vision: Vision,
    *,
    max_length: int = 2048,
    microbatch_size: int = 4,
    image_token: str = "<image>",
    **options: Any,
) -> Pipeline:
    """Images with a caption: rows with ``image`` (bytes, a path, or a list of those) and ``caption``, a str.

    The images stand before the caption, which is what is learned, with an end of text.

    >>> graph = caption_pretraining(StaticMixtureWorkSource([pictures]), tokenizer, FixedGrid(size=32), max_length=16)
    >>> step = next(iter(graph))
    >>> step["input_ids"].shape, step["pixel_values"].shape
    (torch.Size([1, 16]), torch.Size([2, 3, 32, 32]))
    """
    image_id = load_tokenizer(tokenizer, bos=None, eos=None).token_id(image_token)
    rope = "3d" if isinstance(vision, DynamicResolution) else "1d"
    return (
        Pipeline(source, **options)
        .then(LoadImages, vision, "image")
        .map(partial(caption_text, image_token=image_token, field="caption"))
        .tokenize(tokenizer, "text")
        .then(ExpandImages, vision, image_id)
        .then(PackImages, max_length)
        .batch(microbatch_size)
        .then(CollateImages, vision, image_id, rope=rope, extra=["document_ids"])
    )


def interleaved(
    source: WorkSource | Node,
    tokenizer: Any,
    vision: Vision,
    *,
    max_length: int = 2048,
    microbatch_size: int = 4,
    image_token: str = "<image>",
    **options: Any,
) -> Pipeline:
    """Documents in which images stand between texts: rows with ``images``, a list, and ``texts``, a list of texts with null
    where an image stands, or one text with ``<image>`` there. All text is learned.

    >>> row = {"images": [pictures[0]["image"]] * 2, "texts": ["a cat", None, "and a dog", None]}
    >>> source = StaticMixtureWorkSource([Dataset.from_rows("documents", [row])])
    >>> step = next(iter(interleaved(source, tokenizer, DynamicResolution(), max_length=32)))
    >>> step["image_grid_thw"].tolist(), step["image_positions"].tolist()
    ([[1, 4, 4], [1, 4, 4]], [[0, 2], [0, 9]])
    """
    image_id = load_tokenizer(tokenizer, bos=None, eos=None).token_id(image_token)
    rope = "3d" if isinstance(vision, DynamicResolution) else "1d"
    return (
        Pipeline(source, **options)
        .then(LoadImages, vision, "images")
        .map(partial(interleaved_text, image_token=image_token, field="texts"))
        .tokenize(tokenizer, "text")
        .then(ExpandImages, vision, image_id)
        .then(PackImages, max_length)
        .batch(microbatch_size)
        .then(CollateImages, vision, image_id, rope=rope, extra=["document_ids"])
    )


def visual_chat(
    source: WorkSource | Node,
    tokenizer: Any,
    vision: Vision,
    *,
    chat_template: Any = None,
    max_length: int = 2048,
    microbatch_size: int = 4,
    image_token: str = "<image>",
    **options: Any,
) -> Pipeline:
    """Conversations about images: rows with ``images``, a list or null, and ``messages`` as in ``chat``: parts of type
    "image" and "text", or texts with ``<image>`` where images stand. Only the assistant's answers are learned.

    ``chat_template`` (None): the tokenizer's own, which must write one ``image_token`` for a part of type "image". For a
    template that knows no parts, write ``partial(chat, image_token=image_token)`` in place of ``chat``. Needs jinja2.

    >>> template = "{% for m in messages %}{{ m.role }}: {% for p in m.content %}"
    >>> template += "{{ '<image>' if p.type == 'image' else p.text }} {% endfor %}{% endfor %}"
    >>> messages = [{"role": "user", "content": "<image> what"}, {"role": "assistant", "content": "a cat"}]
    >>> rows = Dataset.from_rows("chats", [{"images": [pictures[0]["image"]], "messages": messages}])
    >>> graph = visual_chat(StaticMixtureWorkSource([rows]), tokenizer, FixedGrid(size=32), chat_template=template)
    >>> step = next(iter(graph))
    >>> step["input_ids"][0, :12].tolist(), step["labels"][0, :12].tolist()[-4:]
    ([6, 8, 1, 1, 1, 1, 5, 7, 8, 2, 3, 0], [2, 3, -100, -100])
    """
    image_id = load_tokenizer(tokenizer, bos=None, eos=None).token_id(image_token)
    rope = "3d" if isinstance(vision, DynamicResolution) else "1d"
    return (
        Pipeline(source, **options)
        .then(LoadImages, vision, "images")
        .map(chat)
        .tokenize_chat(tokenizer, "messages", chat_template=chat_template)
        .then(ExpandImages, vision, image_id)
        .then(PackImages, max_length)
        .batch(microbatch_size)
        .then(CollateImages, vision, image_id, rope=rope, extra=["document_ids"])
    )
