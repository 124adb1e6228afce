"""Read: rows of real files through a pipeline, in the source's order, each unit decoded once."""

import functools
import gzip
import itertools
import json
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import expected, run, take

from zephon_nodes import ConfigError, Dataset, Pipeline, Read, ReadError, RowError, StaticMixtureWorkSource
from zephon_nodes.concurrency import threads
from zephon_nodes.formats.parquet import ParquetShard
from zephon_nodes.ops import read

ROWS = 5000


@functools.cache
def big_file(folder, kind):
    """5,000 rows as Parquet with row groups of 1,000, 333 or 1, or as JSONL."""
    if kind == "jsonl":
        path = folder / "a.jsonl"
        path.write_text("".join(json.dumps({"v": i}) + "\n" for i in range(ROWS)))
    else:
        path = folder / f"{kind}.parquet"
        pq.write_table(pa.table({"v": list(range(ROWS))}), path, row_group_size=int(kind))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("read")


def mixture(path, **settings):
    settings = {"shuffle": "none", **settings}
    return StaticMixtureWorkSource([Dataset.from_path("d", path, index_dir="beside")], None, **settings)


@pytest.mark.parametrize("kind", ["1000", "333", "1", "jsonl"])
def test_a_stop_at_any_row_of_a_mapped_file_resumes_with_the_next(folder, kind):
    """Report R1: other loaders jump to the end of the row group."""
    dataset = Dataset.from_path("d", big_file(folder, kind), index_dir="beside")

    def make():
        work = StaticMixtureWorkSource([dataset], None, shuffle="none", chunk_size=64)
        return Pipeline(work, runner="inline").map(lambda p: p["v"])

    cuts = list(range(1, 1500, 37))
    loader, states = make(), {}
    for k, value in enumerate(itertools.islice(loader, cuts[-1]), 1):
        assert value == k - 1
        if k in cuts:
            states[k] = json.dumps(loader.state_dict())
    for k in cuts:
        fresh = make()
        fresh.load_state_dict(json.loads(states[k]))
        assert list(itertools.islice(fresh, 5)) == [k, k + 1, k + 2, k + 3, k + 4]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Three datasets of odd files: Parquet of several row groups, JSONL, gzipped JSONL."""
    root = tmp_path_factory.mktemp("mixed")
    for name in "abc":
        (root / name).mkdir()
    for i, rows in enumerate((7, 1, 23)):
        table = pa.table({"v": [f"a{i}-{j}" for j in range(rows)]})
        pq.write_table(table, root / "a" / f"{i}.parquet", row_group_size=5)
    (root / "b" / "0.jsonl").write_text("".join(f'{{"v": "b0-{j}"}}\n' for j in range(19)))
    (root / "c" / "0.jsonl.gz").write_bytes(gzip.compress(b"".join(b'{"v": "c0-%d"}\n' % j for j in range(11))))
    return [Dataset.from_path(name, root / name, index_dir=root / "index") for name in "abc"]


@given(
    shuffle=st.sampled_from(["windows", "global", "none"]),
    lanes=st.sampled_from([1, 2, 3]),
    chunk=st.sampled_from([1, 7, 50]),
    epoch=st.integers(0, 2),
    threads=st.booleans(),
)
def test_each_lane_gets_the_rows_that_its_chunks_point_to(mixed, shuffle, lanes, chunk, epoch, threads):
    work = StaticMixtureWorkSource(mixed, None, lanes, chunk, 2, shuffle=shuffle, stop="redistribute")
    pipeline = Pipeline(work, runner="thread" if threads else "inline")
    for _ in range(epoch):
        take(pipeline, 1)
    got = run(pipeline)[0]
    assert got == expected(work, epoch=epoch)
    assert len(got) == len({p["v"] for p in got}) == 31 + 19 + 11


def test_origins_name_file_and_row_of_each_payload(mixed):
    work = StaticMixtureWorkSource(mixed, None, 2, 8, stop="redistribute")
    seen = 0
    for batch in Pipeline(work).batch(3):
        for payload, (origin,) in zip(batch, batch.origins, strict=True):
            name, number = origin.dataset, origin.file.split(".")[0]
            assert payload["v"] == f"{name}{number}-{origin.row}"
            seen += 1
    assert seen == 61


@pytest.mark.parametrize("runner", ["inline", "thread"])
def test_a_row_group_is_decoded_once_for_all_its_rows(folder, monkeypatch, runner):
    reads = []
    read_unit = ParquetShard.read
    monkeypatch.setattr(ParquetShard, "read", lambda self, unit: reads.append(unit) or read_unit(self, unit))
    work = mixture(big_file(folder, "333"), num_lanes=2, chunk_size=50, shuffle="windows")
    rows = run(Pipeline(work, runner=runner))[0]
    assert sorted(p["v"] for p in rows) == list(range(ROWS))
    assert set(reads) == set(range(16)) and len(reads) <= 16 + 2  # one may be cut by each inner edge of pieces


@pytest.mark.parametrize(("seconds", "at_least", "at_most"), [(-1.0, 1, 10**6), (3600.0, 0, 2)])
def test_threads_that_read_give_memory_back_now_and_then_and_nobody_else_does(
    folder, monkeypatch, seconds, at_least, at_most
):
    names = []
    tidied = threading.Event()
    monkeypatch.setattr(read, "give_back", lambda: (names.append(threading.current_thread().name), tidied.set()))
    monkeypatch.setattr(threads, "_TIDY_SECONDS", seconds)
    work = mixture(big_file(folder, "333"), chunk_size=50, passes=None)
    with Pipeline(work, parallelism=2).map(lambda p: p["v"]) as pipeline:
        take(pipeline, 1000)
        assert seconds > 0 or tidied.wait(60)
    assert set(names) <= {"zephon fetch ahead"} and at_least <= len(names) <= at_most


def test_a_resume_does_not_read_what_had_been_delivered(folder, monkeypatch):
    def make():
        return Pipeline(mixture(big_file(folder, "333"), chunk_size=64), runner="inline").map(lambda p: p["v"])

    state = take(make(), 1700)[1]
    reads = []
    read_unit = ParquetShard.read
    monkeypatch.setattr(ParquetShard, "read", lambda self, unit: reads.append(unit) or read_unit(self, unit))
    fresh = make()
    fresh.load_state_dict(state)
    assert next(iter(fresh)) == 1700 and reads == [1700 // 333]


def test_file_order_is_the_same_in_every_epoch_and_for_every_batch_size(mixed):
    """Report D3."""
    pipeline = Pipeline(StaticMixtureWorkSource(mixed[:1], None, shuffle="none"))
    files = list(mixed[0])
    for _ in range(4):
        assert run(pipeline)[0] == files
    for size in (4, 7):
        for _ in range(2):
            assert [p for batch in run(pipeline.batch(size))[0] for p in batch] == files


def broken(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"v": 0}\n{"v": 1}\n{"v": \n{"v": 3}\n[4]\n{"v": 5}\n')
    return path


@pytest.mark.parametrize("shuffle", ["none", "global", "windows"])
def test_a_broken_line_is_an_error_that_names_node_dataset_file_row_and_cause(tmp_path, shuffle):
    path = broken(tmp_path)
    error = run(Pipeline(mixture(path, shuffle=shuffle)))[1]
    assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError) and error.node == "read"
    row = error.origins[0].row
    assert row in (2, 4)
    for word in ("read failed", f"row {row} of {path}", "'d'", "not JSON" if row == 2 else "object was expected"):
        assert word in str(error)


def test_broken_lines_are_skipped_and_counted_by_policy(tmp_path):
    pipeline = Pipeline(mixture(broken(tmp_path)), on_error="skip")
    assert run(pipeline)[0] == [{"v": i} for i in (0, 1, 3, 5)]
    assert pipeline.drops.failed == 2 and dict(pipeline.drops.counts) == {("read", "ValueError"): 2}
    for row, place in zip(pipeline.drops.rows, (2, 4), strict=True):
        assert f"row {place} of {tmp_path / 'bad.jsonl'}" in row.where


@pytest.mark.parametrize("change", ["deleted", "cut"])
@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_file_that_is_gone_or_changed_is_never_skipped(tmp_path, change, policy):
    """A fault of the store is not deterministic, so skipping it would make two runs differ."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": list(range(100))}), path, row_group_size=10)
    pipeline = Pipeline(mixture(path), on_error=policy)
    iter(pipeline)
    path.unlink() if change == "deleted" else path.write_bytes(path.read_bytes()[:200])
    error = run(pipeline)[1]
    assert isinstance(error, ReadError) and str(path) in str(error)


