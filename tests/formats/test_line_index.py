import itertools
import logging
import os
import uuid
from unittest import mock

import fsspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zephon_nodes.errors import ReadError
from zephon_nodes.formats import line_index
from zephon_nodes.formats.line_index import line_offsets
from zephon_nodes.listing import find_files
from zephon_nodes.storage import BESIDE, StoredFile

BOM = b"\xef\xbb\xbf"
PIECES = [
    b"{}",
    b"\n",
    b"\n",
    b"\r\n",
    b" ",
    b"\t",
    b"x",
    b"\x0b",
    b"\x0c",
    BOM,
    b"\x85",
    "\u2028\u2029".encode(),
    b"\xff",
]


def lines_of(data):
    data = data[len(BOM) :] if data.startswith(BOM) else data
    return [line for line in data.split(b"\n") if line.strip(b" \t\r")]


def stored(path, index_dir=None):
    (file,) = find_files(path, ())
    return StoredFile(file.path, file.name, file.size, file.version, cache_dir=str(index_dir) if index_dir else BESIDE)


@pytest.fixture
def scans(monkeypatch):
    """How many times a file was scanned."""
    seen = []
    scan = line_index._scan
    monkeypatch.setattr(line_index, "_scan", lambda file: seen.append(file.path) or scan(file))
    return seen


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join), st.integers(3, 9))
@example(BOM, 3)
@example(BOM + b" \n" + BOM, 4)
@example(b"   \n   x\n", 3)
@example(b"", 3)
def test_lines_are_those_of_a_plain_split_whatever_the_block_size(tmp_path_factory, data, block):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(data)
    with mock.patch.object(line_index, "_BLOCK", block):
        offsets = line_offsets(stored(path))
    assert offsets.dtype == np.int64
    assert (np.diff(offsets) > 0).all()
    assert offsets[-1] == len(data)
    spans = [data[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
    assert [span.split(b"\n")[0] for span in spans] == lines_of(data)
    assert all(not rest.strip(b" \t\r") for span in spans for rest in span.split(b"\n")[1:])


@pytest.mark.parametrize("place", ["folder", "beside"])
def test_a_second_opening_reads_the_index_not_the_file(tmp_path, scans, place):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n22\n\n333")
    file = stored(path, tmp_path / "index" if place == "folder" else None)
    first, second = line_offsets(file), line_offsets(file)
    assert first.tolist() == second.tolist() == [0, 2, 6, 9]
    assert scans == [str(path)]
    assert len(os.listdir(tmp_path / "index" if place == "folder" else tmp_path)) == (1 if place == "folder" else 2)
    assert not second.flags.writeable, "it is a view of the mapped file"


def test_the_index_is_mapped_without_a_descriptor(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n" * 1000)
    before = os.listdir("/proc/self/fd")
    kept = [line_offsets(stored(path, tmp_path / "index")) for _ in range(20)]
    assert os.listdir("/proc/self/fd") == before
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        assert ".lines" in maps.read()
    assert all(len(offsets) == 1001 for offsets in kept)


@pytest.mark.parametrize("change", ["content", "mtime"])
def test_an_index_of_another_version_is_made_anew_in_the_same_place(tmp_path, scans, change):
    path, index = tmp_path / "a.jsonl", tmp_path / "index"
    path.write_bytes(b"1\n2\n")
    line_offsets(stored(path, index))
    if change == "content":
        path.write_bytes(b"11\n22\n33\n")
    os.utime(path, ns=(5, 5))
    assert len(line_offsets(stored(path, index))) == (4 if change == "content" else 3)
    assert len(scans) == 2
    line_offsets(stored(path, index))
    assert len(scans) == 2
    assert len(os.listdir(index)) == 1


@pytest.mark.parametrize("spoil", [lambda b: b"", lambda b: b[:-8], lambda b: b[:-3], lambda b: b"12345678" + b[8:]])
def test_a_spoilt_index_is_made_anew(tmp_path, scans, spoil):
    path, index = tmp_path / "a.jsonl", tmp_path / "index"
    path.write_bytes(b"1\n2\n")
    expected = line_offsets(stored(path, index)).tolist()
    (name,) = os.listdir(index)
    content = (index / name).read_bytes()
    os.unlink(index / name)  # the first is mapped still
    (index / name).write_bytes(spoil(content))
    assert line_offsets(stored(path, index)).tolist() == expected
    assert len(scans) == 2
    assert (index / name).read_bytes() == content


def test_a_folder_that_can_not_be_written_costs_one_warning_and_the_index_stays_in_memory(tmp_path, caplog):
    (tmp_path / "no_folder").write_bytes(b"")
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n")
    with caplog.at_level(logging.WARNING):
        assert line_offsets(stored(path, tmp_path / "no_folder")).tolist() == [0, 2, 4]
        assert line_offsets(stored(path, tmp_path / "no_folder")).tolist() == [0, 2, 4]
    assert len(caplog.records) == 1
    assert "indexes can't be kept" in caplog.text
    assert "set index_dir" in caplog.text


def test_without_a_version_nothing_is_kept(tmp_path, scans):
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(url, b"1\n2\n")
    file = StoredFile(url, "a", 4, "", cache_dir=str(tmp_path / "index"))
    assert line_offsets(file).tolist() == line_offsets(file).tolist() == [0, 2, 4]
    assert len(scans) == 2
    assert not (tmp_path / "index").exists()


def test_a_file_that_can_not_be_read_leaves_no_index(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n2\n")
    file = stored(path, tmp_path / "index")
    os.truncate(path, 2)
    with pytest.raises(ReadError, match="has changed"):
        line_offsets(file)
    assert not (tmp_path / "index").exists()
