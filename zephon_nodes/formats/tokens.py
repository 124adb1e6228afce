"""Files of token ids and nothing else: ``.npy`` arrays, and flat dumps as ``numpy.tofile`` writes them.

They say nothing of documents, so rows are windows of a fixed length. numpy's own reader of the ``.npy`` header is used; the
data is read by ranges, so a file of any size costs no memory.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.base import Shard
from zephon_nodes.formats.decompress import sized
from zephon_nodes.formats.spans import Decode, Spans, SpanShard
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

FIELD = "input_ids"
_HEAD = 4096


class TokensFormat:
    """Flat token ids in windows of ``length``. A row is ``{"input_ids": array}``, writable, of the file's dtype.

    ``dtype``: of flat dumps ("uint16", little-endian), whatever their suffix; then pass the format as ``fmt=``. None reads
    ``.npy`` files only, which say it themselves: an array of one dimension is cut into windows, the last one as short as it
    comes; one of two has a row for each of its own, and ``length`` means nothing.

    Raises ``ConfigError`` for a length below 1 or a dtype that isn't of integers.

    >>> from zephon_nodes.formats.tokens import TokensFormat
    >>> TokensFormat(length=2049, dtype="uint16").suffixes
    ('.npy', '.bin')
    """

    name = "tokens"

    def __init__(self, length: int = 2048, dtype: str | None = None) -> None:
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigError(f"length must be a whole number of tokens, at least 1; got {length!r}")
        if dtype is not None and np.dtype(dtype).kind not in "iu":
            raise ConfigError(f"dtype must be one of integers, such as 'uint16'; got {dtype!r}")
        self.length = length
        self.dtype = None if dtype is None else np.dtype(dtype).newbyteorder("<")
        self.suffixes: tuple[str, ...] = (".npy",) if dtype is None else (".npy", ".bin")

    def settings(self) -> dict[str, Any]:
        """See ``Format``."""
        return {"length": self.length, "dtype": None if self.dtype is None else self.dtype.str}

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if its header or its size isn't right."""
        data = sized(file)
        if self.dtype is None or file.name.lower().endswith(".npy"):
            return _npy(file, data, self.length, columns)
        size = data.size or 0
        if size % self.dtype.itemsize:
            text = (
                f"{file}: {size} bytes are no whole number of {self.dtype.name} ids: it is cut short, or dtype is wrong"
            )
            raise ReadError(text, path=str(file))
        offsets = window_offsets(0, size // self.dtype.itemsize, self.length, self.dtype)
        return TokenShard(file, Spans(data, offsets, token_decoder(self.dtype)), columns)


class TokenShard(SpanShard):
    """Rows of token ids, ``spans`` of one file."""

    columns = (FIELD,)

    def __init__(self, file: StoredFile, spans: Spans, columns: Sequence[str] | None) -> None:
        super().__init__(file, len(spans.offsets) - 1, int(spans.offsets[-1] - spans.offsets[0]))
        self._spans = spans
        self.missing = tuple(name for name in columns or () if name != FIELD)

    def spans(self) -> Spans:
        """See ``SpanShard.spans``."""
        return self._spans


def window_offsets(start: int, tokens: int, length: int, dtype: np.dtype[Any]) -> I64:
    """Where windows of ``length`` tokens begin and end in a file that has ``tokens`` of them from byte ``start`` on."""
    rows = -(-tokens // length)
    return start + np.minimum(np.arange(rows + 1, dtype=np.int64) * length, tokens) * dtype.itemsize


def token_decoder(dtype: np.dtype[Any]) -> Decode:
    """From the bytes of a row to ``{"input_ids": array}``."""

    def decode(piece: memoryview, row: int) -> dict[str, npt.NDArray[Any]]:
        return {FIELD: np.frombuffer(piece, dtype).copy()}

    return decode


def _npy(file: StoredFile, data: StoredFile, length: int, columns: Sequence[str] | None) -> Shard:
    size = data.size or 0
    head = io.BytesIO(data.read_range(0, min(size, _HEAD)))
    try:
        version = np.lib.format.read_magic(head)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(head)
    except ValueError as error:
        raise ReadError(f"{file}: it has no npy header that can be read: {error}", path=str(file)) from error
    start, tokens = head.tell(), math.prod(shape)
    if dtype.kind not in "iu" or fortran or len(shape) not in (1, 2):
        text = f"{file}: token ids are wanted, integers in one or two dimensions in C order; it has {dtype.str}, shape {shape}"
        raise ReadError(text, path=str(file))
    if start + tokens * dtype.itemsize != size:
        text = f"{file}: its header says {shape} of {dtype.name}, {start + tokens * dtype.itemsize} bytes in all, it has {size}"
        raise ReadError(f"{text}: the file is cut short or broken", path=str(file))
    if len(shape) == 2:
        offsets = start + np.arange(shape[0] + 1, dtype=np.int64) * shape[1] * dtype.itemsize
    else:
        offsets = window_offsets(start, tokens, length, dtype)
    return TokenShard(file, Spans(data, offsets, token_decoder(dtype)), columns)
