"""What lies where in a batch: documents, padding, labels and pictures along each sequence. Pure, nothing is drawn here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.errors import ConfigError
from zephon_nodes.explore.values import is_picture
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.training import IGNORE

Array: TypeAlias = "npt.NDArray[Any]"
Decode: TypeAlias = Callable[[Array], str]
DECODED = 200
"""Tokens of a document that are decoded for a look."""
RUN = 4
"""From so many on, equal ids in a row are a long run."""


class Segment(NamedTuple):
    """Positions [start, stop) of a row. ``document``: its number in the row, -1 for padding. ``text``: how it begins."""

    start: int
    stop: int
    document: int
    text: str


class Placed(NamedTuple):
    """A picture at a position of a row."""

    start: int
    picture: Any


class Row(NamedTuple):
    """``learned``: positions [start, stop) that have a label."""

    segments: list[Segment]
    learned: list[tuple[int, int]]
    pictures: list[Placed]

    @property
    def documents(self) -> int:
        return sum(segment.document >= 0 for segment in self.segments)

    @property
    def padding(self) -> int:
        return sum(segment.stop - segment.start for segment in self.segments if segment.document < 0)


class Layout(NamedTuple):
    """``length``: positions of a row."""

    rows: list[Row]
    length: int


def layout(batch: Any, decode: Decode | None = None) -> Layout:
    """The layout of a ``Microbatch`` or a dict of tensors. Raises ``ConfigError`` for anything else."""
    fields, pictures = _fields(batch)
    ids, labels, documents = (np.atleast_2d(fields[name]) for name in ("input_ids", "labels", "document_ids"))
    rows = []
    for i, (row_ids, row_labels, row_documents) in enumerate(zip(ids, labels, documents, strict=True)):
        segments = [
            Segment(start, stop, int(row_documents[start]), _text(row_ids[start:stop], row_documents[start], decode))
            for start, stop in _runs(row_documents)
        ]
        learned = [(start, stop) for start, stop in _runs(row_labels != IGNORE) if row_labels[start] != IGNORE]
        rows.append(Row(segments, learned, pictures.get(i, [])))
    return Layout(rows, ids.shape[1])


def _text(ids: Array, document: int, decode: Decode | None) -> str:
    return decode(_without_runs(ids)[:DECODED]) if decode is not None and document >= 0 else ""


def _without_runs(ids: Array) -> Array:
    """Each long run of one id, as an image has of its placeholder, as a single id: what is around it is what one reads."""
    runs = [(start, stop if stop - start < RUN else start + 1) for start, stop in _runs(ids)]
    return np.concatenate([ids[start:stop] for start, stop in runs]) if runs else ids


def _runs(values: Array) -> list[tuple[int, int]]:
    """Stretches of equal values."""
    edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
    return [(start, stop) for start, stop in itertools.pairwise(edges) if stop > start]


def _fields(batch: Any) -> tuple[dict[str, Array], dict[int, list[Placed]]]:
    if isinstance(batch, Microbatch):
        fields = batch.to_training(extra=["document_ids"], backend="numpy")
        return fields, {i: _of_payload(payload) for i, payload in enumerate(batch.payloads)}
    if not isinstance(batch, Mapping) or "input_ids" not in batch:
        raise ConfigError(
            f"show needs a Microbatch, or a dict with input_ids such as to_training gives, got {type(batch).__name__}"
            + (f" with {', '.join(map(str, batch))}" if isinstance(batch, Mapping) else "")
        )
    fields = {"input_ids": array_of(batch["input_ids"])}
    fields["labels"] = array_of(batch.get("labels", fields["input_ids"]))
    fields["document_ids"] = _documents(batch, fields)
    return fields, _of_tensors(batch)


def _documents(batch: Mapping[str, Any], fields: Mapping[str, Array]) -> Array:
    """Document ids, or what positions that begin anew say. A last stretch of one id without any label is then padding."""
    if "document_ids" in batch:
        return array_of(batch["document_ids"])
    ids = np.atleast_2d(fields["input_ids"])
    positions = np.atleast_2d(array_of(batch["position_ids"])) if "position_ids" in batch else None
    if positions is None or positions.shape != ids.shape:
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    documents: Array = np.cumsum(positions[:, 1:] != positions[:, :-1] + 1, axis=1)
    documents = np.pad(documents, ((0, 0), (1, 0)))
    if "padding_mask" in batch:
        return np.where(np.atleast_2d(array_of(batch["padding_mask"])), -1, documents)
    for row, row_ids, row_labels in zip(documents, ids, np.atleast_2d(fields["labels"]), strict=True):
        last = row == row[-1]
        if last.sum() > 1 and len(set(row_ids[last].tolist())) == 1 and (row_labels[last] == IGNORE).all():
            row[last] = -1
    return documents


def _of_payload(payload: Any) -> list[Placed]:
    """Pictures of a row's documents, each at the start of its document: where placeholders are, only ``collate`` knows."""
    if not isinstance(payload, Mapping):
        return []
    out, start = [], 0
    for one in payload.get("sequences", [payload]):
        found = one.get("images", ()) if isinstance(one, Mapping) else ()
        out += [
            Placed(start, image)
            for image in (found if isinstance(found, (list, tuple)) else [found])
            if is_picture(image)
        ]
        start += len(one["input_ids"]) if isinstance(one, Mapping) and "input_ids" in one else 0
    return out


