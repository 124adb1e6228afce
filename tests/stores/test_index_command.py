import io
import json
import os
import pickle
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from hypothesis import given
from hypothesis import strategies as st
from store_faults import FakeClock, serving

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.__main__ import main
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.index_command import write_index
from zephon_nodes.retries import Retries
from zephon_nodes.shard_index import FOLDER, Facts, ShardIndex, beside_place
from zephon_nodes.store_counters import store_report


def lines(first, count=30):
    return "".join(f'{{"n": {first + n}, "text": "row {first + n}"}}\n' for n in range(count)).encode()


def parquet(first, count=30):
    sink = io.BytesIO()
    rows = {"n": list(range(first, first + count)), "text": [f"row {n}" * 9 for n in range(first, first + count)]}
    pq.write_table(pa.table(rows), sink, row_group_size=8)
    return sink.getvalue()


CONTENTS = {"jsonl": lines, "parquet": parquet}


@pytest.fixture(params=["jsonl", "parquet"])
def kind(request):
    return request.param


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path, kind, monkeypatch):
    """A folder of five files, here or in a remote store; indexes by default go below tmp_path."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if request.param == "local":
        root = tmp_path / "data"
        root.mkdir()
        for n in range(5):
            (root / f"{n}.{kind}").write_bytes(CONTENTS[kind](n * 1000))
        return str(root)
    url = f"memory://{uuid.uuid4().hex}"
    for n in range(5):
        fsspec.filesystem("memory").pipe_file(f"{url}/{n}.{kind}", CONTENTS[kind](n * 1000))
    return url


NUMBERS = [n * 1000 + row for n in range(5) for row in range(30)]


class Counting:
    """Counts how often a format opens a shard."""

    def __init__(self, monkeypatch):
        self.opened = []
        for name in ("ParquetFormat", "JsonlFormat"):
            kind = getattr(__import__(f"zephon_nodes.formats.{name[:-6].lower()}", fromlist=[name]), name)
            monkeypatch.setattr(kind, "open", self._counted(kind.open))

    def _counted(self, open_):
        def counted(fmt, file, columns):
            self.opened.append(file.name)
            return open_(fmt, file, columns)

        return counted


@pytest.fixture
def opens(monkeypatch):
    return Counting(monkeypatch)


@pytest.mark.parametrize("beside", [True, False])
def test_a_start_with_an_index_opens_nothing_and_reads_the_same(folder, tmp_path, opens, beside, kind):
    out = None if beside else str(tmp_path / "out")
    plain = Dataset.from_path("d", folder, index_dir=tmp_path / "none")
    want, facts = list(plain), plain.fingerprint()
    del opens.opened[:]
    report = write_index(folder, out)
    assert (report.shards, report.rows, report.opened) == (5, 150, 5)
    assert sorted(opens.opened) == [f"{n}.{kind}" for n in range(5)]
    del opens.opened[:]
    dataset = Dataset.from_path("d", folder, index_dir=out)
    assert (len(dataset), dataset.fingerprint()) == (150, facts)
    for name in ("unit_rows", "unit_bytes", "shard_rows", "unit_starts"):
        assert np.array_equal(getattr(dataset, name), getattr(plain, name))
    assert opens.opened == []
    assert dataset[35] == want[35]
    assert opens.opened == [f"1.{kind}"]
    assert list(dataset) == want
    runs = [
        list(Pipeline(StaticMixtureWorkSource([each], num_lanes=2, chunk_size=16, seed=4))) for each in (plain, dataset)
    ]
    assert runs[0] == runs[1]


def test_offsets_beside_the_data_spare_reading_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{url}/a.jsonl", lines(0, 3000))
    write_index(url)
    assert sorted(os.listdir(tmp_path / "home/.cache/zephon_nodes/index")) == []
    before = store_report()
    assert Dataset.from_path("d", url).shard(0).take([7]) == [{"n": 7, "text": "row 7"}]
    assert store_report().nbytes - before.nbytes < 100


def test_a_second_call_opens_only_what_is_new(folder, opens, kind):
    write_index(folder)
    del opens.opened[:]
    assert write_index(folder).opened == 0
    fs, path = fsspec.core.url_to_fs(folder)
    fs.pipe_file(f"{path}/2.{kind}", CONTENTS[kind](2000, 40))
    fs.pipe_file(f"{path}/9.{kind}", CONTENTS[kind](9000))
    assert write_index(folder)[1:] == (6, 190, 2)
    assert sorted(opens.opened) == [f"2.{kind}", f"9.{kind}"]


def test_a_stale_index_is_noticed_and_the_rows_are_right(folder, opens, kind, caplog):
    write_index(folder)
    fs, path = fsspec.core.url_to_fs(folder)
    fs.pipe_file(f"{path}/2.{kind}", CONTENTS[kind](2000, 40))
    fs.rm(f"{path}/0.{kind}")
    del opens.opened[:]
    dataset = Dataset.from_path("d", folder)
    assert len(dataset) == 130
    assert opens.opened == [f"2.{kind}"]
    assert f"is stale: 1 of 4 files are new or have changed, such as {folder}/2.{kind}" in caplog.text
    assert [row["n"] for row in dataset][30:70] == list(range(2000, 2040))


def test_an_index_that_lies_is_noticed(folder, kind):
    write_index(folder)
    dataset = Dataset.from_path("d", folder).indexed()
    key = next(key for key in dataset._index.facts if key[0] == f"3.{kind}")
    facts = dataset._index.facts[key]
    dataset._index.facts[key] = facts._replace(unit_rows=facts.unit_rows + 1)
    with pytest.raises(
        ReadError,
        match=rf"3\.{kind}: it has 30 rows in .* the index .*zephon_index.* says .*stale; run python -m zephon_nodes index again",
    ):
        list(dataset)


@pytest.mark.parametrize("content", [b"", b"no parquet", parquet(0)])
def test_a_broken_index_is_passed_over(tmp_path, content, caplog, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a.jsonl").write_bytes(lines(0))
    report = write_index(str(tmp_path))
    with open(report.place, "wb") as out:
        out.write(content)
    assert len(Dataset.from_path("d", tmp_path)) == 30
    assert "can't be used" in caplog.text


def test_an_index_is_for_its_columns(folder, opens, caplog, kind):
    write_index(folder, columns=["n"])
    del opens.opened[:]
    few = Dataset.from_path("d", folder, columns=["n"])
    assert len(few) == 150
    assert opens.opened == []
    assert few[31] == {"n": 1001}
    del opens.opened[:]
    assert len(Dataset.from_path("d", folder)) == 150
    assert len(opens.opened) == 5


def test_a_missing_column_is_found_in_the_index(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a.parquet").write_bytes(parquet(0))
    write_index(str(tmp_path), columns=["nothing"])
    with pytest.raises(ConfigError, match="no file has column 'nothing'; the columns are: n, text"):
        len(Dataset.from_path("d", tmp_path, columns=["nothing"]))


def test_it_goes_on_where_it_was_stopped(tmp_path, monkeypatch, opens):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    for n in range(5):
        (data / f"{n}.jsonl").write_bytes(lines(n * 1000))
    broken = [True]

    def opener(dataset):
        def facts(file):
            if broken[0] and file.name == "3.jsonl":
                raise ReadError("the disk went away")
            return Facts.of(dataset.format.open(file, dataset.columns))

        return facts

    monkeypatch.setattr("zephon_nodes.index_command._opener", opener)
    with pytest.raises(ReadError, match="the disk went away"):
        write_index(str(data), str(out), threads=1)
    (partial,) = out.glob("*.partial")
    assert len(partial.read_text().splitlines()) == 3
    with open(partial, "a") as log:
        log.write('["4.jsonl", 12')  # the process died while it wrote
    broken[0] = False
    del opens.opened[:]
    assert write_index(str(data), str(out))[1:] == (5, 150, 2)
    assert sorted(opens.opened) == ["3.jsonl", "4.jsonl"]
    assert not list(out.glob("*.partial"))
    assert [row["n"] for row in Dataset.from_path("d", data, index_dir=out)] == NUMBERS


FACTS = st.tuples(
    st.lists(st.integers(0, 2**40), max_size=4),
    st.none() | st.lists(st.text(max_size=3), max_size=3),
    st.lists(st.text(max_size=3), max_size=2),
    st.booleans(),
)


@given(
    st.dictionaries(
        st.tuples(st.text(max_size=4), st.none() | st.integers(0, 2**60), st.text(max_size=4)), FACTS, max_size=6
    )
)
def test_an_index_passes_through_its_file(made):
    facts = {
        key: Facts(
            np.array(rows, np.int64),
            np.array(rows, np.int64) * 3,
            None if columns is None else tuple(columns),
            tuple(missing),
            whole,
        )
        for key, (rows, columns, missing, whole) in made.items()
    }
    again = ShardIndex.from_bytes(ShardIndex(facts).to_bytes()).facts
    assert again.keys() == facts.keys()
    for key, want in facts.items():
        got = again[key]
        assert np.array_equal(got.unit_rows, want.unit_rows) and got.unit_rows.dtype == np.int64
        assert np.array_equal(got.unit_bytes, want.unit_bytes)
        assert got[2:] == want[2:]


def test_thousands_of_shards_start_without_opening_any(tmp_path, opens, monkeypatch):
    """The index is made up; only its files have to be there."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data = tmp_path / "data"
    data.mkdir()
    for n in range(2000):
        (data / f"{n:05}.parquet").touch()
    dataset = Dataset.from_path("d", data)
    rows = np.full(20, 50, np.int64)
    facts = {(f.name, f.size, f.version): Facts(rows, rows * 99, ("a",), (), True) for f in dataset.stored_files}
    place = beside_place(str(data), "parquet", None)
    os.makedirs(os.path.dirname(place))
    with open(place, "wb") as out:
        out.write(ShardIndex(facts).to_bytes())
    assert len(dataset) == 2000 * 20 * 50
    assert opens.opened == []


