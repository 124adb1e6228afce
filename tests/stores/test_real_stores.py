"""Every kind of store, by a server of its own kind."""

import io
import multiprocessing
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from real_stores import azurite, fake_gcs, moto, moto_server, new_folder, put, s3_options, weed
from store_faults import FakeClock

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import find_files
from zephon_nodes.retries import Retries, SystemClock
from zephon_nodes.shard_cache import ShardCache
from zephon_nodes.store_counters import store_report

SHARDS, ROWS = 6, 120


def parquet(first):
    rows = [{"n": first + n, "text": f"row {first + n} " * 20} for n in range(ROWS)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=40)
    return sink.getvalue()


FILES = {f"part-{n}.parquet": parquet(n * 1000) for n in range(SHARDS)}
TOTAL = sum(map(len, FILES.values()))


@pytest.fixture(scope="module")
def module_patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", params=["s3 by moto", "s3 by weed", "azure", "gcs"])
def store(request, tmp_path_factory, module_patch):
    """(URL of a folder with ``FILES``, storage options)."""
    folder = tmp_path_factory.mktemp("store")
    makers = {
        "s3 by moto": ("s3", moto),
        "s3 by weed": ("s3", lambda: weed(folder)),
        "azure": ("az", lambda: azurite(folder)),
        "gcs": ("gs", lambda: fake_gcs(module_patch)),
    }
    protocol, make = makers[request.param]
    with make() as options:
        url = new_folder(protocol, options)
        put(url, FILES, options)
        yield url, options


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def rows_of(path, options=None, cache=None, columns=None):
    dataset = Dataset.from_path("d", path, storage_options=options, cache=cache, columns=columns)
    return [row for row in Pipeline(StaticMixtureWorkSource([dataset], num_lanes=2, seed=1, chunk_size=32))]


def test_listing_tells_names_sizes_and_versions(store):
    url, options = store
    files = find_files(url, (".parquet",), options)
    assert [file.name for file in files] == sorted(FILES)
    assert [file.size for file in files] == [len(FILES[name]) for name in sorted(FILES)]
    assert all(file.version for file in files)
    for file in files:
        file.check_unchanged()
    assert [file.name for file in find_files(f"{url}/*-[12].parquet", (".parquet",), options)] == [
        "part-1.parquet",
        "part-2.parquet",
    ]
    (single,) = find_files(f"{url}/part-3.parquet", (".parquet",), options)
    assert single.version in {file.version for file in files}


def test_ranges(store):
    url, options = store
    (file,) = find_files(f"{url}/part-0.parquet", (".parquet",), options)
    content = FILES["part-0.parquet"]
    ranges = [(0, 4), (len(content) - 8, len(content)), (10, 500)]
    assert file.read_ranges(ranges) == [content[start:stop] for start, stop in ranges]
    assert b"".join(file.blocks(1000)) == content


