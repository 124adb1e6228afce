import os

import columnar
import numpy as np
import pyarrow as pa
import pytest
from columnar import as_lists
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError

lance = pytest.importorskip("lance")


def opened(tmp_path, table, name="a.lance", rows=None, **options):
    lance.write_dataset(table, str(tmp_path / name), max_rows_per_file=rows or 1 << 20)
    return Dataset.from_path("d", tmp_path / name, **options)


@pytest.mark.parametrize("count", [1, 60])
def test_rows_written_by_lance_read_back_equal(tmp_path, count):
    dataset = opened(tmp_path, columnar.table(count), rows=25)
    assert dataset.shard_rows.tolist() == [25, 25, 10] if count == 60 else [1]
    check_rows(dataset, columnar.rows(count), as_lists)
    assert dataset[0]["n"] == -3


def test_deleted_rows_are_left_out_and_the_version_is_pinned(tmp_path):
    opened(tmp_path, columnar.table(40), rows=25)
    lance.dataset(str(tmp_path / "a.lance")).delete("n = 0 or n = 30")
    dataset = Dataset.from_path("d", tmp_path / "a.lance")
    kept = [row for row in columnar.rows(40) if row["n"] not in (0, 30)]
    check_rows(dataset, kept, as_lists)
    lance.write_dataset(columnar.table(5), str(tmp_path / "a.lance"), mode="append")
    lance.dataset(str(tmp_path / "a.lance")).delete("n < 10")
    check_rows(dataset, kept, as_lists)
    again = Dataset.from_path("d", tmp_path / "a.lance")
    assert len(again) == 27
    assert again.fingerprint() != dataset.fingerprint()


def test_a_folder_of_datasets(tmp_path):
    for name in ("b", "a"):
        opened(tmp_path, pa.table({"x": [name]}), f"{name}.lance")
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.files == ("a.lance/0", "b.lance/0")
    check_rows(dataset, [{"x": "a"}, {"x": "b"}])


def test_several_units_and_big_rows(tmp_path):
    blobs = [os.urandom(3 << 20)] + [os.urandom(20_000) for _ in range(100)]
    dataset = opened(tmp_path, pa.table({"n": range(101), "blob": blobs}))
    assert len(dataset.unit_rows) == 4
    check_rows(dataset, [{"n": i, "blob": blob} for i, blob in enumerate(blobs)])


def test_columns_and_dtypes(tmp_path):
    dataset = opened(tmp_path, columnar.table(9), columns=["ids", "n"])
    check_rows(dataset, [{"ids": row["ids"], "n": row["n"]} for row in columnar.rows(9)], as_lists)
    assert dataset[2]["ids"].dtype == np.int32
    with pytest.raises(ConfigError, match="no file has column 'nope'; the columns are: n, f, "):
        len(Dataset.from_path("d", tmp_path / "a.lance", columns=["nope"]))


def test_a_fragment_that_is_gone_or_cut_short_is_a_read_error_that_names_it(tmp_path):
    dataset = opened(tmp_path, columnar.table(60), rows=30)
    files = sorted((tmp_path / "a.lance/data").iterdir())
    os.truncate(files[0], 300)
    with pytest.raises(ReadError, match=r"a\.lance, fragment \d: it can't be read as Lance"):
        list(Dataset.from_path("d", tmp_path / "a.lance"))
    os.unlink(files[0])
    with pytest.raises(ReadError, match=rf"{files[0].name}: version 1 lists this file, and it is not there"):
        Dataset.from_path("d", tmp_path / "a.lance")
    with pytest.raises(ReadError, match=r"a\.lance, fragment \d: it can't be read as Lance"):
        list(dataset)


def test_files_outside_of_a_dataset_and_stores_that_lance_does_not_read(tmp_path):
    (tmp_path / "x.lance").write_bytes(b"")
    with pytest.raises(ConfigError, match="it is no part of a Lance dataset"):
        Dataset.from_path("d", tmp_path / "x.lance")
    with pytest.raises(ReadError, match="it can't be read as Lance"):
        os.makedirs(tmp_path / "y.lance/data")
        (tmp_path / "y.lance/data/1.lance").write_bytes(b"")
        Dataset.from_path("d", tmp_path / "y.lance")