def test_separators_nulls_types_and_empty_files_come_through_as_they_are(tmp_path):
    """Reports F4 to F7."""
    strange = {"v": "a\u2028b\u2029c\x85d\x0be\x0cf", "w": None}
    lines = [json.dumps(strange, ensure_ascii=False), "", '{"w": 1.5, "v": null}', '{"v": "x"}']
    (tmp_path / "a.jsonl").write_bytes("\r\n".join(lines).encode())
    (tmp_path / "b.jsonl").write_bytes(b"")
    (tmp_path / "c.jsonl").write_text("".join('{"v": null}\n' for _ in range(2000)) + '{"v": "text"}\n{"v": 3}')
    rows = run(Pipeline(mixture(tmp_path)))[0]
    assert rows[:3] == [strange, {"w": 1.5, "v": None}, {"v": "x"}]
    assert rows[3:] == [{"v": None}] * 2000 + [{"v": "text"}, {"v": 3}]


def test_a_column_of_other_types_in_other_files_keeps_its_values(tmp_path):
    """Report F6: null, string, absent, large_string."""
    tables = {"a": pa.nulls(2), "b": pa.array(["x", None]), "d": pa.array(["y"], pa.large_string())}
    for name, column in tables.items():
        pq.write_table(pa.table({"v": column, "n": list(range(len(column)))}), tmp_path / f"{name}.parquet")
    pq.write_table(pa.table({"n": [9]}), tmp_path / "c.parquet")
    work = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path, columns=["v"])], None, shuffle="none")
    assert [p["v"] for p in run(Pipeline(work))[0]] == [None, None, "x", None, None, "y"]


@pytest.mark.parametrize("wrong", [None, [1, 2], "data/wiki", Dataset.from_rows("d", [1])])
def test_what_is_no_work_source_is_refused_with_the_way_to_make_one(wrong):
    for make in (Read, Pipeline):
        with pytest.raises(ConfigError, match=rf"needs a WorkSource.* got {type(wrong).__name__}"):
            make(wrong)
