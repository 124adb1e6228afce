import io
import json
import os
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats import arrow_ipc
from zephon_nodes.formats.arrow_ipc import ArrowFormat
from zephon_nodes.formats.spans import BigRowsUnit

INT, TEXT = st.integers(-99, 99), st.text(max_size=4)
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("text", pa.string()),
        ("blob", pa.large_binary()),
        ("ids", pa.list_(pa.int32())),
        ("deep", pa.list_(pa.list_(pa.int16()))),
        ("info", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "n": INT | st.none(),
        "text": TEXT | st.none(),
        "blob": st.binary(max_size=4) | st.none(),
        "ids": st.lists(INT, max_size=4) | st.none(),
        "deep": st.lists(st.lists(INT, max_size=3), max_size=3) | st.none(),
        "info": st.fixed_dictionaries({"a": INT | st.none(), "b": TEXT}) | st.none(),
    }
)


def as_lists(row):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


def written(table, kind="file", rows=None, **options):
    sink = io.BytesIO()
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


def opened(tmp_path, data, name="a.arrow", **options):
    (tmp_path / name).write_bytes(data)
    return Dataset.from_path("d", tmp_path / name, index_dir=tmp_path / "index", **options)


@settings(deadline=None)
@given(
    st.lists(ROW, max_size=12),
    st.integers(1, 5),
    st.sampled_from(["file", "stream"]),
    st.sampled_from([None, "zstd", "lz4"]),
)
def test_nested_rows_read_back_equal_in_any_order(tmp_path_factory, rows, batch, kind, codec):
    table = pa.Table.from_pylist(rows, SCHEMA)
    dataset = opened(tmp_path_factory.mktemp("ipc"), written(table, kind, batch, compression=codec))
    assert dataset.unit_rows.tolist() == [len(rows[i : i + batch]) for i in range(0, len(rows), batch)]
    check_rows(dataset, rows, as_lists)
    assert (dataset.shard(0).take([]) is None) == (codec is not None and len(rows) > 0)


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_dictionaries_that_grow_or_are_replaced(tmp_path, kind):
    sink = io.BytesIO()
    schema = pa.schema([("k", pa.dictionary(pa.int32(), pa.string()))])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    groups = [["a", "b"], ["a", "b", "c"], ["c", "a"]]
    if kind == "file":
        groups = [["a", "b"], ["b", None, "a"]]
    made = pa.ipc.new_file(sink, schema) if kind == "file" else pa.ipc.new_stream(sink, schema, options=options)
    with made as writer:
        for group in groups:
            codes = pa.array([None if v is None else "abc".index(v) for v in group], pa.int32())
            names = "ab" if kind == "file" else "abc"[: 2 + ("c" in group)]
            array = pa.DictionaryArray.from_arrays(codes, pa.array(list(names)))
            writer.write_batch(pa.record_batch([array], schema=schema))
    check_rows(opened(tmp_path, sink.getvalue()), [{"k": value} for group in groups for value in group])


def test_numbers_are_writable_arrays(tmp_path):
    array = (
        opened(tmp_path, written(pa.table({"x": pa.array([[1, 2]], pa.list_(pa.uint16()))}))).shard(0).take([0])[0]["x"]
    )
    assert array.dtype == np.uint16
    array += 1


@pytest.mark.parametrize("splits", [1, 2])
def test_save_to_disk(tmp_path, splits):
    datasets = pytest.importorskip("datasets")
    rows = [
        {"id": i, "text": "ü\u2028" * i, "ids": list(range(i)), "tags": [{"a": None, "b": "x"}] * (i % 3)}
        for i in range(50)
    ]
    made = datasets.Dataset.from_list(rows)
    if splits == 2:
        datasets.DatasetDict({"train": made, "test": made.select(range(3))}).save_to_disk(tmp_path / "d")
        with pytest.raises(ConfigError, match=r"has the splits train, test; name one: .*/d/train"):
            Dataset.from_path("d", tmp_path / "d")
        check_rows(Dataset.from_path("d", tmp_path / "d/test", index_dir=tmp_path), rows[:3], as_lists)
        return
    made.save_to_disk(tmp_path / "d", num_shards=3)
    (tmp_path / "d/cache-1234.arrow").write_bytes(b"left by a map")
    dataset = Dataset.from_path("d", tmp_path / "d", index_dir=tmp_path)
    assert dataset.shard_rows.tolist() == [17, 17, 16]
    check_rows(dataset, rows, as_lists)
    os.unlink(tmp_path / "d/data-00001-of-00003.arrow")
    with pytest.raises(ReadError, match=r"data-00001-of-00003\.arrow: state\.json beside it lists this file"):
        Dataset.from_path("d", tmp_path / "d")


def test_state_json_gives_the_order(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.arrow").write_bytes(written(pa.table({"x": [name]})))
    (tmp_path / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "c.arrow"}, {"filename": "a.arrow"}]})
    )
    check_rows(Dataset.from_path("d", tmp_path, index_dir=tmp_path / "i"), [{"x": "c"}, {"x": "a"}])
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(ReadError, match=r"state\.json: it has no '_data_files'"):
        Dataset.from_path("d", tmp_path)


TABLE = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"], "c": [[1.5], None, []]})


