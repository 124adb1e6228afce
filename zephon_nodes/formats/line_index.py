"""Where each line of a text file begins, found once and kept on disk.

The index is a file of little-endian int64: a key made of the text's path, size and version, then the n + 1 offsets.
It is one file, so that it can be replaced in one step, and is mapped into memory rather than loaded: worker processes
share its pages, and the mapping holds no descriptor.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa

from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile, write_atomically

_BLOCK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_BLANK = b" \t\r"
_LAYOUT = 1

_log = logging.getLogger(__name__)


def line_offsets(file: StoredFile) -> I64:
    """The offsets of a file's lines, n + 1 of them: line i is bytes [offsets[i], offsets[i + 1]).

    Lines end at b"\\n" only. A line of nothing but spaces, tabs and b"\\r" is no line, and lies in the span of the line
    before it. A byte order mark at the start lies outside. Reads the whole file once, in blocks of 4 MiB, unless an
    index of the same path, size and version is in the file's cache folder; else writes one there. Where the folder
    can't be written (one warning a folder is logged), or the store tells no version or no size, the index stays in memory and is
    made again in each process.

    Raises ``ReadError`` if the file can't be read.
    """
    if not file.version or file.size is None:
        return _scan(file)
    path, key = file.derived(".lines"), _key(file)
    offsets = _load(path, key, file.size)
    if offsets is not None:
        return offsets
    offsets = _scan(file)
    try:
        write_atomically(path, [np.concatenate([[key], offsets]).astype("<i8").data])
    except OSError as error:
        _warn(os.path.dirname(path), error.strerror or str(error))
        return offsets
    loaded = _load(path, key, file.size)  # the mapped one, so that the other can go
    return offsets if loaded is None else loaded


@lru_cache(maxsize=64)
def _warn(folder: str, cause: str) -> None:
    """Once for a folder, however many files it concerns."""
    _log.warning("indexes can't be kept in %s (%s) and stay in memory; set index_dir to another folder", folder, cause)


def _scan(file: StoredFile) -> I64:
    parts = list(_line_starts(file.blocks(_BLOCK)))
    return np.concatenate(parts)


def _line_starts(blocks: Iterable[bytes]) -> Iterator[I64]:
    """The start of each line that isn't blank, as arrays; the last array is the number of bytes."""
    base, open_start = 0, 0
    unseen = True  # nothing but blanks so far in the line that the last block broke off
    for number, block in enumerate(blocks):
        skip = len(_BOM) if number == 0 and block.startswith(_BOM) else 0
        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        begins = np.concatenate([[skip], ends + 1])
        full = _not_blank(block, begins, np.concatenate([ends, [len(block)]]))
        starts = base + begins
        if number and unseen:
            starts[0] = open_start
        fresh = full.copy()
        fresh[0] &= unseen
        yield starts[fresh]
        unseen = not full[-1] and (unseen or len(ends) > 0)
        open_start = int(starts[-1])
        base += len(block)
    yield np.array([base], np.int64)


def _not_blank(block: bytes, begins: I64, ends: I64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each piece [begin, end) of a block holds anything but blanks."""
    data = np.frombuffer(block, np.uint8)
    full = begins < ends
    first = data[np.minimum(begins, len(data) - 1)]
    doubtful = full & np.isin(first, np.frombuffer(_BLANK, np.uint8))
    for piece in np.flatnonzero(doubtful).tolist():
        full[piece] = bool(block[begins[piece] : ends[piece]].strip(_BLANK))
    return full


def _load(path: str, key: int, size: int) -> I64 | None:
    try:
        with pa.memory_map(path) as mapped:
            buffer = mapped.read_buffer()
    except (OSError, pa.ArrowException):
        return None
    if len(buffer) < 16 or len(buffer) % 8:
        return None
    whole = np.frombuffer(buffer, "<i8")
    return whole[1:] if whole[0] == key and whole[-1] == size else None


def _key(file: StoredFile) -> int:
    facts = f"{_LAYOUT}\n{file.path}\n{file.size}\n{file.version}"
    return int.from_bytes(hashlib.sha256(facts.encode("utf-8", "surrogateescape")).digest()[:8], "little", signed=True)
