"""Which files a path means: a file, a folder, a glob pattern, a URL, or a list of those."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.remote import Options, Remote, plain_url, version_of
from zephon_nodes.retries import GaveUpError, Verdict, store_errors
from zephon_nodes.storage import StoredFile, is_local

PathLike: TypeAlias = "str | os.PathLike[str]"

_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".crdownload", "~")


class _Listing(NamedTuple):
    """``entries``: path below ``root`` -> (full path, facts of a remote store or None). ``whole``: a folder's content."""

    root: str
    entries: dict[str, tuple[str, Mapping[str, Any] | None]]
    whole: bool = False


def find_files(
    path: PathLike | Sequence[PathLike], suffixes: Sequence[str], storage_options: Options | None = None
) -> list[StoredFile]:
    """The files that a path means, each item's in order of name; the items of a list stay in the list's order.

    ``path``: a file, a folder (searched through all levels for names that end in one of ``suffixes``), a glob pattern,
    or a list of those. HTTP URLs are single files. Files that are named, also by a pattern, are taken whatever they end
    in. Hidden files and folders (names that begin with "." or "_") and temporary ones (``*.tmp`` and the like) below a
    folder or pattern are left out. ``name`` of each file is its path below the folder, below the fixed part of the
    pattern, or, for a list, below the deepest folder that all items share.

    Raises ``ConfigError`` if a path doesn't exist, gives no file, or gives a file twice; ``ReadError`` if the store fails.
    """
    items = [path] if isinstance(path, (str, os.PathLike)) else _listed_items(path)
    options: Options = storage_options if callable(storage_options) else dict(storage_options or {})
    listings = [_listing(os.fspath(item), suffixes, options) for item in items]
    shared = _shared_depth([listing.root for listing in listings])
    files = [file for listing in listings for file in _stored(listing, shared, options)]
    seen: set[str] = set()
    for file in files:
        if file.path in seen:
            raise ConfigError(f"{file} is given twice; each file may occur once in a dataset")
        seen.add(file.path)
    return files


def _listed_items(paths: Any) -> list[PathLike]:
    items = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, (bytes, Mapping)) else [paths]
    wrong = [item for item in items if not isinstance(item, (str, os.PathLike))]
    if wrong:
        raise ConfigError(f"a path must be a str, a Path or a list of those, got {wrong[0]!r:.80}")
    if not items:
        raise ConfigError("no path was given: an empty list of files")
    return items


def _listing(path: str, suffixes: Sequence[str], options: Options) -> _Listing:
    if not path:
        raise ConfigError("no path was given: it is an empty string")
    try:
        found = _local(_plain(path)) if is_local(_plain(path)) else _remote(path.rstrip("/"), options)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{plain_url(path)!r} does not exist, or can't be reached: no file, folder or match of a pattern"
        ) from error
    except ReadError:
        raise
    except store_errors() as error:
        raise ReadError(f"{path!r} can't be listed: {error or type(error).__name__}", path=path) from error
    wanted = {name: entry for name, entry in found.entries.items() if not found.whole or _ends_in(name, suffixes)}
    if not wanted:
        instead = ", ".join(sorted(found.entries)[:3]) or "no visible file"
        raise ConfigError(
            f"{plain_url(path)!r} holds no file ending in {', '.join(suffixes)}; found instead: {instead}"
        )
    return found._replace(entries=wanted)


def _stored(listing: _Listing, shared: int, options: Options) -> Iterator[StoredFile]:
    above = listing.root.split("/")[shared:]
    for name in sorted(listing.entries):
        path, info = listing.entries[name]
        full_name = "/".join([*above, name])
        if info is not None:
            yield StoredFile(path, full_name, info.get("size"), version_of(info), options)
            continue
        try:
            facts = os.stat(path)
        except OSError as error:
            raise ReadError(f"{path}: can't stat it: {error.strerror}", path=path) from error
        yield StoredFile(path, full_name, facts.st_size, str(facts.st_mtime_ns))


