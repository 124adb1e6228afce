"""A graph being run: places, epochs, errors in their place, the end of data on several ranks."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, plain, run, source, take

from zephon_nodes import ClosedError, ConfigError, Dataset, Pipeline, RowError, StateError, StaticMixtureWorkSource
from zephon_nodes.session import Options, Session

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


def shuffled(rows=24, lanes=2, **settings):
    return source(rows, lanes, shuffle="global", **settings)


def epochs_of(pipeline, count):
    return [run(pipeline)[0] for _ in range(count)]


PLACES = {
    "before the first batch": 0,
    "in the middle of a round": 3,
    "at a level": 4,
    "at a span's edge": 16,
    "before the last": 23,
    "behind the last": 24,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("options", RUNNERS)
def test_a_state_at_any_place_finishes_its_epoch_and_the_later_ones_are_whole(place, options):
    """Reports R4, R5, R10, D7: also behind the last batch, where the next epoch is what comes."""
    stop = PLACES[place]
    work = shuffled()
    want = epochs_of(Pipeline(work, **options), 4)
    assert len({str(epoch) for epoch in want}) == 4
    seen, state = take(Pipeline(work, **options), stop)
    resumed = Pipeline(work, **options)
    resumed.load_state_dict(state)
    if stop == 24:
        want = want[1:]
    else:
        assert seen + run(resumed)[0] == want[0]
        want = want[1:]
    assert epochs_of(resumed, len(want)) == want
    assert resumed.epoch == 3 and resumed.state_dict()["epoch"] == 3


@pytest.mark.parametrize("options", RUNNERS)
def test_a_run_that_is_broken_off_at_every_boundary_is_one_long_run(options):
    """Report D7: a new process for each epoch."""
    work = shuffled()
    want, got, state = epochs_of(Pipeline(work, **options), 4), [], None
    for number in range(4):
        with Pipeline(work, **options) as pipeline:
            if state is not None:
                pipeline.load_state_dict(state)
            got.append(run(pipeline)[0])
            assert pipeline.epoch == number
            state = json.loads(json.dumps(pipeline.state_dict()))
    assert got == want


def test_the_epoch_that_a_loop_reads_is_told_inside_it():
    pipeline = Pipeline(shuffled())
    for number in range(3):
        assert {pipeline.epoch for _ in pipeline} == {number}
    fresh = Pipeline(shuffled())
    fresh.load_state_dict(pipeline.state_dict())
    assert {fresh.epoch for _ in fresh} == {3}


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(0, 20))
def test_rounds_in_the_state_count_what_was_delivered(cuts, rows):
    """Report R7: at 0, 1, n, the end, and over any chain of resumes."""
    state, total = None, 0
    for cut in cuts:
        pipeline = Pipeline(source(rows + 1, 2), runner="inline").map(dict)
        if state is not None:
            pipeline.load_state_dict(state)
        if total < rows + 1:
            total += len(take(pipeline, min(cut, rows + 1 - total))[0])
        state = pipeline.state_dict()
        assert sum(state[f"lane_{lane}"][2] for lane in range(2)) == total


@given(st.integers(0, 30), st.sampled_from([1, 2, 4]), st.booleans())
def test_a_state_that_was_just_loaded_is_the_state_that_is_given(stop, lanes, batched):
    """Report R15: and one batch later it is right, too."""

    def make():
        pipeline = Pipeline(source(24, lanes), runner="inline").filter(lambda p: p["v"] % 5)
        return pipeline.batch(3) if batched else pipeline

    whole = run(make())[0]
    state = take(make(), min(stop, max(0, len(whole) - 2)))[1]
    pipeline = make()
    pipeline.load_state_dict(state)
    assert pipeline.state_dict() == state
    iter(pipeline)
    assert pipeline.state_dict() == state
    one, after = take(pipeline, 1)
    again = make()
    again.load_state_dict(after)
    at = whole.index(one[0])
    assert run(again)[0] == whole[at + 1 :]


def fails_at(v):
    def fail(payload):
        if payload["v"] == v:
            raise ValueError(f"no {v}")
        return payload

    return fail


@pytest.mark.parametrize("at_end", ["ragged", "pad", "drop"])
@pytest.mark.parametrize("options", RUNNERS)
@pytest.mark.parametrize("v", [0, 3, 7, 12, 23])
def test_an_error_comes_behind_all_earlier_outputs_and_again_at_every_further_next(v, options, at_end):
    """Under at_end="pad", the default on several ranks, it was once taken for the end of the data."""
    work = source(24, 3)
    want = [[p] for p in run(Pipeline(work))[0]]
    iterator = iter(Pipeline(work, at_end=at_end, **options).map(fails_at(v)).batch(1))
    for expected in want[: want.index([{"v": v}])]:
        assert plain(next(iterator)) == expected
    errors = []
    for _ in range(3):
        with pytest.raises(RowError, match=f"no {v}") as found:
            next(iterator)
        errors.append(found.value)
    assert errors[0] is errors[1] is errors[2] and errors[0].lane == v // 8


def test_ctrl_c_in_the_middle_of_next_leaves_a_state_that_resumes_exactly():
    strokes = []

    def interrupted(payload):
        if payload["v"] == 5 and not strokes:
            strokes.append(1)
            raise KeyboardInterrupt
        return payload

    pipeline = Pipeline(source(9), runner="inline").map(interrupted)
    out, error = run(pipeline)
    assert out == [{"v": i} for i in range(len(out))] and type(error) is KeyboardInterrupt
    fresh = Pipeline(source(9), runner="inline").map(interrupted)
    fresh.load_state_dict(pipeline.state_dict())
    assert out + run(fresh)[0] == [{"v": i} for i in range(9)]


WRONG = [
    {"runner": "threads"},
    {"at_end": "stop"},
    {"on_error": "ignore"},
    {"prefetch": 0},
    {"parallelism": 0},
    {"parallelism": -1},
    {"world_size": 0, "rank": 0},
    {"rank": -1, "world_size": 1},
    {"max_errors": -1},
    {"rank": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_options_that_cannot_work_are_refused_with_name_and_value(wrong):
    """Report T14."""
    name, value = next(iter(wrong.items()))
    with pytest.raises(ConfigError, match=rf"{name}\b.*{value!r}"):
        Options(**wrong)


def test_a_span_that_gives_fewer_records_than_were_taken_of_it_is_an_error_not_a_wrong_batch():
    """A function that was edited between save and load."""
    keep = {"all": True}
    state = take(Pipeline(source(30)).filter(lambda p: keep["all"] or p["v"] % 4 == 0).batch(2), 3)[1]
    keep["all"] = False
    changed = Pipeline(source(30)).filter(lambda p: keep["all"] or p["v"] % 4 == 0).batch(2)
    changed.load_state_dict(state)
    out, error = run(changed)
    assert out == [] and isinstance(error, StateError) and "has changed since the state was saved" in str(error)


def test_a_closed_session_says_so_and_can_be_restarted():
    session = Session(Pipeline(source(5)).node, Options())
    assert session.next() == {"v": 0}
    session.close()
    session.close()
    with pytest.raises(ClosedError, match="closed"):
        session.next()
    session.restart()
    assert session.next() == {"v": 0} and session.epoch == 1
    session.close()


def test_a_chain_of_many_resumes_over_a_mixture_is_one_run():
    datasets = [Dataset.from_rows(name, [{"d": name, "v": i} for i in range(n)]) for name, n in (("a", 30), ("b", 7))]
    work = StaticMixtureWorkSource(datasets, {"a": 2, "b": 1}, 2, 5, 2)

    def make():
        return Pipeline(work, runner="inline").filter(lambda p: p["v"] % 4).shuffle(4).batch(3)

    whole = run(make())[0]
    assert chained(make, [1] * len(whole))[0] == whole


def test_a_lane_is_under_a_hundred_bytes_of_a_state_whatever_was_read_and_held():
    rows = [{"input_ids": np.arange(50, dtype=np.int32)} for _ in range(4000)]
    source = StaticMixtureWorkSource([Dataset.from_rows("d", rows)], num_lanes=4, chunk_size=512, passes=3)
    pipeline = Pipeline(source, runner="inline").pack_flat(64, "best_fit").shuffle(500).batch(4)
    for _ in itertools.islice(pipeline, 900):
        state = pipeline.state_dict()
    leaves = {key: value for key, value in state.items() if key.startswith("lane_")}
    assert len(leaves) == 4 and all(len(json.dumps(leaf)) < 100 for leaf in leaves.values())
    assert len(json.dumps({key: value for key, value in state.items() if key != "recipe"})) < 4 * 100 + 200
