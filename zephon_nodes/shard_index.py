"""What opening the shards of a dataset would tell, written down once: then a start opens none of them.

An index is one Parquet file, a row for each shard: its name, size and version, and what a ``Shard`` says of itself. It lies
beside the data, in ``_zephon_index``, or in a local folder (``index_dir``). Beside it lie the files that formats keep for
themselves, such as the offsets of lines (see ``formats.kept``). Nothing of it is believed for a shard whose size or version
is another one now; and a shard that is opened must have the rows that the index says.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import Rows, Shard, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import BESIDE, CACHE_FOLDER, StoredFile, content_of, is_local

FOLDER = "_zephon_index"
_ENDING = ".index"
_LAYOUT = 1
_log = logging.getLogger(__name__)


class Facts(NamedTuple):
    """What one shard says of itself; see ``Shard``."""

    unit_rows: I64
    unit_bytes: I64
    columns: tuple[str, ...] | None
    missing: tuple[str, ...]
    whole: bool

    @classmethod
    def of(cls, shard: Shard) -> Facts:
        return cls(shard.unit_rows, shard.unit_bytes, shard.columns, shard.missing, shard.whole)


@dataclass(frozen=True)
class ShardIndex:
    """``facts``: by name, size and version of a shard. ``place``: where it was read, "" if it was made in memory.
    ``published``: the folder of what formats keep, "" where that lies in ``index_dir``."""

    facts: Mapping[tuple[str, int | None, str], Facts]
    place: str = ""
    published: str = ""

    def facts_of(self, file: StoredFile) -> Facts | None:
        """What is known of a file as it is now."""
        return self.facts.get((file.name, file.size, file.version)) if file.version else None

    def to_bytes(self) -> bytes:
        """The content of an index file."""
        keys = list(self.facts)
        facts = [self.facts[key] for key in keys]
        table = pa.table(
            {
                "name": pa.array([name for name, _, _ in keys], pa.string()),
                "size": pa.array([size for _, size, _ in keys], pa.int64()),
                "version": pa.array([version for _, _, version in keys], pa.string()),
                "unit_rows": pa.array([each.unit_rows for each in facts], pa.list_(pa.int64())),
                "unit_bytes": pa.array([each.unit_bytes for each in facts], pa.list_(pa.int64())),
                "columns": pa.array([each.columns for each in facts], pa.list_(pa.string())),
                "missing": pa.array([each.missing for each in facts], pa.list_(pa.string())),
                "whole": pa.array([each.whole for each in facts], pa.bool_()),
            }
        )
        out = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({"layout": str(_LAYOUT)}), out, compression="zstd")
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, place: str = "", published: str = "") -> ShardIndex:
        """The index of a file's content. Raises ValueError (or what pyarrow does) if it is none of this layout."""
        table = pq.read_table(io.BytesIO(data))
        layout = (table.schema.metadata or {}).get(b"layout")
        if layout != str(_LAYOUT).encode():
            raise ValueError(f"it has layout {layout!r}, and {_LAYOUT} is read")
        names, sizes, versions, columns, missing, whole = (
            table[name].to_pylist() for name in ("name", "size", "version", "columns", "missing", "whole")
        )
        facts = map(
            Facts,
            _lists(table["unit_rows"]),
            _lists(table["unit_bytes"]),
            map(_tuple, columns),
            map(tuple, missing),
            whole,
        )
        return cls(dict(zip(zip(names, sizes, versions, strict=True), facts, strict=True)), place, published)


def _lists(column: pa.ChunkedArray) -> list[I64]:
    whole = column.combine_chunks()
    values, offsets = whole.flatten().to_numpy(), whole.offsets.to_numpy()
    return np.split(values, offsets[1:-1] - offsets[0]) if len(whole) else []


