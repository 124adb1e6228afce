"""Decompressed copies of files, for formats that need to jump about in them.

A compressed stream can't be entered in its middle, so random access needs the plain bytes: they are made once for each
path, size and version, into the file's cache (see ``StoredFile.computed``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa

from zephon_nodes.errors import ReadError
from zephon_nodes.storage import StoredFile, read_errors

CODECS = {
    ".gz": "gzip",
    ".tgz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bz2",
    ".br": "brotli",
    ".snappy": "snappy",
}
_BLOCK = 4 << 20
_SNAPPY_MOST = 64  # snappy can't shrink more than about 21 times: a header that says more lies


def plain(file: StoredFile) -> StoredFile:
    """The file itself, or its decompressed content if the end of its name says that it is compressed.

    A store that tells no version has it decompressed each time. Raises ``ReadError`` if that fails, or if there is no room.
    """
    codec = next((codec for ending, codec in CODECS.items() if file.name.lower().endswith(ending)), None)
    return file if codec is None else decompressed(file, codec)


def decompressed(file: StoredFile, codec: str) -> StoredFile:
    """The content of a file that is compressed with ``codec``. Raises ``ReadError`` if it can't be decompressed."""
    return file.computed(".raw", partial(_decompress, codec=codec))


def sized(file: StoredFile) -> StoredFile:
    """The file itself, or a copy where the store doesn't tell its size, which ranges need."""
    return file if file.size is not None else file.computed(".copy", _whole)


@contextmanager
def local_path(file: StoredFile) -> Iterator[str]:
    """A local path of the file's content, for libraries that want one: where it lies, or a copy that stays meanwhile."""
    if file.is_local:
        yield file.path
        return
    with (file if file.is_cached else file.computed(".copy", _whole)).held() as local:
        yield local.path


def _whole(file: StoredFile) -> Iterator[bytes]:
    return file.blocks(_BLOCK)


def _decompress(file: StoredFile, codec: str) -> Iterator[bytes]:
    if codec == "snappy":
        yield _snappy(file, b"".join(file.blocks(_BLOCK)))
        return
    with file.open() as raw, pa.CompressedInputStream(raw, codec) as stream:
        while True:
            with read_errors(file, f"decompress ({codec})"):
                block = stream.read(_BLOCK)
            if not block:
                return
            yield block


def _snappy(file: StoredFile, block: bytes) -> bytes:
    """A bare snappy block, which begins with its decompressed size: seven bits a byte, lowest first."""
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    try:
        if size > _SNAPPY_MOST * len(block):
            raise ValueError(f"{size} bytes are announced by {len(block)} compressed ones")
        return bytes(pa.decompress(block, size, "snappy", asbytes=True))
    except (ValueError, OSError) as error:
        raise ReadError(f"{file}: can't decompress (snappy) it: {error}", path=str(file)) from error
