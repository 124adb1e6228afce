"""The end of finite data on one rank and on several, and runs that move between them there."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from runs import Lanes, lane_rows, source, take
from worlds import run_world

from zephon_nodes import ConfigError, Pipeline
from zephon_nodes.session import Options, Session


def rows_of(batch):
    """The rows of a batch that aren't blanks."""
    return [row for row in batch if "v" in row]


@given(
    lengths=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    size=st.integers(1, 3),
    world=st.sampled_from([1, 2, 4]),
    at_end=st.sampled_from(["pad", "drop"]),
)
def test_every_rank_gives_as_many_outputs_and_together_they_give_each_row_once(lengths, size, world, at_end):
    """Reports X2 and X7."""
    lanes = [lane_rows(Lanes(lengths), lane) for lane in range(4)]
    rounds = [-(-n // size) for n in lengths]
    ranks, _ = run_world(lambda: Pipeline(Lanes(lengths)).batch(size), world, at_end=at_end)
    total = max(rounds) if at_end == "pad" else min(rounds)
    assert {len(out) for out in ranks} == {total * 4 // world}
    got = {lane: [] for lane in range(4)}
    for out in ranks:
        for lane, rows in out:
            got[lane] += rows_of(rows)
    assert got == {lane: rows if at_end == "pad" else rows[: total * size] for lane, rows in enumerate(lanes)}


@given(
    lengths=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    saved=st.sampled_from(["ragged", "pad 1", "pad 2", "pad 4"]),
    loaded=st.sampled_from([2, 4]),
    rounds=st.integers(0, 9),
)
@example([1, 5, 5, 5], "ragged", 2, 3)
@example([1, 1, 5, 5], "ragged", 2, 3)
def test_a_run_that_moves_to_other_ranks_near_the_end_still_gives_each_the_same_number(lengths, saved, loaded, rounds):
    """On one rank the default is "ragged", on several "pad"; so a run on one rank that goes on on two changes it."""

    def make():
        return Pipeline(Lanes(lengths)).batch(1)

    at_end, world = saved.split()[0], int(saved.split()[-1]) if " " in saved else 1
    stop = sum(min(n, rounds) for n in lengths) if at_end == "ragged" else rounds * 4 // world
    seen, state = run_world(make, world, stop=stop, at_end=at_end)
    before = sum(len(rows_of(batch)) for out in seen for _, batch in out)
    level = all(state[f"lane_{lane}"][4] for lane in range(4))
    if before == sum(lengths) or not level:
        return  # the next epoch would come, or the state is refused on another world
    ranks, _ = run_world(make, loaded, state)
    assert len({len(out) for out in ranks}) == 1
    assert before + sum(len(rows_of(batch)) for out in ranks for _, batch in out) == sum(lengths)


def test_a_run_that_moves_to_ranks_that_drop_the_end_leaves_none_of_them_waiting():
    """One lane has ended, so there are no more full rounds: all ranks must hear so, and go on to the next epoch."""

    def make():
        return Pipeline(Lanes([1, 5, 5, 5])).batch(1)

    state = run_world(make, 1, stop=10, at_end="ragged")[1]
    ranks, after = run_world(make, 2, state, at_end="drop")
    assert [[lane for lane, _ in out] for out in ranks] == [[0, 1], [2, 3]] and after["epoch"] == 1


def test_an_endless_source_asks_nobody_about_the_end():
    def never(rounds, largest):
        raise AssertionError("asked")

    pipeline = Pipeline(source(5, 2, passes=None), agree=never, at_end="pad").batch(2)
    assert len(take(pipeline, 40)[0]) == 40


def test_padding_of_what_can_have_no_blanks_is_refused_when_the_loader_is_made():
    with pytest.raises(ConfigError, match=r"at_end='pad' needs.*read"):
        Session(Pipeline(source()).node, Options(at_end="pad"))


@pytest.mark.parametrize("at_end", ["pad", "drop"])
def test_ends_that_ranks_must_agree_on_are_refused_without_a_way_to(at_end):
    options = Options(rank=0, world_size=2, at_end=at_end)
    with pytest.raises(ConfigError, match=rf"at_end='{at_end}'.*torch.distributed isn't initialised with world_size=2"):
        Session(Pipeline(source(8, 2)).batch(2).node, options)
