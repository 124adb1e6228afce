"""MDS, the shards of MosaicML Streaming.

A shard is a u32 count n, n + 1 u32 offsets (from the file's start), a JSON object with the columns' names, encodings and
fixed sizes, then the rows. A row is a u32 size for each column without a fixed one, then the columns' bytes, in order of
name. Everything needed is in the shard itself; ``index.json`` beside it is used only to tell the counts of compressed
shards without decompressing them, and is checked against the shard when that is first read.

Own reader: mosaicml-streaming replaces torch by a CUDA build, wants torchvision, and decodes every column of a row. All
encodings are read. Those that hold a picture's file (jpeg, png, jpeg_array and lists of them) give its bytes, for the
image nodes to decode; ``pil``, which holds raw pixels, gives a PIL image.
"""

from __future__ import annotations

import dataclasses
import json
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import Shard
from zephon_nodes.formats.decompress import CODECS, plain, sized
from zephon_nodes.formats.mds_values import Value, value_reader
from zephon_nodes.formats.spans import BAD_VALUE, Parts, Spans, SpanShard, checked_offsets, chosen
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

_HEADERS = 256
_HEAD = 16 << 10


@dataclass(frozen=True)
class MdsFile(StoredFile):
    """A shard of which ``index.json`` tells ``rows`` and ``raw_bytes`` (decompressed size), and ``config``, its columns.

    ``rows`` is -1 where no index that fits the file's size was found.
    """

    rows: int = -1
    raw_bytes: int = 0
    config: str = "{}"


