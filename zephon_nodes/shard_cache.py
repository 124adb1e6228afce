"""Copies of shards on this machine's disk, shared by all processes that name the same folder.

There is no index file and no server: the file system is the state, and locks of open files (flock) are the only locks.
The kernel lets go of those when a process dies, however it dies, so nothing is ever stale:

    KEY.shard   a whole copy. Who reads it holds a shared lock on it; who evicts it an exclusive one, which it gets only
                if nobody reads. Its mtime is when it was last opened; the oldest goes first
    KEY.part    a copy on its way. Its maker holds an exclusive lock, so others that want it wait for that lock, and then
                find the whole copy. A part that nobody has locked is what a killed process left, and is removed.
                A part has its full size from the start, so the sizes of all files are the bytes that are spoken for
    .lock       held while room is made and spoken for, and while a part becomes a shard

So the sum of all sizes never exceeds the limit, and a copy is whole once its name ends in .shard (rename is atomic).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.retries import Clock, SystemClock
from zephon_nodes.store_counters import COUNTERS

_WHOLE, _PART = ".shard", ".part"
_GROW = 4 << 20
_POLL_SECONDS = 0.05
_PATIENCE = 600.0


class Entry(NamedTuple):
    """What a copy is of. ``key``: its name in the folder. ``label``: for messages. ``size``: bytes, None if that shows only
    when it is made. ``fill``: writes the content, in order, through what it is given."""

    key: str
    label: str
    size: int | None
    fill: Callable[[Callable[[bytes], None]], None]


class CancelledError(Exception):
    """Nobody wants the copy any more."""


@dataclass(frozen=True)
class ShardCache:
    """A folder of copies of remote shards, bounded, kept over restarts, shared by ranks, workers and jobs of a machine.

    ``folder``: on a local disk (made if it isn't there); the locks don't work on every network file system.
    ``max_bytes``: most bytes in it, at all times; all who share a folder should say the same. Best is room for the whole
    data: then each byte is fetched once. Less is fine while it holds what is in use and fetched ahead; below the largest
    shard it is a ``ConfigError`` that says the size needed. ``ahead_bytes``: how much each process fetches before it
    is needed, 0 for nothing, None for a sixteenth of ``max_bytes``; more hides longer outages, and with many processes
    evicts what others still want. ``clock``: for tests.

    Several threads and processes may do anything at once. Processes that are killed leave nothing that isn't cleaned
    up by the next.

    >>> cache = ShardCache("/tmp/shards", max_bytes=200 << 30)
    >>> cache.ahead_bytes >> 20
    12800
    """

    folder: str
    max_bytes: int
    ahead_bytes: int | None = None
    clock: Clock = field(default_factory=SystemClock, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, os.PathLike)) or not os.fspath(self.folder):
            raise ConfigError(f"ShardCache: folder must be a path, got {self.folder!r}")
        object.__setattr__(self, "folder", os.path.abspath(os.path.expanduser(os.fspath(self.folder))))
        ahead = (
            self.max_bytes // 16 if self.ahead_bytes is None and isinstance(self.max_bytes, int) else self.ahead_bytes
        )
        for name, value, least in (("max_bytes", self.max_bytes, 1), ("ahead_bytes", ahead, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"ShardCache: {name} must be a number of bytes, at least {least}; got {value!r}")
        object.__setattr__(self, "ahead_bytes", ahead)

    def open(self, entry: Entry, fetch: bool = True) -> LockedFile | None:
        """The copy, safe from eviction until it is closed; made first if need be, or None if ``fetch`` is off.

        Raises ``ConfigError`` if it is larger than the limit, ``ReadError`` if the folder can't be written, and what
        ``fill`` raises.
        """
        kept = self._kept(entry)
        if kept is not None:
            COUNTERS.add(hits=1)
            return kept
        if not fetch:
            return None
        began = self.clock.now()
        try:
            while kept is None:
                self._make(entry, None)
                kept = self._kept(entry)
        finally:
            COUNTERS.add(waiting=self.clock.now() - began)
        return kept

    def fetch(self, entry: Entry, cancelled: Callable[[], bool]) -> bool:
        """Makes the copy if it isn't there and there is room without waiting for any. Whether it is there now."""
        kept = self._kept(entry, touch=False)
        if kept is not None:
            kept.close()
            return True
        try:
            if self._make(entry, cancelled):
                COUNTERS.add(ahead=1)
        except CancelledError:
            return False
        return True

    def used(self) -> int:
        """Bytes of all copies, and of those on their way."""
        if not os.path.isdir(self.folder):
            return 0
        with self._books():
            return sum(facts.st_size for _, facts in self._files())

    def _path(self, entry: Entry) -> str:
        return os.path.join(self.folder, entry.key + _WHOLE)

    def _kept(self, entry: Entry, touch: bool = True) -> LockedFile | None:
        try:
            copy = LockedFile(self._path(entry), fcntl.LOCK_SH)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except PermissionError as error:
            text = f"{entry.label}: can't read its copy in {self.folder} ({error}); name a folder of your own"
            raise ReadError(text, path=entry.label) from error
        facts = os.fstat(copy.fileno())
        if facts.st_nlink and entry.size in (None, facts.st_size):
            if touch:
                os.utime(copy.fileno())
            return copy
        copy.close()
        if facts.st_nlink:  # cut short or grown: not what was put here
            self._evict(self._path(entry), facts)
        return None

    def _make(self, entry: Entry, cancelled: Callable[[], bool] | None) -> bool:
        """Makes the copy, or waits until somebody else has. Whether it was made here. ``cancelled`` None: waits for room."""
        path = self._path(entry)
        part = path.removesuffix(_WHOLE) + _PART
        if entry.size is not None:
            self._check_limit(entry, entry.size)
        with self._writing(entry), _locked(part, os.O_RDWR | os.O_CREAT) as out:
            if not _is_at(out, part) or os.path.exists(path):
                if _is_at(out, part):
                    os.unlink(part)
                return False
            try:
                writer = _Writer(self, entry, out, cancelled)
                writer.room(entry.size or 0)
                entry.fill(writer.write)
                writer.end()
                with self._books():
                    COUNTERS.add(
                        downloads=1
                    )  # before anybody can read the copy: whoever has rows of it finds it counted
                    os.replace(part, path)
            except BaseException:
                os.unlink(part)
                raise
        return True

    def reserve(self, out: io.FileIO, nbytes: int, entry: Entry, cancelled: Callable[[], bool] | None) -> None:
        """Makes a part ``nbytes`` long, after evicting what must go for it."""
        began = self.clock.now()
        self._check_limit(entry, nbytes)
        while not self.reserved(out, nbytes):
            if cancelled is not None:
                raise CancelledError
            if self.clock.now() - began > _PATIENCE:
                text = f"{self.folder}: {self.max_bytes:,} bytes (max_bytes) are all in use, and {entry.label} needs {nbytes:,} more; raise max_bytes"
                raise ReadError(text, path=entry.label)
            self.clock.sleep(_POLL_SECONDS)

    def reserved(self, out: io.FileIO, nbytes: int) -> bool:
        """Whether there is room for a part of ``nbytes``, after evicting what must go; then the part is that long."""
        with self._books():
            mine = os.fstat(out.fileno())
            others = [(path, facts) for path, facts in self._files() if facts.st_ino != mine.st_ino]
            used = nbytes + sum(facts.st_size for _, facts in others)
            # Parts first: those that can be locked are orphans.
            others.sort(key=lambda each: (not each[0].endswith(_PART), each[1].st_mtime_ns))
            for path, facts in others:
                if path.endswith(_PART) or used > self.max_bytes:
                    used -= facts.st_size if self._evict(path, facts) else 0
            if used > self.max_bytes:
                return False
            os.truncate(out.fileno(), nbytes)
            return True

    def _books(self) -> LockedFile:
        """Held while files are counted, and while one gets another name: a scan of the folder might miss both names."""
        return _locked(os.path.join(self.folder, ".lock"), os.O_RDWR | os.O_CREAT)

    def _evict(self, path: str, facts: os.stat_result) -> bool:
        """Removes a file, unless somebody uses it or it is another one by now."""
        try:
            with _locked(path, os.O_RDWR, fcntl.LOCK_EX | fcntl.LOCK_NB) as file:
                if os.fstat(file.fileno()).st_ino != facts.st_ino or not _is_at(file, path):
                    return False
                os.unlink(path)
        except BlockingIOError:
            return False
        except FileNotFoundError:
            return True
        COUNTERS.add(evicted=path.endswith(_WHOLE))
        return True

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for found in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # evicted or renamed meanwhile
                facts = found.stat(follow_symlinks=False)
                if found.name.endswith((_WHOLE, _PART)) and stat.S_ISREG(facts.st_mode):
                    yield found.path, facts

    def _check_limit(self, entry: Entry, nbytes: int) -> None:
        if nbytes > self.max_bytes:
            raise ConfigError(
                f"{entry.label} needs {nbytes:,} bytes, and ShardCache({self.folder!r}) may hold {self.max_bytes:,}; "
                f"set max_bytes to at least {nbytes:,}, better several times that"
            )

    @contextlib.contextmanager
    def _writing(self, entry: Entry) -> Iterator[None]:
        """Says which setting is wrong when the folder can't be written."""
        try:
            os.makedirs(self.folder, exist_ok=True)
            yield
        except ReadError:
            raise
        except OSError as error:
            text = f"{entry.label}: can't write its copy into {self.folder} ({error}); name a folder with room"
            raise ReadError(text, path=entry.label) from error


class _Writer:
    """Fills a part, and speaks for more room as it grows."""

    def __init__(self, cache: ShardCache, entry: Entry, out: io.FileIO, cancelled: Callable[[], bool] | None) -> None:
        self._cache, self._entry, self._out, self._cancelled = cache, entry, out, cancelled
        self._room = self._written = 0

    def room(self, nbytes: int) -> None:
        self._cache.reserve(self._out, nbytes, self._entry, self._cancelled)
        self._room = nbytes

    def write(self, block: bytes) -> None:
        if self._cancelled is not None and self._cancelled():
            raise CancelledError
        need = self._written + len(block)
        if need > self._room:
            roomy = min(self._cache.max_bytes, max(need, self._room + max(_GROW, self._room // 8)))
            if self._entry.size is None and roomy > need and self._cache.reserved(self._out, roomy):
                self._room = roomy
            else:
                self.room(need)
        view = memoryview(block)
        while view:
            view = view[self._out.write(view) :]
        self._written = need

    def end(self) -> None:
        size = self._entry.size
        if size not in (None, self._written):
            text = f"{self._entry.label}: {size:,} bytes were expected and {self._written:,} came: it has changed; make the Dataset again"
            raise ReadError(text, path=self._entry.label)
        os.truncate(self._out.fileno(), self._written)
        os.fsync(self._out.fileno())  # else a crash of the machine may leave a whole name with a hollow content


class LockedFile(io.FileIO):
    """A file that is locked until it is closed. The lock is let go by name, since a forked child has the descriptor too."""

    def __init__(self, path: str, lock: int, flags: int = os.O_RDONLY) -> None:
        self._held = False
        mode = "rb" if flags == os.O_RDONLY else "rb+"
        super().__init__(path, mode, opener=lambda name, _: os.open(name, flags | os.O_CLOEXEC, 0o666))
        try:
            fcntl.flock(self.fileno(), lock)
        except BaseException:
            super().close()
            raise
        self._held = True

    def close(self) -> None:
        if self._held and not self.closed:
            self._held = False
            fcntl.flock(self.fileno(), fcntl.LOCK_UN)
        super().close()


def _locked(path: str, flags: int, lock: int = fcntl.LOCK_EX) -> LockedFile:
    return LockedFile(path, lock, flags)


def _is_at(file: io.FileIO, path: str) -> bool:
    """Whether the path still means the file that is open."""
    try:
        return os.stat(path).st_ino == os.fstat(file.fileno()).st_ino
    except FileNotFoundError:
        return False
