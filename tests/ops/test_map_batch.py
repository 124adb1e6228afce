"""MapBatch: a function of each batch, which may drop it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, lane_rows, round_robin, run, source
from worlds import run_world

from zephon_nodes import ConfigError, MapBatch, Pipeline, Read, RowError, StateError
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, scheduled

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}, {"runner": scheduled(3)}]


def total(batch):
    return {"sum": sum(row.get("v", 0) for row in batch), "rows": len(batch)}


def even(batch):
    return total(batch) if batch[0].get("v", 0) % 2 == 0 else None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), st.integers(1, 5), st.booleans(), st.sampled_from(RUNNERS))
def test_each_batch_goes_through_the_function_and_none_leaves_it_out(lengths, size, drops, options):
    work, function = Lanes(lengths), even if drops else total
    want, left = [], 0
    for lane in range(len(lengths)):
        rows = lane_rows(work, lane)
        given_ = [function(rows[i : i + size]) for i in range(0, len(rows), size)]
        want.append([each for each in given_ if each is not None])
        left += given_.count(None)
    pipeline = Pipeline(work, **options, at_end="ragged").batch(size).map_batch(function)
    assert run(pipeline) == (round_robin(want), None)
    assert pipeline.drops.total == left and len(pipeline.drops.rows) == left


def test_every_row_of_a_batch_that_is_left_out_is_named_in_the_report():
    pipeline = Pipeline(source(12)).batch(3).map_batch(even, name="evens")
    arrived = sum(each["rows"] for each in run(pipeline)[0])
    assert {(row.node, row.reason) for row in pipeline.drops.rows} == {("evens", "left out")}
    named = [int(word.split()[0]) for row in pipeline.drops.rows for word in row.where.split("row ")[1:]]
    assert arrived == 6 and named == [3, 4, 5, 9, 10, 11]


@given(st.lists(st.integers(0, 6), max_size=6), st.sampled_from([1, 2]))
def test_any_chain_of_resumes_is_one_run_with_the_same_counts(cuts, lanes):
    def make():
        return Pipeline(source(24, lanes), runner="inline").filter(lambda p: p["v"] % 5).batch(2).map_batch(even)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out and state == whole.state_dict()


def test_a_function_of_rows_is_needed_to_know_nothing_of_blank_batches_on_one_rank():
    """Blank batches have no such field. One rank never gives any, so nobody need ask the function for one."""
    pipeline = Pipeline(source(8)).batch(2).map_batch(lambda batch: [row["v"] for row in batch])
    assert run(pipeline) == ([[0, 1], [2, 3], [4, 5], [6, 7]], None)


def test_a_function_is_called_once_for_each_batch():
    calls = []
    run(Pipeline(source(8), runner="inline").batch(2).map_batch(lambda batch: calls.append(len(batch)) or batch))
    assert calls == [2, 2, 2, 2]


def test_a_function_that_cannot_take_a_blank_batch_is_named_where_one_is_needed():
    with pytest.raises(ConfigError, match=r"at_end='pad' needs blank batches.*by_field.*KeyError.*use at_end='drop'"):
        Pipeline(source(8), at_end="pad").batch(2).map_batch(lambda b: b[0]["v"], name="by_field").state_dict()


def test_none_for_a_blank_batch_is_refused_where_one_is_needed():
    with pytest.raises(ConfigError, match=r"map_batch.*gave None for a blank batch; use at_end='drop'"):
        Pipeline(source(8), at_end="pad").batch(2).map_batch(lambda batch: None).state_dict()


def test_blank_batches_go_through_the_function_on_every_rank():
    def counted(batch):
        return [len(row.get("input_ids", ())) for row in batch]

    def make():
        return Pipeline(Lanes([9, 2, 5, 1])).map(lambda p: {"input_ids": [1] * 3}).batch(2).map_batch(counted)

    outs, _ = run_world(make, 2)
    blank, full = [0, 0], [3, 3]
    assert [out for lane, out in outs[0] if lane == 1] == [full, blank, blank, blank, blank]
    assert [out for lane, out in outs[1] if lane == 2] == [full, full, [3, 0], blank, blank]
    assert len(outs[0]) == len(outs[1])


def fails_at_4(batch):
    if batch[0].get("v") == 4:
        raise ValueError("four")
    return total(batch)


@pytest.mark.parametrize("options", RUNNERS)
def test_an_error_names_node_rows_and_cause_behind_all_earlier_batches(options):
    out, error = run(Pipeline(source(12), **options).batch(2).map_batch(fails_at_4, name="sums"))
    assert out == [total([{"v": 0}, {"v": 1}]), total([{"v": 2}, {"v": 3}])]
    assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError)
    assert "sums failed on row 4 of rows (dataset 'd'); row 5 of rows" in str(error)


def test_a_batch_that_failed_is_left_out_and_counted_under_skip():
    pipeline = Pipeline(source(12)).batch(2).map_batch(fails_at_4, on_error="skip")
    assert len(run(pipeline)[0]) == 5 and pipeline.drops.failed == 1


def noise(batch, rng):
    return [batch[0].get("v"), int(rng.integers(1 << 60))]


def test_a_random_generator_depends_on_the_batch_alone():
    def graph(**settings):
        return Pipeline(source(24, 2)).batch(2).map_batch(noise, **settings)

    assert_any_schedule(graph, schedules=2)
    assert_resumes_everywhere(graph)
    once = run(graph())[0]
    pipeline = graph()
    epochs = [run(pipeline)[0] for _ in range(2)]
    assert epochs[0] == once and not {x for _, x in epochs[1]} & {x for _, x in once}
    assert all(
        not {x for _, x in run(graph(**changed))[0]} & {x for _, x in once} for changed in ({"seed": 1}, {"name": "n"})
    )


def test_functions_of_batches_may_follow_each_other():
    pipeline = Pipeline(source(8)).batch(2).map_batch(total).map_batch(lambda each: each["sum"]).take(3)
    assert run(pipeline)[0] == [1, 5, 9]


def test_neither_schedule_nor_world_nor_a_stop_changes_anything():
    def make():
        return Pipeline(source(90, 4)).filter(lambda p: p["v"] % 7).batch(3).map_batch(rows_only)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)


def rows_only(batch):
    return [row.get("v", -1) for row in batch] if batch[0].get("v", 0) % 2 == 0 else None


def test_it_stands_behind_batch_and_nothing_of_rows_behind_it():
    with pytest.raises(ConfigError, match="map_batch can't stand on read: it takes batches, and read gives rows"):
        MapBatch(Read(source()), total)
    with pytest.raises(ConfigError, match=r"map can't stand on map_batch.*put it before batch"):
        Pipeline(source()).batch(2).map_batch(total).map(total)
    with pytest.raises(ConfigError, match="map_batch needs a function"):
        Pipeline(source()).batch(2).map_batch("total")


def test_another_function_or_version_is_refused_and_named():
    state = Pipeline(source()).batch(2).map_batch(total).state_dict()
    for changed in ((even, None), (total, 2)):
        with pytest.raises(StateError, match=r"nodes\.map_batch\.(function|version)"):
            Pipeline(source()).batch(2).map_batch(changed[0], version=changed[1]).load_state_dict(state)