class MdsFormat:
    """MDS shards, raw or compressed as a whole (zstd, gz, br, snappy, bz2). A row is a dict of the columns.

    Values: int, float, str, bytes, ``decimal.Decimal``, what JSON gives; ndarrays writable, with dtype and shape; picture
    files as bytes, ``pil`` as PIL images. Big rows are read without the columns that aren't wanted. Where a raw and a compressed shard of one name are there, the raw one is read; a
    compressed one is decompressed into the cache folder at its first read.

    ``allow_pickle``: read "pkl" columns of more than plain values; they can run any code, so only for files that you trust.

    >>> import zephon_nodes.formats.mds as mds
    >>> mds.MdsFormat(allow_pickle=True).name
    'mds'
    """

    name = "mds"
    suffixes: tuple[str, ...] = (".mds", *(f".mds{ending}" for ending in CODECS))
    companions: tuple[str, ...] = (".json",)

    def __init__(self, allow_pickle: bool = False) -> None:
        self.allow_pickle = allow_pickle

    def gather(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """The shards, without compressed ones that are there raw as well, with what the indexes beside them say."""
        shards = [file for file in files if not file.name.endswith(".json")]
        raw = {file.path for file in shards if file.path.endswith(".mds")}
        shards = [file for file in shards if file.path in raw or _raw_path(file) not in raw]
        indexes = [file for file in files if os.path.basename(file.path) == "index.json"]
        said = {path: entry for index in indexes for path, entry in _index(index)}
        there = {_raw_path(file) for file in shards}
        lost = next((path for path in said if path not in there), None)
        if lost is not None:
            raise ReadError(f"{lost}: index.json beside it lists this shard, and it is not there", path=lost)
        return [_with_facts(file, said.get(_raw_path(file))) for file in shards]

    def settings(self) -> dict[str, Any]:
        """See ``Format``: none, without ``allow_pickle`` there are no other rows but an error."""
        return {}

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if its header can't be read."""
        wanted = None if columns is None else tuple(columns)
        if not isinstance(file, MdsFile) or file.rows < 0:
            header = _header(file)
            nbytes = int(header.offsets[-1] - header.offsets[0])
            return MdsShard(file, len(header.offsets) - 1, nbytes, header.config, (wanted, self.allow_pickle))
        return MdsShard(file, file.rows, file.raw_bytes, json.loads(file.config), (wanted, self.allow_pickle))


class MdsShard(SpanShard):
    """One shard. Its header is kept per process for the last 256 shards used."""

    def __init__(
        self,
        file: StoredFile,
        rows: int,
        nbytes: int,
        config: dict[str, Any],
        asked: tuple[tuple[str, ...] | None, bool],
    ) -> None:
        super().__init__(file, rows, nbytes)
        names, _ = _columns(file, config)
        columns, _ = self._asked = asked
        self.columns = names
        self.missing = tuple(name for name in columns or () if name not in names)

    def spans(self) -> Spans:
        """See ``SpanShard.spans``."""
        spans = _spans(self.file, *self._asked)
        self.check_rows(len(spans.offsets) - 1, "index.json")
        return spans


class _Header(NamedTuple):
    data: StoredFile
    offsets: I64
    config: dict[str, Any]


@lru_cache(maxsize=_HEADERS)
def _spans(file: StoredFile, wanted: tuple[str, ...] | None, allow_pickle: bool) -> Spans:
    header = _header(file)
    parts = _row_parts(file, header.config, wanted, allow_pickle)
    return Spans(header.data, header.offsets, parts.decode, None if wanted is None else parts)


@lru_cache(maxsize=_HEADERS)
def _header(file: StoredFile) -> _Header:
    data = sized(plain(file))
    size = data.size or 0
    head = data.read_range(0, min(size, _HEAD))
    count = int.from_bytes(head[:4], "little")
    table = 4 * (count + 2)
    if size < max(8, table):
        text = f"{file}: it has {size} bytes, less than its table of {count} rows: the shard is cut short or isn't MDS"
        raise ReadError(text, path=str(file))
    head = head if table <= len(head) else data.read_range(0, table)
    offsets = checked_offsets(file, np.frombuffer(head, "<u4", count + 1, 4).astype(np.int64), table, size)
    start = int(offsets[0])
    head = head if start <= len(head) else data.read_range(0, start)
    try:
        config = json.loads(head[table:start])
    except ValueError as error:
        raise ReadError(f"{file}: its header isn't JSON ({error}): the shard is broken", path=str(file)) from error
    _columns(file, config)
    return _Header(data, offsets, config)


def _columns(file: StoredFile, config: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names and encodings of the columns. Raises ``ReadError`` if they aren't there or one isn't known."""
    try:
        names, encodings = tuple(config["column_names"]), tuple(config["column_encodings"])
        if not len(names) == len(encodings) == len(config["column_sizes"]):
            raise ValueError("column names, encodings and sizes differ in number")
        for encoding in encodings:
            value_reader(encoding)
    except (KeyError, TypeError, ValueError) as error:
        text = f"{file}: its header doesn't describe columns that can be read: {type(error).__name__}: {error}"
        raise ReadError(text, path=str(file)) from error
    return names, encodings


def _row_parts(file: StoredFile, config: dict[str, Any], wanted: tuple[str, ...] | None, allow_pickle: bool) -> Parts:
    names, encodings = _columns(file, config)
    fixed = config["column_sizes"]
    used = [wanted is None or name in wanted for name in names]
    values = [
        (name, value_reader(encoding, allow_pickle))
        for name, encoding, use in zip(names, encodings, used, strict=True)
        if use
    ]
    sizes = struct.Struct(f"<{sum(size is None for size in fixed)}I")
    always = sizes.size + sum(size or 0 for size in fixed)

    def places(head: memoryview, nbytes: int) -> list[tuple[int, int]]:
        told = sizes.unpack_from(head)
        if always + sum(told) != nbytes:
            text = f"its columns add up to {always + sum(told)} bytes, the row has {nbytes}: the shard is broken"
            raise ValueError(text)
        lengths, place, found = iter(told), sizes.size, []
        for size, use in zip(fixed, used, strict=True):
            stop = place + (next(lengths) if size is None else size)
            if use:
                found.append((place, stop))
            place = stop
        return found

    def build(pieces: list[memoryview]) -> dict[str, Any]:
        out = {name: _column(name, value, piece) for (name, value), piece in zip(values, pieces, strict=True)}
        return out if wanted is None else chosen(out, wanted)

    return Parts(sizes.size, places, build)


def _column(name: str, value: Value, piece: memoryview) -> Any:
    try:
        return value(piece)
    except BAD_VALUE as error:
        raise ValueError(f"column {name!r} can't be decoded: {error}") from error


def _raw_path(file: StoredFile) -> str:
    stem, dot, _ = file.path.rpartition(".mds")
    return stem + dot


def _index(index: StoredFile) -> Iterable[tuple[str, dict[str, Any]]]:
    """(path of the raw shard, what the index says of it). Nothing for an ``index.json`` of another format."""
    folder = index.path.rpartition("/")[0]
    try:
        whole = json.loads(b"".join(index.blocks(_HEAD)))
        entries = whole["shards"] if isinstance(whole, dict) and "shards" in whole else []
        return [(f"{folder}/{entry['raw_data']['basename']}", entry) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise ReadError(f"{index}: it isn't an index of MDS shards: {error!r}", path=str(index)) from error


def _with_facts(file: StoredFile, entry: dict[str, Any] | None) -> StoredFile:
    """With what the index says, if that is of a file of this size; else the shard has to be asked."""
    if entry is None:
        return file
    stored = entry["raw_data"] if file.path.endswith(".mds") else entry.get("zip_data") or {}
    if file.size is None or stored.get("bytes") != file.size:
        return file
    facts = {field.name: getattr(file, field.name) for field in dataclasses.fields(StoredFile)}
    config = {key: entry.get(key) for key in ("column_names", "column_encodings", "column_sizes")}
    return MdsFile(**facts, rows=entry["samples"], raw_bytes=entry["raw_data"]["bytes"], config=json.dumps(config))