# ranks


def _rank(rank, world, url, folder, out):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=world)
    dataset = Dataset.from_rank_0(
        lambda: Dataset.from_path("d", [f"{url}/{n}.jsonl" for n in range(5)], index_dir=folder / f"{rank}")
    )
    rows = len(dataset)
    dist.barrier()
    out.put((rank, rows, [row["n"] for row in dataset.shard(rank).read(0).take(range(30))]))
    dist.barrier()
    dist.destroy_process_group()


def test_ranks_list_and_open_once(tmp_path):
    with serving({f"{n}.jsonl": lines(n * 1000) for n in range(5)}) as store:
        out = mp.get_context("fork").Queue()
        ranks = [
            mp.get_context("fork").Process(target=_rank, args=(rank, 3, store.url, tmp_path, out)) for rank in range(3)
        ]
        for rank in ranks:
            rank.start()
        found = sorted(out.get(timeout=60) for _ in ranks)
        for rank in ranks:
            rank.join(30)
        assert found == [(rank, 150, [rank * 1000 + n for n in range(30)]) for rank in range(3)]
        heads = [path for method, path, _ in store.log if method == "HEAD"]
        # Facts of each file: by the listing and after it was read, and of those of ranks 1 and 2 once more.
        assert len(heads) <= 5 + 5 + 2 * 2 + 2


