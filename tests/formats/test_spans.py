import os
from pathlib import Path

import pytest
from files_over_http import serve
from hypothesis import given
from hypothesis import strategies as st
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ReadError
from zephon_nodes.formats import spans
from zephon_nodes.formats.spans import BIG_ROW, BigRowsUnit, SpanShard, SpanUnit
from zephon_nodes.formats.tokens import TokensFormat
from zephon_nodes.storage import StoredFile

GOLDEN = Path(__file__).parent / "golden"


class Counts(SpanShard):
    def spans(self):
        raise NotImplementedError


@given(st.integers(0, 10**6), st.integers(0, 10**12))
def test_units_are_nearly_equal_and_none_is_empty(rows, nbytes):
    shard = Counts(StoredFile("x", "x"), rows, nbytes)
    assert shard.unit_rows.sum() == rows
    assert shard.unit_bytes.sum() == (nbytes if rows else 0)
    assert len(shard.unit_rows) == min(rows, max(1, nbytes >> 20))
    if rows:
        assert 0 < shard.unit_rows.min() <= shard.unit_rows.max() <= shard.unit_rows.min() + 1


def opened(tmp_path, rows, length):
    (tmp_path / "a.bin").write_bytes(os.urandom(rows * length))
    return Dataset.from_path("d", tmp_path / "a.bin", fmt=TokensFormat(length, "uint8"))


def test_big_rows_of_local_files_are_read_when_they_are_taken(tmp_path):
    small, big = opened(tmp_path, 9, BIG_ROW - 1), None
    assert isinstance(small.shard(0).read(0), SpanUnit)
    big = opened(tmp_path, 9, BIG_ROW)
    unit = big.shard(0).read(0)
    assert isinstance(unit, BigRowsUnit)
    content = (tmp_path / "a.bin").read_bytes()
    assert [row["input_ids"].tobytes() for row in unit.take([8, 0, 8])] == [
        content[-BIG_ROW:],
        content[:BIG_ROW],
        content[-BIG_ROW:],
    ]
    check_rows(big, list(big))
    for outside in ([9], [-1], [0, 9]):
        with pytest.raises(IndexError, match="were asked of a unit of 9 rows"):
            unit.take(outside)
    os.truncate(tmp_path / "a.bin", BIG_ROW)
    with pytest.raises(ReadError, match="the file has changed"):
        unit.take([0])


def test_where_the_kernel_cannot_be_asked_rows_are_the_same(tmp_path, monkeypatch):
    monkeypatch.delattr(spans.os, "posix_fadvise", raising=False)
    assert len(list(opened(tmp_path, 3, BIG_ROW))) == 3


@pytest.fixture
def all_rows_are_big(monkeypatch):
    monkeypatch.setattr(spans, "BIG_ROW", 0)


@pytest.mark.parametrize(
    "name", ["mds/plain", "mds/zstd", "mds/tiny", "litdata/plain", "litdata/chunk", "litdata/sample"]
)
@pytest.mark.parametrize("columns", [["id"], ["caption", "id"], ["image"]])
def test_parts_of_big_rows_are_those_of_small_ones(tmp_path, all_rows_are_big, name, columns):
    whole = [
        {column: row[column] for column in columns} for row in Dataset.from_path("d", GOLDEN / name, index_dir=tmp_path)
    ]
    check_rows(Dataset.from_path("d", GOLDEN / name, columns=columns, index_dir=tmp_path), whole)


def test_other_parts_of_a_big_row_are_not_read(tmp_path, all_rows_are_big):
    content = (GOLDEN / "mds/plain/shard.00000.mds").read_bytes()
    with serve({"a.mds": content}) as site:
        shard = Dataset.from_path("d", f"{site.url}/a.mds", columns=["id"]).shard(0)
        site.sent.clear()
        assert shard.take([3, 0]) == [{"id": 1}, {"id": -2}]
        assert sorted(site.sent) == [8, 8, 8, 8], "two heads of two sizes, two numbers"


def test_big_rows_that_lie_are_bad_and_their_neighbours_are_read(tmp_path, all_rows_are_big):
    content = bytearray((GOLDEN / "mds/plain/shard.00000.mds").read_bytes())
    content[int.from_bytes(content[4:8], "little")] += 7
    (tmp_path / "a.mds").write_bytes(content.replace(b"plain", b"pl\xffin"))
    first, second, third = Dataset.from_path("d", tmp_path / "a.mds", columns=["caption"]).shard(0).take([0, 1, 2])
    assert "its columns add up to 23 bytes, the row has 16" in str(first.cause)
    assert "column 'caption' can't be decoded" in str(second.cause)
    assert third["caption"].startswith("ün")
