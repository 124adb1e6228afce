"""Who runs the engine. A trainer that comes back at once runs it itself, unless the driver's steps hold users' code."""

import threading

import pytest
from runs import run, source
from threads import in_thread, still_running

from zephon_nodes import ClosedError, Pipeline, StaticMixtureWorkSource
from zephon_nodes.accumulator import Grouping
from zephon_nodes.concurrency import wheel
from zephon_nodes.node import Node


@pytest.fixture
def quick(monkeypatch):
    """Every trainer is taken for one that comes back at once."""
    monkeypatch.setattr(wheel, "_SHORT_SECONDS", 1e9)


@pytest.fixture
def slow(monkeypatch):
    """No trainer is."""
    monkeypatch.setattr(wheel, "_SHORT_SECONDS", -1.0)


class Watched(Node):
    """Notes the threads in which its accumulators work."""

    kind = "watched"
    holds = True
    cheap = True
    ours = True

    def accumulator(self, place):
        seen = self.seen

        class Watching(Grouping):
            def push(self, record):
                seen.append(threading.current_thread().name)
                return super().push(record)

        return Watching(1)

    def worker(self, setup):
        return lambda records: records


class Users(Watched):
    """The same, not known to hold only our own code."""


def watched(kind, work=None, **options):
    kind.seen = []
    pipeline = Pipeline(work or source(4000, 2, passes=None), **options).then(kind).batch(2)
    with pipeline:
        for _, batch in zip(range(600), pipeline, strict=False):
            assert len(batch) == 2
    return set(kind.seen)


def test_a_trainer_that_comes_back_at_once_runs_the_engine_itself(quick):
    assert "MainThread" in watched(Watched)
    assert "MainThread" in watched(Watched, prefetch=1)


def test_a_trainer_that_is_away_leaves_it_to_the_driver(slow):
    assert watched(Watched) == {"zephon driver"}


def test_users_code_stays_in_the_drivers_thread(quick):
    assert watched(Users) == {"zephon driver"}

    class Own(StaticMixtureWorkSource):
        pass

    made = source(4000, 2, passes=None)
    made.__class__ = Own
    assert watched(Watched, made) == {"zephon driver"}


def graphs(options):
    yield Pipeline(source(300, 3), **options).shuffle(16).batch(4)
    yield Pipeline(source(300, 3), **options).map(dict, parallelism=2).shuffle(16).batch(4).map_batch(list)
    yield Pipeline(source(100, 2, passes=3), **options).filter(lambda row: row["v"] % 3).batch(2)


@pytest.mark.parametrize("which", range(3))
def test_the_outputs_are_the_same_whoever_runs_it(monkeypatch, which):
    found = []
    for seconds in (-1.0, 1e9, wheel._SHORT_SECONDS):
        monkeypatch.setattr(wheel, "_SHORT_SECONDS", seconds)
        out, error = run([*graphs({"runner": "thread", "parallelism": 2})][which])
        found.append([list(batch) for batch in out])
        assert error is None
    out, error = run([*graphs({"runner": "inline"})][which])
    assert found[0] == found[1] == found[2] == [list(batch) for batch in out] and error is None


def test_the_driver_takes_over_from_a_trainer_that_stays_away(quick):
    made = threading.Event()
    calls = []

    class Counts(Watched):
        kind = "counts"
        ours = True

        def accumulator(self, place):
            class Counting(Grouping):
                def push(self, record):
                    calls.append(threading.current_thread().name)
                    if threading.current_thread().name != "MainThread" and waiting:
                        made.set()
                    return super().push(record)

            return Counting(1)

    waiting = []
    with Pipeline(source(4000, 1, passes=None), prefetch=64).then(Counts).batch(1) as pipeline:
        rows = iter(pipeline)
        for _ in range(300):
            next(rows)
        assert "MainThread" in calls
        waiting.append(True)
        assert made.wait(20), "nobody prefetched while the trainer was away"
        assert next(rows)


def test_a_trainer_that_waits_with_the_wheel_hears_of_close(quick):
    begun, go = threading.Event(), threading.Event()

    def held(row):
        if row["v"] == 50:
            begun.set()
            go.wait(20)
        return row

    pipeline = Pipeline(source(400), runner="thread", parallelism=1, prefetch=1).map(held).batch(1)
    rows = iter(pipeline)
    thread, got = in_thread(lambda: [next(rows) for _ in range(100)])
    assert begun.wait(20)
    closer, _ = in_thread(pipeline.close)
    thread.join(20)
    go.set()
    closer.join(20)
    assert isinstance(got[0], ClosedError)
    assert still_running() == []


class Breaks(Watched):
    """An accumulator that interrupts the thread that it runs in."""

    kind = "breaks"
    ours = True

    def accumulator(self, place):
        class Breaking(Grouping):
            def push(self, record):
                if record.payload["v"] >= 300 and threading.current_thread().name == "MainThread":
                    raise KeyboardInterrupt
                return super().push(record)

        return Breaking(1)


def test_an_interrupt_while_the_trainer_runs_the_engine_ends_it(quick):
    pipeline = Pipeline(source(4000), prefetch=1).then(Breaks).batch(1)
    rows = iter(pipeline)
    with pytest.raises(KeyboardInterrupt):
        for _ in range(3000):
            next(rows)
    with pytest.raises(ClosedError, match="iterate anew"):
        next(rows)
    assert still_running() == []
