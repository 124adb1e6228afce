import dataclasses
import errno
import fcntl
import multiprocessing
import os
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_faults import FakeClock, serving

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import find_files
from zephon_nodes.retries import Retries
from zephon_nodes.shard_cache import Entry, ShardCache
from zephon_nodes.store_counters import store_report

QUICK = {"retries": Retries(5, clock=FakeClock())}


def entry(name, content, known=True, step=7):
    def fill(write):
        for at in range(0, len(content), step):
            write(content[at : at + step])

    return Entry(name, f"file {name}", len(content) if known else None, fill)


def unwanted(name, size):
    def fill(write):
        raise AssertionError("this copy was there already")

    return Entry(name, name, size, fill)


def read(cache, one):
    with cache.open(one) as stream:
        return stream.read()


def names(cache):
    return sorted(name for name in os.listdir(cache.folder) if name != ".lock")


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=30),
    st.lists(st.integers(0, 40), min_size=8, max_size=8),
    st.integers(40, 120),
)
def test_it_is_an_lru_cache_that_never_exceeds_its_limit(tmp_path_factory, reads, sizes, limit):
    """Against the simplest one: a list of names, the last used at its end."""
    cache = ShardCache(str(tmp_path_factory.mktemp("cache")), limit)
    model: list[int] = []
    stamp = 0
    for number, known in reads:
        content = bytes([number]) * sizes[number]
        key = f"{number}-{known}"
        here = key in [kept for kept, _ in model]
        if known:  # one of unknown size may evict more than it needs, so it isn't modelled exactly
            assert read(cache, unwanted(key, len(content)) if here else entry(key, content)) == content
            model = [each for each in model if each[0] != key]
            while sum(size for _, size in model) + len(content) > limit:
                model.pop(0)
            model.append((key, len(content)))
            stamp += 1
            os.utime(os.path.join(cache.folder, f"{key}.shard"), ns=(stamp, stamp))
            assert names(cache) == sorted(f"{key}.shard" for key, _ in model)
        assert cache.used() <= limit


@given(st.lists(st.integers(0, 30), min_size=1, max_size=10), st.integers(30, 90))
def test_copies_of_unknown_size_stay_within_the_limit_too(tmp_path_factory, sizes, limit):
    cache = ShardCache(str(tmp_path_factory.mktemp("cache")), limit)
    for number, size in enumerate(sizes):
        content = bytes([number]) * size
        assert read(cache, entry(f"{number}", content, known=False)) == content
        assert cache.used() <= limit
        assert not [name for name in names(cache) if name.endswith(".part")]


def test_a_limit_below_one_shard_says_the_size_needed(tmp_path):
    cache = ShardCache(str(tmp_path), 10)
    for known in (True, False):
        with pytest.raises(
            ConfigError, match=r"file a needs 14 bytes, and ShardCache\(.*\) may hold 10; set max_bytes to at least 14"
        ):
            cache.open(entry("a", b"x" * 14, known))
    assert names(cache) == []


def test_copies_are_kept_over_restarts(tmp_path):
    assert read(ShardCache(str(tmp_path), 100), entry("a", b"abc")) == b"abc"
    assert read(pickle.loads(pickle.dumps(ShardCache(str(tmp_path), 100))), unwanted("a", 3)) == b"abc"


def test_a_copy_in_use_is_never_evicted(tmp_path):
    clock = FakeClock()
    cache = ShardCache(str(tmp_path), 20, clock=clock)
    with cache.open(entry("a", b"a" * 10)) as held:
        assert read(cache, entry("b", b"b" * 10)) == b"b" * 10
        assert read(cache, entry("c", b"c" * 10)) == b"c" * 10, "b went, though a is older"
        assert names(cache) == ["a.shard", "c.shard"]
        assert not cache.fetch(entry("d", b"d" * 11), lambda: False), "what is fetched ahead waits for nobody"
        with pytest.raises(
            ReadError, match=r"20 bytes \(max_bytes\) are all in use, and file d needs 11 more; raise max_bytes"
        ):
            cache.open(entry("d", b"d" * 11))
        assert clock.time > 600
        assert held.read() == b"a" * 10
    assert read(cache, entry("d", b"d" * 11)) == b"d" * 11
    assert names(cache) == ["d.shard"]


def test_who_needs_room_waits_until_a_copy_is_let_go(tmp_path):
    held = []
    clock = FakeClock(lambda now: held and held.pop().close())
    cache = ShardCache(str(tmp_path), 15, clock=clock)
    held.append(cache.open(entry("a", b"a" * 10)))
    assert read(cache, entry("b", b"b" * 10)) == b"b" * 10
    assert len(clock.sleeps) == 1


@pytest.mark.parametrize("content", [b"", b"ab", b"abcd"])
def test_a_copy_of_another_size_is_made_again(tmp_path, content):
    cache = ShardCache(str(tmp_path), 100)
    assert read(cache, entry("a", b"abc")) == b"abc"
    (tmp_path / "a.shard").write_bytes(content)
    assert read(cache, entry("a", b"abc")) == b"abc"


