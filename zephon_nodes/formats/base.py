"""What a file format has to offer: how many rows, in which units, and the rows of one unit.

A format knows nothing of nodes, lanes or orders. It turns one stored file into a ``Shard``; a shard is cut into units,
the pieces that storage gives whole (a Parquet row group, a run of JSONL lines). Readers hold decoded units in a bounded
cache and take single rows out of them, so a unit is decoded once for all the rows that are wanted from it.

Everything here may be called from several threads at once. A ``Shard`` keeps no open file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np

from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

Rows: TypeAlias = "Sequence[int] | I64"


class BadRow:
    """Stands in the place of a row that can't be decoded. ``cause``: the exception; its text is shown to the user."""

    __slots__ = ("cause",)

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class Unit(ABC):
    """A decoded (or at least fetched) unit. ``rows``: how many. ``nbytes``: memory that it holds."""

    rows: int
    nbytes: int

    @abstractmethod
    def take(self, rows: Rows) -> list[Any]:
        """The payloads of these rows (indices in the unit, any order, repeats allowed), or a ``BadRow`` in their place.

        Each payload is fresh: a caller may change it without changing the unit. Numeric lists are writable numpy arrays.
        """

    def sizes(self) -> I64:
        """How much there is to tokenize in each row, int64, in any measure that is roughly in proportion to it."""
        return np.array([row_size(payload) for payload in self.take(range(self.rows))], np.int64)


def row_size(payload: Any) -> int:
    """The length of a payload's texts; without any, of its arrays and lists; without those, 1."""
    if not isinstance(payload, dict):
        return 1
    texts = [len(value) for value in payload.values() if isinstance(value, str)]
    lists = [len(value) for value in payload.values() if isinstance(value, (list, np.ndarray))]
    return sum(texts) or sum(lists) or 1


class Shard(ABC):
    """One file. ``unit_rows``: int64, rows of each unit; ``unit_bytes``: int64, estimated bytes of each when decoded.

    Units without rows may occur. ``file``: where it lies. ``columns``: names of the file's columns, None where the
    format doesn't know them; ``missing``: those of the columns asked for that the file doesn't have. ``whole``: False where
    so little of the file is wanted that it isn't worth copying into a cache.
    """

    file: StoredFile
    unit_rows: I64
    unit_bytes: I64
    columns: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    whole: bool = True

    @abstractmethod
    def read(self, unit: int) -> Unit:
        """Fetches and decodes a unit. Raises ``ReadError`` naming the file."""

    def prefetch(self, cancelled: Callable[[], bool]) -> bool:
        """Copies the file into its cache, if it has one and there is room. Whether it is there. Raises ``ReadError``."""
        return self.file.prefetch(cancelled)

    def take(self, rows: Rows) -> list[Any] | None:
        """Single rows (indices in the file) without their unit, where the format can do that cheaply; else None.

        Used when rows are wanted in a global order, so that a unit would be fetched for one row of it.
        """
        return None


class Format(Protocol):
    """How files with certain suffixes are opened. Register an instance with ``register_format``.

    ``name``: what ``fmt=`` takes. ``suffixes``: endings of file names, with the dot, longest match wins.

    Three more attributes may be there. ``settings()``: the settings that decide about rows, JSON-able, for the recipe; by
    default the public attributes that are plain constants. ``companions``: endings of files that lie beside the data and are no shards of
    their own (an index, captions); they are found as well. ``gather(files)``: from all files that were found, in order,
    those that are shards, as ``StoredFile`` or a subclass that remembers more. ``formats.companions_of`` and
    ``formats.gather`` stand in where a format has none.
    """

    name: str
    suffixes: tuple[str, ...]

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file, with counts but without data. ``columns``: read only these, None for all."""
        ...
