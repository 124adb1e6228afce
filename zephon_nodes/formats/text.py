"""Plain text. A row is a line; a unit is the lines that begin in the same MiB of the file."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from zephon_nodes.formats.base import Shard
from zephon_nodes.formats.decompress import plain
from zephon_nodes.formats.line_index import line_offsets
from zephon_nodes.formats.spans import Spans, SpanShard
from zephon_nodes.storage import StoredFile

FIELD = "text"
_INDEXES = 256


class TextFormat:
    """Text in UTF-8, plain or compressed. A row is ``{"text": line}``, without the b"\\n" or b"\\r\\n" at its end.

    Lines end at b"\\n" only. Lines of nothing but spaces and tabs are no rows. A line that isn't UTF-8 is a ``BadRow``.
    Opening reads the file once to find its lines, unless an index is there (see ``line_offsets``).
    """

    name = "text"
    suffixes: tuple[str, ...] = (".txt", ".txt.gz", ".txt.zst")

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        """The shard of a file. Raises ``ReadError`` if it can't be read or decompressed."""
        return TextShard(file, columns)


class TextShard(SpanShard):
    """One file of lines."""

    columns = (FIELD,)

    def __init__(self, file: StoredFile, columns: Sequence[str] | None) -> None:
        spans = _spans(file)
        super().__init__(file, len(spans.offsets) - 1, int(spans.offsets[-1] - spans.offsets[0]))
        self.missing = tuple(name for name in columns or () if name != FIELD)

    def spans(self) -> Spans:
        """See ``SpanShard.spans``."""
        return _spans(self.file)


@lru_cache(maxsize=_INDEXES)
def _spans(file: StoredFile) -> Spans:
    data = plain(file)
    return Spans(data, line_offsets(data), _line)


def _line(piece: memoryview, row: int) -> dict[str, str]:
    raw = bytes(piece)
    line = raw[: raw.find(b"\n")] if b"\n" in raw else raw  # blank lines may follow in the same span
    return {FIELD: str(line.removesuffix(b"\r"), "utf-8")}
