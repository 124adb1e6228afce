import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ReadError
from zephon_nodes.formats import spans
from zephon_nodes.formats.spans import BIG_ROW, BigRowsUnit, SpanShard, SpanUnit
from zephon_nodes.formats.tokens import TokensFormat
from zephon_nodes.storage import StoredFile


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
