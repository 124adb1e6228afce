import io
import json
import os
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_over_http import serve
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.errors import ReadError
from zephon_nodes.formats import parquet
from zephon_nodes.formats.base import BadRow
from zephon_nodes.formats.parquet import ParquetFormat
from zephon_nodes.listing import find_files

SCHEMA = pa.schema(
    [
        pa.field("n", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("long", pa.large_string()),
        ("blob", pa.binary()),
        ("ids", pa.list_(pa.int32())),
        ("deep", pa.list_(pa.list_(pa.int16()))),
        ("info", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
    ]
)
INT, TEXT = st.integers(-99, 99), st.text(max_size=4)
ROW = st.fixed_dictionaries(
    {
        "n": INT,
        "text": TEXT | st.none(),
        "long": TEXT | st.none(),
        "blob": st.binary(max_size=4) | st.none(),
        "ids": st.lists(INT | st.none(), max_size=4) | st.none(),
        "deep": st.lists(st.lists(INT, max_size=3), max_size=3) | st.none(),
        "info": st.fixed_dictionaries({"a": INT | st.none(), "b": TEXT}) | st.none(),
        "kind": st.sampled_from(["x", "yy", None]),
    }
)


def store(tmp_path, table, name="a.parquet", **options):
    pq.write_table(table, tmp_path / name, **options)
    return opened(tmp_path / name)


def opened(path, columns=None, **options):
    (file,) = find_files(path, (".parquet",), options)
    return ParquetFormat().open(file, columns)


def plain(row):
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}


def all_rows(shard):
    rows = []
    for unit, count in enumerate(shard.unit_rows.tolist()):
        rows += map(plain, shard.read(unit).take(range(count)))
    return rows


@settings(deadline=None, max_examples=60)
@given(st.lists(ROW, max_size=20), st.integers(1, 8), st.integers(1, 2000), st.data())
def test_nested_rows_read_back_equal_in_any_order(tmp_path_factory, rows, group, batch_bytes, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet, "_BATCH_BYTES", batch_bytes)
        folder = tmp_path_factory.mktemp("rows")
        shard = store(folder, pa.Table.from_pylist(rows, SCHEMA), row_group_size=group)
        assert [n for n in shard.unit_rows.tolist() if n] == [
            len(rows[i : i + group]) for i in range(0, len(rows), group)
        ]
        places = [(unit, row) for unit, count in enumerate(shard.unit_rows.tolist()) for row in range(count)]
        order = data.draw(st.permutations(range(len(rows))))
        units = [shard.read(unit) for unit in range(len(shard.unit_rows))]
        assert [plain(units[places[i][0]].take([places[i][1]])[0]) for i in order] == [rows[i] for i in order]


@pytest.mark.parametrize("group", [1000, 333, 1])
def test_row_groups_of_any_size_are_the_units(tmp_path, group):
    shard = store(tmp_path, pa.table({"n": range(500)}), row_group_size=group)
    assert shard.unit_rows.tolist() == [len(range(500)[i : i + group]) for i in range(0, 500, group)]
    assert all_rows(shard) == [{"n": n} for n in range(500)]


def test_units_are_decoded_in_bounded_batches_that_are_never_joined(tmp_path, monkeypatch):
    """Joined, nested columns fail over 2 GiB ("Nested data conversions not implemented for chunked array outputs")."""
    asked = []

    class Spy(pq.ParquetFile):
        def iter_batches(self, batch_size, **options):
            asked.append(batch_size)
            return super().iter_batches(batch_size, **options)

        def read_row_group(self, *args, **options):
            raise AssertionError("reads a whole row group at once")

        read = read_row_groups = read_row_group

    rows = [{"m": [("k", b"x" * 100)], "s": [{"t": "y" * 50}]} for _ in range(64)]
    kind = pa.schema([("m", pa.map_(pa.string(), pa.binary())), ("s", pa.list_(pa.struct([("t", pa.string())])))])
    shard = store(tmp_path, pa.Table.from_pylist(rows, kind), use_dictionary=False, compression="none")
    monkeypatch.setattr(pq, "ParquetFile", Spy)
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1700)
    unit = shard.read(0)
    assert 1700 / 250 < asked[0] <= 1700 / 150
    assert [batch.num_rows for batch in unit._batches] == [asked[0]] * (64 // asked[0]) + [64 % asked[0]] * (
        64 % asked[0] > 0
    )
    assert all_rows(shard) == rows
    monkeypatch.setattr(parquet, "_BATCH_BYTES", 1)
    assert [batch.num_rows for batch in shard.read(0)._batches] == [1] * 64


