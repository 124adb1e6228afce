"""FlatMap: any number of records out of one."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import expected, resumed, run, source, take

from zephon_nodes import Pipeline, RowError
from zephon_nodes.testing import assert_any_schedule, assert_any_world

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


def times(payload, n):
    return [{**payload, "part": i} for i in range(payload["v"] % n)]


def lazily(payload, n):
    yield from times(payload, n)


@given(st.integers(1, 50), st.integers(1, 6), st.sampled_from([1, 3]), st.booleans(), st.sampled_from([times, lazily]))
def test_the_parts_of_each_record_follow_one_another_in_its_place(rows, n, lanes, threads, function):
    work = source(rows, lanes)
    pipeline = Pipeline(work, **RUNNERS[threads]).flat_map(functools.partial(function, n=n))
    assert run(pipeline) == (expected(work, lambda span: [part for p in span for part in times(p, n)]), None)
    assert pipeline.drops.total == sum(1 for i in range(rows) if i % n == 0)
    assert {row.reason for row in pipeline.drops.rows} <= {"gave nothing"}


@pytest.mark.parametrize("batch", [None, 4])
def test_a_stop_between_the_parts_of_one_record_resumes_with_the_next_part(batch):
    def make():
        pipeline = Pipeline(source(12), runner="inline").flat_map(functools.partial(times, n=7)).shuffle(2)
        return pipeline if batch is None else pipeline.batch(batch)

    whole = run(make())[0]
    for cut in range(1, len(whole)):
        out, state = take(make(), cut)
        assert out + resumed(make(), state) == whole


def test_parts_name_the_row_that_they_come_from():
    batches = list(Pipeline(source(5)).flat_map(functools.partial(times, n=4)).batch(2))
    rows = [(p["v"], origin.row) for batch in batches for p, (origin,) in zip(batch, batch.origins, strict=True)]
    assert rows == [(1, 1), (2, 2), (2, 2), (3, 3), (3, 3), (3, 3)]


def test_parts_of_one_record_draw_different_numbers():
    """A generator downstream is keyed by the part, not only by the record."""

    def draw(payload, rng):
        return int(rng.integers(1 << 60))

    drawn = run(Pipeline(source(20)).flat_map(lambda p: [p] * 5).map(draw))[0]
    assert len(set(drawn)) == 100


def test_an_error_behind_some_parts_makes_the_whole_record_bad():
    """Nothing of it goes out, so that a row is either there or in the drop report."""

    def fails_late(payload):
        yield payload
        if payload["v"] == 3:
            raise ValueError("late")

    out, error = run(Pipeline(source(6)).flat_map(fails_late))
    assert out == [{"v": i} for i in range(3)] and isinstance(error, RowError) and "row 3" in str(error)
    pipeline = Pipeline(source(6), on_error="skip").flat_map(fails_late)
    assert run(pipeline)[0] == [{"v": i} for i in range(6) if i != 3]
    assert pipeline.drops.total == pipeline.drops.failed == 1


@pytest.mark.parametrize("given", [{"v": 1, "w": 2}, "text", b"bytes"], ids=["dict", "str", "bytes"])
def test_a_single_payload_in_place_of_a_list_is_refused_not_taken_apart(given):
    """Iterating over a dict would make records of its keys, without a word."""
    out, error = run(Pipeline(source(3)).flat_map(lambda p: given))
    assert out == [] and isinstance(error, RowError)
    for word in ("flat_map", "list", type(given).__name__):
        assert word in str(error)


@pytest.mark.parametrize("given", [None, 5])
def test_what_cannot_be_iterated_is_a_bad_record(given):
    error = run(Pipeline(source(3)).flat_map(lambda p: given))[1]
    assert isinstance(error, RowError) and "flat_map failed on row 0" in str(error)
    assert f"must return a list of payloads or a generator, got a {type(given).__name__}" in str(error)


def test_neither_schedule_nor_world_changes_the_parts():
    def make():
        return Pipeline(source(60, 4)).flat_map(functools.partial(times, n=5), parallelism=2).batch(3)

    assert_any_schedule(make)
    assert_any_world(make, [1, 2, 4])
