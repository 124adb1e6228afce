import copy
import itertools
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, run, source, take

from zephon_nodes import Pipeline, StateError, ZephonError, merge_states
from zephon_nodes.state import LaneState

LANES = 4


def graph(world=1, rank=0, rows=200, batch=3, **settings):
    work = source(rows, LANES, shuffle="windows", **settings)
    pipeline = Pipeline(work, rank=rank, world_size=world, runner="inline", at_end="ragged").shuffle(5)
    return pipeline.batch(batch) if batch else pipeline


def rank_states(world, rounds, extra=0, **settings):
    """The states of all ranks after so many rounds; ``extra`` outputs more on each."""
    each = LANES // world
    return [take(graph(world, rank, **settings), rounds * each + extra)[1] for rank in range(world)]


def lanes_of(state):
    return {key: value[:4] + value[5:] for key, value in state.items() if key.startswith("lane_")}


def mess(text):
    """Words in a message, whatever stands between them."""
    return "(?s)" + ".*".join(text.split("|"))


# merging


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_states_of_all_ranks_make_the_state_of_one(world):
    states = rank_states(world, 3)
    merged = merge_states(states)
    assert lanes_of(merged) == lanes_of(rank_states(1, 3)[0])
    assert merged == merge_states(reversed(states)) == merge_states(iter(states)) == merge_states([merged])
    assert json.loads(json.dumps(merged)) == merged


@pytest.mark.parametrize(("saved", "loaded"), [(2, 4), (4, 1), (1, 2), (4, 2)])
def test_a_merged_state_loads_on_any_world(saved, loaded):
    merged = merge_states(rank_states(saved, 3))
    whole = [list(output) for output in graph()]
    for rank in range(loaded):
        fresh = graph(loaded, rank)
        fresh.load_state_dict(json.loads(json.dumps(merged)))
        each = LANES // loaded
        rest = [list(output) for output in itertools.islice(fresh, each)]
        assert rest == whole[3 * LANES + rank * each :][:each]


def test_merging_changes_none_of_the_states():
    states = rank_states(2, 3)
    before = copy.deepcopy(states)
    merge_states(states)["lane_0"].append(1)
    assert states == before


def test_a_rank_that_is_missing_is_named_by_its_lanes_at_the_load():
    merged = merge_states(rank_states(4, 2)[:3])
    graph(4, 1).load_state_dict(merged)
    with pytest.raises(StateError, match=mess(r"holds lanes \[0, 1, 2\]|misses \[3\]|merge_states")):
        graph(1).load_state_dict(merged)


def changed(state, **keys):
    return {**state, **keys}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda a, b: [a, changed(b, epoch=1)], "epoch|1|0"),
        (lambda a, b: [a, changed(b, world_size=3)], "world_size|3|2"),
        (lambda a, b: [a, changed(b, version=2)], "version|2|1"),
        (lambda a, b: [a, b, changed(a, lane_1=[9, 0, 2, 0, 1, 0, 0])], "lane_1"),
        (
            lambda a, b: [a, changed(b, lane_2=[0, 0, 1, 0, 1, 0, 0], lane_3=[0, 0, 1, 0, 1, 0, 0])],
            "rounds|1.0, 2.0|one step",
        ),
        (lambda a, b: [a, changed(b, lane_3="junk")], "lane_3|junk"),
        (lambda a, b: [], "nothing to merge"),
        (lambda a, b: [{}], "no state"),
        (lambda a, b: [a, {"loader": b}], "no state|loader"),
    ],
    ids=["epochs", "worlds", "versions", "a lane twice", "rounds", "junk", "none", "empty", "nested"],
)
def test_states_that_do_not_belong_together_are_refused_with_what_differs(spoil, words):
    with pytest.raises(StateError, match=mess(words)):
        merge_states(spoil(*rank_states(2, 2)))


@pytest.mark.parametrize("wrong", [[None], ["text"], [[1, 2]], [5]], ids=repr)
def test_what_are_no_states_is_refused_in_words(wrong):
    with pytest.raises(StateError, match="no state"):
        merge_states(wrong)


def test_one_state_without_brackets_is_refused_in_words():
    with pytest.raises(StateError, match="state"):
        merge_states(rank_states(1, 1)[0])


def test_states_of_different_recipes_are_refused_with_the_settings_that_differ():
    with pytest.raises(StateError, match=r"seed.*1"):
        merge_states([rank_states(2, 2)[0], rank_states(2, 2, seed=1)[1]])


@pytest.mark.parametrize("outputs", [(4, 6), (4, 5), (5, 6), (3, 5)], ids=str)
def test_ranks_that_stopped_after_different_numbers_of_outputs_are_refused(outputs):
    """One rank saved a step later: its lanes would be ahead for ever. Also when it stopped inside a round."""
    states = [take(graph(2, rank), count)[1] for rank, count in enumerate(outputs)]
    with pytest.raises(StateError, match="different numbers"):
        merge_states(states)


def test_ranks_that_all_stopped_inside_a_round_merge_for_the_same_world_only():
    merged = merge_states(rank_states(2, 2, extra=1))
    for rank in range(2):
        graph(2, rank).load_state_dict(merged)
    for world in (1, 4):
        for rank in range(world):
            with pytest.raises(StateError, match=mess(r"middle of a round|on 2 ranks|whole rounds")):
                graph(world, rank).load_state_dict(merged)


