"""Something computed from a file once and kept on disk, such as where its rows begin.

One file: a key made of the source's path, size and version, then the bytes. It is one file, so that it can be replaced in
one step, and is mapped into memory rather than loaded: worker processes share its pages, and the mapping holds no
descriptor. A source that has changed has another key, so a stale index is never used.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from zephon_nodes.storage import StoredFile, write_atomically

KEY_BYTES = 8

_log = logging.getLogger(__name__)


def kept(
    file: StoredFile, ending: str, layout: int, make: Callable[[], Any], fits: Callable[[pa.Buffer], bool]
) -> pa.Buffer:
    """The bytes that ``make`` gives for a file (any buffer), from disk if they are there and ``fits`` says so.

    ``ending``: of the kept file's name. ``layout``: a number that changes with the meaning of the bytes. Where the folder
    can't be written (one warning a folder is logged), or the store tells no version or no size, they stay in memory and
    are made again in each process.
    """
    if not file.version or file.size is None:
        return pa.py_buffer(make())
    path, key = file.derived(ending), _key(file, layout)
    found = _load(path, key, fits)
    if found is not None:
        return found
    made = _published(file, os.path.basename(path), key, fits)
    if made is None:
        made = pa.py_buffer(make())
    try:
        write_atomically(path, [key, memoryview(made)])
    except OSError as error:
        _warn(os.path.dirname(path), error.strerror or str(error))
        return made
    loaded = _load(path, key, fits)  # the mapped one, so that the other can go
    return made if loaded is None else loaded


def _published(file: StoredFile, name: str, key: bytes, fits: Callable[[pa.Buffer], bool]) -> pa.Buffer | None:
    """What the command ``index`` has put beside the data."""
    data = file.published_bytes(name)
    if data is None or data[:KEY_BYTES] != key:
        return None
    rest = pa.py_buffer(data)[KEY_BYTES:]
    return rest if fits(rest) else None


@lru_cache(maxsize=64)
def _warn(folder: str, cause: str) -> None:
    """Once for a folder, however many files it concerns."""
    _log.warning("indexes can't be kept in %s (%s) and stay in memory; set index_dir to another folder", folder, cause)


def _load(path: str, key: bytes, fits: Callable[[pa.Buffer], bool]) -> pa.Buffer | None:
    try:
        with pa.memory_map(os.fsencode(path)) as mapped:
            buffer = mapped.read_buffer()
    except (OSError, pa.ArrowException):
        return None
    if len(buffer) < KEY_BYTES or buffer[:KEY_BYTES].to_pybytes() != key:
        return None
    rest = buffer[KEY_BYTES:]
    return rest if fits(rest) else None


def _key(file: StoredFile, layout: int) -> bytes:
    facts = f"{layout}\n{file.path}\n{file.size}\n{file.version}"
    return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).digest()[:KEY_BYTES]
