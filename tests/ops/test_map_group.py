"""MapGroup: functions of several records, cut from the span's start."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, expected, run, source

from zephon_nodes import ConfigError, MapGroup, Pipeline, Read, RowError
from zephon_nodes.testing import assert_any_schedule, assert_any_world

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


def ranked(payloads):
    """One out for one in, each knowing its group."""
    return [{"v": p["v"], "group": [q["v"] for q in payloads]} for p in payloads]


def summed(payloads):
    return [{"sum": sum(p["v"] for p in payloads)}]


def doubled(payloads):
    return [*payloads, *({"v": -p["v"]} for p in payloads)]


def nothing(payloads):
    return []


def groups(span, size):
    return [span[i : i + size] for i in range(0, len(span), size)]


@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 9),
    lanes=st.sampled_from([1, 3]),
    flush=st.integers(1, 4),
    threads=st.booleans(),
    function=st.sampled_from([ranked, summed, doubled]),
)
def test_groups_are_cut_from_the_start_of_each_span(rows, size, lanes, flush, threads, function):
    work = source(rows, lanes, flush=flush)
    got = run(Pipeline(work, **RUNNERS[threads]).map_group(function, size))
    assert got == (expected(work, lambda span: [out for g in groups(span, size) for out in function(g)]), None)


@given(st.integers(2, 60), st.integers(1, 9), st.lists(st.integers(0, 9), max_size=5), st.booleans())
def test_any_chain_of_resumes_sees_the_same_groups(rows, size, cuts, batched):
    def make():
        pipeline = Pipeline(source(rows, 2), runner="inline").map_group(ranked, size)
        return pipeline.batch(2) if batched else pipeline

    assert chained(make, cuts)[0] == run(make())[0]


def test_one_out_for_one_in_keeps_each_row_and_another_number_has_those_of_the_group():
    def rows(function):
        batches = Pipeline(source(7, flush=9)).map_group(function, 3).batch(9)
        return [[at.row for at in row] for batch in batches for row in batch.origins]

    assert rows(ranked) == [[i] for i in range(7)]
    assert rows(summed) == [[0, 1, 2], [3, 4, 5], [6]]
    assert rows(doubled)[:6] == [[0, 1, 2]] * 6


def test_a_group_that_gives_nothing_stands_in_the_drop_report():
    """Promise 3: every row arrives, or is reported."""
    pipeline = Pipeline(source(7, flush=9)).map_group(nothing, 3)
    assert run(pipeline) == ([], None)
    assert pipeline.drops.total >= 3
    reported = " ".join(row.where for row in pipeline.drops.rows)
    assert all(f"row {i} of" in reported for i in range(7))


def fails_on_four(payloads):
    if any(p["v"] == 4 for p in payloads):
        raise ValueError("four")
    return payloads


@pytest.mark.parametrize("options", RUNNERS)
def test_a_function_that_raises_names_all_rows_of_its_group(options):
    out, error = run(Pipeline(source(9, flush=9), **options).map_group(fails_on_four, 3, name="score"))
    assert out == [{"v": i} for i in range(3)]
    assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError)
    for word in ("score", "row 3", "row 4", "row 5", "'d'", "four"):
        assert word in str(error)


@pytest.mark.parametrize("options", RUNNERS)
def test_a_skipped_group_goes_as_a_whole_and_each_of_its_rows_can_be_found(options):
    pipeline = Pipeline(source(9, flush=9), on_error="skip", **options).map_group(fails_on_four, 3)
    assert run(pipeline)[0] == [{"v": i} for i in (0, 1, 2, 6, 7, 8)]
    reported = " ".join(row.where for row in pipeline.drops.rows)
    assert all(f"row {i} of" in reported for i in (3, 4, 5))


def test_a_skipped_group_of_many_rows_names_every_one_of_them():
    pipeline = Pipeline(source(16, chunk=16), on_error="skip").map_group(fails_on_four, 8)
    run(pipeline)
    reported = " ".join(row.where for row in pipeline.drops.rows)
    assert all(f"row {i} of" in reported for i in range(8))


@pytest.mark.parametrize("given", [{"v": [1, 2]}, "text", b"bytes"], ids=["dict", "str", "bytes"])
def test_a_dict_of_columns_or_a_text_in_place_of_a_list_is_refused_not_taken_apart(given):
    out, error = run(Pipeline(source(4)).map_group(lambda payloads: given, 2))
    assert out == [] and isinstance(error, RowError)
    for word in ("map_group", "list", type(given).__name__):
        assert word in str(error)


def test_a_generator_is_as_good_as_a_list():
    assert run(Pipeline(source(4)).map_group(lambda payloads: (p["v"] for p in payloads), 3))[0] == [0, 1, 2, 3]


def test_a_group_with_a_generator_of_numbers_draws_the_same_again_and_other_ones_for_other_groups():
    def draw(payloads, rng):
        return [int(rng.integers(1 << 60)) for _ in payloads]

    first, again = (run(Pipeline(source(30), **options).map_group(draw, 4))[0] for options in RUNNERS)
    assert first == again and len(set(first)) == 30


@pytest.mark.parametrize("size", [0, -1, None, 2.0, True, "3"])
def test_a_size_that_is_no_number_of_records_is_refused_at_construction(size):
    with pytest.raises(ConfigError, match="size must be an integer of at least 1, got"):
        MapGroup(Read(source()), ranked, size)


def test_the_size_is_a_data_setting():
    one, two = (Pipeline(source()).map_group(ranked, size) for size in (2, 3))
    with pytest.raises(ValueError, match=r"nodes\.map_group\.size: 2 -> 3"):
        two.load_state_dict(one.state_dict())


def test_neither_schedule_nor_world_changes_the_groups():
    def make():
        return Pipeline(source(70, 4)).map_group(functools.partial(ranked), 3, parallelism=2).batch(2)

    assert_any_schedule(make)
    assert_any_world(make, [1, 2, 4])
