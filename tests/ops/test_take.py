"""Take: whole rounds, on any world, over any resume."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, lane_rows, resumed, round_robin, run, source, take

from zephon_nodes import ConfigError, Loader, Pipeline, Read, Take
from zephon_nodes.testing import assert_any_schedule, assert_any_world, run_rounds

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2, "prefetch": 16}]


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4),
    rounds=st.integers(1, 12),
    batch=st.sampled_from([None, 2]),
    threads=st.booleans(),
    at_end=st.sampled_from(["ragged", "drop"]),
)
def test_the_first_rounds_of_each_lane_come_and_no_more(lengths, rounds, batch, threads, at_end):
    work = Lanes(lengths)
    lanes = [lane_rows(work, lane) for lane in range(len(lengths))]
    if batch is not None:
        lanes = [[rows[i : i + batch] for i in range(0, len(rows), batch)] for rows in lanes]
    most = min([rounds, *map(len, lanes)]) if at_end == "drop" else rounds
    pipeline = Pipeline(work, at_end=at_end, **RUNNERS[threads])
    pipeline = (pipeline if batch is None else pipeline.batch(batch)).take(rounds)
    assert run(pipeline) == (round_robin([outputs[:most] for outputs in lanes]), None)


@given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=4), rounds=st.integers(1, 12), threads=st.booleans())
def test_padding_goes_on_to_the_longest_lane_but_not_over_the_rounds_taken(lengths, rounds, threads):
    pipeline = Pipeline(Lanes(lengths), at_end="pad", **RUNNERS[threads]).batch(2).take(rounds)
    outputs = run(pipeline)[0]
    most = min(rounds, max(-(-n // 2) for n in lengths))
    assert len(outputs) == most * len(lengths)


@given(st.integers(1, 9), st.lists(st.integers(0, 7), max_size=5), st.sampled_from([1, 3]))
def test_what_was_taken_before_a_checkpoint_counts_after_it(rounds, cuts, lanes):
    def make():
        return Pipeline(source(60, lanes), runner="inline").filter(lambda p: p["v"] % 3).batch(2).take(rounds)

    out = chained(make, cuts)[0]
    assert out == run(make())[0] and len(out) == min(rounds * lanes, len(out))


@pytest.mark.parametrize("options", RUNNERS)
def test_each_epoch_gives_its_first_rounds(options):
    whole = Pipeline(source(40, 2, shuffle="global"), **options)
    epochs = [run(whole)[0] for _ in range(3)]
    short = Pipeline(source(40, 2, shuffle="global"), **options).take(3)
    assert [run(short)[0] for _ in range(3)] == [epoch[:6] for epoch in epochs]
    assert short.epoch == 2


def test_a_state_after_the_last_round_begins_the_next_epoch():
    def make():
        return Pipeline(source(40, 2, shuffle="global"), runner="inline").take(3)

    whole = make()
    first, second = run(whole)[0], run(whole)[0]
    out, state = take(make(), 6)
    assert out == first and resumed(make(), state) == second


def test_an_endless_source_ends_after_the_rounds():
    pipeline = Pipeline(source(5, 2, passes=None)).take(50)
    assert len(run(pipeline)[0]) == 100


def test_every_world_takes_the_same_rounds():
    def make():
        return Pipeline(source(50, 4)).map(dict).batch(2).take(4)

    assert_any_world(make, [1, 2, 4])
    assert_any_schedule(make)
    assert len(run_rounds(make, 2)[0]) == 4


def test_nothing_may_stand_on_it():
    taken = Pipeline(source()).take(3)
    for wrong in (lambda: taken.map(str), lambda: taken.batch(2), lambda: taken.take(2), lambda: taken.shuffle(2)):
        with pytest.raises(ConfigError, match="can't stand on take, which counts whole rounds and must come last"):
            wrong()


@pytest.mark.parametrize("wrong", [0, -1, None, 2.0, True])
def test_rounds_that_are_no_number_are_refused_at_construction(wrong):
    with pytest.raises(ConfigError, match="rounds must be an integer of at least 1, got"):
        Take(Read(source()), wrong)


def test_another_number_of_rounds_is_refused_by_name_at_a_restore():
    """It decides where an epoch ends."""
    state = Pipeline(source()).take(3).state_dict()
    with pytest.raises(ValueError, match=r"nodes\.take\.rounds: 3 -> 4"):
        Loader(Take(Read(source()), 4)).load_state_dict(state)
