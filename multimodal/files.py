"""The image files of a record, wherever they are: bytes in the record itself, or a path or URL beside the text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import fsspec

from multimodal.containers import ImageError
from zephon_nodes.errors import ReadError
from zephon_nodes.storage import StoredFile, is_local, read_errors

_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def image_files(
    payload: Any, field: str, root: str | os.PathLike[str] | None = None, options: Mapping[str, Any] | None = None
) -> list[bytes]:
    """The bytes of the image files of a record, in order.

    ``field``: holds bytes, a path or URL, a dict with ``bytes`` or ``path`` as Hugging Face's image columns have, null for
    no image, or a list of those, in which null isn't allowed. ``root`` (None): folder or URL that relative paths begin
    from. ``options`` (None): of fsspec, for URLs.

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
        came = "empty" if value in (None, "") else f"a {type(value).__name__}"
        raise ImageError(f"image {index} is {came}; bytes, a path, a URL or a dict with bytes or path is needed")
    path = os.fspath(value)
    if path.startswith("data:"):  # the image itself, as a URL
        with fsspec.open(path) as data:
            return bytes(data.read())
    if root is not None and is_local(path) and not os.path.isabs(path):
        path = f"{os.fspath(root).rstrip('/')}/{path}"
    file = StoredFile(path, path, storage_options=options)
    try:
        return _read(file)
    except ValueError as error:  # no store of that kind, or not a name for a file
        raise ImageError(f"image {index}: can't open {file}: {error}") from error
    except ImportError as error:  # of the package that fsspec needs for this store
        raise ReadError(f"image {index}: can't read {file}: {error}", path=str(file)) from error
    except ReadError as error:
        if isinstance(error.__cause__, _ABSENT):
            raise ImageError(f"image {index}: there is no file {file}") from error
        raise


def _read(file: StoredFile) -> bytes:
    with file.open() as stream, read_errors(file, "read"):
        return stream.read()