def test_what_fails_leaves_nothing(tmp_path):
    cache = ShardCache(str(tmp_path), 100)

    def fill(write):
        write(b"ab")
        raise KeyError("stop")

    with pytest.raises(KeyError):
        cache.open(Entry("a", "a", 3, fill))
    with pytest.raises(ReadError, match="3 bytes were expected and 2 came"):
        cache.open(Entry("a", "a", 3, lambda write: write(b"ab")))
    assert names(cache) == []
    assert not cache.fetch(entry("a", b"abc"), lambda: True)
    assert names(cache) == []
    assert read(cache, entry("a", b"abc")) == b"abc"


def test_orphans_are_removed_and_parts_under_way_are_not(tmp_path):
    cache = ShardCache(str(tmp_path), 100)
    (tmp_path / "dead.part").write_bytes(b"x" * 90)
    with open(tmp_path / "alive.part", "wb") as alive:
        alive.write(b"y" * 10)
        alive.flush()
        fcntl.flock(alive, fcntl.LOCK_EX)
        assert read(cache, entry("a", b"a" * 50)) == b"a" * 50
        assert names(cache) == ["a.shard", "alive.part"]
        assert cache.used() == 60


def test_other_files_in_the_folder_are_left_alone(tmp_path):
    (tmp_path / "precious.txt").write_bytes(b"x" * 1000)
    assert read(ShardCache(str(tmp_path), 10), entry("a", b"abc")) == b"abc"
    assert names(ShardCache(str(tmp_path), 10)) == ["a.shard", "precious.txt"]


def test_a_full_disk_is_said(tmp_path):
    def fill(write):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(
        ReadError, match=r"can't write its copy into .*No space left on device.*name a folder with room"
    ):
        ShardCache(str(tmp_path), 10).open(Entry("a", "a", 3, fill))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ReadError, match="can't write its copy into"):
        ShardCache(str(tmp_path / "file" / "x"), 10).open(entry("a", b"abc"))


def test_threads_make_each_copy_once(tmp_path):
    cache = ShardCache(str(tmp_path), 10_000)
    made, barrier, wrong = [], threading.Barrier(8), []

    def fill_of(n):
        def fill(write):
            made.append(n)
            write(bytes([n]) * 100)

        return fill

    def work():
        barrier.wait()
        for n in range(20):
            if read(cache, Entry(f"{n}", "x", 100, fill_of(n))) != bytes([n]) * 100:
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(20))
    assert not wrong


@pytest.mark.parametrize(
    "wrong",
    [{"max_bytes": 0}, {"max_bytes": 1.5}, {"folder": ""}, {"folder": None}, {"ahead_bytes": -1}, {"max_bytes": True}],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"ShardCache: {next(iter(wrong))} must be"):
        ShardCache(**({"folder": "/tmp/x", "max_bytes": 10} | wrong))


def test_a_forked_child_holds_no_lock_for_its_parent(tmp_path):
    """The descriptor is the child's too, and with it the lock, unless that is let go by name."""
    cache = ShardCache(str(tmp_path), 10)
    ready, go = os.pipe(), os.pipe()
    with cache.open(entry("a", b"a" * 10)):
        pid = os.fork()
        if pid == 0:
            os.write(ready[1], b"x")
            os.read(go[0], 1)
            os._exit(0)
        os.read(ready[0], 1)
    try:
        assert read(cache, entry("b", b"b" * 10)) == b"b" * 10
    finally:
        os.write(go[1], b"x")
        os.waitpid(pid, 0)


# with datasets

FILES = {f"{n}.jsonl": "".join(f'{{"n": {n * 1000 + row}}}\n' for row in range(100)).encode() for n in range(6)}
TOTAL = sum(map(len, FILES.values()))
NUMBERS = [n * 1000 + row for n in range(6) for row in range(100)]


def dataset(store, folder, limit=10 * TOTAL, **options):
    paths = [f"{store.url}/{name}" for name in sorted(FILES)]
    cache = ShardCache(str(folder / "cache"), limit)
    return Dataset.from_path("d", paths, cache=cache, storage_options={**QUICK, **options}, index_dir=folder / "index")


def downloads(store):
    return sorted(path for path, _ in store.gets())


def test_each_shard_is_downloaded_once_and_never_again(tmp_path):
    with serving(dict(FILES)) as store:
        for _ in range(2):
            made = dataset(store, tmp_path)
            for _ in range(2):
                assert [row["n"] for row in made] == NUMBERS
        assert downloads(store) == sorted(FILES)
        before = store_report()
        assert [row["n"] for row in made] == NUMBERS
        assert store_report().hits - before.hits == len(FILES)


