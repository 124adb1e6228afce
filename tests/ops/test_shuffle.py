"""Shuffle: a window over each lane, drawn without state."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, resumed, run, source, spans, take

from zephon_nodes import ConfigError, Pipeline, Read, Shuffle
from zephon_nodes.testing import assert_any_schedule, assert_any_world

ROWS_A_SPAN = 8


def shuffled(rows, buffer, seed=42, lanes=1, **settings):
    return Pipeline(source(rows, lanes), runner="inline").shuffle(buffer, seed, **settings)


@pytest.mark.parametrize(("rows", "buffer"), [(12, 8), (12, 64), (500, 8), (500, 64)])
def test_a_stop_at_every_record_loses_none_and_repeats_none(rows, buffer):
    """Report R3. The span is longer than the window, so that it is full at most stops."""

    def make():
        return Pipeline(source(rows, chunk=32, flush=4), runner="inline").shuffle(buffer, 42).map(lambda p: p["v"])

    whole, states, pipeline = [], [], make()
    states.append(json.dumps(pipeline.state_dict()))
    for value in pipeline:
        whole.append(value)
        states.append(json.dumps(pipeline.state_dict()))
    assert sorted(whole) == list(range(rows)) and whole != sorted(whole)
    other = make()
    for k in range(rows):
        other.load_state_dict(json.loads(states[k]))
        assert list(itertools.islice(other, 5)) == whole[k : k + 5]
    for k in range(0, rows, 83):
        assert whole[:k] + resumed(make(), json.loads(states[k])) == whole


@given(st.integers(1, 60), st.integers(1, 20), st.sampled_from([1, 3]), st.integers(0, 5))
def test_a_record_never_leaves_its_span_and_at_most_a_window_is_held(rows, buffer, lanes, seed):
    work = source(rows, lanes)
    seen = {lane: [] for lane in range(lanes)}
    pipeline = Pipeline(work, runner="inline").shuffle(buffer, seed)
    for payload in pipeline:
        seen[pipeline.loader.lane].append(payload["v"])
    for lane, got in seen.items():
        for span in spans(work, lane):
            values = [p["v"] for p in span]
            part, got = got[: len(span)], got[len(span) :]
            assert sorted(part) == sorted(values)
            for place, value in enumerate(part):
                assert values.index(value) <= place + buffer
        assert not got


@given(st.integers(1, 60), st.integers(1, 20), st.lists(st.integers(0, 9), max_size=6), st.sampled_from([None, 3]))
def test_any_chain_of_resumes_is_one_run(rows, buffer, cuts, batch):
    def make():
        pipeline = shuffled(rows, buffer, lanes=2)
        return pipeline if batch is None else pipeline.batch(batch)

    assert chained(make, cuts)[0] == run(make())[0]


def test_a_window_of_1_changes_nothing():
    assert run(shuffled(30, 1))[0] == [{"v": i} for i in range(30)]


def test_seed_name_and_epoch_each_give_another_order():
    orders = [str(run(shuffled(60, 8, **changed))[0]) for changed in ({}, {"seed": 43}, {"name": "mix"})]
    pipeline = shuffled(60, 8)
    epochs = [str(run(pipeline)[0]) for _ in range(3)]
    assert epochs[0] == orders[0] and len({*orders, *epochs}) == 5


def test_two_shuffles_of_one_graph_draw_differently():
    once = run(shuffled(60, 8))[0]
    one, other = (run(shuffled(60, 8, name=name))[0] for name in ("shuffle", "shuffle_2"))
    assert one == once and other != once


@pytest.mark.parametrize("buffer", [2, 8, 64])
def test_every_place_of_the_window_is_drawn_about_equally(buffer):
    """In one long span: how far records move back is geometric with the window's size as its mean."""
    count = 6000
    pipeline = Pipeline(source(count, chunk=count), runner="inline").shuffle(buffer)
    delays = [place - payload["v"] for place, payload in enumerate(pipeline)]
    moved = [delay + buffer for delay in delays[: count - buffer]]
    assert 0.9 * buffer < sum(moved) / len(moved) < 1.1 * buffer
    assert all(move >= 0 for move in moved)


def test_origins_and_drops_stay_with_their_records():
    pipeline = shuffled(40, 8).filter(lambda p: p["v"] % 3).batch(4)
    pairs = [(p["v"], at.row) for batch in pipeline for p, (at,) in zip(batch, batch.origins, strict=True)]
    assert all(v == row for v, row in pairs) and len(pairs) + pipeline.drops.total == 40


@pytest.mark.parametrize("wrong", [0, -1, None, 8.0, True])
def test_a_buffer_that_is_no_number_of_records_is_refused_at_construction(wrong):
    with pytest.raises(ConfigError, match="buffer_size must be an integer of at least 1, got"):
        Shuffle(Read(source()), wrong)


@pytest.mark.parametrize("wrong", [None, "42", 1.5])
def test_a_seed_that_is_no_integer_is_refused_at_construction(wrong):
    with pytest.raises(ConfigError, match="seed must be an integer, got"):
        Shuffle(Read(source()), 8, wrong)


def test_neither_schedule_nor_world_changes_the_order():
    assert_any_schedule(lambda: shuffled(90, 8, lanes=4))
    assert_any_world(lambda: shuffled(90, 8, lanes=4).batch(2), [1, 2, 4])


def test_the_state_does_not_grow_with_the_window():
    small, large = (take(shuffled(400, buffer), 200)[1] for buffer in (2, 300))
    assert len(json.dumps(large)) <= len(json.dumps(small)) + 10