def _of_tensors(batch: Mapping[str, Any]) -> dict[int, list[Placed]]:
    out: dict[int, list[Placed]] = {}
    if "image_positions" not in batch or "pixel_values" not in batch:
        return out
    pictures = pictures_of(array_of(batch["pixel_values"]), batch.get("image_grid_thw"))
    for (row, place), picture in zip(array_of(batch["image_positions"]).tolist(), pictures, strict=False):
        out.setdefault(row, []).append(Placed(place, picture))
    return out


def pictures_of(pixels: Array, grids: Any = None) -> list[Array]:
    """uint8 (H, W, 3) pictures of ``pixel_values``: (N, 3, H, W), or the patches of Qwen2-VL with their grids."""
    shown = _as_bytes(pixels)
    if grids is None:
        return [np.ascontiguousarray(image.transpose(1, 2, 0)) for image in shown] if shown.ndim == 4 else []
    out, start = [], 0
    for _, height, width in array_of(grids).tolist():
        patches = shown[start : start + height * width]
        start += height * width
        out.append(_joined(patches, height, width))
    return out


def _joined(patches: Array, height: int, width: int) -> Array:
    """A picture put together from its patches, which stand by twos times twos where height and width are even."""
    times = 2 if math.isqrt(patches.shape[1] // 6) ** 2 * 6 == patches.shape[1] else 1
    side = math.isqrt(patches.shape[1] // (3 * times))
    merge = 2 if height % 2 == 0 and width % 2 == 0 else 1
    cut = patches.reshape(height // merge, width // merge, merge, merge, 3, times, side, side)[:, :, :, :, :, 0]
    return np.ascontiguousarray(cut.transpose(0, 2, 5, 1, 3, 6, 4)).reshape(height * side, width * side, 3)


def _as_bytes(pixels: Array) -> Array:
    """Pixels as uint8; normalised ones stretched over the range that they have."""
    if pixels.dtype == np.uint8 or not pixels.size:
        return pixels.astype(np.uint8)
    low, high = float(pixels.min()), float(pixels.max())
    return ((pixels - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)


def array_of(value: Any) -> Array:
    """An array of an array, a tensor (bfloat16 ones as float32) or a list."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor)
    return np.asarray(value)


def decoder(tokenizer: Any) -> Decode | None:
    """A function from ids to text. ``tokenizer``: what ``load_tokenizer`` takes, or a pipeline or node that has one."""
    if tokenizer is None:
        return None
    from zephon_nodes.node import Node
    from zephon_nodes.plan import chain
    from zephon_nodes.tokenizer import Encoder, load_tokenizer

    node = getattr(tokenizer, "node", tokenizer)
    if isinstance(node, Node):
        found: Sequence[Any] = [
            one.encoder for one in chain(node) if isinstance(getattr(one, "encoder", None), Encoder)
        ]
        return found[-1].decode if found else None
    encoder = node if isinstance(node, Encoder) else load_tokenizer(node, eos=None, bos=None)
    return encoder.decode