def test_a_small_cache_gives_the_same_rows_and_stays_small(tmp_path):
    with serving(dict(FILES)) as store:
        made = dataset(store, tmp_path, TOTAL // 3)
        assert [row["n"] for row in made] == NUMBERS
        assert made._files[0].cache.used() <= TOTAL // 3


def test_single_rows_are_copied_only_where_everything_fits(tmp_path):
    with serving(dict(FILES)) as store:
        small = dataset(store, tmp_path, TOTAL // 2)
        assert len(small) == len(NUMBERS)
        store.log.clear()
        cold = find_files(f"{store.url}/1.jsonl", (".jsonl",), QUICK)[0]
        rows = [small.shard(n).take([5])[0]["n"] for n in range(6)]
        assert rows == [n * 1000 + 5 for n in range(6)]
        assert all(size < len(FILES["0.jsonl"]) for size in _sizes(store))
        assert cold.size
        large = dataset(store, tmp_path)
        assert [large.shard(n).take([5])[0]["n"] for n in range(6)] == rows
        assert max(_sizes(store)) >= len(FILES["0.jsonl"])


def _sizes(store):
    spans = [asked.removeprefix("bytes=").split("-") for _, asked in store.gets() if asked]
    return [int(stop) + 1 - int(start) for start, stop in spans]


def test_a_changed_file_is_not_served_from_its_old_copy(tmp_path):
    with serving(dict(FILES)) as store:
        before = dataset(store, tmp_path)
        assert before[100] == {"n": 1000}
        early = dataset(store, tmp_path / "early")
        store.files["1.jsonl"] = FILES["1.jsonl"].replace(b"1000", b"1999")
        assert before[100] == {"n": 1000}, "what was copied stays what it was listed as"
        with pytest.raises(ReadError, match=r"1\.jsonl: the file has changed"):
            early[100]
        assert dataset(store, tmp_path)[100] == {"n": 1999}


def test_a_file_that_changes_while_it_is_copied_is_not_kept(tmp_path):
    with serving(dict(FILES)) as store:
        (found,) = find_files(f"{store.url}/0.jsonl", (".jsonl",), QUICK)
        cache = ShardCache(str(tmp_path), 10_000)
        file = dataclasses.replace(found, cache=cache)
        store.faults = [None, lambda store: store.files.update({"0.jsonl": FILES["1.jsonl"]})]
        with pytest.raises(ReadError, match="the file has changed"):
            file.open()
        assert names(cache) == []


def test_a_server_that_ignores_ranges_is_copied_with_one_request(tmp_path, monkeypatch):
    monkeypatch.setattr("zephon_nodes.storage._PIECE", 100)
    with serving(dict(FILES), ranges=False) as store:
        assert [row["n"] for row in dataset(store, tmp_path)] == NUMBERS
        assert downloads(store) == sorted(FILES)


def test_pieces_join_to_the_file_whatever_fails(tmp_path, monkeypatch):
    monkeypatch.setattr("zephon_nodes.storage._PIECE", 100)
    with serving(dict(FILES)) as store:
        made = dataset(store, tmp_path, retries=Retries(1000, clock=FakeClock()))
        store.faults = ["reset", None, 503, "cut", None, "short", None, 500] * 5
        assert [row["n"] for row in made] == NUMBERS


# processes


def _read_all(url, folder, limit, seed, out):
    paths = [f"{url}/{name}" for name in sorted(FILES)]
    cache = ShardCache(str(folder / "cache"), limit)
    made = Dataset.from_path("d", paths, cache=cache, index_dir=folder / f"index{seed}")
    order = np.random.default_rng(seed).permutation(6).tolist() * 3
    found = {n: [row["n"] for row in made.shard(n).read(0).take(range(100))] for n in order}
    out.put([row for n in range(6) for row in found[n]])


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.deep) for name in ("spawn", "forkserver"))]
)
def test_two_processes_download_each_shard_once(tmp_path, method):
    context = multiprocessing.get_context(method)
    with serving(dict(FILES)) as store:
        find_files(f"{store.url}/0.jsonl", (".jsonl",))  # so that a forked child inherits a loop that it can't use
        out = context.Queue()
        each = [
            context.Process(target=_read_all, args=(store.url, tmp_path, TOTAL * 3 // 2, seed, out)) for seed in (1, 2)
        ]
        for process in each:
            process.start()
        assert [out.get(timeout=60) for _ in each] == [NUMBERS, NUMBERS]
        for process in each:
            process.join(30)
        assert downloads(store) == sorted(FILES)


def _open_first(url, folder):
    (file,) = find_files(f"{url}/0.jsonl", (".jsonl",))
    with dataclasses.replace(file, cache=ShardCache(str(folder), 10_000)).open():
        pass


def test_a_process_killed_in_mid_download_leaves_a_usable_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("zephon_nodes.storage._PIECE", 100)
    reached = threading.Event()

    def stall(store):
        reached.set()
        return "stall"

    with serving(dict(FILES)) as store:
        store.faults = [None, None, stall]  # its facts, a first piece, and no more
        process = multiprocessing.get_context("fork").Process(target=_open_first, args=(store.url, tmp_path))
        process.start()
        assert reached.wait(30)
        cache = ShardCache(str(tmp_path), 10_000)
        assert [name.rpartition(".")[2] for name in names(cache)] == ["part"]
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        _open_first(store.url, tmp_path)
        assert [name.rpartition(".")[2] for name in names(cache)] == ["shard"]
        assert cache.used() == len(FILES["0.jsonl"])
