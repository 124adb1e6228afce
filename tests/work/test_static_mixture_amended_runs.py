"""Runs that are amended under way: states before, across and after the span, on any world."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import (
    Concat,
    Dataset,
    Phases,
    Pipeline,
    StateError,
    StaticMixtureWorkSource,
    TokenEstimation,
    merge_states,
    skip_spans,
)
from zephon_nodes.testing import digest, run_rounds

WORLDS = [1, 2, 4]


def rows(name, count):
    return Dataset.from_rows(name, [{"d": name, "v": i, "input_ids": np.full(2, i, np.int32)} for i in range(count)])


def base(**settings):
    """4 lanes; a span is 16 rows of a lane, 4 rounds of batches of 4."""
    settings = {"stop": "redistribute", "seed": 5, **settings}
    return StaticMixtureWorkSource([rows("a", 200), rows("b", 120)], {"a": 1, "b": 1}, 4, 8, 2, **settings)


def once(**settings):
    return base(**settings).amended(2, {"a": 1, "b": 3, "c": 2}, [rows("c", 60)])


def twice(**settings):
    return once(**settings).amended(4, Phases([(0, {"a": 1, "c": 1, "d": 1}), (2, {"d": 1, "b": 1})]), [rows("d", 40)])


def graph(source, **options):
    return Pipeline(source, **{"runner": "inline", **options}).shuffle(3).batch(4)


def run(source, world=1, rounds=None, state=None):
    return run_rounds(lambda: graph(source()), world, rounds, state)


@settings(max_examples=10)
@given(
    st.lists(st.sampled_from(WORLDS), min_size=4, max_size=4),
    st.sampled_from([0, 1, 5, 7]),
    st.sampled_from([0, 3, 7]),
    st.sampled_from([once, twice]),
)
def test_a_run_that_is_amended_goes_on_as_if_it_had_been_so_from_the_start(worlds, first, second, changed):
    """Stopped before the span under the old source; then under the new one, before, across or after its spans."""
    want, _ = run(changed)
    got, state = run(base, worlds[0], first)
    more, state = run(changed, worlds[1], second, state)
    got += more
    more, state = run(changed, worlds[2], 4, state)
    got += more
    got += run(changed, worlds[3], len(want) - len(got), state)[0]
    assert got == want
    assert got[:7] == run(base, 1, 7)[0]


@pytest.mark.parametrize("known", [base, once, twice])
def test_a_source_that_was_amended_twice_takes_a_state_that_knows_none_one_or_both(known):
    want, _ = run(twice)
    got, state = run(known, 2, 6)
    assert got + run(twice, 4, len(want) - 6, state)[0] == want


def test_a_state_after_an_amendment_knows_the_history():
    """Only the source with the same history takes it, and says what is missing from another."""
    _, state = run(twice, 2, 9)
    graph(twice()).load_state_dict(state)
    for other, words in (
        (base, r"source\.amendments"),
        (once, r"source\.amendments\[1\]"),
        (lambda: base().amended(2, {"a": 1}), r"source\.amendments"),
        (lambda: once().amended(4, {"a": 1, "b": 1}), r"source\.amendments\[1\]\.mixture"),
    ):
        loader = graph(other())
        before = loader.state_dict()
        with pytest.raises(StateError, match=f"(?s)settings differ.*{words}.*->"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before


@pytest.mark.parametrize("rounds", [8, 9, 14])
@pytest.mark.parametrize("world", WORLDS)
def test_a_state_that_has_come_to_the_span_is_refused_with_the_span_to_amend_at(rounds, world):
    _, state = run(base, world, rounds)
    reached = max(leaf[0] for key, leaf in state.items() if key.startswith("lane_"))
    if reached < 2:
        return
    with pytest.raises(
        StateError, match=f"(?s)amended from span 2 of epoch 0.*come to span {reached}.*at span {reached + 1}"
    ):
        graph(once()).load_state_dict(state)
    later = base().amended(reached + 1, {"a": 1})
    graph(later).load_state_dict(state)


def lopsided(source):
    """Lanes 2 and 3 lose most of their rows, so they are spans ahead of lanes 0 and 1."""
    mine = {
        (at.dataset, at.row)
        for lane in (2, 3)
        for index in range(40)
        for at in source.chunk(lane, index) or ()
        if at.row % 5
    }
    return Pipeline(source, runner="inline").filter(lambda row: (row["d"], row["v"]) not in mine).batch(4)


@pytest.mark.parametrize("world", [2, 4])
def test_every_rank_refuses_alike_when_a_lane_of_another_rank_has_come_to_the_span(world):
    """A rank that took it would wait for the others in its first collective for ever."""
    options = {"world_size": world, "at_end": "ragged"}
    ranks = [lopsided(base(seed=1)).options(rank=rank, **options) for rank in range(world)]
    for pipeline in ranks:
        batches = iter(pipeline)
        for _ in range(4 // world):
            next(batches)
    state = merge_states(pipeline.state_dict() for pipeline in ranks)
    spans = [state[f"lane_{lane}"][0] for lane in range(4)]
    assert max(spans[:2]) < 1 <= min(spans[2:])
    for rank in range(world):
        with pytest.raises(StateError, match="amended from span 1"):
            lopsided(base(seed=1).amended(1, {"a": 1})).options(rank=rank, **options).load_state_dict(state)


@pytest.mark.parametrize("change", ["amended", "on_error"])
def test_a_state_of_one_rank_alone_is_refused_also_under_a_recipe_that_may_follow(change):
    """Else the lanes that it lacks are left out for the rest of the run, without a word."""
    one = graph(base(), rank=0, world_size=2, at_end="ragged")
    assert len(list(itertools.islice(one, 2))) == 2
    next_ = graph(once()) if change == "amended" else graph(base(), on_error="skip")
    with pytest.raises(StateError, match=r"misses \[2, 3\].*merge_states"):
        next_.load_state_dict(one.state_dict())


def test_skipping_to_the_span_of_an_amendment_is_before_it():
    """After a loss spike: skip the rest of span 1, and take another mixture from span 2 on. Nothing of span 2 was read."""
    _, state = run(base, 2, 5)
    state = skip_spans(state, 2 - state["lane_0"][0])
    assert all(leaf[:2] == [2, 0] for key, leaf in state.items() if key.startswith("lane_"))
    loader = graph(once())
    loader.load_state_dict(state)
    assert any(row["d"] == "c" for batch in loader for row in batch)


@pytest.mark.parametrize("rounds", [0, 3, 30, None])
def test_an_amendment_in_a_later_epoch_leaves_the_epochs_before_it_alone(rounds):
    def changed():
        return base().amended(1, {"a": 1, "c": 1}, [rows("c", 60)], epoch=1)

    def epochs(source, count):
        with graph(source) as loader:
            return [[digest(batch) for batch in loader] for _ in range(count)]

    want, plain = epochs(changed(), 3), epochs(base(), 2)
    assert want[0] == plain[0] and want[1][:4] == plain[1][:4] and want[1] != plain[1]
    before = graph(base())
    got = [digest(batch) for batch in itertools.islice(before, rounds)]
    state = json.loads(json.dumps(before.state_dict()))
    before.close()
    with graph(changed()) as after:
        after.load_state_dict(state)
        for _ in range(3 if rounds is not None else 2):
            got += [digest(batch) for batch in after]
    assert got == [each for epoch in want for each in epoch]


def test_a_state_from_before_the_first_batch_can_be_amended():
    state = graph(base(token_estimation=TokenEstimation())).state_dict()
    loader = graph(once(token_estimation=TokenEstimation()))
    loader.load_state_dict(state)
    fresh = graph(once(token_estimation=TokenEstimation()))
    assert [digest(batch) for batch in loader] == [digest(batch) for batch in fresh]


def test_an_amended_run_in_tokens_measures_the_new_dataset_and_keeps_the_old_ratios():
    estimation = TokenEstimation({"a": 3})
    before = graph(base(token_estimation=estimation))
    next(iter(before))
    state = before.state_dict()
    after = graph(once(token_estimation=TokenEstimation()))
    after.load_state_dict(state)
    next(iter(after))
    known = json.loads(after.recipe)["source"]
    assert known["tokens_per_row"] == {"a": "3", "b": "2"}
    assert known["amendments"][0]["tokens_per_row"] == {"c": "2"}
    assert set(after.estimates) == {"c"}


def test_every_row_comes_once_over_an_amended_run_with_moves():
    """Also of the dataset that came in with it."""
    state, seen = None, Counter()
    for source, world, batches in ((base, 2, 2), (once, 4, 3), (once, 1, None)):
        after = []
        for rank in range(world):
            with graph(source(), rank=rank, world_size=world, at_end="ragged") as loader:
                if state is not None:
                    loader.load_state_dict(state)
                taken = itertools.islice(loader, None if batches is None else batches * 4 // world)
                for batch in taken:
                    seen.update((row["d"], row["v"]) for row in batch)
                after.append(loader.state_dict())
        state = merge_states(after)
    assert seen == Counter((name, v) for name, count in (("a", 200), ("b", 120), ("c", 60)) for v in range(count))


def test_a_state_of_a_part_that_was_amended_says_so():
    """An amended part of a combined source: refused, as long as it isn't known how its spans lie in the whole."""
    other = StaticMixtureWorkSource([rows("z", 40)], None, 4, 8, 2)
    state = graph(Concat([base(), other])).state_dict()
    with pytest.raises(StateError, match=r"source\.parts\[0\]\.amendments"):
        graph(Concat([once(), other])).load_state_dict(state)
