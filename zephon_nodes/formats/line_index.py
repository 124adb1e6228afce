"""Where each line of a text file begins, found once and kept on disk (see ``kept``): n + 1 little-endian int64."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from zephon_nodes.formats.kept import kept
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

_BLOCK = 4 << 20
_BOM = b"\xef\xbb\xbf"
_NEWLINE = 10
_BLANK = b" \t\r"
_LAYOUT = 1


def line_offsets(file: StoredFile) -> I64:
    """The offsets of a file's lines, n + 1 of them: line i is bytes [offsets[i], offsets[i + 1]).

    Lines end at b"\\n" only. A line of nothing but spaces, tabs and b"\\r" is no line, and lies in the span of the line
    before it. A byte order mark at the start lies outside. Reads the whole file once, in blocks of 4 MiB, unless an
    index of the same path, size and version is in the file's cache folder; else writes one there. Where the folder
    can't be written (one warning a folder is logged), or the store tells no version or no size, the index stays in memory and is
    made again in each process.

    Raises ``ReadError`` if the file can't be read.
    """

    def fits(buffer: pa.Buffer) -> bool:
        return (
            len(buffer) >= 8
            and len(buffer) % 8 == 0
            and np.frombuffer(buffer[len(buffer) - 8 :], "<i8")[0] == file.size
        )

    buffer = kept(file, ".lines", _LAYOUT, lambda: _scan(file).astype("<i8").data, fits)
    return np.frombuffer(buffer, "<i8")


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
