import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import all_payloads, check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ReadError

PIECES = ["a", "ü\u2028", "\n", "\n", "\r\n", " ", "\t", "\x0b\x0c", "\x00"]


def opened(tmp_path, data, name="a.txt"):
    (tmp_path / name).write_bytes(data)
    return Dataset.from_path("d", tmp_path / name, index_dir=tmp_path / "index")


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_lines_are_those_of_a_plain_split(tmp_path_factory, text):
    rows = [{"text": line.removesuffix("\r")} for line in text.split("\n") if line.strip(" \t\r")]
    check_rows(opened(tmp_path_factory.mktemp("text"), text.encode()), rows)


def test_compressed_text_and_its_faults(tmp_path):
    check_rows(opened(tmp_path, gzip.compress(b"one\ntwo"), "a.txt.gz"), [{"text": "one"}, {"text": "two"}])
    with pytest.raises(ReadError, match=r"b\.txt\.gz: can't decompress"):
        len(opened(tmp_path, gzip.compress(b"one\ntwo")[:-4], "b.txt.gz"))


def test_empty_files_and_long_lines(tmp_path):
    check_rows(opened(tmp_path, b"", "0.txt"), [])
    lines = ["x" * (3 << 20), "y", "z" * 100]
    check_rows(opened(tmp_path, "\n".join(lines).encode()), [{"text": line} for line in lines])


def test_a_line_that_is_no_utf8_is_a_bad_row(tmp_path):
    found = all_payloads(opened(tmp_path, b"one\n\xff\ntwo"))
    assert "can't decode byte 0xff" in found[1]
    assert [found[0], found[2]] == [{"text": "one"}, {"text": "two"}]


def test_a_file_that_changes_is_noticed(tmp_path):
    dataset = opened(tmp_path, b"one\ntwo")
    assert len(dataset) == 2
    (tmp_path / "a.txt").write_bytes(b"one")
    with pytest.raises(ReadError, match="the file has changed"):
        dataset[1]
