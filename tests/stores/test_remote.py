import os
import pickle
import threading
import traceback

import pytest
from store_faults import FakeClock, serving

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.listing import find_files
from zephon_nodes.remote import connect, plain_url, redacted
from zephon_nodes.retries import Retries
from zephon_nodes.store_counters import store_report

ROWS = [{"n": n, "text": f"row {n}"} for n in range(50)]
LINES = "".join(f'{{"n": {row["n"]}, "text": "{row["text"]}"}}\n' for row in ROWS).encode()
ALL_FAULTS = ["reset", 408, 429, 500, 502, 503, 504, "cut", "short"]


def quick(**options):
    return {"retries": Retries(clock=FakeClock()), **options}


def stored(store, **options):
    (file,) = find_files(f"{store.url}/a.jsonl", (".jsonl",), quick(**options))
    return file


@pytest.mark.parametrize("fault", ["reset", 408, 429, 500, 502, 503, 504])
def test_listing_outlasts_faults(fault):
    with serving({"a.jsonl": LINES}, faults=[fault] * 5) as store:
        assert stored(store).size == len(LINES)


def test_reading_outlasts_every_fault_with_the_same_bytes(tmp_path):
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        for fault in ALL_FAULTS:
            store.faults = [fault] * 3
            assert file.read_range(5, 50) == LINES[5:50], fault
            store.faults = [fault] * 2
            assert file.read_ranges([(0, 5), (20, 30), (90, 95)]) == [LINES[:5], LINES[20:30], LINES[90:95]], fault
            store.faults = [fault] * 2
            assert b"".join(file.blocks(100)) == LINES, fault


def test_a_dataset_outlasts_faults_at_any_request(tmp_path):
    with serving({"a.jsonl": LINES}) as store:
        for place in range(6):
            store.faults = [None] * place + ["reset", 503]
            options = quick()
            dataset = Dataset.from_path(
                "d", f"{store.url}/a.jsonl", storage_options=options, index_dir=tmp_path / f"{place}"
            )
            assert list(dataset) == ROWS


def test_ranges_that_came_are_not_asked_for_again():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.log.clear()
        store.faults = [None, 503, None]
        file.read_ranges([(0, 5), (10, 20), (30, 40)])
        assert len(store.gets()) == 4


def test_an_outage_that_lasts_is_an_error_with_url_attempts_and_cause():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.always = 503
        with pytest.raises(
            ReadError, match=r"http://127.*a\.jsonl: can't read it: 503.*\((\d+) attempts in (5\d\d|600) s\)"
        ) as caught:
            file.read_range(0, 5)
        assert caught.value.__cause__ is not None
        assert caught.value.path == f"{store.url}/a.jsonl"


def test_a_missing_file_fails_at_once():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.files.clear()
        store.log.clear()
        with pytest.raises(ReadError, match=r"can't read it: .*a\.jsonl"):
            file.read_range(0, 5)
        assert len(store.log) == 1
        with pytest.raises(ConfigError, match="does not exist"):
            stored(store)


@pytest.mark.parametrize("content", [LINES[:-1], LINES + b"x", LINES.replace(b"row 1", b"raw 1")])
def test_a_file_that_changes_is_noticed(content):
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.files["a.jsonl"] = content
        for read in (
            lambda: file.read_range(0, 9),
            lambda: list(file.blocks(64)),
            lambda: file.read_range(0, len(LINES)),
        ):
            with pytest.raises(ReadError, match=r"a\.jsonl: the file has changed since the dataset was opened"):
                read()


def test_a_file_that_changes_in_mid_file_is_noticed():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.faults = [None, lambda store: store.files.update({"a.jsonl": LINES[::-1]})]
        with pytest.raises(ReadError, match="the file has changed"):
            b"".join(file.blocks(len(LINES) // 2))


def test_a_stalled_answer_is_given_up(monkeypatch):
    monkeypatch.setattr("zephon_nodes.remote._STALL_SECONDS", 0.2)
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        store.faults = ["stall"]
        assert file.read_range(3, 8) == LINES[3:8]


@pytest.mark.parametrize("protocol", ["gs", "gcs"])
def test_google_s_store_may_not_stall_for_ever_either(protocol, monkeypatch):
    aiohttp = pytest.importorskip("aiohttp")
    given = []
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url, **options: (given.append(options), url))
    for options in ({"token": "anon"}, {"requests_timeout": 5}):
        connect(f"{protocol}://bucket/x", options)
    limits = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=60)
    assert given == [{"token": "anon", "requests_timeout": limits}, {"requests_timeout": 5}]
    connect("s3://bucket/x", {"key": "k"})
    assert given[-1] == {"key": "k"}