def _local(path: str) -> _Listing:
    if os.path.isfile(path):
        return _single(path, None)
    if os.path.isdir(path):
        names = [os.path.join(folder, file)[len(path) + 1 :] for folder, file in _walk(path)]
        return _Listing(path, _visible(path, dict.fromkeys(names)), whole=True)
    if not glob.has_magic(path):
        raise FileNotFoundError(path)
    root = _fixed_part(path)
    matches = [match[len(root) + 1 :] for match in glob.glob(path, recursive=True) if os.path.isfile(match)]
    return _Listing(root, _visible(root, dict.fromkeys(matches)))


def _walk(top: str) -> Iterator[tuple[str, str]]:
    """All files below a folder, through links too, but each real folder once: links may go round in circles."""
    seen = {os.path.realpath(top)}
    for folder, folders, files in os.walk(top, followlinks=True, onerror=_raise):
        yield from ((folder, file) for file in files)
        real = {name: os.path.realpath(os.path.join(folder, name)) for name in sorted(folders)}
        folders[:] = [name for name, place in real.items() if place not in seen]
        seen.update(real.values())


def _remote(url: str, options: Options) -> _Listing:
    remote = Remote(url, options)
    try:
        return remote.call("listing", lambda fs, path: _listed(fs, path, url))
    except GaveUpError as error:
        failure = remote.read_error("list", error)
        if error.kind is Verdict.MISSING:
            raise FileNotFoundError(str(failure)) from failure.__cause__
        raise failure from failure.__cause__


def _listed(fs: Any, path: str, url: str) -> _Listing:
    fs.invalidate_cache()
    if url.startswith(("http://", "https://")):
        if not url.partition("://")[2].partition("?")[0].partition("/")[2]:
            raise ConfigError(f"{plain_url(url)!r} is a server and no file; HTTP has no folders: give a list of URLs")
        return _single(url, fs.info(path))
    try:
        info = fs.info(path)
    except FileNotFoundError:
        if not glob.has_magic(path):
            raise
        root = _fixed_part(url)
        return _Listing(root, _visible(root, _files_below(_fixed_part(path), fs.glob(path, detail=True))))
    if info["type"] != "directory":
        return _single(url, info)
    return _Listing(url, _visible(url, _files_below(path.rstrip("/"), fs.find(path, detail=True))), whole=True)


def _files_below(root: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any] | None]:
    return {path[len(root) + 1 :]: info for path, info in found.items() if info["type"] == "file"}


def _single(path: str, info: Mapping[str, Any] | None) -> _Listing:
    root, _, name = (path if info is None else path.partition("?")[0]).rpartition("/")
    return _Listing(root, {name: (path, info)})


def _visible(
    root: str, entries: Mapping[str, Mapping[str, Any] | None]
) -> dict[str, tuple[str, Mapping[str, Any] | None]]:
    shown = (name for name in entries if not any(part[:1] in (".", "_") for part in name.split("/")))
    return {name: (f"{root}/{name}", entries[name]) for name in shown if not name.endswith(_TEMPORARY)}


def _plain(path: str) -> str:
    for protocol in ("file://", "local://"):
        path = path.removeprefix(protocol)
    return os.path.abspath(os.path.expanduser(path)) if is_local(path) else path


def _shared_depth(roots: Sequence[str]) -> int:
    """How many leading folders all roots have in common."""
    levels = zip(*(root.split("/") for root in roots), strict=False)
    return next(
        (depth for depth, level in enumerate(levels) if len(set(level)) > 1), min(root.count("/") + 1 for root in roots)
    )


def _fixed_part(pattern: str) -> str:
    first = min((pattern.find(mark) for mark in "*?[" if mark in pattern), default=len(pattern))
    return pattern[:first].rpartition("/")[0]


def _ends_in(name: str, suffixes: Sequence[str]) -> bool:
    return name.lower().endswith(tuple(suffixes))


def _raise(error: OSError) -> None:
    raise error