def test_columns(tmp_path):
    rows = [{"b": row["b"], "other": None} for row in TABLE.to_pylist()]
    (tmp_path / "z.arrow").write_bytes(written(pa.table({"other": [7]})))
    (tmp_path / "a.arrow").write_bytes(written(TABLE, rows=2))
    dataset = Dataset.from_path("d", tmp_path, columns=["b", "other"], index_dir=tmp_path / "index")
    check_rows(dataset, [*rows, {"b": None, "other": 7}])
    with pytest.raises(ConfigError, match="no file has column 'nope'; the columns are: a, b, c"):
        len(opened(tmp_path, written(TABLE), columns=["nope"]))


def test_files_without_batches_and_batches_without_rows(tmp_path):
    for kind in ("file", "stream"):
        check_rows(opened(tmp_path, written(TABLE.slice(0, 0), kind), f"{kind}.arrow"), [])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, pa.schema([("n", pa.int64())])) as writer:
        for values in ([], [1], [], [2, 3]):
            writer.write_batch(pa.record_batch({"n": pa.array(values, pa.int64())}))
    dataset = opened(tmp_path, sink.getvalue())
    assert dataset.unit_rows.tolist() == [0, 1, 0, 2]
    check_rows(dataset, [{"n": 1}, {"n": 2}, {"n": 3}])


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_every_cut_is_a_read_error_that_names_the_file(tmp_path, kind):
    whole = written(TABLE, kind, 1)
    end = whole.rindex(b"\xff\xff\xff\xff\0\0\0\0")
    for size in [*range(0, end, 37), end, end + 7]:
        with pytest.raises(ReadError, match=rf"{size}\.arrow: "):
            len(opened(tmp_path, whole[:size], f"{size}.arrow"))


@pytest.mark.parametrize(
    "data", [b"FEA1junk" * 9, b"ARROW1\0\0" + b"\1" * 90, b"\xff\xff\xff\xff\x08\0\0\0" + b"\xff" * 90, b"x" * 99]
)
def test_garbage_is_a_read_error(tmp_path, data):
    with pytest.raises(ReadError, match=r"a\.arrow: "):
        len(opened(tmp_path, data))


def test_garbage_in_any_place_is_an_error_or_gives_rows_but_never_ends_the_process(tmp_path):
    whole = written(TABLE, "stream", 1)
    for place in range(0, len(whole) - 4, 13):
        data = whole[:place] + b"\xf0\xff\xff\x7f" + whole[place + 4 :]
        try:
            dataset = opened(tmp_path, data, f"{place}.arrow")
            for shard_unit in range(len(dataset.unit_rows)):
                dataset.read_unit(shard_unit).take(range(int(dataset.unit_rows[shard_unit])))
        except ReadError as error:
            assert f"{place}.arrow" in str(error)


def test_heads_are_read_once_and_a_stale_index_is_noticed(tmp_path, monkeypatch):
    calls = []
    places = arrow_ipc._places
    monkeypatch.setattr(arrow_ipc, "_places", lambda *args: calls.append(1) or places(*args))
    for _ in range(2):
        arrow_ipc._scan.cache_clear()
        dataset = (
            opened(tmp_path, written(TABLE))
            if not calls
            else Dataset.from_path("d", tmp_path / "a.arrow", index_dir=tmp_path / "index")
        )
        check_rows(dataset, TABLE.to_pylist(), as_lists)
    assert len(calls) == 1
    (tmp_path / "a.arrow").write_bytes(written(TABLE.slice(1)))
    for read in (lambda: dataset.shard(0).read(0), lambda: dataset.shard(0).take([0])):
        with pytest.raises(ReadError, match=r"a\.arrow: the file has changed"):
            read()
    check_rows(
        Dataset.from_path("d", tmp_path / "a.arrow", index_dir=tmp_path / "index"), TABLE.to_pylist()[1:], as_lists
    )
    assert len(calls) == 2


def test_remote_files(tmp_path):
    url = f"memory://{uuid.uuid4().hex}/a.arrow"
    fsspec.filesystem("memory").pipe_file(url, written(TABLE, rows=2))
    check_rows(Dataset.from_path("d", url, index_dir=tmp_path), TABLE.to_pylist(), as_lists)


@pytest.mark.parametrize("memory_map", [True, False])
def test_big_rows_come_from_a_map_only_where_that_is_wanted(tmp_path, memory_map):
    table = pa.table({"n": range(6), "blob": [bytes([i]) * 50_000 for i in range(6)]})
    dataset = opened(tmp_path, written(table, "stream", 3), fmt=ArrowFormat(memory_map=memory_map))
    check_rows(dataset, table.to_pylist())
    assert (dataset.shard(0).take([0]) is None) == (not memory_map)
    unit = dataset.shard(0).read(1)
    assert isinstance(unit, BigRowsUnit) == memory_map
    assert unit.take([]) == []
    with pytest.raises(IndexError):
        unit.take([3])
    (tmp_path / "a.arrow").write_bytes(written(table.slice(1), "stream"))
    with pytest.raises(ReadError, match=r"a\.arrow: the file has changed"):
        unit.take([0]) if memory_map else dataset.shard(0).read(0)


@pytest.mark.parametrize("nbytes", [3, 200_000], ids=["small", "mapped"])
def test_a_name_that_is_no_text_is_read(tmp_path, nbytes):
    """A file from another system may have a name in Latin-1."""
    table = pa.table({"x": [bytes([i]) * nbytes for i in range(3)]})
    place = tmp_path / os.fsdecode(b"caf\xe9.arrow")
    with open(place, "wb") as sink, pa.ipc.new_file(sink, table.schema) as out:
        out.write_table(table)
    assert [*Dataset.from_path("menu", tmp_path)] == table.to_pylist()