def test_a_row_group_that_fits_into_one_batch_is_read_by_one_call(tmp_path, monkeypatch):
    """Each call takes Python's lock anew, and may wait for it."""
    shard = store(tmp_path, pa.table({"n": range(500), "s": ["x" * 50] * 500}), row_group_size=250)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", None)
    assert [shard.read(unit).rows for unit in (0, 1)] == [250, 250]
    assert all_rows(shard) == [{"n": n, "s": "x" * 50} for n in range(500)]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_kind_of_text_column_gives_the_same_rows(tmp_path, kind):
    texts = ["a", None, "ü" * 50, "", "b"]
    assert all_rows(store(tmp_path, pa.table({"t": pa.array(texts).cast(kind)}), row_group_size=2)) == [
        {"t": t} for t in texts
    ]


def test_each_row_group_may_have_a_dictionary_of_its_own(tmp_path):
    groups = [["a", "b", "a"], ["c", None, "c"], ["b", "d", "a"]]
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema([("k", pa.dictionary(pa.int32(), pa.string()))])) as writer:
        for group in groups:
            writer.write_table(pa.table({"k": pa.array(group).dictionary_encode()}))
    shard = opened(tmp_path / "a.parquet")
    assert shard.unit_rows.tolist() == [3, 3, 3]
    assert all_rows(shard) == [{"k": value} for group in groups for value in group]


def test_nulls_then_text_stay_what_they_are(tmp_path):
    values = [None] * 2000 + ["a"] * 10
    assert all_rows(store(tmp_path, pa.table({"x": values}), row_group_size=2000)) == [{"x": value} for value in values]


def test_files_without_row_groups_and_row_groups_without_rows_are_fine(tmp_path):
    schema = pa.schema([("n", pa.int64())])
    pq.ParquetWriter(tmp_path / "none.parquet", schema).close()
    assert opened(tmp_path / "none.parquet").unit_rows.tolist() == []
    with pq.ParquetWriter(tmp_path / "hollow.parquet", schema) as writer:
        for values in ([], [1, 2], []):
            writer.write_batch(pa.record_batch({"n": pa.array(values, pa.int64())}), row_group_size=10)
            writer.write_table(pa.table({"n": pa.array(values, pa.int64())}))
    shard = opened(tmp_path / "hollow.parquet")
    assert 0 in shard.unit_rows.tolist()
    assert all_rows(shard) == [{"n": 1}, {"n": 2}, {"n": 1}, {"n": 2}]
    assert shard.read(shard.unit_rows.tolist().index(0)).take([]) == []


TABLE = pa.table({"a": [1, 2], "s": [{"x": 1, "y": "q"}, None], "l": [[{"u": 1, "v": 2}], []]})


@pytest.mark.parametrize(
    ("columns", "expected", "missing"),
    [
        (["a"], [{"a": 1}, {"a": 2}], ()),
        (["s.x", "a"], [{"a": 1, "s": {"x": 1}}, {"a": 2, "s": None}], ()),
        (["l.list.element.v"], [{"l": [{"v": 2}]}, {"l": []}], ()),
        (["a", "z"], [{"a": 1, "z": None}, {"a": 2, "z": None}], ("z",)),
        (["z"], [{"z": None}, {"z": None}], ("z",)),
        (["s.zz"], [{"s": None}, {"s": None}], ("s.zz",)),
        (["s.x", "s.zz"], [{"s": {"x": 1}}, {"s": None}], ("s.zz",)),
        (["aa", "s"], [{"s": {"x": 1, "y": "q"}, "aa": None}, {"s": None, "aa": None}], ("aa",)),
    ],
)
def test_columns(tmp_path, columns, expected, missing):
    store(tmp_path, TABLE)
    shard = opened(tmp_path / "a.parquet", columns)
    assert all_rows(shard) == expected
    assert shard.missing == missing
    assert shard.columns == ("a", "s", "l")


