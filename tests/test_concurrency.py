"""The thread driver: nothing is left behind, nobody hangs, errors arrive."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from contextlib import contextmanager

import pytest
from threads import end_leaked_threads, in_thread, running, still_running
from torchdata.nodes import Loader as TorchLoader
from torchdata.nodes import Prefetcher

from zephon_nodes import ClosedError, Dataset, Loader, Node, Pipeline, StaticMixtureWorkSource
from zephon_nodes.pace import FIRST
from zephon_nodes.work.base import TASKS_A_WORKER

LONG = 5
"""Seconds after which something that should have happened is taken to hang."""


def source(rows=60, lanes=1):
    dataset = Dataset.from_rows("d", [{"v": i} for i in range(rows)])
    return StaticMixtureWorkSource([dataset], None, lanes, 8, 2, shuffle="none")


def graph(rows=60, lanes=1, function=dict, **options):
    return Pipeline(source(rows, lanes), runner="thread", **options).map(function).batch(2)


def values(batches):
    return [payload["v"] for batch in batches for payload in batch]


@contextmanager
def at_work():
    """A map function that blocks, an event that says when it has begun, and one that lets it go on."""
    begun, go = threading.Event(), threading.Event()

    def function(payload):
        begun.set()
        go.wait(60)
        return payload

    try:
        yield function, begun
    finally:
        go.set()


def test_fifty_rounds_of_making_reading_and_closing_leave_nothing():
    before = threading.active_count()
    for n in range(50):
        with graph(parallelism=3) as pipeline:
            assert len(list(itertools.islice(pipeline, n % 4))) == n % 4
        assert threading.active_count() == before


def test_no_thread_runs_before_the_first_output_is_asked_for_and_none_after_the_last():
    pipeline = graph()
    iterator = iter(pipeline)
    assert not running()
    next(iterator)
    assert running()
    assert values(iterator) == list(range(2, 60))
    assert not running()


def test_an_error_ends_the_threads():
    def fail(payload):
        raise ValueError("broken")

    pipeline = graph(function=fail)
    with pytest.raises(Exception, match="broken"):
        next(iter(pipeline))
    assert not running()


@pytest.mark.parametrize("how", ["pipeline", "loader", "iterator", "generator", "for with break"])
def test_threads_go_when_what_reads_is_forgotten(how):
    pipeline = graph()
    if how == "loader":
        pipeline = Loader(pipeline.node, runner="thread")
    iterator = iter(pipeline)
    if how == "generator":
        iterator = (batch for batch in pipeline)
    next(iterator)
    if how == "for with break":
        for _ in pipeline:
            break
    if how == "iterator":
        del pipeline
        next(iterator)
    assert running()
    pipeline = iterator = None
    gc.collect()
    assert not still_running()


@pytest.mark.parametrize("how", ["node", "torchdata's Loader", "torchdata's Prefetcher"])
def test_threads_go_when_a_node_that_was_read_from_is_forgotten(how):
    node = graph().node
    if how != "node":
        node = TorchLoader(Prefetcher(node, 2) if "Prefetcher" in how else node)
    iterator = iter(node)
    next(iterator)
    assert running()
    node = iterator = None
    gc.collect()
    left = still_running()
    end_leaked_threads()
    assert not left


def test_next_in_another_thread_is_woken_by_close_though_a_map_function_still_works():
    with at_work() as (function, begun):
        pipeline = graph(function=function, parallelism=1)
        iterator = iter(pipeline)
        reader, got = in_thread(lambda: next(iterator))
        assert begun.wait(LONG)
        closer, _ = in_thread(pipeline.close)
        reader.join(LONG)
        hangs = reader.is_alive()
    reader.join(LONG)
    closer.join(LONG)
    assert isinstance(got[0], ClosedError)
    assert not hangs, "next() waited for the map function, and not for close()"


def test_a_closed_loader_says_so_and_can_be_read_anew():
    pipeline = graph()
    pipeline.close()
    iterator = iter(pipeline)
    first = next(iterator)
    pipeline.close()
    pipeline.close()
    with pytest.raises(ClosedError, match=r"closed.*iterate"):
        next(iterator)
    assert values([first]) == [0, 1]
    assert values(pipeline) == list(range(60))


def test_close_in_the_middle_of_next_starts_no_new_threads():
    """A close() in another thread, while next() does its books at a lane's end, must not be undone by it."""

    class Source(StaticMixtureWorkSource):
        def locate(self, origins, most=None):
            in_thread(pipeline.close)[0].join(LONG)
            return super().locate(origins, most)

    rows = Dataset.from_rows("d", [{"v": i} for i in range(40)])
    made = Source([rows], None, 2, 8, 2, shuffle="none")
    pipeline = Pipeline(made, runner="thread").filter(lambda payload: payload["v"] >= 20).batch(2)
    iterator = iter(pipeline)  # lane 0 ends with nothing but drops, lane 1 has more to give
    reader, got = in_thread(lambda: next(iterator))
    reader.join(LONG)
    left = still_running()
    end_leaked_threads()
    assert not left, "threads were started after close()"
    assert isinstance(got[0], ClosedError)


