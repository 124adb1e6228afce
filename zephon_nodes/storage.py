"""Files, wherever they lie: this machine's disk by plain Python, everything else by fsspec (see ``remote``).

A ``StoredFile`` is a name with facts. It holds no descriptor and no connection, so it can be kept by the thousand and
sent to worker processes. A remote one may have a ``ShardCache``: then it is fetched whole, once for all processes of the
machine, and read from there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from zephon_nodes import remote
from zephon_nodes.errors import ReadError
from zephon_nodes.progress import bar
from zephon_nodes.remote import Options, Remote, RemoteStream, plain_url
from zephon_nodes.retries import GaveUpError, Verdict, store_errors
from zephon_nodes.shard_cache import Entry, ShardCache
from zephon_nodes.store_counters import COUNTERS

BESIDE = "beside"
CACHE_FOLDER = "~/.cache/zephon_nodes/index"
COPIES_BYTES = 64 << 30
_PIECE = 8 << 20
_AT_ONCE = 4
_BUFFER = 4 << 20


@dataclass(frozen=True)
class StoredFile:
    """One file.

    ``path``: absolute local path, or a URL that fsspec opens. ``name``: its path below the dataset's root, with "/";
    the recipe holds it. ``size``: bytes, None when the store doesn't tell. ``version``: changes when the content does
    (mtime in ns, etag and the like), "" when the store doesn't tell. ``storage_options``: given to fsspec, or a function that
    gives them; "retries" in it is a ``Retries``. ``cache_dir``: where an index or a decompressed copy is kept: a folder,
    None for ``~/.cache/zephon_nodes/index``, or ``BESIDE`` for the folder of the file itself (hidden names). ``label``:
    what messages call it, if not its path. ``cache``: where a remote file is copied to, None to read it where it is; not
    used where the store tells no size or no version. ``fits``: whether the cache has room for the whole dataset.
    ``made``: for a file that is computed from another. ``published``: a folder or URL of what has been computed from the
    dataset's files before, "" for none.

    ``str(file)`` is for messages: it leaves out user and query of a URL, which may hold a signature.
    """

    path: str
    name: str
    size: int | None = None
    version: str = ""
    storage_options: Options = field(default_factory=dict, hash=False, repr=False)
    cache_dir: str | None = None
    label: str = ""
    cache: ShardCache | None = field(default=None, repr=False)
    fits: bool = False
    made: Made | None = field(default=None, repr=False)
    published: str = field(default="", repr=False)

    def __str__(self) -> str:
        return self.label or (self.path if is_local(self.path) else plain_url(self.path))

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine's file system, under ``path``."""
        return self.made is None and is_local(self.path)

    @property
    def is_cached(self) -> bool:
        """Whether its content is read from a cache."""
        known = self.size is not None and bool(self.version)
        return self.cache is not None and not self.is_local and (known or self.made is not None)

    def open(self, buffer: int = _BUFFER) -> BinaryIO:
        """Opens it for reading bytes. Seekable, except over HTTP where the size is unknown.

        ``buffer``: most bytes read ahead of a remote file; 0 asks the store for just what is read.
        Raises ``ReadError`` if it can't be opened, or has another size than before.
        """
        kept = self._kept()
        if kept is not None:
            return cast(BinaryIO, io.BufferedReader(kept))
        if not self.is_local and self.size is not None:
            raw = RemoteStream(self.size, self._exact)
            return cast(BinaryIO, io.BufferedReader(raw, buffer) if buffer else raw)
        if not self.is_local:
            return cast(BinaryIO, self._asked("open", lambda fs, path: fs.open(path, "rb")))
        with read_errors(self, "open"):
            stream = open(self.path, "rb")  # noqa: SIM115 (the caller closes it)
            size = os.fstat(stream.fileno()).st_size
            if self.size is not None and size != self.size:
                stream.close()
                raise self.changed(f"it had {self.size} bytes and now has {size}")
            return stream

    @contextmanager
    def held(self, fetch: bool = True) -> Iterator[StoredFile]:
        """The file as it is best read: its copy in the cache, which isn't evicted meanwhile, or the file itself.

        For what needs a local path. ``fetch``: False takes a copy only if there is one, and reads the store otherwise.
        """
        kept = self._kept(fetch)
        if kept is None:
            yield self if self.cache is None or self.is_local else dataclasses.replace(self, cache=None)
            return
        with kept:
            yield StoredFile(str(kept.name), self.name, os.fstat(kept.fileno()).st_size, self.version, label=str(self))

    def blocks(self, nbytes: int) -> Iterator[bytes]:
        """The whole content as one stream of pieces of ``nbytes`` bytes; the last may be shorter.

        Raises ``ReadError`` as ``open`` does, and where the stream has another length than ``size``, or a remote file
        has changed meanwhile.
        """
        total = 0
        with self.open() as stream, bar(f"reading {self.name}", self.size, "B") as advance:
            while True:
                with read_errors(self, "read"):
                    block = _read_full(stream, nbytes)
                total += len(block)
                advance(len(block))
                if block:
                    yield block
                if len(block) < nbytes:
                    break
        if self.size is not None and total != self.size:
            raise self.changed(f"{self.size} bytes were expected and {total} came")
        if not self.is_cached:
            self.check_unchanged()

    def read_range(self, start: int, stop: int) -> bytes:
        """Bytes [start, stop). Raises ``ReadError`` if any are missing."""
        return self.read_ranges([(start, stop)])[0]

    def read_ranges(self, ranges: Sequence[tuple[int, int]], scattered: bool = False) -> list[bytes]:
        """Several ranges; a local file is opened once, some remote stores are asked for all at once.

        ``scattered``: they are rows wanted in no order, so that a file is copied into the cache for them only if that has
        room for the whole dataset; else each copy would be evicted before it has paid.
        Raises ``ReadError`` if the store can't give them or gives fewer or more bytes, or the file has changed.
        """
        kept = self._kept(fetch=self.fits or not scattered)
        if kept is not None or self.is_local:
            with kept or self.open() as stream, read_errors(self, "read"):
                parts = [_read_at(cast(BinaryIO, stream), start, stop) for start, stop in ranges]
        else:
            parts = self.remote_ranges(ranges)
            self.check_unchanged()
        for (start, stop), part in zip(ranges, parts, strict=True):
            if len(part) != stop - start:
                raise self._wrong_length(start, stop, len(part))
        return parts

    def remote_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Ranges from the store, past the cache. Longer answers are given as they came. Raises ``ReadError``."""
        for start, stop in ranges:
            if self.size is not None and stop > self.size:
                raise self._wrong_length(start, stop, max(0, self.size - start))
        began = time.monotonic()
        try:
            return remote.ranges(self._remote, ranges, self.check_unchanged)
        except GaveUpError as error:
            failure = self._given_up("read", error)
            raise failure from failure.__cause__
        finally:
            COUNTERS.add(waiting=time.monotonic() - began)

    def check_unchanged(self) -> None:
        """Raises ``ReadError`` if a remote file has another size or version than it had. One small request."""
        if self.made is not None or self.is_local or (self.size is None and not self.version):
            return
        facts = self._facts()
        size = facts.get("size")
        if None not in (size, self.size) and size != self.size:
            raise self.changed(f"it had {self.size} bytes and now has {size}")
        if not remote.is_version(self.version, facts):
            raise self.changed("its etag, or what the store has in its place, is another one")

    def prefetch(self, cancelled: Callable[[], bool]) -> bool:
        """Copies it into the cache if there is room and it isn't there, in one attempt. Whether it is there now.

        Raises ``ReadError`` if the attempt fails.
        """
        if self.cache is None or not self.is_cached:
            return False
        once = dataclasses.replace(self, storage_options=remote.Once(self.storage_options))
        return self.cache.fetch(once._entry(), cancelled)

    def computed(self, ending: str, make: Callable[[StoredFile], Iterable[bytes]]) -> StoredFile:
        """A file computed from this one, such as its decompressed content, kept in the cache and made again if need be.

        ``ending``: names what is computed. ``make``: gives its content; must pickle. Without a ``cache``, the copies lie
        in ``copies`` below ``cache_dir``, at most 64 GiB of them in all. Where the store tells no version, the copy serves this
        object only.
        """
        version = self.version or uuid.uuid4().hex
        cache = self.cache or ShardCache(self._copies_folder(), COPIES_BYTES, 0)
        path = f"{self.path}{ending}"
        facts = (path, self.name, None, version, self.storage_options, self.cache_dir, str(self), cache, True)
        made = StoredFile(*facts, Made(self, ending, make), self.published)
        with made.open() as stream:
            return dataclasses.replace(made, size=os.fstat(stream.fileno()).st_size)

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

    def published_bytes(self, name: str) -> bytes | None:
        """What somebody has published under this name; None if nobody has. Raises ``ReadError`` if the store fails."""
        return content_of(f"{self.published}/{name}", self.storage_options) if self.published else None

    @property
    def _remote(self) -> Remote:
        return Remote(self.path, self.storage_options)

    def _asked(self, what: str, work: Callable[[Any, str], Any]) -> Any:
        try:
            return self._remote.call(what, work)
        except GaveUpError as error:
            failure = self._given_up(what, error)
            raise failure from failure.__cause__

    def _facts(self) -> Any:
        try:
            return remote.info(self._remote)
        except GaveUpError as error:
            failure = self._given_up("find the version of", error)
            raise failure from failure.__cause__

    def _given_up(self, what: str, error: GaveUpError) -> ReadError:
        if error.kind is Verdict.CHANGED:
            return self.changed(self._remote.shown(error.__cause__))
        return self._remote.read_error(what, error)

    def _copies_folder(self) -> str:
        if self.cache_dir == BESIDE:
            return os.path.join(os.path.dirname(self.path), ".copies")
        return os.path.join(self.cache_dir or CACHE_FOLDER, "copies")

    def _kept(self, fetch: bool = True) -> Any:
        if self.cache is None or not self.is_cached:
            return None
        return self.cache.open(self._entry(), fetch)

    def _entry(self) -> Entry:
        return Entry(
            _digest(self.path, self.size if self.made is None else "", self.version), str(self), self.size, self._fill
        )

    def _fill(self, write: Callable[[bytes], None]) -> None:
        if self.made is not None:
            with self.made.of.held(fetch=False) as near:  # two copies would need room at once
                for block in self.made.make(near):
                    write(block)
            return
        size = self.size or 0
        pieces = [(start, min(size, start + _PIECE)) for start in range(0, size, _PIECE)]
        # One alone first: a server that ignores ranges gives the whole file for it.
        for batch in [pieces[:1], *(pieces[at : at + _AT_ONCE] for at in range(1, len(pieces), _AT_ONCE))]:
            parts = self.remote_ranges(batch) if batch else []
            for (start, stop), part in zip(batch, parts, strict=True):
                if len(part) not in (stop - start, size):
                    raise self._wrong_length(start, stop, len(part))
                write(part)
            if parts and len(parts[0]) == size:
                break
        self.check_unchanged()

    def _exact(self, start: int, stop: int) -> bytes:
        """A range from the store, cut out of the whole where the server ignores ranges."""
        part = self.remote_ranges([(start, stop)])[0]
        part = part[start:stop] if len(part) == self.size else part
        if len(part) != stop - start:
            raise self._wrong_length(start, stop, len(part))
        return part

    def _wrong_length(self, start: int, stop: int, got: int) -> ReadError:
        if got > stop - start:
            text = f"{self}: bytes {start}:{stop} were asked for and {got} came: the server ignores ranges; copy the file to a store that reads ranges"
            return ReadError(text, path=str(self))
        return self.changed(f"bytes {start}:{stop} were asked for and {got} came")


@dataclass(frozen=True)
class Made:
    """How a file is computed from another. ``what`` names the computation."""

    of: StoredFile
    what: str
    make: Callable[[StoredFile], Iterable[bytes]] = field(compare=False)


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


def content_of(place: str, options: Options) -> bytes | None:
    """The content of a path or URL; None if there is no such file, or nobody may know. Raises ``ReadError`` if the store fails."""
    if is_local(place):
        try:
            with open(place, "rb") as stream:
                return stream.read()
        except OSError:
            return None
    store = Remote(place, options)
    try:
        return store.call("reading", lambda fs, path: bytes(fs.cat_file(path)))
    except GaveUpError as error:
        if error.kind is not Verdict.PASSING:
            return None
        failure = store.read_error("read", error)
        raise failure from failure.__cause__


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
