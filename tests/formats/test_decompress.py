import bz2
import gzip
import uuid

import fsspec
import pyarrow as pa
import pytest
import zstandard
from files_over_http import serve
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.decompress import CODECS, local_path, plain, sized
from zephon_nodes.listing import find_files
from zephon_nodes.storage import StoredFile

COMPRESS = {
    ".gz": gzip.compress,
    ".tgz": gzip.compress,
    ".zst": zstandard.ZstdCompressor().compress,
    ".zstd": zstandard.ZstdCompressor().compress,
    ".bz2": bz2.compress,
    ".br": lambda data: pa.compress(data, "brotli", asbytes=True),
    ".snappy": lambda data: pa.compress(data, "snappy", asbytes=True),
}
DATA = b"some text " * 3000


def stored(tmp_path, name, data):
    (tmp_path / name).write_bytes(data)
    (file,) = find_files(tmp_path / name, ())
    return StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(tmp_path / "index"))


def test_every_codec_is_tested():
    assert set(COMPRESS) == set(CODECS)


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("data", [b"", b"x", DATA])
def test_content_comes_back(tmp_path, ending, data):
    found = plain(stored(tmp_path, f"a{ending}", COMPRESS[ending](data)))
    assert found.size == len(data)
    assert b"".join(found.blocks(1000)) == data
    assert str(found) == str(tmp_path / f"a{ending}")


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-7], lambda data: data[: len(data) // 2], lambda data: b"junk" * 9]
)
def test_broken_files_are_read_errors_that_name_the_file(tmp_path, ending, spoil):
    with pytest.raises(ReadError, match=rf"a\{ending}: can't decompress"):
        plain(stored(tmp_path, f"a{ending}", spoil(COMPRESS[ending](DATA))))


def test_a_snappy_head_that_lies_allocates_nothing(tmp_path):
    with pytest.raises(ReadError, match=r"a\.snappy: can't decompress \(snappy\) it: \d{9,} bytes are announced by 9"):
        plain(stored(tmp_path, "a.snappy", b"\xff\xff\xff\xff\x07rest"))


@given(st.binary(max_size=60))
def test_random_bytes_as_snappy_never_crash(tmp_path_factory, data):
    try:
        plain(stored(tmp_path_factory.mktemp("s"), "a.snappy", data))
    except ReadError as error:
        assert "a.snappy" in str(error)


def test_what_is_not_compressed_is_left_alone(tmp_path):
    file = stored(tmp_path, "a.txt", DATA)
    assert plain(file) is sized(file) is file
    with local_path(file) as path:
        assert path == file.path


def test_files_without_a_size_and_remote_files_are_copied(tmp_path):
    with serve({"a": DATA}, sizes=False) as site:
        (file,) = find_files(f"{site.url}/a", ())
        file = StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(tmp_path))
        assert file.size is None
        assert sized(file).read_range(10, 20) == DATA[10:20]
    url = f"memory://{uuid.uuid4().hex}/a"
    fsspec.filesystem("memory").pipe_file(url, DATA)
    (file,) = find_files(url, ())
    file = StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(tmp_path))
    with local_path(file) as path, open(path, "rb") as copy:
        assert copy.read() == DATA