def test_a_run_gives_the_same_batches_as_from_local_disk(store, local, tmp_path, monkeypatch):
    url, options = store
    want = rows_of(local)
    assert rows_of(url, options) == want
    before = store_report()
    assert rows_of(url, options, ShardCache(str(tmp_path), 10 * TOTAL, TOTAL // 2)) == want
    assert rows_of(url, options, ShardCache(str(tmp_path), 10 * TOTAL, TOTAL // 2)) == want
    assert store_report().downloads - before.downloads == SHARDS
    assert rows_of(url, options, ShardCache(str(tmp_path / "small"), TOTAL // 2)) == want
    # Few columns of a file aren't worth copying it, where a request costs nothing.
    monkeypatch.setattr("zephon_nodes.formats.parquet._A_REQUEST", 0)
    assert rows_of(url, options, ShardCache(str(tmp_path / "n"), 10 * TOTAL), ["n"]) == [
        {"n": row["n"]} for row in want
    ]
    assert not list((tmp_path / "n").glob("*.shard"))


def test_what_is_not_there_is_said(store):
    url, options = store
    for missing in (f"{url}/nothing.parquet", f"{url}-no-such-folder", url.replace("://b", "://no-such-bucket-b")):
        with pytest.raises((ConfigError, ReadError), match=r"does not exist|can't list"):
            find_files(missing, (".parquet",), {**options, "retries": Retries(clock=FakeClock())})


def test_a_file_that_changes_is_noticed(store, tmp_path):
    url, options = store
    folder = f"{url}-changing"
    put(folder, {"a.parquet": FILES["part-0.parquet"]}, options)
    plain = Dataset.from_path("d", folder, storage_options=options)
    cached = Dataset.from_path("d", folder, storage_options=options, cache=ShardCache(str(tmp_path), 10 * TOTAL))
    assert plain[0]["n"] == 0
    assert len(cached) == ROWS
    other = parquet(7000)[: len(FILES["part-0.parquet"])]
    assert len(other) == len(FILES["part-0.parquet"])
    put(folder, {"a.parquet": other}, options)
    for dataset in (plain, cached):
        with pytest.raises(ReadError, match=r"a\.parquet.*changed"):
            dataset[50]


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.deep)])
def test_processes_share_a_cache_and_download_each_shard_once(store, local, tmp_path, method):
    """The parent has used the store, so that a forked child has instances and a loop that it can't use."""
    url, options = store
    find_files(url, (".parquet",), options)
    context = multiprocessing.get_context(method)
    out = context.Queue()
    folder = str(tmp_path / "cache")
    children = [context.Process(target=_counted_child, args=(url, options, folder, out)) for _ in range(2)]
    for child in children:
        child.start()
    found = [out.get(timeout=100) for _ in children]
    for child in children:
        child.join(30)
    want = rows_of(local)
    assert [rows for rows, _ in found] == [want, want]
    assert sum(downloads for _, downloads in found) == SHARDS


def _counted_child(url, options, folder, out):
    before = store_report()
    rows = rows_of(url, options, ShardCache(folder, TOTAL * 3 // 2))
    out.put((rows, store_report().downloads - before.downloads))


# S3 alone


def test_wrong_credentials_are_refused_at_once_and_not_shown(tmp_path):
    with weed(tmp_path) as options:
        url = new_folder("s3", options)
        put(url, {"a.parquet": FILES["part-0.parquet"]}, options)
        wrong = {**options, "key": "mykey", "secret": "not-my-secret-value", "retries": Retries(clock=FakeClock())}
        with pytest.raises(
            ReadError, match=r"can't list it.*2 attempts in 0 s.*check the credentials in storage_options"
        ) as caught:
            find_files(url, (".parquet",), wrong)
        assert "not-my-secret-value" not in "".join(traceback.format_exception(caught.value))
        secrets = ["not-my-secret-value", "mysecret"]

        def current():
            return {**options, "secret": secrets.pop(0) if len(secrets) > 1 else secrets[0]}

        (file,) = find_files(url, (".parquet",), current)
        assert file.read_range(0, 4) == b"PAR1"


class ComesBack:
    """A clock on which a server that is down comes back after ``seconds``. ``real``: it runs by itself, not while somebody
    sleeps."""

    def __init__(self, port, seconds, real):
        self.port, self.seconds, self.real, self.down, self.server = port, seconds, real, None, None
        self.clock = SystemClock() if real else FakeClock()

    def now(self):
        return self.clock.now()

    def sleep(self, seconds):
        self.clock.sleep(seconds)
        if self.down is not None and self.server is None and self.now() - self.down >= self.seconds:
            self.server, _ = moto_server(self.port)


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["clock", "minute"])
@pytest.mark.timeout(300)
def test_a_run_outlasts_an_outage_of_a_minute(tmp_path, local, real, monkeypatch):
    server, port = moto_server()
    if not real:  # botocore and s3fs try again by themselves, for seconds, before we hear of it
        monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    outage = ComesBack(port, 60, real)
    options = s3_options(port, "any", "thing")
    url = new_folder("s3", options)
    put(url, FILES, options)
    waits = Retries(give_up_after=300, first=0.5 if real else 20, longest=20, clock=outage)
    quick = {**options, "retries": waits, "config_kwargs": {"retries": {"max_attempts": 0}}}
    cache = ShardCache(str(tmp_path), 10 * TOTAL, 1)
    dataset = Dataset.from_path("d", url, storage_options=quick, cache=cache)
    rows, found = iter(Pipeline(StaticMixtureWorkSource([dataset], num_lanes=1, shuffle="none", chunk_size=8))), []
    found += [next(rows) for _ in range(3)]
    before = store_report()
    outage.down = outage.now()
    server.stop()
    found += list(rows)
    assert [row["n"] for row in found] == [n * 1000 + row for n in range(SHARDS) for row in range(ROWS)]
    assert outage.server is not None, "the outage was noticed, and outlasted"
    outage.server.stop()
    assert store_report().retried - before.retried > 3
