"""The image files of a record, wherever they are: bytes in the record itself, or a path or URL beside the text."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

import fsspec

from multimodal.containers import ImageError
from zephon_nodes.errors import ReadError
from zephon_nodes.remote import Remote, plain_url
from zephon_nodes.retries import GaveUpError, Verdict
from zephon_nodes.storage import StoredFile, is_local, read_errors

_ABSENT = (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)
_SHOWN = 200


def image_files(
    payload: Any, field: str, root: str | os.PathLike[str] | None = None, options: Mapping[str, Any] | None = None
) -> list[bytes]:
    """The bytes of the image files of a record, in order.

    ``field``: holds bytes, a path or URL, a dict with ``bytes`` or ``path`` as Hugging Face's image columns have, null for
    no image, or a list of those, in which null isn't allowed. ``root`` (None): folder or URL that relative paths begin
    from. ``options`` (None): of fsspec, for URLs; a ``Retries`` under "retries" says for how long a store that fails is
    asked again, by default ten minutes.

    Raises ``ImageError`` for what isn't there and isn't a file, ``ReadError`` for a store that fails.

    >>> image_files({"image": {"bytes": b"GIF89a", "path": None}}, "image")
    [b'GIF89a']
    """
    if not isinstance(payload, Mapping) or field not in payload:
        has = sorted(map(str, payload)) if isinstance(payload, Mapping) else type(payload).__name__
        raise ImageError(f"field {field!r} is missing; the record has {has}")
    value = payload[field]
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return [_file(index, one, root, options or {}) for index, one in enumerate(values)]


def _file(index: int, value: Any, root: str | os.PathLike[str] | None, options: Mapping[str, Any]) -> bytes:
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        empty = value is None or isinstance(value, str)
        came = "empty" if empty else f"of type {type(value).__name__}"
        raise ImageError(f"image {index} is {came}; bytes, a path, a URL or a dict with bytes or path is needed")
    path = os.fspath(value)
    if path.startswith("data:"):  # the image itself, as a URL
        with fsspec.open(path) as data:
            return bytes(data.read())
    if root is not None and is_local(path) and not os.path.isabs(path):
        path = f"{os.fspath(root).rstrip('/')}/{path}"
    try:
        return _read_local(path) if is_local(path) else _read_remote(path, options)
    except FileNotFoundError as error:
        raise ImageError(f"image {index}: there is no file {_shown(path)}") from error
    except ValueError as error:
        if isinstance(error.__cause__, ImportError):  # of the package that fsspec needs for this store
            raise ReadError(f"image {index}: {error}", path=_shown(path)) from error
        raise ImageError(f"image {index}: can't open {_shown(path)}: {error}") from error


def _shown(path: str) -> str:
    """A path for messages: without a signature, not too long, and printable."""
    return plain_url(path)[:_SHOWN].encode("utf-8", "backslashreplace").decode()


def _read_local(path: str) -> bytes:
    file = StoredFile(path, path)
    try:
        with file.open() as stream, read_errors(file, "read"):
            return stream.read()
    except ReadError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in _ABSENT:
            raise FileNotFoundError(path) from error
        raise


def _read_remote(url: str, options: Mapping[str, Any]) -> bytes:
    remote = Remote(url, options)
    try:
        return bytes(remote.call("read", lambda store, place: store.cat_file(place)))
    except GaveUpError as gave_up:
        if gave_up.kind is Verdict.MISSING:
            raise FileNotFoundError(plain_url(url)) from gave_up
        raise remote.read_error("read", gave_up) from gave_up.__cause__
