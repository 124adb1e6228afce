"""Decompressed copies of files, for formats that need to jump about in them.

A compressed stream can't be entered in its middle, so random access needs the plain bytes. They are written into the
cache folder once for each path, size and version, and nothing else is kept in memory.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator

import pyarrow as pa

from zephon_nodes.errors import ReadError
from zephon_nodes.storage import StoredFile, read_errors, write_atomically

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
    """The file itself, or a local decompressed copy if the end of its name says that it is compressed.

    A store that tells no version has the copy made each time. Raises ``ReadError`` if it can't be decompressed or there
    is no room for the copy.
    """
    codec = next((codec for ending, codec in CODECS.items() if file.name.lower().endswith(ending)), None)
    return file if codec is None else local_copy(file, codec)


def sized(file: StoredFile) -> StoredFile:
    """The file itself, or a local copy where the store doesn't tell its size, which ranges need."""
    return file if file.size is not None else local_copy(file)


def local_copy(file: StoredFile, codec: str = "") -> StoredFile:
    """A local copy of a file, decompressed with ``codec`` ("" for none), made unless it is there."""
    path = file.derived(".raw", file.size, file.version)
    if not file.version or not os.path.exists(path):
        try:
            write_atomically(path, _decompress(file, codec) if codec else file.blocks(_BLOCK))
        except ReadError:
            raise
        except OSError as error:
            what = "the decompressed copy" if codec else "the copy"
            text = f"{file}: can't write {what} {path} ({error}); set index_dir to a folder with room"
            raise ReadError(text, path=str(file)) from error
    facts = os.stat(path)
    return dataclasses.replace(
        file, path=path, size=facts.st_size, version=str(facts.st_mtime_ns), label=str(file), storage_options={}
    )


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
