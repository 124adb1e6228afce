import gzip
import itertools
import json
import pickle
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import Pipeline, StaticMixtureWorkSource, formats
from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError, RowError, StateError
from zephon_nodes.formats import register_format
from zephon_nodes.formats.arrow_ipc import ArrowFormat
from zephon_nodes.formats.base import Shard, Unit
from zephon_nodes.formats.jsonl import JsonlFormat
from zephon_nodes.formats.tokens import TokensFormat


def parquet_file(path, **columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)


def jsonl_file(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))


def all_rows(dataset):
    """Every row by (shard, unit, row in unit), as readers get them."""
    rows = []
    for shard, count in enumerate(dataset.shard_rows.tolist()):
        for row in range(count):
            unit, inside = dataset.unit_of(shard, row)
            rows += dataset.shard(shard).read(unit).take([inside])
    return rows


@pytest.fixture
def numbers(tmp_path):
    """Files of 5, 0, 3 and 1 rows, in row groups of 2."""
    for name, values in {"a": [0, 1, 2, 3, 4], "b": [], "c": [5, 6, 7], "d/e": [8]}.items():
        parquet_file(tmp_path / f"{name}.parquet", n=pa.array(values, pa.int64()))
    return Dataset.from_path("numbers", tmp_path)


def test_counts_and_places(numbers):
    assert numbers.files == ("a.parquet", "b.parquet", "c.parquet", "d/e.parquet")
    assert (numbers.rows, len(numbers)) == (9, 9)
    assert numbers.shard_rows.tolist() == [5, 0, 3, 1]
    assert numbers.shard_starts.tolist() == [0, 5, 5, 8, 9]
    units = [list(numbers.shard(i).unit_rows) for i in range(4)]
    assert numbers.unit_rows.tolist() == list(itertools.chain(*units))
    assert numbers.first_units.tolist() == np.cumsum([0, *map(len, units)]).tolist()
    assert numbers.unit_starts.tolist() == np.cumsum([0, *numbers.unit_rows]).tolist()
    assert len(numbers.unit_bytes) == len(numbers.unit_rows)
    assert all(counts.dtype == np.int64 for counts in (numbers.shard_rows, numbers.unit_rows, numbers.unit_bytes))
    assert [numbers.unit_of(0, row) for row in range(5)] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert all_rows(numbers) == list(numbers) == [{"n": n} for n in range(9)]
    assert numbers.path_of(3).endswith("/d/e.parquet")


@pytest.mark.parametrize("place", [(0, 5), (0, -1), (1, 0), (4, 0), (-1, 0)])
def test_places_that_are_not_there(numbers, place):
    with pytest.raises(IndexError, match=f"'numbers' has no row {place[1]} of shard {place[0]}"):
        numbers.unit_of(*place)


class CountedShard(Shard):
    def __init__(self, file, counts):
        self.file, self.unit_rows, self.unit_bytes = file, np.array(counts, np.int64), np.array(counts, np.int64)

    def read(self, unit):
        return CountedUnit(unit, int(self.unit_rows[unit]))


class CountedUnit(Unit):
    def __init__(self, number, rows):
        self.number, self.rows, self.nbytes = number, rows, rows

    def take(self, rows):
        return [(self.number, row) for row in rows]


