"""What ``StoredFile`` does with a cache, and files that are computed from others."""

import dataclasses
import gzip
import os
import pickle
import subprocess
import sys
import textwrap
from functools import partial

import pytest
from store_faults import FakeClock, serving

from zephon_nodes import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import find_files
from zephon_nodes.retries import Retries
from zephon_nodes.shard_cache import ShardCache
from zephon_nodes.storage import StoredFile
from zephon_nodes.store_counters import store_report

CONTENT = bytes(range(256)) * 10
LINES = [f'{{"n": {n}}}\n'.encode() for n in range(500)]
QUICK = {"retries": Retries(5, clock=FakeClock())}


def doubled(file, times=2):
    for block in file.blocks(100):
        for _ in range(times):
            yield block


@pytest.fixture
def file(tmp_path):
    with serving({"a.bin": CONTENT}) as store:
        (found,) = find_files(f"{store.url}/a.bin", (".bin",), QUICK)
        cached = dataclasses.replace(found, cache=ShardCache(str(tmp_path / "cache"), 100_000))
        store.log.clear()
        yield cached, store


def test_a_held_file_is_local_and_others_are_themselves(file, tmp_path):
    cached, _ = file
    with cached.held(fetch=False) as near:
        assert not near.is_local
        assert near.read_range(0, 4) == CONTENT[:4]
    assert not list((tmp_path / "cache").glob("*"))
    with cached.held() as near:
        assert near.is_local
        assert (str(near), near.size) == (str(cached), len(CONTENT))
        with open(near.path, "rb") as stream:
            assert stream.read() == CONTENT
    with cached.held(fetch=False) as near:
        assert near.is_local
    plain = dataclasses.replace(cached, cache=None)
    with plain.held() as near:
        assert near is plain


def test_a_file_without_version_or_size_is_read_where_it_is(file, tmp_path):
    cached, _ = file
    for unknown in (dataclasses.replace(cached, version=""), dataclasses.replace(cached, size=None)):
        assert not unknown.is_cached
        assert b"".join(unknown.blocks(1000)) == CONTENT
    assert not list((tmp_path / "cache").glob("*.shard"))


def test_every_way_of_reading_gives_the_copy(file):
    cached, store = file
    assert cached.read_ranges([(3, 9), (100, 200)]) == [CONTENT[3:9], CONTENT[100:200]]
    assert b"".join(cached.blocks(77)) == CONTENT
    with cached.open() as stream:
        stream.seek(-5, os.SEEK_END)
        assert stream.read() == CONTENT[-5:]
    assert len(store.gets()) == 1
    with pytest.raises(ReadError, match="has changed"):
        cached.read_range(0, len(CONTENT) + 1)
    again = pickle.loads(pickle.dumps(cached))
    assert again == cached
    assert again.read_range(0, 3) == CONTENT[:3]


def test_a_computed_file_is_made_once_and_again_when_it_is_evicted(file):
    cached, store = file
    made = cached.computed(".twice", partial(doubled, times=2))
    want = b"".join(doubled(cached))
    assert made.size == len(want)
    assert b"".join(made.blocks(999)) == want
    assert made.read_ranges([(0, 150)]) == [want[:150]]
    requests = len(store.gets())
    assert cached.computed(".twice", doubled).read_range(5, 9) == want[5:9]
    assert cached.computed(".thrice", partial(doubled, times=3)).size == 3 * len(CONTENT)
    for copy in os.scandir(made.cache.folder):
        os.unlink(copy.path)
    assert pickle.loads(pickle.dumps(made)).read_range(5, 9) == want[5:9]
    assert len(store.gets()) > requests


def test_a_computed_file_that_does_not_fit_says_the_size(file):
    cached, _ = file
    small = dataclasses.replace(cached, cache=ShardCache(cached.cache.folder, 2 * len(CONTENT) - 1))
    with pytest.raises(ConfigError, match=r"a\.bin needs .* bytes.*set max_bytes to at least"):
        small.computed(".twice", doubled)


def test_copies_of_compressed_files_are_bounded(tmp_path, monkeypatch):
    """Also those of local files, without any cache given."""
    monkeypatch.setattr("zephon_nodes.storage.COPIES_BYTES", 10_000)
    data = tmp_path / "data"
    data.mkdir()
    for n in range(5):
        (data / f"{n}.jsonl.gz").write_bytes(gzip.compress(b"".join(LINES)))
    dataset = Dataset.from_path("d", data, index_dir=tmp_path / "index")
    for _ in range(2):
        assert [row["n"] for row in dataset] == list(range(500)) * 5
    copies = list((tmp_path / "index" / "copies").glob("*.shard"))
    assert 0 < len(copies) < 5
    assert sum(copy.stat().st_size for copy in copies) <= 10_000


def test_compressed_remote_files_are_fetched_once(tmp_path):
    with serving({"a.jsonl.gz": gzip.compress(b"".join(LINES))}) as store:
        for _ in range(2):
            cache = ShardCache(str(tmp_path / "cache"), 100_000)
            dataset = Dataset.from_path("d", f"{store.url}/a.jsonl.gz", cache=cache, index_dir=tmp_path / "index")
            assert [row["n"] for row in dataset] == list(range(500))
        assert len(store.gets()) == 1


def test_waiting_for_another_process_is_counted(file):
    cached, _ = file
    before = store_report()
    cached.read_range(0, 5)
    after = store_report()
    assert after.waiting > before.waiting
    cached.read_range(0, 5)
    assert store_report()[1:4] == after[1:4], "a hit asks for nothing"


def test_importing_the_package_loads_no_store(tmp_path):
    code = """
        import sys
        import zephon_nodes
        print([name for name in ("s3fs", "gcsfs", "adlfs", "aiohttp", "botocore", "filelock") if name in sys.modules and name != "filelock"])
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_local_files_know_no_cache(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES))
    dataset = Dataset.from_path("d", tmp_path / "a.jsonl", cache=ShardCache(str(tmp_path / "cache"), 10))
    assert len(dataset) == 500
    assert not (tmp_path / "cache").exists()
    assert not StoredFile("/x", "x", 1, "v", cache=ShardCache("/c", 1)).is_cached


def test_a_cache_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES))
    with pytest.raises(ConfigError, match="cache must be a ShardCache"):
        Dataset.from_path("d", tmp_path / "a.jsonl", cache="/tmp/x")
