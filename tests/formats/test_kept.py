import logging
import os
import uuid

import fsspec
import pyarrow as pa
import pytest

from zephon_nodes.formats import kept as module
from zephon_nodes.formats.kept import KEY_BYTES, kept
from zephon_nodes.listing import find_files
from zephon_nodes.storage import StoredFile


def stored(tmp_path, data=b"data", **facts):
    (tmp_path / "a").write_bytes(data)
    (file,) = find_files(tmp_path / "a", ())
    return StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(tmp_path / "index"), **facts)


class Maker:
    def __init__(self, content=b"content"):
        self.content, self.calls = content, 0

    def __call__(self):
        self.calls += 1
        return self.content


def fine(buffer):
    return True


def test_it_is_made_once_and_then_mapped(tmp_path):
    make, file = Maker(), stored(tmp_path)
    for _ in range(3):
        assert kept(file, ".x", 1, make, fine).to_pybytes() == b"content"
    assert make.calls == 1


@pytest.mark.parametrize("change", ["size", "version", "layout", "unfit", "cut"])
def test_it_is_made_again_when_anything_differs(tmp_path, change):
    make, file = Maker(), stored(tmp_path)
    kept(file, ".x", 1, make, fine)
    if change == "size":
        file = stored(tmp_path, b"other data")
    if change == "version":
        os.utime(tmp_path / "a", ns=(1, 1))
        (found,) = find_files(tmp_path / "a", ())
        file = StoredFile(file.path, file.name, file.size, found.version, cache_dir=file.cache_dir)
    if change == "cut":
        (name,) = os.listdir(tmp_path / "index")
        os.truncate(tmp_path / "index" / name, KEY_BYTES - 1)
    make.content = b"new"
    fits = (lambda buffer: buffer.to_pybytes() == b"new") if change == "unfit" else fine
    assert kept(file, ".x", 2 if change == "layout" else 1, make, fits).to_pybytes() == b"new"
    assert make.calls == 2


def test_without_a_version_or_a_size_nothing_is_written(tmp_path):
    file = stored(tmp_path)
    for facts in ({"version": ""}, {"size": None}):
        given = {"size": file.size, "version": file.version, "cache_dir": file.cache_dir} | facts
        unknown, make = StoredFile(file.path, file.name, **given), Maker()
        assert [kept(unknown, ".x", 1, make, fine).to_pybytes() for _ in range(2)] == [b"content"] * 2
        assert make.calls == 2
    assert not (tmp_path / "index").exists()


def test_a_folder_that_cannot_be_written_is_warned_of_once(tmp_path, caplog):
    (tmp_path / "index").write_bytes(b"no folder")
    module._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert kept(stored(tmp_path), ".x", 1, Maker(), fine).to_pybytes() == b"content"
    assert len([record for record in caplog.records if "set index_dir to another folder" in record.getMessage()]) == 1


def test_an_arrow_buffer_and_a_remote_file(tmp_path):
    url = f"memory://{uuid.uuid4().hex}/a"
    fsspec.filesystem("memory").pipe_file(url, b"data")
    (file,) = find_files(url, ())
    file = StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(tmp_path))
    assert kept(file, ".x", 1, lambda: pa.py_buffer(b"arrow"), fine).to_pybytes() == b"arrow"
    assert kept(file, ".x", 1, lambda: pytest.fail("made again"), fine).to_pybytes() == b"arrow"