class Tokens:
    """A function for ``storage_options`` that gives out tokens in turn."""

    def __init__(self, *tokens):
        self.tokens, self.calls = list(tokens), 0

    def __call__(self):
        token = self.tokens[min(self.calls, len(self.tokens) - 1)]
        self.calls += 1
        return quick(client_kwargs={"headers": {"Authorization": token}})


def test_expired_credentials_are_made_anew_once():
    tokens = Tokens("first-token", "second-token", "third-token")
    with serving({"a.jsonl": LINES}, needs="first-token") as store:
        (file,) = find_files(f"{store.url}/a.jsonl", (".jsonl",), tokens)
        assert file.read_range(0, 4) == LINES[:4]
        assert tokens.calls == 1
        store.needs = "second-token"
        assert file.read_range(0, 4) == LINES[:4]
        assert file.read_range(4, 8) == LINES[4:8]
        assert tokens.calls == 2
        store.needs = "another one"
        with pytest.raises(
            ReadError, match=r"can't read it: 403.*2 attempts.*check the credentials in storage_options"
        ) as caught:
            file.read_range(0, 4)
        assert tokens.calls == 3
        shown = "".join(traceback.format_exception(caught.value))
        assert "-token" not in shown


def test_a_function_that_gives_no_dict_is_refused():
    with pytest.raises(ConfigError, match="the function in storage_options must give a dict, it gave NoneType"):
        find_files("http://127.0.0.1:1/a", (".jsonl",), lambda: None)


SECRETS = {
    "key": "AKIA-one",
    "secret": "two-secret",
    "client_kwargs": {"headers": {"X": "three-secret"}},
    "anon": False,
}


def test_secrets_are_taken_out_of_texts():
    text = redacted("see https://u:p@h/x?sig=abc and AKIA-one, two-secret, three-secret, False", SECRETS)
    assert text == "see https://h/x and ***, ***, ***, False"
    assert plain_url("s3://b/k?versionId=1") == "s3://b/k"


def test_no_secret_in_errors_states_and_recipes(tmp_path):
    options = {"headers": {"Authorization": "very-secret"}, "retries": Retries(0)}
    with serving({"a.jsonl": LINES}) as store:
        url = f"{store.url}/a.jsonl?sig=very-secret"
        dataset = Dataset.from_path("d", url, storage_options=options, index_dir=tmp_path)
        assert len(dataset) == 50
        assert "very-secret" not in repr(dataset) + str(dataset.fingerprint())
        store.always = 500
        with pytest.raises(ReadError) as caught:
            dataset[0]
        again = pickle.loads(pickle.dumps(caught.value))
        for error in (caught.value, again):
            assert "very-secret" not in "".join(traceback.format_exception(error)) + repr(error.__cause__)


def test_a_missing_package_is_named(monkeypatch):
    def url_to_fs(url, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", url_to_fs)
    with pytest.raises(
        ConfigError, match=r"'s3://bucket/x' needs a package that isn't installed: pip install zephon_nodes\[s3\]"
    ):
        find_files("s3://bucket/x", (".jsonl",), {})


def test_threads_may_begin_at_once():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        barrier, out = threading.Barrier(32), []

        def read(n):
            barrier.wait()
            out.append(file.read_range(n, n + 5) == LINES[n : n + 5])

        threads = [threading.Thread(target=read, args=(n,)) for n in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert out == [True] * 32


def test_waiting_and_bytes_are_counted():
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        before = store_report()
        store.faults = [503]
        file.read_range(0, 10)
        after = store_report()
        assert after.nbytes - before.nbytes == 10
        assert after.retried - before.retried == 1
        assert after.waiting > before.waiting
        assert after.requests - before.requests == 2  # the range, and whether the file is still the same


def test_a_forked_child_reads_with_connections_of_its_own():
    """fsspec's loop runs in a thread, which a forked child doesn't have."""
    with serving({"a.jsonl": LINES}) as store:
        file = stored(store)
        assert file.read_range(0, 5) == LINES[:5]
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if file.read_range(5, 10) == LINES[5:10] else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
