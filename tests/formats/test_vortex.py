import os
import uuid

import columnar
import fsspec
import numpy as np
import pyarrow as pa
import pytest
from columnar import as_lists
from files_over_http import serve
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError

vortex = pytest.importorskip("vortex")


def opened(tmp_path, table, name="a.vortex", **options):
    vortex.io.write(vortex.array(table), str(tmp_path / name))
    return Dataset.from_path("d", tmp_path / name, **options)


@pytest.mark.parametrize("count", [0, 1, 60])
def test_rows_written_by_vortex_read_back_equal(tmp_path, count):
    check_rows(opened(tmp_path, columnar.table(count)), columnar.rows(count), as_lists)


def test_numbers_are_arrays_of_their_dtype(tmp_path):
    array = opened(tmp_path, columnar.table(20)).shard(0).take([5])[0]["ids"]
    assert array.dtype == np.int32


def test_several_units_and_big_rows(tmp_path):
    table = pa.table({"n": range(200_000), "blob": [os.urandom(3 << 20), *([b"x" * 40] * 199_999)]})
    dataset = opened(tmp_path, table)
    assert len(dataset.unit_rows) > 1
    shard = dataset.shard(0)
    assert [row["n"] for row in shard.take([199_999, 0, 7, 0])] == [199_999, 0, 7, 0]
    unit, row = dataset.unit_of(0, 150_000)
    assert shard.read(unit).take([row]) == [{"n": 150_000, "blob": b"x" * 40}]
    assert len(shard.take([0])[0]["blob"]) == 3 << 20


def test_columns(tmp_path):
    dataset = opened(tmp_path, columnar.table(9), columns=["text", "n"])
    check_rows(dataset, [{"text": row["text"], "n": row["n"]} for row in columnar.rows(9)], as_lists)
    with pytest.raises(ConfigError, match="no file has column 'nope'; the columns are: n, f, "):
        len(opened(tmp_path, columnar.table(9), columns=["nope"]))


def test_roots_that_are_no_structs(tmp_path):
    check_rows(opened(tmp_path, pa.array(["a", None, "c"])), [{"value": "a"}, {"value": None}, {"value": "c"}])


@pytest.mark.parametrize("kept", [0, 10, 500, -1])
def test_a_file_cut_short_is_a_read_error_that_names_it(tmp_path, kept):
    opened(tmp_path, columnar.table(50))
    (tmp_path / "a.vortex").write_bytes((tmp_path / "a.vortex").read_bytes()[:kept])
    with pytest.raises(ReadError, match=r"a\.vortex: .*can't be read as Vortex") as caught:
        len(Dataset.from_path("d", tmp_path / "a.vortex"))
    assert "Backtrace" not in str(caught.value)


def test_a_file_that_changes_is_noticed(tmp_path):
    dataset = opened(tmp_path, pa.table({"blob": [os.urandom(1000) for _ in range(3000)]}))
    assert len(dataset) == 3000
    os.truncate(tmp_path / "a.vortex", 2_000_000)
    for read in (lambda: dataset.shard(0).read(0), lambda: dataset.shard(0).take([3])):
        with pytest.raises(ReadError, match=r"a\.vortex"):
            read()


def test_remote_files_are_read_by_ranges(tmp_path):
    opened(tmp_path, columnar.table(30))
    content = (tmp_path / "a.vortex").read_bytes()
    url = f"memory://{uuid.uuid4().hex}/a.vortex"
    fsspec.filesystem("memory").pipe_file(url, content)
    check_rows(Dataset.from_path("d", url), columnar.rows(30), as_lists)
    with serve({"a.vortex": content}) as site:
        check_rows(Dataset.from_path("d", f"{site.url}/a.vortex"), columnar.rows(30), as_lists)
