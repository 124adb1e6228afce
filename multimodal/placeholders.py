"""Images in text: where they stand, as marks in the text, as parts of messages, and as placeholders in token ids.

Pure functions, to be used with ``.map``. They change no payload, they return a new one. The order is always the same:

1. Text is written with one mark for each image: ``caption_text``, ``interleaved_text``, ``question_answer``, ``chat``.
2. The tokenizer turns each mark into one placeholder id.
3. ``expand_images`` turns each placeholder into as many as the image has positions in the model.

Images are counted at every step. A text that mentions more images than there are, or fewer, is a ``ValueError``. So is a
text in which a user wrote the image token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from multimodal.vision import Vision
from zephon_nodes.training import I32

Payload: TypeAlias = "dict[str, Any]"
Message: TypeAlias = "dict[str, Any]"
Mask: TypeAlias = "npt.NDArray[np.bool_]"

MARK = "<image>"
_ROLES = {"human": "user", "gpt": "assistant"}
_IMAGE_TYPES = ("image", "image_url")


def images_of(payload: Mapping[str, Any]) -> Sequence[Any]:
    """The images of a payload; none where the field is null or missing.

    Raises ``ValueError`` unless they are a list of arrays (H, W, 3).
    """
    images = _listed(payload)
    for index, image in enumerate(images):
        if not isinstance(image, np.ndarray) or image.ndim != 3 or image.shape[2] != 3:
            came = f"shape {image.shape}" if isinstance(image, np.ndarray) else type(image).__name__
            raise ValueError(f"image {index} must be an array (H, W, 3), got {came}; decode images first")
    return images


def expand(
    input_ids: npt.ArrayLike,
    counts: Sequence[int],
    placeholder_id: int,
    loss_mask: npt.ArrayLike | None = None,
    start_id: int | None = None,
    end_id: int | None = None,
) -> tuple[I32, Mask]:
    """Makes of the i-th ``placeholder_id`` as many as image i has positions: ``counts[i]``, at least 1.

    ``input_ids``: ints (tokens,). ``loss_mask`` (None: all are learned): (tokens,), 0 where a token is not to be learned.
    ``start_id``, ``end_id`` (None): ids to stand before and behind each image. Leave them out where the text has them.

    Returns the ids, int32 (tokens,), and the mask, bool (tokens,), False on placeholders and on the ids around them.
    Raises ``ValueError`` if there are more placeholders than images, or fewer, and for arrays that don't fit.

    >>> ids, mask = expand([1, 9, 2], [3], placeholder_id=9)
    >>> ids.tolist(), mask.tolist()
    ([1, 9, 9, 9, 2], [True, False, False, False, True])
    """
    ids, sizes = _ids(input_ids), np.asarray(counts, np.int64)
    mask = np.ones(len(ids), np.bool_) if loss_mask is None else np.asarray(loss_mask) != 0
    if mask.shape != ids.shape:
        raise ValueError(f"loss_mask has shape {mask.shape}, but input_ids has {len(ids)} tokens")
    images = ids == placeholder_id
    places = np.flatnonzero(images)
    if len(places) != len(sizes):
        raise ValueError(
            f"the text has {len(places)} image placeholders (id {placeholder_id}), the record has {len(sizes)} images; "
            "write one for each image, and see that the text isn't cut before it is expanded"
        )
    if sizes.size and sizes.min() < 1:
        raise ValueError(f"image {sizes.argmin()} has {sizes.min()} positions; an image needs at least 1")
    lengths = np.ones(len(ids), np.int64)
    lengths[places] = sizes + (start_id is not None) + (end_id is not None)
    out, stops = np.repeat(ids, lengths), np.cumsum(lengths)[places]
    if start_id is not None:
        out[stops - lengths[places]] = start_id
    if end_id is not None:
        out[stops - 1] = end_id
    return out, np.repeat(mask & ~images, lengths)


def expand_images(
    payload: Payload, vision: Vision, placeholder_id: int, start_id: int | None = None, end_id: int | None = None
) -> Payload:
    """``expand`` for a payload with ``input_ids``, ``images`` and perhaps ``loss_mask``; both fields are set anew.

    ``vision`` tells the positions of an image, whether it has been resized already or not.

    >>> from multimodal.vision import FixedGrid
    >>> row = {"input_ids": [7, 1, 8], "images": [np.zeros((32, 32, 3), np.uint8)]}
    >>> expand_images(row, FixedGrid(size=32), placeholder_id=1)["input_ids"].tolist()
    [7, 1, 1, 1, 1, 8]
    """
    counts = [vision.token_count(*image.shape[:2]) for image in images_of(payload)]
    ids, mask = expand(payload["input_ids"], counts, placeholder_id, payload.get("loss_mask"), start_id, end_id)
    return {**payload, "input_ids": ids, "loss_mask": mask}


def caption_text(payload: Payload, image_token: str = MARK, field: str = "caption") -> Payload:
    """Sets ``text``: an ``image_token`` for each image, and then the caption in ``field``, a str.

    >>> caption_text({"images": [b"JPEG"], "caption": "A cat."})["text"]
    '<image>A cat.'
    """
    text = _string(payload, field)
    return {**payload, "text": _counted(payload, image_token * len(_listed(payload)) + text, image_token)}


def interleaved_text(payload: Payload, image_token: str = MARK, field: str = "texts", mark: str = MARK) -> Payload:
    """Sets ``text``: a document in which images stand between texts, joined without anything between.

    ``field``: a list of texts and images, in order. A text is a str or {"type": "text", "text": ...}, and may hold
    ``mark`` where images stand. An image is null or {"type": "image"}. Or it is one str with marks.

    >>> interleaved_text({"images": [b"JPEG"], "texts": ["A cat ", None, " sleeps."]})["text"]
    'A cat <image> sleeps.'
    """
    if payload.get(field) is None:
        raise ValueError(f"field {field!r} is missing or null; the record has {sorted(map(str, payload))}")
    text = _joined(content_parts(payload[field], mark), image_token)
    return {**payload, "text": _counted(payload, text, image_token)}


def question_answer(
    payload: Payload, question: str = "question", answer: str = "answer", image_token: str | None = None
) -> Payload:
    """Sets ``messages``: a user's with all images and then the text in field ``question``, and the assistant's with that
    in ``answer``. ``image_token``: as in ``chat``.

    >>> row = {"images": [b"JPEG"], "question": "What is it?", "answer": "A cat."}
    >>> question_answer(row)["messages"][0]["content"]
    [{'type': 'image'}, {'type': 'text', 'text': 'What is it?'}]
    """
    asked = [{"type": "image"}] * len(_listed(payload)) + _text(_string(payload, question))
    answered = _text(_string(payload, answer))
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return chat({**payload, "messages": messages}, image_token=image_token)


def chat(payload: Payload, field: str = "messages", mark: str = MARK, image_token: str | None = None) -> Payload:
    """Sets ``messages``: those in ``field`` by ``with_image_parts``. Raises ``ValueError`` also if they mention more
    images than the payload has, or fewer.

    >>> chat({"images": [b"JPEG"], "messages": [{"role": "user", "content": "<image>Hi"}]}, image_token="<|image|>")["messages"]
    [{'role': 'user', 'content': '<|image|>Hi'}]
    """
    messages = with_image_parts(payload.get(field), mark, image_token)
    if image_token is None:
        marks = sum(part["type"] == "image" for message in messages for part in message.get("content") or ())
        _check_count(payload, marks, "the conversation has {} image parts")
    else:
        _counted(payload, "".join(message.get("content") or "" for message in messages), image_token)
    return {**payload, "messages": messages}


def with_image_parts(messages: Any, mark: str = MARK, image_token: str | None = None) -> list[Message]:
    """Messages in the form that chat templates of image-text models expect.

    ``messages``: a list of dicts with ``role`` and ``content``, or with ``from`` ("human", "gpt") and ``value``, as LLaVA's
    data has. A content is a str in which ``mark`` stands for an image, or a list of parts such as {"type": "image"} and
    {"type": "text", "text": ...}; marks are found in the text of parts too.
    ``image_token`` (None): every content becomes a list of parts, {"type": "image"} and {"type": "text", "text": str}. A
    str is for templates that know no parts: every content becomes a str, with that token where images stand.

    Whitespace around marks stays. Other keys of a message stay. Raises ``ValueError``, naming the message by its index.

    >>> with_image_parts([{"from": "human", "value": "<image>What is it?"}])
    [{'role': 'user', 'content': [{'type': 'image'}, {'type': 'text', 'text': 'What is it?'}]}]
    """
    if not isinstance(messages, (list, tuple)):
        raise ValueError(f"a conversation must be a list of messages, got {type(messages).__name__}")
    return [_message(index, message, mark, image_token) for index, message in enumerate(messages)]


def content_parts(content: Any, mark: str = MARK) -> list[dict[str, str]]:
    """A str, or a list of texts and images, as parts: {"type": "image"} and {"type": "text", "text": str}, no text empty.

    Raises ``ValueError`` for anything that is neither text nor image.
    """
    items = [content] if isinstance(content, str) else content
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"a text with images must be a str or a list, got {type(content).__name__}")
    return [part for index, item in enumerate(items) for part in _parts(index, item, mark)]


def _listed(payload: Mapping[str, Any]) -> Sequence[Any]:
    """What stands in ``images``, decoded or not."""
    images = payload.get("images")
    if images is not None and not isinstance(images, (list, tuple)):
        raise ValueError(f"images must be a list with one entry for each image, got {type(images).__name__}")
    return images or ()


def _parts(index: int, item: Any, mark: str) -> list[dict[str, str]]:
    if isinstance(item, Mapping):
        kind, text = item.get("type"), item.get("text")
        if kind not in _IMAGE_TYPES and (kind not in ("text", None) or not isinstance(text, str)):
            keys = sorted(map(str, item))
            raise ValueError(f"part {index} has type {kind!r} and the keys {keys}: an image or a text is needed")
        item = None if kind in _IMAGE_TYPES else text
    if item is None:
        return [{"type": "image"}]
    if not isinstance(item, str):
        raise ValueError(f"part {index} is of type {type(item).__name__}: a str, null or a dict with a type is needed")
    out: list[dict[str, str]] = []
    for number, piece in enumerate(item.split(mark)):
        out += ([{"type": "image"}] if number else []) + _text(piece)
    return out


def _text(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}] if text else []


def _joined(parts: Sequence[Mapping[str, str]], image_token: str) -> str:
    return "".join(image_token if part["type"] == "image" else part["text"] for part in parts)


def _message(index: int, message: Any, mark: str, image_token: str | None) -> Message:
    if not isinstance(message, Mapping):
        raise ValueError(f"message {index} must be a dict with role and content, got {type(message).__name__}")
    out = dict(message)
    if "role" not in out and "from" in out:
        name = out.pop("from")
        out["role"], out["content"] = _ROLES.get(name, name), out.pop("value", None)
    if out.get("content") is None:
        return out
    try:
        parts = content_parts(out["content"], mark)
    except ValueError as error:
        raise ValueError(f"message {index} ({out.get('role')}): {error}") from error
    out["content"] = parts if image_token is None else _joined(parts, image_token)
    return out


def _counted(payload: Payload, text: str, image_token: str) -> str:
    _check_count(payload, text.count(image_token), f"the text has {{}} image tokens ({image_token!r})")
    return text


def _check_count(payload: Payload, marks: int, what: str) -> None:
    if marks != len(images := _listed(payload)):
        raise ValueError(
            f"{what.format(marks)}, the record has {len(images)} images; it must mention each image once, and no other"
        )


def _string(payload: Payload, field: str) -> str:
    text = payload.get(field)
    if not isinstance(text, str):
        came = f"got {type(text).__name__}" if field in payload else f"the record has {sorted(map(str, payload))}"
        raise ValueError(f"field {field!r} must be a str, {came}")
    return text


def _ids(input_ids: npt.ArrayLike) -> I32:
    ids = np.asarray(input_ids)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise ValueError(f"input_ids must be 1-D integers, got {ids.dtype} of shape {ids.shape}")
    return ids.astype(np.int32, copy=False)
