"""A batch of image-text rows to the tensors of a training step. Pure: ``.map``, or a call behind the loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from multimodal.pixels import Image, Pixels, check_pixels, pixel_values
from multimodal.placeholders import images_of
from multimodal.rope import rope_positions
from multimodal.vision import DynamicResolution, FixedGrid, Vision
from zephon_nodes import Microbatch
from zephon_nodes.errors import ConfigError, RowError

I64: TypeAlias = "npt.NDArray[np.int64]"
Rope: TypeAlias = Literal["1d", "3d"]

OWN = ("pixel_values", "image_grid_thw", "image_positions", "image_counts", "rope_positions")


class _Document(NamedTuple):
    """Document ``place`` of ``among`` in row ``row``; its tokens begin at ``start`` there."""

    row: int
    place: int
    among: int
    start: int
    payload: Mapping[str, Any]


class _Placed(NamedTuple):
    """The images of a document that ends at ``stop`` of row ``row``, and the place of each one's first token there."""

    row: int
    stop: int
    images: Sequence[Image]
    firsts: Sequence[int]


def collate(
    batch: Microbatch,
    vision: Vision,
    placeholder_id: int,
    *,
    pixels: Pixels = "uint8",
    rope: Rope = "1d",
    extra: Sequence[str] = (),
    flat: bool = False,
) -> dict[str, Any]:
    """The tensors of a training step: B rows of S tokens with N images.

    Rows come from ``PackImages``, or are samples of their own: ``input_ids`` with placeholders expanded, and ``images``,
    resized by ``vision``. Rows without images, blank rows, and batches without any image are fine.

    All that ``Microbatch.to_training`` gives, with ``extra`` and ``flat`` as there: ``input_ids``, ``position_ids`` and
    ``labels`` int64 (B, S), and what is asked for. ``extra`` may also name "origins": ``Microbatch.origins``, the file and
    row of each document. And, with images in the order of their placeholders in the batch:

    - "pixel_values": for ``FixedGrid`` (N, 3, size, size). For ``DynamicResolution`` (P, 3 * temporal_patch * patch *
      patch), P being the patches of all images, with "image_grid_thw" int64 (N, 3): patches in time, height and width.
      See ``pixels.pixel_values``. ``pixels``: "uint8" (default), for ``pixels.normalise_pixel_values`` on the device,
      or "float32" or "bfloat16", normalised here, which takes time here and 4 or 2 times the bytes to move.
    - "image_positions": int64 (N, 2), row and place of each image's first token. With ``flat`` the row is 0 and the place
      is that in the rows laid end to end.
    - "image_counts": int64 (B,), images a row.
    - "rope_positions", with ``rope`` "3d": int64 (3, B, S), or (3, B * S) with ``flat``: positions in time, height and
      width, from 0 in each document, see ``rope.rope_positions``; at padding all three are ``position_ids``.
      Qwen2-VL in transformers takes them as ``position_ids``, and with ``position_ids`` put before them, (4, B, S),
      keeps packed documents apart.

    Raises ``RowError`` for a document whose placeholders aren't one run for each image, as long as ``vision`` says, and
    for images that aren't as ``vision`` resizes them; ``ConfigError`` for settings, and as ``to_training`` does.

    >>> from multimodal.placeholders import expand_images
    >>> vision = FixedGrid(size=32, patch=16)
    >>> sample = {"input_ids": [1, 9, 2], "images": [np.zeros((32, 32, 3), np.uint8)]}
    >>> batch = Microbatch([expand_images(sample, vision, 9)], [()], 0, {})
    >>> out = collate(batch, vision, 9)
    >>> out["input_ids"].tolist(), out["image_positions"].tolist(), out["pixel_values"].shape
    ([[1, 9, 9, 9, 9, 2]], [[0, 1]], torch.Size([1, 3, 32, 32]))
    """
    import torch

    names = (extra,) if isinstance(extra, str) else tuple(extra)
    check_settings(vision, pixels, rope, names)
    out: dict[str, Any] = batch.to_training([name for name in names if name != "origins"], flat=flat)
    if "origins" in names:
        out["origins"] = batch.origins
    checked = [_placed(batch, document, vision, placeholder_id) for document in _documents(batch)]
    placed = [one for one in checked if one.images]
    images = [image for one in placed for image in one.images]
    out["pixel_values"] = pixel_values(images, vision, pixels)
    if isinstance(vision, DynamicResolution):
        grids = [vision.grid(*image.shape[:2]) for image in images]
        out["image_grid_thw"] = torch.tensor(grids, dtype=torch.int64).reshape(-1, 3)
    length = out["input_ids"].numel() // max(1, len(batch))
    places = np.array([(one.row, first) for one in placed for first in one.firsts], np.int64).reshape(-1, 2)
    out["image_counts"] = torch.from_numpy(np.bincount(places[:, 0], minlength=len(batch)))
    out["image_positions"] = torch.from_numpy(places @ [[0, length], [0, 1]] if flat else places)
    if rope == "3d":
        out["rope_positions"] = torch.from_numpy(_rope(out["position_ids"].numpy(), placed, vision, length))
    return out


