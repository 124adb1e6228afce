"""Files that aren't on this machine's disk: every request to fsspec goes through here.

A request is tried again as ``Retries`` says. No connection is kept by us: fsspec keeps instances for each process, and
forgets them in a forked one. Credentials are options; they may be a function that makes them, which is called once a
process and again when a store refuses them. Their values are taken out of every text that leaves this file.
"""

from __future__ import annotations

import datetime
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar, cast

import fsspec

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.retries import GaveUpError, Retries, ShortBodyError, Verdict
from zephon_nodes.store_counters import COUNTERS

T = TypeVar("T")
Options: TypeAlias = "Mapping[str, Any] | Callable[[], Mapping[str, Any]]"

# What stores call the thing that changes with the content, best first.
_VERSION_KEYS = (
    *("ETag", "etag", "blob_id", "generation", "Content-MD5", "md5Hash", "Digest", "VersionId"),
    *("LastModified", "last_modified", "Last-Modified", "updated", "mtime", "modified", "created"),
)
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure"}
_EXTRAS |= {"adl": "azure", "hf": "hf", "http": "http", "https": "http"}
_SECRET_NAME = re.compile(r"secret|key|token|pass|sas|cred|auth|sign|connection|headers|cookie", re.IGNORECASE)
_QUERY = re.compile(r"(\w+://[^\s'\"?]*)\?[^\s'\")]*")
_USER = re.compile(r"(\w+://)[^\s/@'\"]+@")
_SHORTEST_SECRET = 4
_STALL_SECONDS = 60.0
_made: dict[tuple[int, Callable[[], Mapping[str, Any]]], Mapping[str, Any]] = {}


class Remote:
    """One file, folder or pattern of a store. ``label``: what messages call it."""

    def __init__(self, url: str, options: Options) -> None:
        self.url, self._options = url, options
        self.label = plain_url(url)

    def call(self, what: str, work: Callable[[Any, str], T]) -> T:
        """What ``work(file system, path in it)`` gives. Raises ``GaveUpError``, or ``ConfigError`` for options that can't work."""
        COUNTERS.add(requests=1)
        attempts = [0]

        def attempt() -> T:
            attempts[0] += 1
            if attempts[0] > 1:
                COUNTERS.add(retried=1)
            return work(*connect(self.url, self._options))

        return retries_of(self._options).call(f"{self.label}: {what}", attempt, self._refresh, self.shown)

    def shown(self, error: object) -> str:
        """The text of an error, without secrets."""
        return redacted(str(error) or type(error).__name__, self._options)

    def read_error(self, what: str, gave_up: GaveUpError) -> ReadError:
        """The error for the user. Its cause is the store's own, or one without secrets where that has some."""
        cause = gave_up.__cause__
        text = f"{self.label}: can't {what} it: {self.shown(cause)}"
        if gave_up.attempts > 1:
            text += f" ({gave_up.attempts} attempts in {gave_up.seconds:.0f} s)"
        text += _ADVICE.get(gave_up.kind, "")
        error = ReadError(text, path=self.label)
        error.__cause__ = _clean(cause, self._options)
        return error

    def _refresh(self) -> None:
        """Makes the next attempt begin with new credentials: fsspec's instances of this store's kind are forgotten."""
        fs, _ = connect(self.url, self._options)
        made = self._options.of if isinstance(self._options, Once) else self._options
        if callable(made):
            _made.pop((os.getpid(), made), None)
        type(fs).clear_instance_cache()


_ADVICE = {
    Verdict.DENIED: "; check the credentials in storage_options (a function there is called anew when they expire)",
    Verdict.CHANGED: "; the file has changed since the dataset was opened: make the Dataset again",
}


def connect(url: str, options: Options) -> tuple[Any, str]:
    """fsspec's file system and the path in it. Raises ``ConfigError`` if the kind of store or an option is unknown."""
    known = dict(resolved(options))
    known.pop("retries", None)
    protocol = url.partition("://")[0]
    _limit_stalls(protocol, known)
    try:
        fs, path = fsspec.core.url_to_fs(url, **known)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        advice = f"pip install zephon_nodes[{extra}]" if extra else str(error)
        raise ConfigError(f"{plain_url(url)!r} needs a package that isn't installed: {advice}") from error
    except (ValueError, TypeError) as error:
        text = redacted(str(error), options)
        raise ConfigError(f"{plain_url(url)!r} can't be opened with storage_options {sorted(known)}: {text}") from error
    return fs, cast(str, path)


def _limit_stalls(protocol: str, options: dict[str, Any]) -> None:
    """A server that stops in mid-answer, or gives none, is given up after a minute, where nobody else sees to it: over HTTP the
    limit is five minutes, for the whole answer; gcsfs has none at all."""
    if protocol not in ("http", "https", "gs", "gcs"):
        return
    try:
        import aiohttp
    except ImportError:  # then the store's own package isn't there either, which is said in its turn
        return
    limits = aiohttp.ClientTimeout(total=None, sock_connect=_STALL_SECONDS, sock_read=_STALL_SECONDS)
    if protocol in ("gs", "gcs"):
        options.setdefault("requests_timeout", limits)
    else:
        options["client_kwargs"] = {"timeout": limits, **(options.get("client_kwargs") or {})}


