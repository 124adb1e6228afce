"""python -m zephon_nodes index: opens every shard of a dataset once, many at a time, and writes down what they say."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TextIO

import numpy as np

from zephon_nodes.concurrency.each import each_in_threads
from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import PathLike
from zephon_nodes.progress import bar
from zephon_nodes.remote import Options, Remote, plain_url
from zephon_nodes.retries import GaveUpError
from zephon_nodes.shard_index import FOLDER, Facts, ShardIndex, beside_place, find_index, kept_place, root_of
from zephon_nodes.storage import CACHE_FOLDER, StoredFile, is_local, write_atomically

_Key = tuple[str, int | None, str]


class Report(NamedTuple):
    """``place``: where the index lies. ``shards``, ``rows``: in it. ``opened``: shards that weren't known before."""

    place: str
    shards: int
    rows: int
    opened: int


def write_index(
    path: PathLike | Sequence[PathLike],
    out: PathLike | None = None,
    *,
    fmt: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Options | None = None,
    threads: int = 16,
) -> Report:
    """Writes the index of a dataset.

    ``path``, ``fmt``, ``columns``, ``storage_options``: as ``Dataset.from_path`` will get them; an index is for its columns.
    ``out``: a local folder, which ``from_path`` is then given as ``index_dir``; None writes into ``_zephon_index`` beside
    the data, where it is found by itself. ``threads``: shards that are opened at once.

    Shards that an earlier index knows, or an earlier call that was stopped, are not opened again. Raises ``ReadError``
    for a shard that can't be opened, and ``ConfigError`` if the data lies where nothing can be written beside it.

    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> (folder / "a.jsonl").write_text('{"n": 1}')
    8
    >>> report = write_index(folder, folder)
    >>> report.rows
    1
    """
    if threads < 1:
        raise ConfigError(f"threads must be at least 1, got {threads}")
    out = None if out is None else os.fspath(out)
    dataset = Dataset.from_path("index", path, fmt, columns, storage_options, out)
    files = dataset.stored_files
    root = root_of(files)
    place, staging = _places(root, out, dataset)
    files = tuple(dataclasses.replace(file, cache_dir=staging, published="") for file in files)
    nameless = [file for file in files if not file.version]
    if nameless:
        raise ConfigError(
            f"{nameless[0]}: the store tells no version of it, so that nobody could tell whether an index is stale"
        )
    journal = os.path.join(staging, f"{hashlib.sha256(os.fsencode(place)).hexdigest()[:16]}.partial")
    known = _known(dataset, journal)
    new = [file for file in files if _key(file) not in known]
    with _journal(journal) as log, bar("indexing", len(files), "shards") as advance:
        advance(len(files) - len(new))
        for file, facts in zip(new, each_in_threads(_opener(dataset), new, threads), strict=True):
            known[_key(file)] = facts
            log.write(_line(_key(file), facts))
            log.flush()
            advance(1)
    index = ShardIndex({_key(file): known[_key(file)] for file in files})
    _write(place, index.to_bytes(), files[0].storage_options)
    os.unlink(journal)
    if out is None:
        _publish(staging, root, files[0].storage_options)
        shutil.rmtree(staging, ignore_errors=True)
    return Report(plain_url(place), len(files), sum(int(f.unit_rows.sum()) for f in index.facts.values()), len(new))


def _places(root: str, out: str | None, dataset: Dataset) -> tuple[str, str]:
    """Where the index goes, and the local folder for what formats keep."""
    if out is not None:
        if not is_local(out):
            raise ConfigError(f"out={plain_url(out)!r} must be a local folder; leave it out to write beside the data")
        return kept_place(out, root, dataset.format.name, dataset.columns), os.path.abspath(os.path.expanduser(out))
    if root.startswith(("http://", "https://")):
        raise ConfigError(f"nothing can be written beside {plain_url(root)!r}; name a local folder with --out")
    name = hashlib.sha256(root.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    staging = os.path.join(os.path.abspath(os.path.expanduser(CACHE_FOLDER)), f"indexing-{name}")
    return beside_place(root, dataset.format.name, dataset.columns), staging


def _key(file: StoredFile) -> _Key:
    return file.name, file.size, file.version


def _opener(dataset: Dataset) -> Any:
    def facts(file: StoredFile) -> Facts:
        return Facts.of(dataset.format.open(file, dataset.columns))

    return facts


def _known(dataset: Dataset, journal: str) -> dict[_Key, Facts]:
    """What an earlier index, and an earlier call that didn't come to its end, have found out."""
    index = find_index(dataset.stored_files, dataset.format.name, dataset.columns)
    known: dict[_Key, Facts] = {} if index is None else dict(index.facts)
    return known | dict(_read_journal(journal))


def _read_journal(path: str) -> Iterator[tuple[_Key, Facts]]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if not line.endswith("\n"):
                    return  # it was being written when the process died
                name, size, version, rows, nbytes, columns, missing, whole = json.loads(line)
                told = None if columns is None else tuple(columns)
                facts = Facts(np.array(rows, np.int64), np.array(nbytes, np.int64), told, tuple(missing), whole)
                yield (name, size, version), facts
    except FileNotFoundError:
        return


def _line(key: _Key, facts: Facts) -> str:
    rows, nbytes = facts.unit_rows.tolist(), facts.unit_bytes.tolist()
    return json.dumps([*key, rows, nbytes, facts.columns, facts.missing, bool(facts.whole)]) + "\n"


def _journal(path: str) -> TextIO:
    """The journal, open for more lines; a line that was cut off is taken out."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    kept = "".join(_line(key, facts) for key, facts in _read_journal(path))
    write_atomically(path, [kept.encode("utf-8", "surrogateescape")])
    return open(path, "a", encoding="utf-8", errors="surrogateescape")


def _publish(staging: str, root: str, options: Options) -> None:
    """Copies what formats keep for themselves beside the index."""
    for found in sorted(os.scandir(staging), key=lambda each: each.name):
        if found.is_file() and not found.name.endswith((".partial", ".tmp")):
            with open(found.path, "rb") as stream:
                _write(f"{root}/{FOLDER}/{found.name}", stream.read(), options)


def _write(place: str, data: bytes, options: Options) -> None:
    if is_local(place):
        try:
            write_atomically(place, [data])
        except OSError as error:
            raise ReadError(f"{place}: can't write the index: {error}; name a folder with --out", path=place) from error
        return
    store = Remote(place, options)
    try:
        store.call("writing", lambda fs, path: fs.pipe_file(path, data))
    except GaveUpError as error:
        failure = store.read_error("write", error)
        raise failure from failure.__cause__


def options_from(path: str | None) -> Mapping[str, Any] | None:
    """Storage options from a JSON file. Raises ``ConfigError`` if it holds none."""
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--storage-options {path}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"--storage-options {path}: it must hold a JSON object, it holds a {type(found).__name__}")
    return found