def test_a_map_function_may_ask_for_the_state_and_may_close():
    pipeline = graph(function=lambda payload: {"v": pipeline.state_dict()["lane_0"][2]})
    assert all(v >= 0 for v in values(pipeline))
    pipeline = graph(function=lambda payload: pipeline.close() or payload)
    with pytest.raises(ClosedError):
        list(pipeline)
    left = still_running()
    end_leaked_threads()
    assert not left


class Panic(BaseException):
    """As of PyO3, whose panics aren't Exceptions; so are SystemExit and asyncio's CancelledError."""


@pytest.mark.parametrize("error", [Panic("tokenizer panicked"), SystemExit("user left"), KeyboardInterrupt("by hand")])
def test_what_is_no_exception_ends_the_loop_and_does_not_hang_it(error):
    def fail(payload):
        if payload["v"] == 9:
            raise error
        return payload

    pipeline = graph(function=fail, parallelism=1)
    reader, got = in_thread(lambda: list(pipeline))
    reader.join(LONG)
    pipeline.close()
    reader.join(LONG)
    assert isinstance(got[0], type(error)), f"the loader hung until it was closed: {got}"


@pytest.mark.parametrize("runner", ["inline", "thread"])
def test_a_stop_iteration_in_a_worker_is_not_the_end_of_the_data(runner):
    class Careless(Node):
        kind = "careless"

        def worker(self, setup):
            return lambda records: [next(iter([])) if record.payload["v"] == 9 else record for record in records]

    pipeline = Pipeline(source(), runner=runner).then(Careless)
    with pytest.raises(Exception, match=r"StopIteration|generator") as caught:
        list(pipeline)
    assert not isinstance(caught.value, StopIteration)


def test_an_error_in_the_driver_reaches_the_loop():
    def factory():
        raise ValueError("no state today")

    pipeline = Pipeline(source(), runner="thread").stateful_transform(factory)
    with pytest.raises(Exception, match="no state today"):
        list(pipeline)
    assert not running()


class Thing:
    """What a weak reference can be made to."""


@pytest.mark.parametrize("runner", ["inline", "thread"])
def test_batches_that_the_loop_has_dropped_are_held_by_nobody(runner):
    """A thread that waits for its next task would hold what came of the last one: a batch each."""
    dropped = threading.Semaphore(0)

    def things(batch):
        thing = Thing()
        weakref.finalize(thing, dropped.release)
        return {"thing": thing, "v": len(batch)}

    batches = iter(Pipeline(source(12), runner=runner, parallelism=2).map(dict).batch(2).map_batch(things))
    assert [next(batches)["v"] for _ in range(6)] == [2] * 6
    gc.collect()  # without the GIL, what another thread has made is freed by that one, when it next does anything, or here
    assert all(dropped.acquire(timeout=LONG) for _ in range(6))
    assert next(batches, None) is None


@pytest.mark.parametrize(("prefetch", "parallelism"), [(1, 1), (4, 2), (100, 1)])
def test_work_runs_ahead_of_the_loop_by_a_bounded_number_of_records(prefetch, parallelism):
    begun = []
    pipeline = graph(
        3000, function=lambda payload: begun.append(0) or payload, prefetch=prefetch, parallelism=parallelism
    )
    for n, _ in enumerate(pipeline, 1):
        window = (TASKS_A_WORKER * parallelism + 1) * FIRST
        assert len(begun) - 2 * n <= 2 * (prefetch + 1) + window, "more than the stated window"
