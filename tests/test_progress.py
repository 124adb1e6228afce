"""Bars: on a terminal, in the main thread, after a while, and nothing stays behind."""

from __future__ import annotations

import concurrent.futures
import io
import sys
import threading

import pytest

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.progress import bar, shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def on_terminal(monkeypatch):
    """Puts a terminal in place. To be called in the test itself: pytest has its own stderr before."""

    def put():
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return put


def work():
    with bar("counting", 10, "rows") as advance:
        for _ in range(10):
            advance(1)


def test_a_terminal_sees_a_bar_of_work_that_takes_long(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr("zephon_nodes.progress.SECONDS", 0)
    before = threading.active_count()
    work()
    assert "counting" in terminal.getvalue() and "/10" in terminal.getvalue()
    assert threading.active_count() == before


def test_short_work_has_none(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr("zephon_nodes.progress.SECONDS", 3600)
    work()
    assert terminal.getvalue().strip() == ""


def test_nothing_but_a_terminal_sees_one(monkeypatch):
    monkeypatch.setattr("zephon_nodes.progress.SECONDS", 0)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    work()
    assert stream.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    work()


def test_workers_show_none(on_terminal, monkeypatch):
    terminal = on_terminal()
    monkeypatch.setattr("zephon_nodes.progress.SECONDS", 0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()
        assert pool.submit(shown).result() is False
    assert terminal.getvalue() == "" and shown() is True


def test_an_error_goes_through_a_bar(on_terminal):
    on_terminal()
    with pytest.raises(KeyError), bar("x", None, "B"):
        raise KeyError


def test_opening_files_and_making_an_index_have_bars(on_terminal, monkeypatch, tmp_path):
    terminal = on_terminal()
    monkeypatch.setattr("zephon_nodes.progress.SECONDS", 0)
    for i in range(3):
        (tmp_path / f"{i}.jsonl").write_text('{"v": 1}\n' * 9)
    assert Dataset.from_path("texts", tmp_path, index_dir=tmp_path / "index").rows == 27
    assert "opening texts" in terminal.getvalue() and "reading 0.jsonl" in terminal.getvalue()


def test_worker_processes_show_none():
    from zephon_nodes.concurrency import in_worker

    def worker(payload):
        return in_worker()

    data = Dataset.from_rows("d", [{"v": 1}] * 2)
    graph = Pipeline(StaticMixtureWorkSource([data]), runner="process", parallelism=1).map(worker)
    assert list(graph) == [True, True] and in_worker() is False