def check_settings(vision: Vision, pixels: str, rope: str, extra: Sequence[str]) -> None:
    """Raises ``ConfigError`` for settings of ``collate`` that can't work."""
    check_pixels(pixels)
    if rope not in ("1d", "3d"):
        raise ConfigError(f"collate: rope={rope!r} is unknown; use '1d' or '3d'")
    if rope == "3d" and isinstance(vision, FixedGrid):
        grid, tokens = vision.grid(vision.size, vision.size), vision.token_count(vision.size, vision.size)
        if prod(grid) != tokens:
            raise ConfigError(
                f"collate: rope='3d' needs a token for each patch, but this FixedGrid has {tokens} for a grid of {grid}"
            )
    if taken := [name for name in extra if name in OWN]:
        raise ConfigError(f"collate: extra={taken[0]!r} is a name that collate gives itself; rename that field by map")


def _documents(batch: Microbatch) -> Iterator[_Document]:
    for row, payload in enumerate(batch.payloads):
        apart = "document_ids" not in payload and "sequences" in payload and "target_length" in payload
        documents = payload["sequences"] if apart else [payload]
        start = 0
        for place, one in enumerate(documents):
            yield _Document(row, place, len(documents), start, one)
            start += len(one["input_ids"])


def _placed(batch: Microbatch, document: _Document, vision: Vision, placeholder_id: int) -> _Placed:
    """A document's images, checked, and their places."""
    row, _, _, start, payload = document
    try:
        images = images_of(payload)
        _check_images(images, vision)
    except ValueError as error:
        raise _bad(batch, document, str(error)) from error
    if images and "document_ids" in payload:
        raise _bad(
            batch, document, "it has images, but was packed flat, so it can't be told whose they are; use PackImages"
        )
    counts = [vision.token_count(*image.shape[:2]) for image in images]
    tokens = np.flatnonzero(np.asarray(payload["input_ids"]) == placeholder_id)
    edges = list(accumulate(counts, initial=0))
    if len(tokens) != edges[-1] or any(tokens[b - 1] - tokens[a] != b - a - 1 for a, b in pairwise(edges)):
        raise _bad(
            batch,
            document,
            f"it has {len(tokens)} placeholders (id {placeholder_id}), but its {len(images)} images take {edges[-1]} positions, "
            f"one run for each: {_few(counts)}; expand placeholders with the same vision, and cut nothing afterwards",
        )
    return _Placed(row, start + len(payload["input_ids"]), images, [start + int(tokens[a]) for a in edges[:-1]])


def _check_images(images: Sequence[Image], vision: Vision) -> None:
    for index, image in enumerate(images):
        size = vision.target_size(*image.shape[:2])
        if image.dtype != np.uint8 or image.shape[:2] != tuple(size):
            raise ValueError(
                f"image {index} is {image.dtype} of {image.shape[0]} x {image.shape[1]}, but uint8 of {size[0]} x {size[1]} "
                "is needed; resize images with the same vision before batch"
            )


def _rope(position_ids: I64, placed: Sequence[_Placed], vision: Vision, length: int) -> I64:
    merge = vision.merge if isinstance(vision, DynamicResolution) else 1
    documents = []
    for row, stop, images, firsts in placed:
        grids = [vision.grid(*image.shape[:2]) for image in images]
        images_at = [(row * length + at, (h // merge, w // merge)) for at, (_, h, w) in zip(firsts, grids, strict=True)]
        documents.append((row * length + stop, images_at))
    return rope_positions(position_ids.reshape(-1), documents).reshape(3, *position_ids.shape)


def _bad(batch: Microbatch, document: _Document, what: str) -> RowError:
    """``what`` about a document, with the row of the file that it comes from, if that is known."""
    origins = batch.origins[document.row]
    where = f"document {document.place} of row {document.row}"
    if len(origins) == document.among:
        at = origins[document.place]
        where += f" (row {at.row} of {at.file or at.dataset})"
    pointers = batch.pointers[document.row]
    return RowError(f"collate: {where}: {what}", node="collate", lane=batch.lane, origins=pointers, where=where)


def _few(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts[:8])) + (" ..." if len(counts) > 8 else "")