def _tuple(names: list[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


class IndexedShard(Shard):
    """A shard that is opened when rows are read from it."""

    def __init__(self, file: StoredFile, facts: Facts, open_: Callable[[StoredFile], Shard], place: str) -> None:
        self.file = file
        self.unit_rows, self.unit_bytes, self.columns, self.missing, self.whole = facts
        self._open, self._place = open_, place
        self._shard: Shard | None = None

    def read(self, unit: int) -> Unit:
        """See ``Shard.read``. Raises ``ReadError`` if the shard isn't what the index says."""
        return self._opened().read(unit)

    def take(self, rows: Rows) -> list[Any] | None:
        """See ``Shard.take``."""
        return self._opened().take(rows)

    def prefetch(self, cancelled: Callable[[], bool]) -> bool:
        """See ``Shard.prefetch``."""
        return self.file.prefetch(cancelled)

    def _opened(self) -> Shard:
        if self._shard is None:
            shard = self._open(self.file)
            if not np.array_equal(shard.unit_rows, self.unit_rows):
                text = (
                    f"{self.file}: it has {int(shard.unit_rows.sum())} rows in {len(shard.unit_rows)} units, and the index "
                    f"{self._place} says {int(self.unit_rows.sum())} in {len(self.unit_rows)}: the index is stale; "
                    "run python -m zephon_nodes index again"
                )
                raise ReadError(text, path=str(self.file))
            self._shard = shard
        return self._shard


def find_index(files: Sequence[StoredFile], fmt: str, columns: Sequence[str] | None) -> ShardIndex | None:
    """The index of these files, from ``index_dir`` or from beside the data; None if there is none.

    One that can't be read is logged and passed over. Raises ``ReadError`` if the store fails.
    """
    root = root_of(files)
    places = [(place, "") for place in [kept_place(files[0].cache_dir, root, fmt, columns)] if place]
    if not root.startswith(("http://", "https://")):
        places.append((beside_place(root, fmt, columns), f"{root}/{FOLDER}"))
    for place, published in places:
        data = content_of(place, files[0].storage_options)
        if data is not None:
            try:
                return ShardIndex.from_bytes(data, place, published)
            except (ValueError, KeyError, OSError, pa.ArrowException) as error:
                _log.warning("the index %s can't be used (%s); run python -m zephon_nodes index again", place, error)
    return None


def kept_place(index_dir: str | None, root: str, fmt: str, columns: Sequence[str] | None) -> str:
    """Where an index lies in a local folder, "" if there is no such folder."""
    if index_dir == BESIDE:
        return ""
    folder = os.path.abspath(os.path.expanduser(index_dir or CACHE_FOLDER))
    return os.path.join(folder, _digest(root, fmt, columns) + _ENDING)


def beside_place(root: str, fmt: str, columns: Sequence[str] | None) -> str:
    """Where an index lies beside the data."""
    return f"{root}/{FOLDER}/{fmt}-{_digest(columns)[:12]}{_ENDING}"


def root_of(files: Sequence[StoredFile]) -> str:
    """The folder that the names of files are relative to."""
    path = files[0].path if is_local(files[0].path) else files[0].path.partition("?")[0]
    return path.removesuffix(f"/{files[0].name}")


def indexed_shards(
    index: ShardIndex, files: Sequence[StoredFile], open_: Callable[[StoredFile], Shard]
) -> list[Shard | None]:
    """The shards that an index tells of, None for the others; one warning says if there are some."""
    known = [index.facts_of(file) for file in files]
    new = [file for file, facts in zip(files, known, strict=True) if facts is None]
    if new:
        text = "the index %s is stale: %d of %d files are new or have changed, such as %s; they are opened one by one; run python -m zephon_nodes index again"
        _log.warning(text, index.place, len(new), len(files), new[0])
    published = [dataclasses.replace(file, published=index.published) for file in files]
    return [
        None if facts is None else IndexedShard(file, facts, open_, index.place)
        for file, facts in zip(published, known, strict=True)
    ]


def _digest(*facts: Any) -> str:
    text = json.dumps([list(each) if isinstance(each, tuple) else each for each in facts])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
