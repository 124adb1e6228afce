"""Files, wherever they lie: this machine's disk by plain Python, everything else by fsspec.

A ``StoredFile`` is a name with facts. It holds no descriptor and no connection, so it can be kept by the thousand and
sent to worker processes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import fsspec

from zephon_nodes.errors import ReadError

BESIDE = "beside"
CACHE_FOLDER = "~/.cache/zephon_nodes/index"


@dataclass(frozen=True)
class StoredFile:
    """One file.

    ``path``: absolute local path, or a URL that fsspec opens. ``name``: its path below the dataset's root, with "/";
    the recipe holds it. ``size``: bytes, None when the store doesn't tell. ``version``: changes when the content does
    (mtime in ns, etag and the like), "" when the store doesn't tell. ``storage_options``: given to fsspec.
    ``cache_dir``: where an index or a decompressed copy is kept: a folder, None for ``~/.cache/zephon_nodes/index``,
    or ``BESIDE`` for the folder of the file itself (hidden names). ``label``: what messages call it, if not its path.

    ``str(file)`` is for messages: it leaves out the query of a URL, which may hold a signature.
    """

    path: str
    name: str
    size: int | None = None
    version: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    cache_dir: str | None = None
    label: str = ""

    def __str__(self) -> str:
        return self.label or (self.path if self.is_local else self.path.partition("?")[0])

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's file system."""
        return is_local(self.path)

    def open(self, **options: Any) -> BinaryIO:
        """Opens it for reading bytes. Seekable, except over HTTP where the size is unknown. ``options``: for fsspec.

        Raises ``ReadError`` if it can't be opened, or has another size than before.
        """
        with read_errors(self, "open"):
            if not self.is_local:
                fs, path = fsspec.core.url_to_fs(self.path, **self.storage_options)
                return cast(BinaryIO, fs.open(path, "rb", **options))
            stream = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
            size = os.fstat(stream.fileno()).st_size
            if self.size is not None and size != self.size:
                stream.close()
                raise self.changed(f"it had {self.size} bytes and now has {size}")
            return stream

    def blocks(self, nbytes: int) -> Iterator[bytes]:
        """The whole content as one stream of pieces of ``nbytes`` bytes; the last may be shorter.

        Raises ``ReadError`` as ``open`` does, and where the stream has another length than ``size``.
        """
        total = 0
        with self.open() as stream:
            while True:
                with read_errors(self, "read"):
                    block = _read_full(stream, nbytes)
                total += len(block)
                if block:
                    yield block
                if len(block) < nbytes:
                    break
        if self.size is not None and total != self.size:
            raise self.changed(f"{self.size} bytes were expected and {total} came")

    def read_range(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop). Raises ``ReadError`` if any are missing."""
        return self.read_ranges([(start, stop)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Several ranges; a local file is opened once, some remote stores are asked for all at once.

        Raises ``ReadError`` if the store can't give them or gives fewer or more bytes.
        """
        if self.is_local:
            with self.open() as stream, read_errors(self, "read"):
                parts = [_read_at(stream, start, stop) for start, stop in ranges]
        else:
            with read_errors(self, "read"):
                parts = self._remote_ranges(ranges)
        for (start, stop), part in zip(ranges, parts, strict=True):
            if len(part) != stop - start:
                raise self._wrong_length(start, stop, len(part))
        return parts

    def _remote_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        fs, path = fsspec.core.url_to_fs(self.path, **self.storage_options)
        if fs.async_impl and len(ranges) > 1:
            starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
            return cast("list[bytes]", fs.cat_ranges([path] * len(ranges), starts, stops, on_error="raise"))
        # By keyword: the third parameter isn't ``start`` in every file system.
        return [fs.cat_file(path, start=start, end=stop) for start, stop in ranges]

    def _wrong_length(self, start: int, stop: int, got: int) -> ReadError:
        if got > stop - start:
            text = f"{self}: bytes {start}:{stop} were asked for and {got} came: the server ignores ranges; copy the file to a store that reads ranges"
            return ReadError(text, path=str(self))
        return self.changed(f"bytes {start}:{stop} were asked for and {got} came")

    def changed(self, how: str) -> ReadError:
        """The error for a file that isn't what it was when its dataset was opened."""
        text = f"{self}: the file has changed since the dataset was opened ({how}); make the Dataset again, and don't write to files in use"
        return ReadError(text, path=str(self))

    def derived(self, ending: str, *facts: object) -> str:
        """Local path for something computed from the file, named by its path and by ``facts``."""
        if self.cache_dir == BESIDE:
            folder, base = os.path.split(self.path)
            return os.path.join(folder, f".{base}{_digest(*facts)[:8] if facts else ''}{ending}")
        folder = os.path.abspath(os.path.expanduser(self.cache_dir or CACHE_FOLDER))
        return os.path.join(folder, _digest(self.path, *facts) + ending)


def is_local(path: str) -> bool:
    """Whether a path is one of this machine's file system, not a URL."""
    return "://" not in path and "::" not in path


@contextmanager
def read_errors(file: StoredFile, what: str) -> Iterator[None]:
    """Turns what a store raises into a ``ReadError`` that says which file and what was tried."""
    try:
        yield
    except ReadError:
        raise
    except store_errors() as error:
        cause = str(error) or type(error).__name__
        raise ReadError(f"{file}: can't {what} it: {cause}", path=str(file)) from error


def store_errors() -> tuple[type[Exception], ...]:
    """The exceptions by which a store says that it failed. aiohttp's aren't OSErrors, nor are time-outs before 3.11."""
    aiohttp = sys.modules.get("aiohttp")
    return (OSError, asyncio.TimeoutError, EOFError, *((aiohttp.ClientError,) if aiohttp else ()))


def write_atomically(path: str, parts: Iterable[bytes | memoryview]) -> None:
    """Writes a file that other processes see whole or not at all. Makes its folder. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temp = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temp, "xb") as out:
            for part in parts:
                out.write(part)
        os.replace(temp, path)
    finally:
        if os.path.exists(temp):
            os.unlink(temp)


def _read_at(stream: BinaryIO, start: int, stop: int) -> bytes:
    stream.seek(start)
    return stream.read(stop - start)


def _read_full(stream: BinaryIO, nbytes: int) -> bytes:
    block = stream.read(nbytes)
    while 0 < len(block) < nbytes and (more := stream.read(nbytes - len(block))):
        block += more
    return block


def _digest(*facts: object) -> str:
    return hashlib.sha256("\n".join(map(str, facts)).encode("utf-8", "surrogateescape")).hexdigest()[:32]
