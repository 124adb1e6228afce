"""StatefulTransform with a static method ``work``: the stateless half of a user's operator, in worker threads."""

import functools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, expected, run, source

from zephon_nodes import ConfigError, Pipeline, RowError
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere


class Pairs:
    """Sums of ``n`` values; the heavy part is done on each output."""

    def __init__(self, n=2):
        self.n, self.held = n, []

    def push(self, payload):
        self.held.append(payload["v"])
        if len(self.held) == self.n:
            yield from self.flush()

    def flush(self):
        if self.held:
            yield {"parts": self.held}
            self.held = []

    @staticmethod
    def work(payload):
        return {**payload, "sum": sum(payload["parts"])}


def paired(span, n):
    values = [row["v"] for row in span]
    parts = [values[i : i + n] for i in range(0, len(values), n)]
    return [{"parts": part, "sum": sum(part)} for part in parts]


FACTORIES = {
    "class": (Pairs, 2),
    "partial": (functools.partial(Pairs, 3), 3),
    "nested": (functools.partial(functools.partial(Pairs), n=3), 3),
}


@pytest.mark.parametrize("kind", FACTORIES)
@given(rows=st.integers(1, 40), lanes=st.sampled_from([1, 2]), threads=st.sampled_from([None, 0, 2]))
def test_work_is_applied_to_every_output_however_the_factory_is_bound(kind, rows, lanes, threads):
    """The docs say to bind arguments with functools.partial, so it must not hide the method."""
    factory, n = FACTORIES[kind]
    work = source(rows, lanes)
    for options in ({"runner": "inline"}, {"runner": "thread", "parallelism": 2}):
        pipeline = Pipeline(work, **options).stateful_transform(factory, parallelism=threads)
        assert run(pipeline) == (expected(work, lambda span: paired(span, n)), None)


@given(st.integers(2, 40), st.lists(st.integers(0, 9), max_size=5))
def test_any_chain_of_resumes_is_one_run(rows, cuts):
    def make():
        return Pipeline(source(rows, 2), runner="inline").stateful_transform(Pairs).batch(2)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out and state == whole.state_dict()


def test_neither_schedule_nor_world_nor_a_stop_changes_anything():
    def make():
        return Pipeline(source(90, 4)).map(dict, parallelism=2).stateful_transform(Pairs).shuffle(3).batch(2)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)


def test_work_runs_in_worker_threads_and_push_in_the_drivers():
    seen = {"push": set(), "work": set()}

    class Where:
        def push(self, payload):
            seen["push"].add(threading.current_thread().name)
            yield payload

        @staticmethod
        def work(payload):
            seen["work"].add(threading.current_thread().name)
            return payload

    run(Pipeline(source(40), parallelism=2).stateful_transform(Where))
    assert len(seen["push"]) == 1 and not seen["push"] & seen["work"]


class Fails(Pairs):
    @staticmethod
    def work(payload):
        if 4 in payload["parts"]:
            raise ValueError("four")
        return payload


def test_work_that_raises_names_node_rows_and_cause_behind_all_earlier_outputs():
    for options in ({"runner": "inline"}, {"runner": "thread", "parallelism": 2}):
        out, error = run(Pipeline(source(8), **options).stateful_transform(Fails, name="pairs"))
        assert out == [{"parts": [0, 1]}, {"parts": [2, 3]}]
        assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError)
        assert "pairs failed on row 4 of rows (dataset 'd'); row 5 of rows" in str(error)
    pipeline = Pipeline(source(8)).stateful_transform(Fails, on_error="skip")
    assert len(run(pipeline)[0]) == 3 and pipeline.drops.failed == 1


def test_work_that_needs_the_object_is_refused_at_construction():
    """The decorator is easily forgotten, and ``self`` would be a payload."""

    class Forgotten:
        def push(self, payload):
            yield payload

        def work(self, payload):
            return payload

    with pytest.raises(ConfigError, match=r"stateful_transform.*Forgotten.*work.*staticmethod"):
        Pipeline(source(3)).stateful_transform(Forgotten)