def test_unit_bytes_are_those_of_the_columns_that_are_read(tmp_path):
    table = pa.table({"small": pa.array([1] * 1000, pa.int8()), "big": [os.urandom(100) for _ in range(1000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=500, compression="none")
    whole, small, big = (opened(tmp_path / "a.parquet", c).unit_bytes for c in (None, ["small"], ["big"]))
    assert (whole == small + big).all()
    assert (big > 500 * 100).all()
    assert (small < 500 * 10).all()


@pytest.fixture(scope="module")
def good():
    sink = io.BytesIO()
    pq.write_table(pa.table({"t": [f"text {i}" * 9 for i in range(400)]}), sink, row_group_size=100)
    return sink.getvalue()


@pytest.mark.parametrize("kept", [0, 3, 4, 11, 200, -1, -9])
def test_a_file_cut_short_is_a_read_error_that_names_it(tmp_path, good, kept):
    (tmp_path / "cut.parquet").write_bytes(good[:kept])
    with pytest.raises(ReadError, match=r"cut\.parquet: .*footer") as caught:
        opened(tmp_path / "cut.parquet")
    assert caught.value.path == str(tmp_path / "cut.parquet")
    assert caught.value.__cause__ is not None


def test_garbage_in_a_row_group_is_a_read_error_and_leaves_the_others_readable(tmp_path, good):
    start = pq.ParquetFile(io.BytesIO(good)).metadata.row_group(1).column(0).dictionary_page_offset
    (tmp_path / "bad.parquet").write_bytes(good[:start] + b"\xff" * 60 + good[start + 60 :])
    shard = opened(tmp_path / "bad.parquet")
    with pytest.raises(ReadError, match=r"bad\.parquet: .*row group 1"):
        shard.read(1)
    assert shard.read(2).take([0]) == [{"t": "text 200" * 9}]


def test_a_file_that_changes_after_opening_is_refused(tmp_path, good):
    (tmp_path / "a.parquet").write_bytes(good)
    shard = opened(tmp_path / "a.parquet")
    with open(tmp_path / "a.parquet", "ab") as more:
        more.write(b"x")
    with pytest.raises(ReadError, match=r"a\.parquet: the file has changed"):
        shard.read(0)


def test_a_deleted_file_is_a_read_error(tmp_path, good):
    (tmp_path / "a.parquet").write_bytes(good)
    shard = opened(tmp_path / "a.parquet")
    os.unlink(tmp_path / "a.parquet")
    with pytest.raises(ReadError, match=r"a\.parquet: can't read row group 0"):
        shard.read(0)


def test_footers_are_kept_but_only_a_few(tmp_path, good, monkeypatch):
    parquet._footer.cache_clear()
    shards = []
    for number in range(parquet._FOOTERS + 6):
        (tmp_path / f"{number}.parquet").write_bytes(good)
        shards.append(opened(tmp_path / f"{number}.parquet"))
    assert parquet._footer.cache_info().currsize == parquet._FOOTERS
    monkeypatch.setattr(pq, "read_metadata", lambda source: pytest.fail("the footer is read again"))
    for unit in range(4):
        assert shards[-1].read(unit).rows == 100


def test_what_was_read_is_freed(tmp_path):
    group = 200 * 5000
    shard = store(
        tmp_path, pa.table({"b": [os.urandom(5000) for _ in range(2000)]}), row_group_size=200, use_dictionary=False
    )
    before, held = pa.total_allocated_bytes(), []
    for number in range(10):
        unit = shard.read(number)
        held.append(pa.total_allocated_bytes() - before)
        assert unit.rows == 200
    assert max(held) < 3 * group


def test_a_name_that_is_no_text_is_read_and_has_a_recipe(tmp_path, good):
    """A file from another system may have a name in Latin-1."""
    (tmp_path / os.fsdecode(b"caf\xe9.parquet")).write_bytes(good)
    data = Dataset.from_path("menu", tmp_path)
    assert [row["t"] for row in data] == [f"text {i}" * 9 for i in range(400)]
    pipeline = Pipeline(StaticMixtureWorkSource([data]), runner="inline").batch(400)
    assert [len(batch) for batch in pipeline] == [400] and len(pipeline.recipe_hash) == 64
    other = Pipeline(StaticMixtureWorkSource([data]), runner="inline").batch(400)
    other.load_state_dict(json.loads(json.dumps(pipeline.state_dict())))


@pytest.mark.parametrize("columns", [None, ["image"], ["image", "n"], ["note"], ["image", "gone"], ["words"]])
def test_rows_that_are_made_at_once_are_like_others(tmp_path, monkeypatch, columns):
    table = pa.table(
        {
            "n": range(90),
            "image": [bytes([i]) * 5000 for i in range(90)],
            "note": [None if i % 3 else "né" * 6000 for i in range(90)],
            "words": [[i] * 3000 for i in range(90)],
        }
    )
    names = set(columns or table.column_names)
    expected = [{name: row.get(name) for name in columns or table.column_names} for row in table.to_pylist()]
    store(tmp_path, table, row_group_size=40, use_dictionary=False)
    shard = opened(tmp_path / "a.parquet", columns)
    units = [shard.read(unit) for unit in range(3)]
    assert [type(unit).__name__ for unit in units] == ["ArrowUnit" if "words" in names else "RowsUnit"] * 3
    sizes = [unit.sizes().tolist() for unit in units]
    assert [plain(row) for unit in units for row in unit.take(range(unit.rows))] == expected
    monkeypatch.setattr(parquet, "_LONG_ROW", 1 << 40)
    assert [shard.read(unit).sizes().tolist() for unit in range(3)] == sizes


def test_nothing_stays_open(tmp_path, good):
    (tmp_path / "a.parquet").write_bytes(good)
    before = os.listdir("/proc/self/fd")
    shard = opened(tmp_path / "a.parquet")
    units = [shard.read(unit) for unit in range(4)]
    assert sum(unit.rows for unit in units) == 400
    assert os.listdir("/proc/self/fd") == before


def test_remote_files_read_alike_and_only_what_is_needed(tmp_path):
    table = pa.table({"id": range(400), "noise": [os.urandom(3000) for _ in range(400)]})
    shard = store(tmp_path, table, row_group_size=100)
    expected = all_rows(shard)
    content = (tmp_path / "a.parquet").read_bytes()
    url = f"memory://{uuid.uuid4().hex}/a.parquet"
    fsspec.filesystem("memory").pipe_file(url, content)
    assert all_rows(opened(url)) == expected
    with serve({"a.parquet": content}) as site:
        assert all_rows(opened(f"{site.url}/a.parquet")) == expected
        site.sent.clear()
        ids = opened(f"{site.url}/a.parquet", ["id"])
        assert all_rows(ids) == [{"id": n} for n in range(400)]
        assert sum(site.sent) < len(content) / 5


def test_a_server_without_sizes_or_ranges_is_refused_for_parquet(good):
    with serve({"a.parquet": good}, sizes=False, ranges=False) as site, pytest.raises(ReadError, match="tells no size"):
        opened(f"{site.url}/a.parquet")


@settings(deadline=None, max_examples=150, derandomize=True)  # pyarrow itself may crash on a file that nobody has tried
@given(st.data())
def test_changed_bytes_give_rows_or_a_read_error_and_nothing_else(tmp_path_factory, good, data):
    spoilt = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        spoilt[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("spoilt") / "a.parquet"
    path.write_bytes(spoilt)
    try:
        shard = opened(path)
        rows = [
            row for unit, n in enumerate(shard.unit_rows.tolist()) for row in shard.read(unit).take(range(min(n, 100)))
        ]
    except ReadError as error:
        assert error.path == str(path)
    else:
        assert all(isinstance(row, (dict, BadRow)) for row in rows)
