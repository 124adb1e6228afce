"""GroupByLength: windows of a lane, sorted by length, sent on in runs."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, run, source, spans

from zephon_nodes import ConfigError, GroupByLength, Pipeline, Read, RowError, StateError
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

LENGTHS = st.lists(st.integers(0, 12), min_size=1, max_size=40)


def rows(lengths):
    return [{"v": i, "input_ids": np.zeros(n, np.int32)} for i, n in enumerate(lengths)]


def drawn(count=240, seed=0):
    return rows(np.random.default_rng(seed).geometric(0.05, count).tolist())


def graph(work, window=8, run_=3, **settings):
    return Pipeline(work, runner="inline").group_by_length(window, run_, **settings)


def length(row):
    return len(row["input_ids"])


def are_runs(block, window_lengths, size):
    """Whether a window came out as runs of ``size`` neighbours by length, in any order of the runs, the last one short."""
    ordered = sorted(window_lengths)
    want = sorted(ordered[i : i + size] for i in range(0, len(ordered), size))
    short = len(ordered) % size
    for place in range(len(want)):
        sizes = [size] * len(want)
        sizes[place] = short or size
        begins = np.cumsum([0, *sizes]).tolist()
        if sorted(block[a:b] for a, b in itertools.pairwise(begins)) == want:
            return True
    return False


@given(LENGTHS, st.integers(1, 20), st.integers(1, 9), st.sampled_from([1, 2]), st.integers(0, 3))
def test_each_window_of_a_span_comes_as_runs_of_neighbours_by_length(lengths, window, run_, lanes, seed):
    work = source(rows(lengths), lanes)
    pipeline, got = graph(work, window, run_, seed=seed), [[] for _ in range(lanes)]
    for row in pipeline:
        got[pipeline.loader.lane].append(row)
    for lane, out in enumerate(got):
        for span in spans(work, lane):
            for i in range(0, len(span), window):
                want = span[i : i + window]
                block, out = out[: len(want)], out[len(want) :]
                assert sorted(row["v"] for row in block) == sorted(row["v"] for row in want)
                assert are_runs([length(row) for row in block], [length(row) for row in want], run_)
        assert not out


@given(LENGTHS, st.integers(1, 20), st.integers(1, 9), st.lists(st.integers(0, 9), max_size=4), st.booleans())
def test_any_chain_of_resumes_is_one_run(lengths, window, run_, cuts, by_tokens):
    def make():
        pipeline = graph(source(rows(lengths), 2), window, run_).map(
            lambda row: {"v": row["v"], "input_ids": [0] * length(row)}
        )
        return pipeline.batch(max_tokens=24) if by_tokens else pipeline.batch(2)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out and state == whole.state_dict()


def test_batches_are_padded_less_and_the_order_is_not_by_length():
    def padding(pipeline):
        shapes = [(batch.to_training(["padding_mask"])["padding_mask"]) for batch in pipeline.batch(8)]
        return sum(int(shape.sum()) for shape in shapes) / sum(shape.numel() for shape in shapes)

    work = source(drawn(), chunk=240)
    plain, grouped = Pipeline(work), Pipeline(work).group_by_length(window=240, run=8)
    assert padding(grouped) < padding(plain) / 3
    firsts = [length(row) for row in grouped][::8]
    assert firsts not in (sorted(firsts), sorted(firsts)[::-1])


def test_seed_name_and_epoch_each_give_another_order_of_the_runs():
    def order(pipeline):
        return str([row["v"] for row in pipeline])

    work = source(drawn(), chunk=240)
    orders = [order(graph(work, 240, 4, **changed)) for changed in ({}, {"seed": 1}, {"name": "by_length"})]
    pipeline = graph(work, 240, 4)
    assert order(pipeline) == orders[0] and order(pipeline) not in orders and len(set(orders)) == 3


def test_neither_schedule_nor_world_nor_a_stop_changes_the_order():
    def make():
        return Pipeline(source(drawn(90), 4)).group_by_length(7, 2).batch(2)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)


def test_origins_stay_with_their_records():
    pipeline = graph(source(drawn(40))).batch(4)
    assert all(row["v"] == at.row for batch in pipeline for row, (at,) in zip(batch, batch.origins, strict=True))


def test_a_record_without_tokens_is_a_bad_record_that_says_what_is_missing():
    mixed = [*rows([3, 1]), {"v": 2}, *rows([2])]
    error = run(graph(source(mixed), name="lengths"))[1]
    assert isinstance(error, RowError) and "lengths failed on row 2 of rows" in str(error)
    assert "input_ids" in str(error) and "put tokenize before it" in str(error)
    pipeline = graph(source(mixed), on_error="skip")
    assert len(run(pipeline)[0]) == 3 and pipeline.drops.failed == 1


WRONG = [
    ({"window": 0}, "window must be an integer of at least 1, got 0"),
    ({"run": 0}, "run must be an integer of at least 1, got 0"),
    ({"window": 8.0}, "window must be an integer of at least 1, got 8.0"),
    ({"seed": None}, "seed must be an integer, got None"),
    ({"seed": 1.5}, "seed must be an integer, got 1.5"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=[words for _, words in WRONG])
def test_settings_that_cannot_work_are_refused_at_construction(settings, words):
    with pytest.raises(ConfigError, match=words):
        GroupByLength(Read(source()), **settings)


def test_packed_rows_have_one_length_and_are_refused():
    with pytest.raises(ConfigError, match="group_by_length can't stand on pack_flat: it takes rows"):
        Pipeline(source(drawn())).pack_flat(8).group_by_length()


@pytest.mark.parametrize("changed", [{"window": 9}, {"run_": 4}, {"seed": 1}])
def test_every_setting_is_in_the_recipe(changed):
    state = graph(source(drawn(9))).state_dict()
    with pytest.raises(StateError, match=r"nodes\.group_by_length\.(window|run|seed)"):
        graph(source(drawn(9)), **changed).load_state_dict(state)
