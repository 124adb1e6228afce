import os
import uuid

import fsspec
import pytest
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError

module = pytest.importorskip("array_record.python.array_record_module")


def opened(tmp_path, records, options="group_size:1", name="a.array_record", **given):
    writer = module.ArrayRecordWriter(str(tmp_path / name), options)
    for record in records:
        writer.write(record)
    writer.close()
    return Dataset.from_path("d", tmp_path / name, **given)


def rows(records):
    return [{"record": record} for record in records]


@pytest.mark.parametrize("count", [0, 1, 70])
@pytest.mark.parametrize("options", ["group_size:1", "group_size:8,uncompressed", ""])
def test_records_read_back_equal(tmp_path, count, options):
    records = [os.urandom(i * 3) for i in range(count)]
    check_rows(opened(tmp_path, records, options), rows(records))


def test_several_units_and_big_rows(tmp_path):
    records = [os.urandom(3 << 20)] + [os.urandom(20_000) for _ in range(100)]
    dataset = opened(tmp_path, records)
    assert len(dataset.unit_rows) == 5
    assert dataset.shard(0).read(0).sizes().tolist()[:2] == [3 << 20, 20_000]
    check_rows(dataset, rows(records))


@pytest.mark.parametrize("kept", [0, 100, 70_000, -1])
def test_a_file_cut_short_is_a_read_error_that_names_it(tmp_path, kept):
    opened(tmp_path, [b"x" * 100] * 50)
    path = tmp_path / "a.array_record"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ReadError, match=r"a\.array_record: it can't be read as ArrayRecord: it is cut short or broken"):
        len(Dataset.from_path("d", path))


def test_garbage_inside_is_a_read_error(tmp_path):
    opened(tmp_path, [os.urandom(100) for _ in range(50)])
    path = tmp_path / "a.array_record"
    data = path.read_bytes()
    path.write_bytes(data[:2000] + b"\xff" * 500 + data[2500:])
    with pytest.raises(ReadError, match=r"a\.array_record: it can't be read as ArrayRecord: .*(hash|orrupt)"):
        list(Dataset.from_path("d", path))


def test_a_file_that_changes_is_noticed_or_read_anew(tmp_path):
    dataset = opened(tmp_path, [b"one", b"two"])
    assert len(dataset) == 2
    os.truncate(tmp_path / "a.array_record", 1000)
    with pytest.raises(ReadError, match="the file has changed"):
        dataset[0]
    check_rows(opened(tmp_path, [b"three"]), rows([b"three"]))


def test_remote_files_are_copied(tmp_path):
    opened(tmp_path, [b"one", b"two"])
    url = f"memory://{uuid.uuid4().hex}/a.array_record"
    fsspec.filesystem("memory").pipe_file(url, (tmp_path / "a.array_record").read_bytes())
    check_rows(Dataset.from_path("d", url, index_dir=tmp_path / "index"), rows([b"one", b"two"]))


def test_columns(tmp_path):
    assert opened(tmp_path, [b"one"], columns=["record"])[0] == {"record": b"one"}
    with pytest.raises(ConfigError, match="no file has column 'text'; the columns are: record"):
        len(opened(tmp_path, [b"one"], columns=["text"]))
