"""WebDataset: tar files in which consecutive members of one key are one row.

``000/a.jpg 000/a.txt 000/b.jpg ...``: the key is a member's path up to the first dot of its last part, what follows the
dot is the field. A tar has no table of contents, so opening one reads the header of each member once (skipping the data)
and keeps the offsets on disk (see ``kept``); from then on any row is one range of the file, and nothing is unpacked.

The headers are read with Python's ``tarfile``, which knows the long-name dialects. It ends quietly at a broken header or
at the end of a cut file, so the end is checked here: an archive without an end mark was cut short. Its rows before the
cut are good; the last one, of which members may be missing, is a bad row that says so. webdataset itself isn't needed:
it reads streams only.
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import Rows, Shard
from zephon_nodes.formats.decompress import plain
from zephon_nodes.formats.kept import kept
from zephon_nodes.formats.spans import BAD_VALUE, Spans, SpanShard, chosen, decoded
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile, read_errors

KEY = "__key__"
_BLOCK = 512
_INDEXES = 2048  # they are maps of files on disk, so many may be held
_LAYOUT = 1
_SCHEMA = pa.schema(
    [
        ("key", pa.large_string()),
        ("offset", pa.int64()),
        ("starts", pa.large_list(pa.int64())),
        ("sizes", pa.large_list(pa.int64())),
        ("codes", pa.large_list(pa.int32())),
    ]
)

Value: TypeAlias = Callable[[memoryview], Any]


class WebDatasetFormat:
    """WebDataset tars, plain or compressed as a whole. A row is ``{"__key__": key, field: value, ...}``.

    Values by the last part of the field, in any case: "txt", "text", "transcript", "caption", "id" give str; "json",
    "jsn" what JSON gives; "cls", "class", "count", "index", "inx" int; "npy" a writable array; all others bytes.
    ``decode=False`` leaves all of them bytes. Members that are no plain files, have no dot in their name, begin with a dot
    or are called ``__...__`` belong to no row.

    ``columns`` are fields; single rows are then read without the others.
    """

    name = "webdataset"
    suffixes: tuple[str, ...] = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.bz2")

    def __init__(self, decode: bool = True) -> None:
        self.decode = decode

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it can't be read, or has no tar header at its start."""
        return TarShard(file, None if columns is None else tuple(columns), self.decode)


class TarShard(SpanShard):
    """One tar. Its offsets are mapped from disk where they could be written."""

    def __init__(self, file: StoredFile, columns: tuple[str, ...] | None, decode: bool) -> None:
        index = _index(file)
        super().__init__(file, len(index.keys), int(index.offsets[-1] - index.offsets[0]))
        self._columns, self._decode = columns, decode
        self.columns = (KEY, *index.fields)
        self.missing = tuple(name for name in columns or () if name not in self.columns)

    def spans(self) -> Spans:
        """See ``SpanShard.spans``."""
        index = _index(self.file)
        return Spans(index.data, index.offsets, self._decoder(index))

    def take(self, rows: Rows) -> list[Any]:
        """See ``Shard.take``: reads the wanted members only."""
        if self._columns is None:
            return super().take(rows)
        index, wanted = _index(self.file), np.asarray(rows, np.int64).tolist()
        places = [[at for at in index.members(row) if index.fields[index.codes[at]] in self._columns] for row in wanted]
        ranges = [index.range(at) for row in places for at in row]
        parts = iter(index.data.read_ranges(ranges, scattered=True)) if ranges else iter(())
        found = [[(at, memoryview(next(parts))) for at in row] for row in places]
        return [self._row(index, row, members) for row, members in zip(wanted, found, strict=True)]

    def _row(self, index: _Index, row: int, members: Sequence[tuple[int, memoryview]]) -> Any:
        return decoded(lambda _, number: self._payload(index, number, members), memoryview(b""), row)

    def _decoder(self, index: _Index) -> Callable[[memoryview, int], Any]:
        def decode(piece: memoryview, row: int) -> Any:
            base = int(index.offsets[row])
            spans = [(at, *index.range(at)) for at in index.members(row)]
            return self._payload(index, row, [(at, piece[start - base : stop - base]) for at, start, stop in spans])

        return decode

    def _payload(self, index: _Index, row: int, members: Sequence[tuple[int, memoryview]]) -> dict[str, Any]:
        if row == index.bad_row:
            raise ValueError(index.bad_cause)
        key = index.keys[row].as_py()
        out: dict[str, Any] = {KEY: key}
        for at, data in members:
            field = index.fields[index.codes[at]]
            if self._columns is None or field in self._columns:
                if field in out:
                    raise ValueError(f"{key!r} has two members for field {field!r}")
                out[field] = _value(key, field, data) if self._decode else bytes(data)
        return chosen(out, self._columns)