class Counted:
    """Files whose content is the list of their units' row counts."""

    name, suffixes = "counted", (".counted",)

    def __init__(self):
        self.opened = []

    def open(self, file, columns):
        self.opened.append(file.name)
        return CountedShard(file, json.loads(file.read_range(0, file.size)))


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=5))
def test_unit_of_agrees_with_counting_by_hand(tmp_path_factory, shards):
    folder = tmp_path_factory.mktemp("counted")
    for number, counts in enumerate(shards):
        (folder / f"{number}.counted").write_text(json.dumps(counts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formats, "_formats", {})
        register_format(Counted())
        dataset = Dataset.from_path("d", folder)
    by_hand = [[(unit, row) for unit, n in enumerate(counts) for row in range(n)] for counts in shards]
    assert dataset.shard_rows.tolist() == list(map(len, by_hand))
    assert [[dataset.unit_of(s, r) for r in range(len(rows))] for s, rows in enumerate(by_hand)] == by_hand
    assert [dataset[i] for i in range(len(dataset))] == list(dataset) == list(itertools.chain(*by_hand))


def test_files_are_opened_late_once_and_with_the_map_that_is_given(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "_formats", {})
    fmt = Counted()
    register_format(fmt)
    for name in "ab":
        (tmp_path / f"{name}.counted").write_text("[1]")
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.files == ("a.counted", "b.counted")
    assert "2 files" in repr(dataset)
    assert fmt.opened == []
    dataset.open(lambda function, files: [function(file) for file in reversed(files)][::-1])
    assert fmt.opened == ["b.counted", "a.counted"]
    assert (len(dataset), dataset.unit_rows.tolist(), dataset.fingerprint()["rows"]) == (2, [1, 1], 2)
    dataset.open()
    assert len(fmt.opened) == 2


def test_indexing(numbers):
    assert [numbers[i]["n"] for i in range(9)] == list(range(9))
    assert [numbers[-i - 1]["n"] for i in range(9)] == list(reversed(range(9)))
    assert numbers[np.int64(3)] == {"n": 3}
    for index in (9, -10):
        with pytest.raises(IndexError, match=f"'numbers' has 9 rows, and no row {index}"):
            numbers[index]
    with pytest.raises(TypeError):
        numbers[1:2]


def test_a_bad_row_says_where_it_is(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n{"a": \n')
    dataset = Dataset.from_path("web", tmp_path, index_dir=tmp_path / "index")
    assert dataset[0] == {"a": 1}
    where = f"dataset 'web', {tmp_path}/a.jsonl, row 1"
    for read in (lambda: dataset[1], lambda: list(dataset)):
        with pytest.raises(RowError, match=f"^{where}: not JSON") as caught:
            read()
        assert caught.value.where == where
        assert isinstance(caught.value.__cause__, ValueError)


def test_repr_is_short_and_does_not_open(numbers):
    before = repr(numbers)
    assert before.startswith("Dataset('numbers', parquet, 4 files, first '/")
    assert len(numbers) == 9
    assert "4 files, 9 rows" in repr(numbers)
    assert repr(Dataset.from_rows("few", [1])) == "Dataset('few', rows, 1 file, first 'rows')"


def test_it_pickles_without_what_was_opened(numbers):
    assert len(numbers) == 9
    copy = pickle.loads(pickle.dumps(numbers))
    assert "rows" not in repr(copy)
    assert list(copy) == list(numbers)
    rows = Dataset.from_rows("r", [{"a": np.arange(2)}])
    assert pickle.loads(pickle.dumps(rows)).fingerprint() == rows.fingerprint()


@pytest.mark.parametrize("order", ["ABCD", "DCBA", "CADB"])
def test_a_column_may_have_another_type_or_be_absent_in_each_file(tmp_path, order):
    """null, string, no such column, large_string: the rows say what their file says, None where it says nothing."""
    kinds = {"A": pa.nulls(2), "B": pa.array(["b", None]), "C": None, "D": pa.array(["d", "dd"], pa.large_string())}
    for place, kind in enumerate(order):
        columns = {"id": [f"{kind}0", f"{kind}1"]} | ({"x": kinds[kind]} if kind != "C" else {})
        parquet_file(tmp_path / f"{place}.parquet", **columns)
    values = {"A": [None, None], "B": ["b", None], "C": [None, None], "D": ["d", "dd"]}
    expected = [{"id": f"{kind}{i}", "x": values[kind][i]} for kind in order for i in range(2)]
    assert list(Dataset.from_path("odd", tmp_path, columns=["id", "x"])) == expected
    whole = list(Dataset.from_path("odd", tmp_path))
    assert whole == [{key: row[key] for key in row if row["id"][0] != "C" or key != "x"} for row in expected]


@pytest.mark.parametrize("seed", range(4))
def test_empty_files_in_any_place_stop_nothing(tmp_path, seed):
    schema = pa.schema([("n", pa.int64())])

    def write(path, groups):
        with pq.ParquetWriter(path, schema) as writer:
            for values in groups:
                writer.write_batch(pa.record_batch({"n": pa.array(values, pa.int64())}))
                if not values:
                    writer.write_table(pa.table({"n": pa.array([], pa.int64())}))

    contents = [[], [[0, 1, 2]], [[]], [[3, 4]]]
    random.Random(seed).shuffle(contents)
    for place, groups in enumerate(contents):
        write(tmp_path / f"{place}.parquet", groups)
    dataset = Dataset.from_path("odd", tmp_path)
    expected = [{"n": n} for groups in contents for values in groups for n in values]
    assert len(dataset) == 5
    assert list(dataset) == all_rows(dataset) == [dataset[i] for i in range(5)] == expected


def test_an_empty_jsonl_file_is_fine_and_an_empty_parquet_file_is_an_error_with_its_name(tmp_path):
    jsonl_file(tmp_path / "j" / "a.jsonl")
    jsonl_file(tmp_path / "j" / "b.jsonl", {"n": 1})
    assert list(Dataset.from_path("j", tmp_path / "j", index_dir=tmp_path / "index")) == [{"n": 1}]
    parquet_file(tmp_path / "p" / "a.parquet", n=[1])
    (tmp_path / "p" / "b.parquet").write_bytes(b"")
    with pytest.raises(ReadError, match=r"p/b\.parquet: "):
        len(Dataset.from_path("p", tmp_path / "p"))


def test_rows_in_memory_are_never_changed_by_their_readers():
    rows = [{"text": "x", "tags": ["a"]}]
    dataset = Dataset.from_rows("few", rows)
    for _ in range(2):
        row = dataset[0]
        row["text"] += "y"
        row["tags"].append("b")
        assert dataset[0] == rows[0] == {"text": "x", "tags": ["a"]}
    assert dataset.files == ("rows",)


def test_an_empty_dataset_is_allowed():
    dataset = Dataset.from_rows("none", [])
    assert (len(dataset), dataset.shard_rows.tolist(), dataset.unit_rows.tolist(), list(dataset)) == (0, [0], [], [])
    assert dataset.unit_rows.dtype == np.int64
    with pytest.raises(IndexError):
        dataset[0]


def test_fingerprints_are_of_the_content_not_of_the_place(tmp_path):
    prints = []
    for root in ("x", "y/z"):
        jsonl_file(tmp_path / root / "a.jsonl", {"n": 1}, {"n": 2})
        jsonl_file(tmp_path / root / "d" / "b.jsonl", {"n": 3})
        prints.append(Dataset.from_path("any", tmp_path / root, index_dir=tmp_path / "index").fingerprint())
    assert prints[0] == prints[1] == json.loads(json.dumps(prints[0]))
    assert {key: value for key, value in prints[0].items() if key != "digest"} == {
        "files": 2,
        "rows": 3,
        "format": "jsonl",
        "columns": None,
        "list": [["a.jsonl", 2, 18], ["d/b.jsonl", 1, 9]],
    }


def test_fingerprints_tell_data_apart(tmp_path):
    def of(*rows, name="a.jsonl", columns=None):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        jsonl_file(folder / name, *rows)
        return json.dumps(Dataset.from_path("d", folder, columns=columns, index_dir=tmp_path).fingerprint())

    prints = [of({"n": 1}), of({"n": 12}), of({"n": 1}, name="b.jsonl"), of({"n": 1}, columns=["n"]), of({}, {})]
    assert len(set(prints)) == len(prints)
    rows = [[{"a": 1}], [{"a": 2}], [{"a": 1}, {"a": 1}], []]
    assert len({Dataset.from_rows("r", each).fingerprint()["digest"] for each in rows}) == len(rows)


def test_fingerprints_of_many_files_are_short(tmp_path):
    for number in range(17):
        jsonl_file(tmp_path / f"{number:02}.jsonl", {})
    many = Dataset.from_path("d", tmp_path, index_dir=tmp_path / "index").fingerprint()
    assert "list" not in many
    few = Dataset.from_path("d", str(tmp_path / "0*.jsonl"), index_dir=tmp_path / "index").fingerprint()
    assert len(few["list"]) == 10


def test_a_column_that_no_file_has_is_refused(tmp_path):
    parquet_file(tmp_path / "a.parquet", text=["a"], id=[1])
    parquet_file(tmp_path / "b.parquet", text=["a"], url=["u"])
    with pytest.raises(ConfigError, match="dataset 'web': no file has column 'txt'; the columns are: text, id, url"):
        len(Dataset.from_path("web", tmp_path, columns=["text", "txt"]))
    assert list(Dataset.from_path("web", tmp_path, columns=["url"])) == [{"url": None}, {"url": "u"}]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_two_columns_of_one_name_are_refused_and_not_one_of_them_lost(tmp_path, name):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["v", "v", "w"])
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as writer:
            writer.write_table(table)
    for columns in (None, ["v"], ["w", "v"]):
        with pytest.raises(ReadError, match=rf"{name}: two columns are named 'v'"):
            Dataset.from_path("d", tmp_path / name, columns=columns).open()
    assert list(Dataset.from_path("d", tmp_path / name, columns=["w"])) == [{"w": 3}]


@pytest.mark.parametrize("columns", ["text", [], [""], [1], ["a", "a"]])
def test_columns_that_make_no_sense_are_refused_at_once(tmp_path, columns):
    parquet_file(tmp_path / "a.parquet", text=["a"])
    with pytest.raises(ConfigError, match=r"dataset 'web'.*column"):
        Dataset.from_path("web", tmp_path, columns=columns)


@pytest.mark.parametrize("name", ["", None, 3])
def test_names_must_be_text(name):
    with pytest.raises(ConfigError, match=f"a dataset needs a name, a non-empty string; got {name!r}"):
        Dataset.from_rows(name, [])


@pytest.mark.parametrize("rows", ["abc", b"abc", {"a": 1}, 3])
def test_rows_must_be_a_list(rows):
    with pytest.raises(ConfigError, match=f"rows must be a list of rows, got a {type(rows).__name__}"):
        Dataset.from_rows("d", rows)


def test_files_of_two_formats_need_fmt(tmp_path):
    parquet_file(tmp_path / "a.parquet", n=[1])
    jsonl_file(tmp_path / "meta.jsonl", {"n": 2})
    with pytest.raises(ConfigError, match=r"several formats were found \(parquet, jsonl\); say which with fmt="):
        Dataset.from_path("d", tmp_path)
    assert list(Dataset.from_path("d", tmp_path, fmt="parquet")) == [{"n": 1}]
    assert list(Dataset.from_path("d", tmp_path, fmt="jsonl", index_dir="beside")) == [{"n": 2}]


@pytest.mark.parametrize("stray", ["dataset_infos.json", "state.json", "sub/index.json", "x.caption"])
def test_what_only_belongs_to_other_formats_is_no_shard(tmp_path, stray):
    (tmp_path / "sub").mkdir()
    (tmp_path / stray).write_text("{}")
    pq.write_table(pa.table({"v": [1, 2]}), tmp_path / "a.parquet")
    for path in (tmp_path, f"{tmp_path}/**/*"):
        dataset = Dataset.from_path("d", path)
        assert dataset.files == ("a.parquet",) and dataset.rows == 2
    assert Dataset.from_path("d", tmp_path, fmt="parquet").files == ("a.parquet",)


def test_a_named_file_of_unknown_suffix_is_refused_and_not_left_out(tmp_path):
    pq.write_table(pa.table({"v": [1, 2]}), tmp_path / "a.parquet")
    (tmp_path / "b.data").write_bytes((tmp_path / "a.parquet").read_bytes())
    for path in ([tmp_path / "a.parquet", tmp_path / "b.data"], f"{tmp_path}/*"):
        with pytest.raises(ConfigError, match=r"'b\.data': no format has this suffix.*fmt="):
            Dataset.from_path("d", path)
        assert Dataset.from_path("d", path, fmt="parquet").rows == 4


def test_fmt_reads_named_files_of_any_suffix(tmp_path):
    jsonl_file(tmp_path / "a.json", {"n": 1})
    with pytest.raises(ConfigError, match=r"'a\.json': no format has this suffix"):
        Dataset.from_path("d", tmp_path / "a.json")
    for path in (tmp_path / "a.json", str(tmp_path / "*.json")):
        assert list(Dataset.from_path("d", path, fmt="jsonl", index_dir=tmp_path / "index")) == [{"n": 1}]
    with pytest.raises(ConfigError, match="fmt='csv'"):
        Dataset.from_path("d", tmp_path / "a.json", fmt="csv")


def test_index_dir_says_where_indexes_and_copies_lie(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data = tmp_path / "data"
    jsonl_file(data / "a.jsonl", {"n": 1})
    (data / "b.jsonl.gz").write_bytes(gzip.compress(b'{"n": 2}'))
    for index_dir, folder in ((None, tmp_path / "home/.cache/zephon_nodes/index"), (tmp_path / "x", tmp_path / "x")):
        assert list(Dataset.from_path("d", data, index_dir=index_dir)) == [{"n": 1}, {"n": 2}]
        assert sorted(path.suffix or path.name for path in folder.iterdir()) == [".lines", ".lines", "copies"]
    assert len(list(data.iterdir())) == 2
    for _ in range(2):
        assert list(Dataset.from_path("d", data, index_dir="beside")) == [{"n": 1}, {"n": 2}]
    assert sorted(path.name for path in data.glob("[!.]*")) == ["a.jsonl", "b.jsonl.gz"]
    assert len(list(data.iterdir())) == 5
    with pytest.raises(ConfigError, match="index_dir='beside' needs local files"):
        Dataset.from_path("d", remote(), index_dir="beside")


def remote():
    import fsspec

    fsspec.filesystem("memory").pipe_file("memory://test_dataset/a.jsonl", b'{"n": 1}')
    return "memory://test_dataset"


def test_remote_folders(tmp_path):
    dataset = Dataset.from_path("d", remote(), index_dir=tmp_path)
    assert dataset.files == ("a.jsonl",)
    assert list(dataset) == [{"n": 1}]
    assert dataset.path_of(0) == "memory://test_dataset/a.jsonl"


def test_settings_of_a_format_that_decide_about_rows_are_in_the_recipe(tmp_path):
    """Another width of token, or another meaning of members, gives other rows of as many files, rows and bytes."""
    np.arange(4096, dtype="<u2").tofile(tmp_path / "a.bin")

    def made(form):
        return Dataset.from_path("d", tmp_path / "a.bin", fmt=form).fingerprint()

    unsigned, signed = made(TokensFormat(64, "uint16")), made(TokensFormat(64, "int16"))
    assert unsigned["digest"] == signed["digest"] and unsigned["rows"] == signed["rows"]
    assert unsigned != signed and unsigned == made(TokensFormat(64, "uint16"))
    assert made(TokensFormat(64, "uint16"))["settings"] == {"length": 64, "dtype": "<u2"}
    assert ArrowFormat(memory_map=True).settings() == ArrowFormat(memory_map=False).settings() == {}
    state = Pipeline(
        StaticMixtureWorkSource([Dataset.from_path("d", tmp_path / "a.bin", fmt=TokensFormat(64, "uint16"))])
    )
    other = Pipeline(
        StaticMixtureWorkSource([Dataset.from_path("d", tmp_path / "a.bin", fmt=TokensFormat(64, "int16"))])
    )
    with pytest.raises(StateError, match="dtype"):
        other.load_state_dict(state.state_dict())


def test_plain_attributes_of_a_format_of_ones_own_are_in_the_recipe(tmp_path):
    class Cut(JsonlFormat):
        name = "cut"

        def __init__(self, most):
            self.most = most

    (tmp_path / "a.jsonl").write_text('{"v": 1}\n')
    said = [Dataset.from_path("d", tmp_path / "a.jsonl", fmt=Cut(most)).fingerprint() for most in (3, 4)]
    assert [one["settings"] for one in said] == [{"most": 3}, {"most": 4}]