def test_a_lane_that_has_ended_does_not_count_as_one_that_stopped_early():
    def ragged(rank):
        return Pipeline(Lanes((3, 20, 20, 5)), rank=rank, world_size=2, runner="inline", at_end="ragged")

    merged = merge_states([take(ragged(0), 3 + 8)[1], take(ragged(1), 8 + 5)[1]])
    assert [merged[f"lane_{lane}"][2:4] for lane in range(4)] == [[8, 1], [8, 0], [8, 0], [8, 1]]


# loading


def refused(state, words, **settings):
    """Loading fails with these words, and the loader is as it was."""
    fresh = graph(**settings)
    first = next(iter(fresh))
    before = fresh.state_dict()
    with pytest.raises(StateError, match=mess(words)):
        fresh.load_state_dict(state)
    assert fresh.state_dict() == before
    rest = [list(output) for output in itertools.islice(fresh.loader._iterator, 3)]
    assert [list(first), *rest] == [list(output) for output in itertools.islice(graph(**settings), 4)]


GOOD = rank_states(1, 2)[0]
BAD = {
    "another version": ({**GOOD, "version": 2}, "version 2|version 1"),
    "another version with other keys": ({"version": 2, "lanes": []}, "version 2|version 1"),
    "nested": ({"loader": GOOD, "step": 3}, "no state|loader"),
    "of torchdata's loader": ({"root": {}, "_num_yielded": 3}, "no state|_num_yielded|recipe"),
    "empty": ({}, r"no state|\[\]|version"),
    "None": (None, "no state|None"),
    "text": (json.dumps(GOOD), "no state|str"),
    "list": ([GOOD], "no state|list"),
    "no lanes": ({k: v for k, v in GOOD.items() if not k.startswith("lane")}, "no state|lane"),
    "a lane missing": ({k: v for k, v in GOOD.items() if k != "lane_2"}, r"misses \[2\]|merge_states"),
    "a lane too short": ({**GOOD, "lane_1": [1, 2, 3]}, r"lane_1|7 integers|\[1, 2, 3\]"),
    "a lane of text": ({**GOOD, "lane_1": "x"}, "lane_1|7 integers"),
    "a lane of floats": ({**GOOD, "lane_1": [0.0] * 7}, "lane_1|7 integers"),
    "a tensor": ({**GOOD, "lane_1": torch.zeros(7)}, "lane_1|7 integers"),
    "a lane before the start": ({**GOOD, "lane_1": [-1, 0, 2, 0, 1, 0, 0]}, "lane_1|-1"),
    "fewer than none taken": ({**GOOD, "lane_1": [0, -5, 2, 0, 1, 0, 0]}, "lane_1|-5"),
    "a token that is no text": ({**GOOD, "lane_1": [0, 0, 2, 0, 1, 0, 0, 7]}, "lane_1|text|7"),
    "skips that are none": ({**GOOD, "lane_1": [0, 0, 2, 0, 1, 0, 0, "", [5]]}, "lane_1|5"),
    "recipe no JSON": ({**GOOD, "recipe": "{"}, "recipe"),
    "recipe missing parts": ({**GOOD, "recipe": "{}"}, "recipe"),
    "recipe not text": ({**GOOD, "recipe": 3}, "recipe|3"),
    "epoch no number": ({**GOOD, "epoch": "first"}, "epoch|first"),
    "epoch before the start": ({**GOOD, "epoch": -1}, "epoch|-1"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_state_that_can_not_be_right_is_refused_and_changes_nothing(kind):
    state, words = BAD[kind]
    refused(state, words)


SPOILT = st.sampled_from([None, True, -1, 3, 10**30, 1.5, "x", [], [1], {}, {"a": 1}])


@given(st.sampled_from(sorted(GOOD)), SPOILT, st.integers(0, 6), st.booleans())
def test_whatever_is_wrong_with_a_state_is_an_error_of_ours(key, value, place, whole):
    """A bit flip, another tool's file: never a bare KeyError out of the depths, never another row without a word."""
    state = copy.deepcopy(GOOD)
    if whole or not key.startswith("lane_"):
        state[key] = value
    else:
        state[key][place] = value
    fresh = graph()
    try:
        fresh.load_state_dict(state)
    except ZephonError:
        return
    error = run(fresh)[1]
    assert error is None or isinstance(error, ZephonError)


def test_what_others_put_into_a_state_does_not_matter():
    graph().load_state_dict({**GOOD, "lane_x": [], 0: 1, "note": "step 8", "lane_7": None})


def test_a_state_of_one_rank_of_several_says_to_merge():
    refused(rank_states(2, 2)[0], r"\[0, 1\]|misses \[2, 3\]|merge_states")


# leaves


@given(
    st.builds(
        LaneState,
        *(st.integers(0, 10**6) for _ in range(3)),
        *(st.booleans() for _ in range(2)),
        *(st.integers(0, 10**6) for _ in range(2)),
        st.none() | st.text(min_size=1),
    )
)
def test_a_lane_is_one_plain_list_that_reads_back(at):
    leaf = at.leaf(at.level)
    assert LaneState.of("lane_0", json.loads(json.dumps(leaf))) == LaneState.of("lane_0", tuple(leaf)) == at


def test_a_state_is_a_detached_copy():
    """DCP writes it in the background while the loop goes on."""
    pipeline = graph()
    iterator = iter(pipeline)
    next(iterator)
    state = pipeline.state_dict()
    text = json.dumps(state)
    for _ in range(9):
        next(iterator)
    assert json.dumps(state) == text
    for value in state.values():
        if isinstance(value, list):
            value[:] = [0] * 7
    assert pipeline.state_dict() == json.loads(json.dumps(rank_states(1, 2, extra=2)[0]))