class _Index(NamedTuple):
    """``offsets``: of the rows, n + 1. ``first``: first member of each row, n + 1. ``starts``, ``sizes``, ``codes``: of
    each member's data, and the number of its field. ``bad_row``: -1, or the row that the archive's cut went through."""

    data: StoredFile
    keys: pa.Array
    fields: tuple[str, ...]
    offsets: I64
    first: I64
    starts: I64
    sizes: I64
    codes: I64
    bad_row: int
    bad_cause: str

    def members(self, row: int) -> range:
        return range(int(self.first[row]), int(self.first[row + 1]))

    def range(self, member: int) -> tuple[int, int]:
        start = int(self.starts[member])
        return start, start + int(self.sizes[member])


@lru_cache(maxsize=_INDEXES)
def _index(file: StoredFile) -> _Index:
    data = plain(file)
    buffer = kept(data, ".tar", _LAYOUT, lambda: _as_arrow(_scan(file, data)), _is_index)
    with pa.ipc.open_stream(buffer) as stream:
        batch, facts = stream.read_next_batch(), json.loads(stream.schema.metadata[b"facts"])
    first = batch.column("starts").offsets.to_numpy()
    starts, sizes, codes = (batch.column(name).values.to_numpy() for name in ("starts", "sizes", "codes"))
    offsets = np.append(batch.column("offset").to_numpy(), facts["stop"])
    bad = facts["bad_row"], facts["bad_cause"]
    return _Index(data, batch.column("key"), tuple(facts["fields"]), offsets, first, starts, sizes, codes, *bad)


def _is_index(buffer: pa.Buffer) -> bool:
    try:
        with pa.ipc.open_stream(buffer) as stream:
            stream.read_next_batch()
    except (pa.ArrowException, OSError, StopIteration):
        return False
    return True


class _Scanned:
    """What has been found in a tar so far."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.fields: dict[str, int] = {}
        self.stop = 0
        self.cut = ""

    def add(self, member: tarfile.TarInfo) -> None:
        """A member, whose row is that of the member before it if the keys are equal."""
        self.stop = member.offset_data + member.size
        folder, slash, base = member.name.rpartition("/")
        stem, dot, field = base.partition(".")
        if not member.isreg() or member.issparse() or not stem or not dot or (base[:2] == base[-2:] == "__"):
            return
        key = folder + slash + stem
        if not self.rows or self.rows[-1]["key"] != key:
            self.rows.append({"key": key, "offset": member.offset, "starts": [], "sizes": [], "codes": []})
        self.rows[-1]["starts"].append(member.offset_data)
        self.rows[-1]["sizes"].append(member.size)
        self.rows[-1]["codes"].append(self.fields.setdefault(field.lower(), len(self.fields)))


def _scan(file: StoredFile, data: StoredFile) -> _Scanned:
    found, error = _Scanned(), ""
    with data.open() as stream, read_errors(file, "read the headers of"):
        try:
            with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape") as tar:
                # With no member at all next() seeks to byte -1, in Python 3.10.
                while tar.offset and (member := tar.next()) is not None:
                    found.add(member)
                    tar.members = []  # type: ignore[attr-defined]  # it would keep every header
                at = tar.offset
        except tarfile.TarError as caught:
            error = str(caught)
        else:
            stream.seek(at)
            error = _end(stream.read(_BLOCK), at)
    if error and not found.rows:
        raise ReadError(f"{file}: it isn't a tar, or is empty or broken: {error}", path=str(file))
    found.cut = error
    found.stop = found.stop if data.size is None else min(found.stop, data.size)
    return found


def _end(block: bytes, at: int) -> str:
    """What is wrong with the block after the last member, "" if it is the end mark."""
    if len(block) < _BLOCK:
        return f"the archive has no end mark at byte {at}"
    return f"no header and no end mark is at byte {at}" if any(block) else ""


def _as_arrow(found: _Scanned) -> pa.Buffer:
    """One record batch of the rows; what concerns all of them is in the metadata."""
    cause = found.cut and f"the tar is cut short or broken ({found.cut}), so members of its last row may be missing"
    facts = {"fields": list(found.fields), "stop": found.stop}
    facts |= {"bad_row": len(found.rows) - 1 if found.cut else -1, "bad_cause": cause}
    batch = pa.RecordBatch.from_pylist(found.rows, _SCHEMA.with_metadata({"facts": json.dumps(facts)}))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue()


def _value(key: str, field: str, data: memoryview) -> Any:
    kind = field.rpartition(".")[2]
    reader = _VALUES.get(kind, bytes)
    try:
        return reader(data)
    except BAD_VALUE as error:
        raise ValueError(f"member {key}.{field} can't be decoded: {error}") from error


def _text(data: memoryview) -> str:
    return str(data, "utf-8")


_VALUES: dict[str, Value] = {
    **dict.fromkeys(("txt", "text", "transcript", "caption", "id"), _text),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx"), lambda data: int(_text(data))),
    **dict.fromkeys(("json", "jsn"), lambda data: json.loads(_text(data))),
    "npy": lambda data: np.load(io.BytesIO(data), allow_pickle=False),
}
