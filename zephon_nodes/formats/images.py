"""Folders of images, with what is said of them beside: ``metadata.jsonl``, or a text file of the same name.

A folder (not a file) is a shard, and its images, in order of name, are the rows. Rows are the files' bytes: decoding is the
work of the image nodes. Nothing is opened before it is wanted, except ``metadata.jsonl``, so a row costs one read of its
image and one of its caption.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import BadRow, Rows, Shard, Unit
from zephon_nodes.formats.spans import UNIT_BYTES, chosen
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

METADATA = "metadata.jsonl"
_BLOCK = 4 << 20
_FOLDERS = 256
_GUESS = 100_000  # bytes of an image whose size the store doesn't tell


@dataclass(frozen=True)
class ImageFolder(StoredFile):
    """A folder. ``images`` in order of name; ``captions``: the text file of each, or None; ``metadata``: the file, or None."""

    images: tuple[StoredFile, ...] = ()
    captions: tuple[StoredFile | None, ...] = ()
    metadata: StoredFile | None = None


class ImagesFormat:
    """Folders of images. A row is ``{"file_name": ..., "image": bytes, ...}``.

    ``file_name`` is the image's path below the dataset's root. With a ``metadata.jsonl`` in the folder, or in the nearest
    one above it, the row has the other fields of the line whose "file_name" (a path relative to the metadata) is this image,
    None for an image without a line. With text files of the same name (``a.txt`` or ``a.caption`` for ``a.jpg``), it has
    "text", None for an image without one.

    ``columns``: images aren't read if "image" isn't among them.
    """

    name = "images"
    suffixes: tuple[str, ...] = (
        ".jpg",
        ".jpeg",
        ".png",
        ".webp",
        ".gif",
        ".bmp",
        ".tif",
        ".tiff",
        ".avif",
        ".jp2",
        ".heic",
    )
    companions: tuple[str, ...] = (METADATA, ".txt", ".caption")

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """A shard for each folder that holds images."""
        beside = {file.name: file for file in files if not file.name.lower().endswith(self.suffixes)}
        folders: dict[str, list[StoredFile]] = {}
        for file in files:
            if file.name not in beside:
                folders.setdefault(os.path.dirname(file.name), []).append(file)
        there = {file.path for images in folders.values() for file in images}
        for file in beside.values():
            if os.path.basename(file.name) == METADATA:
                lost = next((path for path in _said(file)[1] if path not in there), None)
                if lost is not None:
                    raise ReadError(f"{file}: it has a line for {lost}, and there is no such image", path=str(file))
        return [_folder(name, images, beside) for name, images in sorted(folders.items())]

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a folder. Raises ``ReadError`` if its metadata can't be read or names images that aren't there."""
        return ImagesShard(file, columns)


class ImagesShard(Shard):
    """One folder. Units are runs of images of about a MiB, as far as sizes are known."""

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        self.file = self._folder = file if isinstance(file, ImageFolder) else _folder(".", [file], {})
        self._columns = columns
        sizes = np.array([_GUESS if image.size is None else image.size for image in self._folder.images], np.int64)
        self._sizes: I64 = np.concatenate([[0], np.cumsum(sizes)])
        blocks = np.arange(0, int(self._sizes[-1]) + 1, UNIT_BYTES)
        self._firsts: I64 = np.unique(np.append(np.searchsorted(self._sizes[:-1], blocks), len(sizes)))
        self.unit_rows: I64 = np.diff(self._firsts)
        self.unit_bytes: I64 = np.diff(self._sizes[self._firsts])
        captioned = any(caption is not None for caption in self._folder.captions)
        said = _said(self._folder.metadata)[0] if self._folder.metadata else ()
        self.columns = tuple(dict.fromkeys(("file_name", "image", *said, *(("text",) if captioned else ()))))
        self.missing = tuple(name for name in columns or () if name not in self.columns)

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        first, stop = int(self._firsts[unit]), int(self._firsts[unit + 1])
        return ImagesUnit([self._row(row) for row in range(first, stop)], int(self.unit_bytes[unit]))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``."""
        return [self._row(row) for row in np.asarray(rows, np.int64).tolist()]

    def _row(self, row: int) -> dict[str, Any] | BadRow:
        image, caption = self._folder.images[row], self._folder.captions[row]
        out: dict[str, Any] = {"file_name": image.name}
        if self._columns is None or "image" in self._columns:
            out["image"] = _content(image)
        if self._folder.metadata is not None:
            fields, lines = _said(self._folder.metadata)
            out |= dict.fromkeys(fields) | copy.deepcopy(lines.get(image.path, {}))
        if "text" in (self.columns or ()) and (self._columns is None or "text" in self._columns):
            try:
                out.setdefault("text", None if caption is None else str(_content(caption), "utf-8"))
            except UnicodeDecodeError as error:
                cause = ValueError(f"{caption}: not UTF-8: {error}")
                cause.__cause__ = error
                return BadRow(cause)
        return chosen(out, self._columns)


class ImagesUnit(Unit):
    """Some rows, with the bytes of their images."""

    def __init__(self, payloads: Sequence[Any], nbytes: int) -> None:
        self._payloads = payloads
        self.rows, self.nbytes = len(payloads), nbytes

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``."""
        return [copy.deepcopy(self._payloads[row]) for row in rows]  # bytes aren't copied by that


def _folder(name: str, images: Sequence[StoredFile], beside: Mapping[str, StoredFile]) -> ImageFolder:
    captions = tuple(_caption(image, beside) for image in images)
    above = name
    while (metadata := beside.get(os.path.join(above, METADATA))) is None and above:
        above = os.path.dirname(above)
    parts = [*images, *(caption for caption in captions if caption), *([metadata] if metadata else [])]
    facts = json.dumps([[part.name, part.size, part.version] for part in parts])
    known = all(part.version for part in parts)
    return ImageFolder(
        path=images[0].path.rpartition("/")[0],
        name=name or ".",
        size=None if any(part.size is None for part in parts) else sum(part.size or 0 for part in parts),
        version=hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:32] if known else "",
        storage_options=images[0].storage_options,
        images=tuple(images),
        captions=captions,
        metadata=metadata,
    )


def _caption(image: StoredFile, beside: Mapping[str, StoredFile]) -> StoredFile | None:
    stem = os.path.splitext(image.name)[0]
    return next((beside[stem + ending] for ending in (".txt", ".caption") if stem + ending in beside), None)


def _content(file: StoredFile) -> bytes:
    return file.read_range(0, file.size) if file.size is not None else b"".join(file.blocks(_BLOCK))


@lru_cache(maxsize=_FOLDERS)
def _said(metadata: StoredFile) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """All fields that the lines have, and for the path of each image the other fields of its line."""
    folder, fields, lines = metadata.path.rpartition("/")[0], {}, {}
    for number, line in enumerate(b"".join(metadata.blocks(_BLOCK)).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            path = posixpath.join(folder, posixpath.normpath(row.pop("file_name")))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f'{metadata}: line {number} is no JSON object with a "file_name": {error!r}'
            raise ReadError(text, path=str(metadata)) from error
        if path in lines:
            raise ReadError(f"{metadata}: line {number} names {path} a second time", path=str(metadata))
        lines[path] = row
        fields.update(dict.fromkeys(row))
    return tuple(fields), lines
