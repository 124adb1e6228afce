"""Token ids as Megatron-LM keeps them: a ``.bin`` of ids, and an ``.idx`` that says where documents begin.

The ``.idx``: ``MMIDIDX`` and two zero bytes, u64 version 1, u8 code of the dtype, u64 sequences, u64 document marks, then
int32 length of each sequence, int64 byte offset of each, int64 first sequence of each document and one more for the end.
Own reader: megatron-core is a training framework, and needs a GPU for much of what it imports.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import Shard
from zephon_nodes.formats.spans import Spans
from zephon_nodes.formats.tokens import TokenShard, token_decoder
from zephon_nodes.listing import find_files
from zephon_nodes.storage import StoredFile

_HEAD = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {
    code: np.dtype(kind) for code, kind in enumerate(("<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), 1)
}
_BLOCK = 4 << 20
_INDEXES = 64


@dataclass(frozen=True)
class MegatronFile(StoredFile):
    """A ``.bin``, and the ``.idx`` beside it."""

    index: StoredFile | None = None


class MegatronFormat:
    """``.bin`` and ``.idx`` pairs. A row is a document: ``{"input_ids": array}``, writable, of the file's dtype.

    Either file of a pair may be named. A document of several sequences is all of them in a row.
    """

    name = "megatron"
    suffixes: tuple[str, ...] = (".idx",)
    companions: tuple[str, ...] = (".bin",)

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """The ``.bin`` files, each with its ``.idx``. Raises ``ConfigError`` if one of the two isn't there."""
        stems: dict[str, dict[str, StoredFile]] = {}
        for file in files:
            stems.setdefault(file.path[:-4], {})[file.path[-4:]] = file
        return [_paired(stem, pair) for stem, pair in stems.items()]

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a pair. Raises ``ReadError`` if the index is broken or doesn't fit the ``.bin``."""
        return TokenShard(file, _spans(file), columns)


def _paired(stem: str, pair: dict[str, StoredFile]) -> MegatronFile:
    there = next(iter(pair.values()))
    for ending in (".bin", ".idx"):
        if ending not in pair:
            (pair[ending],) = find_files(stem + ending, (), there.storage_options)
    facts = {field.name: getattr(pair[".bin"], field.name) for field in fields(StoredFile)}
    return MegatronFile(**facts, index=pair[".idx"])


@lru_cache(maxsize=_INDEXES)
def _spans(file: StoredFile) -> Spans:
    index = file.index if isinstance(file, MegatronFile) and file.index else None
    if index is None:
        raise ReadError(f"{file}: no .idx is known for it; read it with Dataset.from_path", path=str(file))
    raw = b"".join(index.blocks(_BLOCK))
    try:
        return _parsed(file, raw)
    except (ValueError, struct.error) as error:
        raise ReadError(f"{index}: it isn't the index of {file}: {error}", path=str(index)) from error


def _parsed(file: StoredFile, raw: bytes) -> Spans:
    magic, version, code, sequences, marks = _HEAD.unpack_from(raw)
    if magic != _MAGIC or version != 1 or code not in _DTYPES or _DTYPES[code].kind == "f":
        raise ValueError(f"it begins with {magic!r}, version {version}, dtype code {code}")
    if len(raw) < _HEAD.size + 12 * sequences + 8 * marks:
        raise ValueError(
            f"{len(raw)} bytes can't hold {sequences} sequences and {marks} document marks: it is cut short"
        )
    dtype = _DTYPES[code]
    lengths = np.frombuffer(raw, "<i4", sequences, _HEAD.size)
    pointers = np.frombuffer(raw, "<i8", sequences, _HEAD.size + 4 * sequences)
    documents = np.frombuffer(raw, "<i8", marks, _HEAD.size + 12 * sequences)
    offsets = np.concatenate([[0], np.cumsum(lengths.astype(np.int64) * dtype.itemsize)])
    if (lengths < 0).any() or (pointers != offsets[:-1]).any():
        raise ValueError("its sequences don't lie one behind the other")
    if file.size is not None and offsets[-1] != file.size:
        raise ValueError(
            f"its sequences take {offsets[-1]} bytes, the .bin has {file.size}: one of them is cut short or stale"
        )
    if not marks or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise ValueError(f"its documents don't cover its {sequences} sequences")
    return Spans(file, offsets[documents], token_decoder(dtype))