def test_an_indexed_dataset_takes_its_counts_along(folder, opens):
    dataset = Dataset.from_path("d", folder).indexed()
    data = pickle.dumps(dataset)
    del opens.opened[:]
    again = pickle.loads(data)
    assert (len(again), opens.opened) == (150, [])
    assert [row["n"] for row in again] == NUMBERS


# the command


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "a.parquet").write_bytes(parquet(0))
    assert main(["index", str(tmp_path), "--columns", "n,text", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("30 rows in 1 shards (1 opened now): ")
    assert FOLDER in out
    assert not err, "no bar where there is no terminal"
    assert main(["index", str(tmp_path), "--out", "s3://bucket/x"]) == 2
    assert "must be a local folder" in capsys.readouterr().err
    assert main(["index", str(tmp_path / "nowhere")]) == 2


def test_the_command_takes_options_from_a_file(tmp_path, capsys):
    with serving({"a.jsonl": lines(0)}, needs="token") as store:
        options = tmp_path / "options.json"
        options.write_text(json.dumps({"headers": {"Authorization": "token"}}))
        command = ["index", f"{store.url}/a.jsonl", "--out", str(tmp_path / "out"), "--storage-options", str(options)]
        assert main(command) == 0
        assert "30 rows in 1 shards" in capsys.readouterr().out
        assert main([*command[:2], "--storage-options", str(options)]) == 2
        assert "nothing can be written beside" in capsys.readouterr().err
        options.write_text("[]")
        assert main(command) == 2
        assert "must hold a JSON object" in capsys.readouterr().err


def test_a_store_without_versions_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("zephon_nodes.listing.version_of", lambda facts: "")
    url = f"memory://{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe_file(f"{url}/a.jsonl", lines(0))
    with pytest.raises(ConfigError, match="tells no version of it"):
        write_index(url, str(tmp_path))


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(0))
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises((ReadError, OSError), match="out"):
        write_index(str(tmp_path / "a.jsonl"), str(tmp_path / "out"))


def test_an_outage_while_indexing_is_outlasted(tmp_path):
    files = {f"{n}.jsonl": lines(n * 1000) for n in range(5)}
    with serving(files, faults=[None] * 7 + [503, "reset"] * 6) as store:
        options = {"retries": Retries(clock=FakeClock())}
        urls = [f"{store.url}/{name}" for name in files]
        assert write_index(urls, str(tmp_path), storage_options=options)[1:] == (5, 150, 5)
