"""Skipping on several ranks: the same on any number of them, in chains with resumes and moves."""

import functools
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, plain, source, spans
from worlds import World

from zephon_nodes import Pipeline, StateError, merge_states, skip_spans
from zephon_nodes.testing import run_rounds


def leaves(state):
    return {key: value for key, value in state.items() if key.startswith("lane_")}


def through_json(state):
    return json.loads(json.dumps(state))


def keep(row):
    return row["v"] % 5 != 2


def worked(work):
    """A graph that can't be skipped through by arithmetic."""
    return Pipeline(work).filter(keep).shuffle(5).map_group(list, 3).batch(2)


def rank_after_skip(make, rank, world, state, rounds, spans_, count):
    """(rounds of a rank as {lane: digest-able}, its state) after loading, skipping and reading ``count`` rounds."""
    pipeline = make().options(rank=rank, world_size=world, runner="inline", at_end="ragged")
    if state is not None:
        pipeline.load_state_dict(through_json(state))
    if spans_:
        own = pipeline.state_dict()
        pipeline.load_state_dict(skip_spans(own, spans_))
    if rounds:
        pipeline.skip(rounds)
    lanes = len(leaves(pipeline.state_dict()))
    out: list[dict] = []
    for output in itertools.islice(pipeline, count * lanes):
        if not out or len(out[-1]) == lanes:
            out.append({})
        out[-1][pipeline.loader.lane] = plain(output)
    after = through_json(pipeline.state_dict())
    told = pipeline.drops.skips
    pipeline.close()
    return out, after, told


def world_after_skip(make, world, state=None, rounds=0, spans_=0, count=4):
    ranks = [rank_after_skip(make, rank, world, state, rounds, spans_, count) for rank in range(world)]
    together = [
        dict(sorted(pair for part in parts for pair in part.items()))
        for parts in zip(*(r[0] for r in ranks), strict=True)
    ]
    return together, merge_states([r[1] for r in ranks]), sorted(line for r in ranks for line in r[2])


@pytest.mark.parametrize("make", [lambda: Pipeline(source(900, 4)).batch(2), lambda: worked(source(900, 4))])
@pytest.mark.parametrize(
    "how", [{"rounds": 3}, {"rounds": 17}, {"spans_": 1}, {"spans_": 3}, {"spans_": 2, "rounds": 1}]
)
@pytest.mark.parametrize("start", [0, 5])
def test_ranks_that_skip_alike_give_the_same_global_batches_on_any_world(make, how, start):
    state = run_rounds(make, 2, start)[1]
    want = world_after_skip(make, 1, state, **how)
    assert want[0] != world_after_skip(make, 1, state)[0]
    for world in (2, 4):
        got = world_after_skip(make, world, state, **how)
        assert got[0] == want[0] and leaves(got[1]) == leaves(want[1]) and got[2] == want[2]


def test_spans_may_be_skipped_in_the_merged_state_or_in_each_ranks_own():
    def make():
        return worked(source(300, 4))

    states = [rank_after_skip(make, rank, 2, None, 0, 0, 3)[1] for rank in range(2)]
    assert skip_spans(merge_states(states), 2) == merge_states([skip_spans(state, 2) for state in states])


class Reference:
    """One lane of a one-to-one graph, by lists: a place (span, taken), and what was skipped."""

    def __init__(self, listed):
        self.spans, self.span, self.taken, self.skips = listed, 0, 0, []

    def read(self, count):
        out = []
        for _ in range(count):
            while self.taken == len(self.spans[self.span]):
                self.span, self.taken = self.span + 1, 0
            out.append(self.spans[self.span][self.taken])
            self.taken += 1
        return out

    def skip(self, rounds=0, spans=0):
        before = [self.span, self.taken]
        if spans:
            self.span, self.taken = self.span + spans, 0
        self.read(rounds)
        self.skips.append([*before, self.span, self.taken])


@functools.cache
def long(flush):
    return source(2000, 4, chunk=3, flush=flush)


@functools.cache
def long_spans(flush):
    return [spans(long(flush), lane) for lane in range(4)]


STEP = st.tuples(st.sampled_from(["read", "rounds", "spans"]), st.integers(1, 6), st.sampled_from([1, 2, 4]))


@given(st.lists(STEP, min_size=1, max_size=6), st.sampled_from([1, 2, 3]), st.booleans())
def test_any_chain_of_reading_skipping_resuming_and_moving_is_what_lists_say(steps, flush, through):
    work = long(flush)
    lanes, state = [Reference(listed) for listed in long_spans(flush)], None

    def make():
        return Pipeline(work).map(dict) if not through else Pipeline(work).filter(lambda row: True)

    for what, count, world in steps:
        how = {"rounds": {"rounds": count}, "spans": {"spans_": count}, "read": {}}[what]
        got, state, told = world_after_skip(make, world, state, count=count, **how)
        for lane in lanes:
            if what != "read":
                lane.skip(**{what: count})
        want = [lane.read(count) for lane in lanes]
        assert got == [dict(enumerate(round_)) for round_ in zip(*want, strict=True)]
        for n, lane in enumerate(lanes):
            leaf = state[f"lane_{n}"]
            assert leaf[:2] == [lane.span, lane.taken] and (leaf[8] if len(leaf) == 9 else []) == lane.skips
        assert len(told) == sum(len(lane.skips) for lane in lanes)


@pytest.mark.parametrize(("at_end", "left"), [("drop", 2), ("pad", 20)])
def test_ranks_of_which_some_jump_and_some_work_agree_on_the_end(at_end, left):
    """Lanes of the second rank end within the skip; under at_end="drop" nobody has a full round then."""

    def rank_of(rank):
        def go(agree):
            pipeline = Pipeline(Lanes([30, 30, 10, 10])).batch(1)
            pipeline = pipeline.options(rank=rank, world_size=2, at_end=at_end, agree=agree, runner="inline")
            iterator = iter(pipeline)
            read = [next(iterator), next(iterator)]
            pipeline.skip(20)
            return len(read) + len(list(iterator))

        return go

    assert World(2).run([rank_of(rank) for rank in range(2)]) == [left, left]


@pytest.mark.parametrize("how", [{"rounds": 2}, {"spans_": 1}])
def test_a_skip_in_the_middle_of_a_round_goes_on_there_and_moves_to_no_other_world(how):
    def make():
        return worked(source(300, 4))

    pipeline = make().options(runner="inline")
    list(itertools.islice(pipeline, 6))
    state = through_json(pipeline.state_dict())
    pipeline.close()
    out, after, told = rank_after_skip(make, 0, 1, state, **{"rounds": 0, "spans_": 0, "count": 3, **how})
    assert list(out[0]) == [2, 3, 0, 1] and len(told) == 4
    again, _, _ = rank_after_skip(make, 0, 1, state, **{"rounds": 0, "spans_": 0, "count": 3, **how})
    assert again == out
    with pytest.raises(StateError, match="in the middle of a round"):
        make().options(rank=0, world_size=2).load_state_dict(after)