@dataclass(frozen=True)
class Once:
    """Options of which requests aren't tried again."""

    of: Options = field(hash=False)

    def __call__(self) -> Mapping[str, Any]:
        return {**resolved(self.of), "retries": Retries(give_up_after=0)}


def resolved(options: Options) -> Mapping[str, Any]:
    """The options themselves, or what their function gives, once a process."""
    if isinstance(options, Once):
        return options()
    if not callable(options):
        return options
    key = (os.getpid(), options)
    if key not in _made:
        made = options()
        if not isinstance(made, Mapping):
            raise ConfigError(f"the function in storage_options must give a dict, it gave {type(made).__name__}")
        _made[key] = made
    return _made[key]


def retries_of(options: Options) -> Retries:
    """The policy in ``storage_options``, under "retries", or the default."""
    found = resolved(options).get("retries")
    return found if isinstance(found, Retries) else Retries()


def ranges(remote: Remote, wanted: Sequence[tuple[int, int]], changed: Callable[[], None]) -> list[bytes]:
    """Bytes [start, stop) for each, fetched at once where the file system can. Those that fail are asked for again,
    the others aren't. An answer that is too short is a failure, unless ``changed`` raises something better; longer ones
    are given as they came."""
    parts: list[Any] = [None] * len(wanted)

    def fetch(fs: Any, path: str) -> None:
        missing = [i for i, part in enumerate(parts) if part is None]
        failed: BaseException | None = None
        for i, part in zip(missing, _fetch(fs, path, [wanted[i] for i in missing]), strict=True):
            if not isinstance(part, BaseException) and len(part) < wanted[i][1] - wanted[i][0]:
                part = ShortBodyError(f"bytes {wanted[i][0]}:{wanted[i][1]} were asked for and {len(part)} came")
            if isinstance(part, BaseException):
                failed = part
            else:
                parts[i] = bytes(part)
        if isinstance(failed, ShortBodyError):
            changed()
        if failed is not None:
            raise failed

    remote.call("reading", fetch)
    COUNTERS.add(nbytes=sum(map(len, parts)))
    return parts


def _fetch(fs: Any, path: str, wanted: Sequence[tuple[int, int]]) -> list[Any]:
    # By keyword: the third parameter isn't ``start`` in every file system.
    if fs.async_impl and len(wanted) > 1:
        starts, stops = [start for start, _ in wanted], [stop for _, stop in wanted]
        return cast("list[Any]", fs.cat_ranges([path] * len(wanted), starts, stops, on_error="return"))
    if len(wanted) == 1:
        return [fs.cat_file(path, start=wanted[0][0], end=wanted[0][1])]
    return [_caught(fs, path, start, stop) for start, stop in wanted]


def _caught(fs: Any, path: str, start: int, stop: int) -> Any:
    try:
        return fs.cat_file(path, start=start, end=stop)
    except Exception as error:  # noqa: BLE001 - raised by the caller, after the other ranges
        return error


class RemoteStream(io.RawIOBase):
    """A file of known size as a stream. ``read(start, stop)`` gives a range."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self._size, self._read, self._at = size, read, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        start, stop = self._at, self._size if size is None or size < 0 else min(self._size, self._at + size)
        if stop <= start:
            return b""
        self._at = stop
        return self._read(start, stop)

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


def info(remote: Remote) -> Mapping[str, Any]:
    """What the store says about the file now, past fsspec's caches."""

    def ask(fs: Any, path: str) -> Mapping[str, Any]:
        fs.invalidate_cache(path)
        return cast("Mapping[str, Any]", fs.info(path))

    return remote.call("asking for its facts", ask)


def version_of(facts: Mapping[str, Any]) -> str:
    """What changes with the content, "" if the store doesn't tell."""
    return next((_text(facts[key]) for key in _VERSION_KEYS if facts.get(key)), "")


def _text(value: Any) -> str:
    """One text for a moment, which some stores give as a number in listings and as a date for single files."""
    return str(value.timestamp() if isinstance(value, datetime.datetime) else value)


def is_version(version: str, facts: Mapping[str, Any]) -> bool:
    """Whether facts are of this version. Listings and single files may be told by different keys of the same store."""
    now = {_text(facts[key]) for key in _VERSION_KEYS if facts.get(key)}
    return not version or not now or version in now


def plain_url(url: str) -> str:
    """A URL for messages: without its query, which may hold a signature, and without user and password."""
    return _USER.sub(r"\1", url.partition("?")[0])


def redacted(text: str, options: Options) -> str:
    """A text without the queries of URLs and the values of options that sound like secrets."""
    text = _USER.sub(r"\1", _QUERY.sub(r"\1", text))
    for secret in sorted(set(_secrets(resolved(options))), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets(options: Any, named: bool = False) -> Iterator[str]:
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, named or _SECRET_NAME.search(str(name)) is not None)
    elif named and isinstance(options, (list, tuple)):
        for value in options:
            yield from _secrets(value, named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET:
        yield options


def _clean(cause: BaseException | None, options: Options) -> BaseException | None:
    """The cause, if neither it nor what caused it shows a secret; else its type and text without them."""
    one, depth = cause, 0
    while one is not None and depth < 8:
        if redacted(str(one), options) != str(one) or redacted(repr(one), options) != repr(one):
            return OSError(f"{type(cause).__name__}: {redacted(str(cause), options)}")
        one, depth = one.__cause__ or one.__context__, depth + 1
    return cause
