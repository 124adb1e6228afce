"""LitData: chunks of Lightning's ``optimize``, described by the ``index.json`` beside them.

A chunk is a u32 count n, n + 1 u32 offsets, then the rows; a row is a u32 size for each leaf of its tree, then the leaves.
What the leaves are is said by the index only. Other layouts, told by the index, the name or the chunk itself:
tokens (rows of ids one behind the other), ``X.zstd.bin`` (the whole chunk is a zstd frame), rows that are a frame each,
``LDFZ01`` (u32 version, rows, rows a frame, frames; n + 1 offsets of decompressed rows; of each frame a u32 first row, u32
rows, u64 place, u32 size, u32 decompressed size), and ``LDARW01`` at the end, after a u32 length (the chunk is an Arrow file
that begins where all its offsets point).

Own reader: litdata brings lightning and boto3, wants torchvision for JPEGs, and decodes whole rows only. Big rows are read here without the leaves that aren't
wanted.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.arrow_ipc import ArrowShard
from zephon_nodes.formats.base import Shard, Unit
from zephon_nodes.formats.decompress import decompressed
from zephon_nodes.formats.litdata_values import DICTS, VALUE, builder, dtype_of, leaves, row_parts, value_reader
from zephon_nodes.formats.spans import Decode, Spans, SpanShard, SpanUnit, checked_offsets
from zephon_nodes.formats.tokens import TokenShard, token_decoder, window_offsets
from zephon_nodes.hashing import I64
from zephon_nodes.listing import find_files
from zephon_nodes.storage import StoredFile

_FRAMES, _ARROW = b"LDFZ01\x00\x00", b"LDARW01\x00"
_FRAME = struct.Struct("<IIQII")
_HEADERS = 256


@dataclass(frozen=True)
class LitDataFile(StoredFile):
    """A chunk, with what the index says: ``rows``, ``nbytes`` (of the chunk when it isn't compressed as a whole), ``tokens``
    (in all its rows, -1 if it doesn't say) and ``config``, JSON."""

    rows: int = 0
    nbytes: int = 0
    tokens: int = -1
    config: str = "{}"


class LitDataFormat:
    """LitData chunks, with their ``index.json``. A row is its tree of dicts, lists and tuples; one that isn't a dict is
    ``{"value": it}``, and one of a dataset of tokens ``{"input_ids": array}``.

    Tensors and arrays arrive as writable numpy arrays, JSON lists of numbers alone too; pictures, video and the like as the
    bytes of their file, ``pil`` as PIL images.

    ``block_size``: tokens a row of a dataset of tokens, which the files don't say; the last row of a chunk is as short as it
    comes. ``allow_pickle``: read pickles of more than plain values; they can run any code, so only for files that you trust.
    """

    name = "litdata"
    suffixes: tuple[str, ...] = (".bin",)
    companions: tuple[str, ...] = (".json",)

    def __init__(self, block_size: int = 2048, allow_pickle: bool = False) -> None:
        if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
            raise ConfigError(f"block_size must be a whole number of tokens, at least 1; got {block_size!r}")
        self.block_size, self.allow_pickle = block_size, allow_pickle

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """The chunks that the indexes list, in their order; files that they don't list are left out."""
        chunks = {file.path: file for file in files if not file.name.endswith(".json")}
        indexes = {file.path: file for file in files if file.path.endswith("/index.json")}
        alone = not indexes
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in chunks):
            if alone:
                (indexes[folder],) = find_files(f"{folder}/index.json", (), next(iter(chunks.values())).storage_options)
        return [chunk for index in indexes.values() for chunk in _listed(index, chunks, alone)]

    def settings(self) -> dict[str, Any]:
        """See ``Format``."""
        return {"block_size": self.block_size}

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a chunk. Raises ``ReadError`` if it isn't what the index says."""
        if not isinstance(file, LitDataFile):
            raise ReadError(f"{file}: no index.json is known for it; read it with Dataset.from_path", path=str(file))
        config = json.loads(file.config)
        if config.get("encryption"):
            raise ReadError(f"{file}: it is encrypted, which isn't supported", path=str(file))
        wanted = None if columns is None else tuple(columns)
        whole = file.name.endswith(".zstd.bin")
        if config.get("item_loader") == "TokensLoader":
            return TokenShard(file, _token_spans(file, whole, config, self.block_size), wanted)
        facts = _Facts(file, config, wanted, self.allow_pickle)
        if config.get("compression") and not whole and config.get("compression_level") != "sample":
            return FrameShard(file, facts, int(config.get("compression_batch_size") or 0))
        if (
            not config.get("compression")
            and file.nbytes > 12
            and file.read_range(file.nbytes - 8, file.nbytes) == _ARROW
        ):
            return _arrow_shard(file, wanted)
        return ChunkShard(file, facts, whole)


class _Facts:
    """How the rows of a dataset are made. ``columns``: of the tree's root."""

    def __init__(
        self, file: LitDataFile, config: dict[str, Any], wanted: tuple[str, ...] | None, allow_pickle: bool
    ) -> None:
        try:
            kinds: list[str] = config["data_format"]
            readers = [value_reader(kind, allow_pickle) for kind in kinds]
            spec = json.loads(config["data_spec"])[1]
            self.columns: tuple[str, ...] = tuple(json.loads(spec["context"])) if spec["type"] in DICTS else (VALUE,)
            build = builder(spec)
            build(iter(range(len(kinds))))
        except (KeyError, TypeError, IndexError, ValueError, StopIteration) as error:
            text = f"{file}: index.json doesn't describe rows that can be read: {type(error).__name__}: {error}"
            raise ReadError(text, path=str(file)) from error
        used = [True] * len(kinds)
        if wanted is not None and spec["type"] in DICTS:
            used = [
                name in wanted
                for name, child in zip(self.columns, spec["children_spec"], strict=True)
                for _ in range(leaves(child))
            ]
        self.missing = tuple(name for name in wanted or () if name not in self.columns)
        self.parts = row_parts(readers, used, build, spec["type"] in DICTS, wanted)
        self.decode: Decode = self.parts.decode
        self.some = not all(used)


class ChunkShard(SpanShard):
    """A chunk of rows, as it is, compressed as a whole, or with rows that are compressed one by one."""

    def __init__(self, file: LitDataFile, facts: _Facts, whole: bool) -> None:
        super().__init__(file, file.rows, max(0, file.nbytes - 4 * (file.rows + 2)))
        self._facts, self._whole = facts, whole
        self._framed = not whole and bool(json.loads(file.config).get("compression"))
        self.columns, self.missing = facts.columns, facts.missing

    def spans(self) -> Spans:
        """See ``SpanShard.spans``."""
        data, offsets = _header(self.file, self._whole)
        self.check_rows(len(offsets) - 1, "index.json")
        if self._framed:
            return Spans(data, offsets, _unframed(self._facts.decode))
        return Spans(data, offsets, self._facts.decode, self._facts.parts if self._facts.some else None)


class FrameShard(Shard):
    """A chunk whose rows are compressed some together. A unit is such a frame."""

    def __init__(self, file: LitDataFile, facts: _Facts, batch: int) -> None:
        self.file, self._facts = file, facts
        self._rows, batch = file.rows, batch or file.rows
        starts = np.arange(0, file.rows, max(1, batch), dtype=np.int64)
        self.unit_rows: I64 = np.minimum(batch, file.rows - starts)
        self.unit_bytes: I64 = self.unit_rows * max(1, file.nbytes) // max(1, file.rows)
        self.columns, self.missing = facts.columns, facts.missing

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``."""
        offsets, frames = _frames(self.file, self._rows)
        if [count for _, count, *_ in frames] != self.unit_rows.tolist():
            text = f"{self.file}: its frames have {[frame[1] for frame in frames]} rows, by index.json it has {self.unit_rows.tolist()}"
            raise ReadError(f"{text}: the chunk is broken or was replaced", path=str(self.file))
        first, count, start, size, raw = frames[unit]
        content = _unzipped(self.file, self.file.read_range(start, start + size))
        spans = offsets[first : first + count + 1]
        if len(content) != raw or spans[-1] - spans[0] != raw:
            text = f"{self.file}: frame {unit} holds {len(content)} bytes, {raw} are announced: the chunk is broken"
            raise ReadError(text, path=str(self.file))
        return SpanUnit(content, spans, self._facts.decode, first)


def _arrow_shard(file: LitDataFile, wanted: tuple[str, ...] | None) -> Shard:
    length = int.from_bytes(file.read_range(file.nbytes - 12, file.nbytes - 8), "little")
    stop = file.nbytes - 12
    if not 0 < length <= stop:
        raise ReadError(
            f"{file}: an Arrow file of {length} bytes can't end at byte {stop}: it is broken", path=str(file)
        )
    shard = ArrowShard(file, wanted, stop - length, stop)
    if shard.unit_rows.sum() != file.rows:
        text = (
            f"{file}: it holds {shard.unit_rows.sum()} rows, index.json says {file.rows}: it is broken or was replaced"
        )
        raise ReadError(text, path=str(file))
    return shard


def _token_spans(file: LitDataFile, whole: bool, config: dict[str, Any], block_size: int) -> Spans:
    try:
        dtype = dtype_of(config["data_format"][0])
    except (KeyError, IndexError, ValueError) as error:
        raise ReadError(f"{file}: index.json doesn't say what its tokens are: {error}", path=str(file)) from error
    start, tokens = 4 * (file.rows + 2), file.tokens
    if start + tokens * dtype.itemsize != file.nbytes:
        text = (
            f"{file}: {tokens} tokens of {dtype.name} in {file.rows} rows take {start + tokens * dtype.itemsize} bytes"
        )
        raise ReadError(f"{text}, index.json says {file.nbytes}: it lies", path=str(file))
    data = decompressed(file, "zstd") if whole else file
    if data.size != file.nbytes:
        raise ReadError(
            f"{file}: it holds {data.size} bytes, index.json says {file.nbytes}: it is broken", path=str(file)
        )
    return Spans(data, window_offsets(start, tokens, block_size, dtype), token_decoder(dtype))


@lru_cache(maxsize=_HEADERS)
def _header(file: StoredFile, whole: bool) -> tuple[StoredFile, I64]:
    data = decompressed(file, "zstd") if whole else file
    size = data.size or 0
    count = int.from_bytes(data.read_range(0, min(4, size)), "little")
    table = 4 * (count + 2)
    if size < max(8, table):
        text = f"{file}: it has {size} bytes, less than its table of {count} rows: it is cut short or isn't a chunk"
        raise ReadError(text, path=str(file))
    offsets = np.frombuffer(data.read_range(4, table), "<u4").astype(np.int64)
    return data, checked_offsets(file, offsets, table, size)


@lru_cache(maxsize=_HEADERS)
def _frames(file: StoredFile, rows: int) -> tuple[I64, list[tuple[int, int, int, int, int]]]:
    """Offsets of the decompressed rows; first row, rows, place, size and decompressed size of each frame."""
    head = file.read_range(0, min(24, file.size or 0))
    if head[:8] != _FRAMES or len(head) < 24:
        raise ReadError(f"{file}: it doesn't begin with {_FRAMES!r}: it isn't a chunk of frames", path=str(file))
    version, count, _, frames = struct.unpack_from("<4I", head, 8)
    table = 24 + 4 * (count + 1)
    if version != 1 or count != rows or table + _FRAME.size * frames > (file.size or 0):
        text = f"{file}: version {version}, {count} rows in {frames} frames; index.json says {rows} rows"
        raise ReadError(f"{text}: the chunk is broken or was replaced", path=str(file))
    raw = file.read_range(24, table + _FRAME.size * frames)
    offsets = np.frombuffer(raw, "<u4", count + 1).astype(np.int64)
    found = [_FRAME.unpack_from(raw, 4 * (count + 1) + _FRAME.size * i) for i in range(frames)]
    covered = [frame[0] for frame in found] == np.cumsum([0, *(frame[1] for frame in found)])[:-1].tolist()
    if (
        not covered
        or (np.diff(offsets) < 0).any()
        or any(start + size > (file.size or 0) for _, _, start, size, _ in found)
    ):
        raise ReadError(f"{file}: its frames or its rows' offsets aren't in order: the chunk is broken", path=str(file))
    return offsets, found


def _unzipped(file: StoredFile, data: bytes | memoryview) -> bytes:
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
            return bytes(stream.read())
    except (OSError, pa.ArrowException) as error:
        raise ReadError(f"{file}: a frame can't be decompressed: {error}", path=str(file)) from error


def _unframed(decode: Decode) -> Decode:
    def decode_frame(piece: memoryview, row: int) -> Any:
        try:
            with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(piece)), "zstd") as stream:
                content = stream.read()
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"it can't be decompressed: {error}") from error
        return decode(memoryview(content), row)

    return decode_frame


def _listed(index: StoredFile, chunks: dict[str, StoredFile], subset: bool) -> Iterator[LitDataFile]:
    """The chunks of an index. Nothing for an ``index.json`` of another format."""
    folder = index.path.rpartition("/")[0]
    try:
        whole = json.loads(b"".join(index.blocks(1 << 20)))
        entries = whole["chunks"] if isinstance(whole, dict) and "chunks" in whole else []
        config = json.dumps(whole["config"]) if entries else ""
        said = [
            (f"{folder}/{entry['filename']}", entry["chunk_size"], entry["chunk_bytes"], entry.get("dim"))
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError(f"{index}: it isn't an index of LitData chunks: {error!r}", path=str(index)) from error
    for path, rows, nbytes, tokens in said:
        file = chunks.get(path)
        if file is None and subset:
            continue
        if file is None:
            raise ReadError(f"{path}: index.json beside it lists this chunk, and it is not there", path=path)
        if not path.endswith(".zstd.bin") and file.size not in (None, nbytes):
            text = f"{file}: it has {file.size} bytes, index.json says {nbytes}: it is cut short, or the index is stale"
            raise ReadError(text, path=str(file))
        facts = {field.name: getattr(file, field.name) for field in dataclasses.fields(StoredFile)}
        yield LitDataFile(**facts, rows=rows, nbytes=nbytes, tokens=-1 if tokens is None else tokens, config=config)
