"""Filter: what stays, what is reported, and that leaving out survives any resume."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, expected, run, source

from zephon_nodes import Pipeline, RowError

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


def divisible(payload, n):
    return payload["v"] % n == 0


def odd_only(payload, n):
    if payload["v"] % n == 0:
        raise ValueError(f"{payload['v']} can be divided")
    return payload["v"] % 2


@given(st.integers(1, 60), st.integers(1, 7), st.sampled_from([1, 3]), st.booleans())
def test_a_filter_is_pythons_filter_over_each_lane_and_the_rest_is_reported(rows, n, lanes, threads):
    work = source(rows, lanes)
    keep = functools.partial(divisible, n=n)
    pipeline = Pipeline(work, **RUNNERS[threads]).filter(keep)
    out, error = run(pipeline)
    assert error is None and out == expected(work, lambda span: [p for p in span if keep(p)])
    assert pipeline.drops.total == rows - len(out) and pipeline.drops.failed == 0
    assert {row.reason for row in pipeline.drops.rows} <= {"filtered"}
    left_out = sorted(int(row.where.split()[1]) for row in pipeline.drops.rows)
    assert left_out == [i for i in range(rows) if i % n]


@given(
    st.integers(1, 60),
    st.integers(2, 5),
    st.lists(st.integers(0, 9), max_size=6),
    st.sampled_from([None, 1, 4]),
    st.sampled_from([1, 3]),
)
def test_filtered_and_failed_rows_are_counted_once_over_any_chain_of_resumes(rows, n, cuts, batch, lanes):
    """The counts stand in the state's leaves, so a run that was stopped often ends with those of one that wasn't."""

    def make():
        pipeline = Pipeline(source(rows, lanes), on_error="skip", runner="inline")
        pipeline = pipeline.filter(functools.partial(odd_only, n=n)).shuffle(3)
        return pipeline if batch is None else pipeline.batch(batch)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out
    leaves = [leaf for key, leaf in state.items() if key.startswith("lane_")]
    failed = sum(1 for i in range(rows) if i % n == 0)
    assert sum(leaf[6] for leaf in leaves) == failed == whole.drops.failed
    assert sum(leaf[5] for leaf in leaves) == sum(1 for i in range(rows) if i % n == 0 or i % 2 == 0)
    assert leaves == [leaf for key, leaf in whole.state_dict().items() if key.startswith("lane_")]


@pytest.mark.parametrize("value", [1, "yes", [0], np.bool_(True), np.int64(3), object()])
def test_any_true_value_keeps_a_record(value):
    assert run(Pipeline(source(3)).filter(lambda p: value))[0] == [{"v": i} for i in range(3)]


@pytest.mark.parametrize("value", [0, "", [], np.bool_(False), None])
def test_any_false_value_leaves_it_out(value):
    pipeline = Pipeline(source(3)).filter(lambda p: value)
    assert run(pipeline) == ([], None) and pipeline.drops.total == 3


def test_a_value_that_is_neither_is_a_bad_record():
    error = run(Pipeline(source(3)).filter(lambda p: np.array([True, False])))[1]
    assert isinstance(error, RowError) and "filter failed on row 0" in str(error) and "ambiguous" in str(error)


@pytest.mark.parametrize("options", RUNNERS)
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_filter_that_keeps_nothing_ends_the_epoch_and_reports_every_row(options, lanes):
    pipeline = Pipeline(source(3000, lanes, chunk=100), **options).filter(lambda p: False).batch(2)
    assert run(pipeline) == ([], None)
    assert pipeline.drops.total == 3000
    assert pipeline.epoch == 0 and run(pipeline) == ([], None) and pipeline.epoch == 1


@pytest.mark.parametrize("options", RUNNERS)
def test_lanes_that_are_barren_at_different_times_lose_nothing(options):
    """Lane 0 keeps only its first rows, lane 1 only its last ones."""
    work = Lanes([400, 400], size=10)
    keep = {v for v in range(20)} | {v for v in range(1380, 1400)}
    pipeline = Pipeline(work, **options).filter(lambda p: p["v"] in keep)
    assert run(pipeline) == (expected(work, lambda span: [p for p in span if p["v"] in keep]), None)
    assert pipeline.drops.total == 760
