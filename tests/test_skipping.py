"""Skipping: alike on every rank, by arithmetic or by work, told in the state and in the report."""

import itertools
import json
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, lane_rows, plain, round_robin, run, source
from torchdata.nodes import IterableWrapper

from zephon_nodes import ConfigError, Pipeline, StateError, from_node, skip_spans
from zephon_nodes.session import Session

THROUGH = mock.patch.object(Session, "_jump", lambda self, rounds: False)
"""Skipping by work where arithmetic would do."""


def leaves(state):
    return {key: value for key, value in state.items() if key.startswith("lane_")}


def through_json(state):
    return json.loads(json.dumps(state))


def keep(row):
    return row["v"] % 5 != 2


def worked(work, **options):
    """A graph that can't be skipped through by arithmetic."""
    return Pipeline(work, **options).filter(keep).shuffle(5).map_group(list, 3).batch(2)


def even_batches(batch):
    return batch if batch[0].get("v", 0) % 4 == 0 else None


ONE_TO_ONE = {
    "rows": lambda work: Pipeline(work),
    "mapped": lambda work: Pipeline(work).map(dict),
    "batches": lambda work: Pipeline(work).map(dict).batch(3),
    "batches of functions": lambda work: Pipeline(work).batch(2).map_batch(list),
    "taken": lambda work: Pipeline(work).batch(2).take(6),
    "batches that a function leaves out": lambda work: Pipeline(work).batch(2).map_batch(even_batches),
    "one lane ends early": lambda work: Pipeline(Lanes([5, 30])),
}


def skipped(make, before, rounds, live, options):
    """What comes after ``before`` outputs and a skip, the lanes' states after the skip and at the end, and the report."""
    pipeline = make().options(**options)
    iterator = iter(pipeline)
    list(itertools.islice(iterator, before))
    if not live:
        state = through_json(pipeline.state_dict())
        pipeline.close()
        pipeline = make().options(**options)
        pipeline.load_state_dict(state)
    pipeline.skip(rounds)
    after, report = leaves(pipeline.state_dict()), str(pipeline.drops)
    rest = [plain(output) for output in (iterator if live else itertools.islice(pipeline, 100))]
    end = pipeline.state_dict()
    pipeline.close()
    return rest, after, report, end


@pytest.mark.parametrize("kind", ONE_TO_ONE)
@given(
    before=st.integers(0, 9),
    rounds=st.integers(1, 12),
    live=st.booleans(),
    lanes=st.sampled_from([1, 2]),
    thread=st.booleans(),
)
def test_a_jump_is_the_same_as_working_through(kind, before, rounds, live, lanes, thread):
    """Before the first batch, in mid-epoch, at level and uneven places, up to and past the end."""
    options = {"runner": "thread", "parallelism": 1} if thread else {"runner": "inline"}
    work = source(37, lanes, chunk=3)
    live = live and before > 0

    def make():
        return ONE_TO_ONE[kind](work)

    with THROUGH:
        want = skipped(make, before, rounds, live, options)
    assert skipped(make, before, rounds, live, options) == want


def without_rounds(lanes, given_, rounds):
    """The rest of one rank, by lists: ``rounds`` outputs less of each lane after ``given_`` outputs of all."""
    turns = [(turn, lane) for turn in range(99) for lane in range(len(lanes)) if turn < len(lanes[lane])]
    had = [sum(lane == n for _, lane in turns[:given_]) for n in range(len(lanes))]
    return [lanes[lane][turn] for turn, lane in turns if turn >= had[lane] + rounds]


@given(
    st.lists(st.integers(0, 24), min_size=1, max_size=3),
    st.integers(0, 20),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)
def test_a_skip_leaves_out_exactly_so_many_rounds_of_each_lane(lengths, before, rounds, one_to_one, batched):
    """Also where lanes have ended, so that a round has fewer outputs."""
    work = Lanes(lengths)
    lanes = [lane_rows(work, lane) for lane in range(len(lengths))]
    if batched:
        lanes = [[rows[i : i + 2] for i in range(0, len(rows), 2)] for rows in lanes]
    before = min(before, sum(map(len, lanes)) - 1)
    if before < 1:
        return

    def make():
        pipeline = Pipeline(work) if one_to_one else Pipeline(work).filter(lambda row: True)
        return pipeline.batch(2) if batched else pipeline

    rest = skipped(make, before, rounds, True, {"runner": "inline", "at_end": "ragged"})[0]
    assert rest == without_rounds(lanes, before, rounds)


def test_before_the_first_batch_an_open_iterator_goes_on_behind_the_skip():
    pipeline = Pipeline(source(8), runner="inline")
    iterator = iter(pipeline)
    pipeline.skip(2)
    assert [row["v"] for row in iterator] == [2, 3, 4, 5, 6, 7]


def test_a_skip_past_the_end_ends_the_epoch_and_the_next_one_is_whole():
    for make in (lambda: Pipeline(source(8), runner="inline"), lambda: worked(source(8), runner="inline")):
        pipeline = make()
        iterator = iter(pipeline)
        next(iterator)
        pipeline.skip(50)
        assert list(iterator) == []
        whole = make()
        run(whole)
        assert run(pipeline)[0] == run(whole)[0] and pipeline.epoch == 1


def test_a_skip_from_an_epochs_end_belongs_to_the_next_epoch():
    for make in (
        lambda: Pipeline(source(8), runner="inline"),
        lambda: Pipeline(source(8), runner="inline").filter(bool),
    ):
        pipeline = make()
        run(pipeline)
        resumed = make()
        resumed.load_state_dict(pipeline.state_dict())
        resumed.skip(3)
        assert [row["v"] for row in resumed] == [3, 4, 5, 6, 7] and resumed.epoch == 1
        assert resumed.state_dict()["lane_0"][8] == [[0, 0, 0, 3]]
        assert "from record 0 of span 0 to record 3 of span 0" in str(resumed.drops)


def test_a_skip_after_an_error_stays_in_the_epoch():
    """She reads of one bad row, and skips it."""

    def fail(row):
        if row["v"] == 4:
            raise ValueError("four")
        return row

    pipeline = Pipeline(source(8), runner="inline").map(fail)
    assert len(run(pipeline)[0]) == 4
    pipeline.skip(1)
    assert pipeline.epoch == 0 and [row["v"] for row in pipeline] == [5, 6, 7]


def test_what_was_skipped_before_an_error_is_told_as_skipped():
    def fail(row):
        if row["v"] == 4:
            raise ValueError("four")
        return row

    pipeline = Pipeline(source(8), runner="inline").filter(lambda row: True).map(fail)
    iterator = iter(pipeline)
    next(iterator)
    with pytest.raises(Exception, match="four"):
        pipeline.skip(6)
    assert pipeline.state_dict()["lane_0"][:2] == [0, 1] or "skipped from record 1" in str(pipeline.drops)


def test_a_state_with_skips_is_small_and_passes_json_and_torch_save(tmp_path):
    pipeline = worked(source(200, 2), runner="inline")
    next(iter(pipeline))
    pipeline.skip(3)
    state = skip_spans(pipeline.state_dict(), 2)
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state == through_json(state)
    assert state.keys() == worked(source(200, 2)).state_dict().keys()
    assert all(len(json.dumps(leaf)) < 100 for leaf in leaves(state).values())
    fresh = worked(source(200, 2), runner="inline")
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    assert [line.split(":")[0] for line in fresh.drops.skips] == ["lane 0", "lane 0", "lane 1", "lane 1"]
    assert "skipped from record" in str(fresh.drops)
    fresh.close()


def test_skipping_changes_no_state_that_it_is_given_and_nothing_of_lanes_that_have_ended():
    pipeline = Pipeline(Lanes([1, 30]), runner="inline")
    list(itertools.islice(pipeline, 5))
    state = pipeline.state_dict()
    copy = through_json(state)
    after = skip_spans(state)
    assert state == copy and after["lane_0"] == state["lane_0"] and state["lane_0"][3] == 1
    assert after["lane_1"][:2] == [1, 0] and after["recipe"] == state["recipe"]


def test_one_span_is_the_rest_of_the_one_that_a_lane_is_in():
    for first, want in ((0, 8), (3, 8), (9, 16)):
        pipeline = Pipeline(source(24), runner="inline")
        list(itertools.islice(pipeline, first))
        resumed = Pipeline(source(24), runner="inline")
        resumed.load_state_dict(skip_spans(pipeline.state_dict()))
        assert run(resumed)[0] == round_robin([lane_rows(source(24), 0)[want:]])


def test_spans_past_the_end_leave_nothing_of_the_epoch():
    pipeline = worked(source(24, 2), runner="inline")
    next(iter(pipeline))
    pipeline.load_state_dict(skip_spans(pipeline.state_dict(), 10**9))
    list(pipeline)
    assert {leaf[3] for leaf in leaves(pipeline.state_dict()).values()} == {1} or pipeline.epoch == 1


def nodes():
    return Pipeline(from_node(IterableWrapper(range(40)), span=4), runner="inline")


@pytest.mark.parametrize("first", [0, 1, 6])
def test_spans_of_torchdata_nodes_are_refused_with_the_way_out(first):
    """Also in the state before the first batch, which would be gone on from as if nothing were."""
    pipeline = nodes()
    list(itertools.islice(pipeline, first))
    with pytest.raises(StateError, match="torchdata nodes can't go to any place; run on and throw away"):
        skip_spans(pipeline.state_dict())
    pipeline.close()


@pytest.mark.parametrize("first", [0, 1, 6])
def test_rounds_of_torchdata_nodes_are_worked_through(first):
    pipeline = nodes()
    iterator = iter(pipeline)
    assert list(itertools.islice(iterator, first)) == list(range(first))
    pipeline.skip(5)
    state = through_json(pipeline.state_dict())
    resumed = nodes()
    resumed.load_state_dict(state)
    assert list(itertools.islice(resumed, 8)) == list(range(first + 5, first + 13))
    assert "skipped" in str(resumed.drops)
    pipeline.close(), resumed.close()


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2", None])
def test_numbers_that_are_none_are_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=f"rounds must be an integer of at least 1, got {wrong!r}"):
        Pipeline(source()).skip(wrong)
    with pytest.raises(StateError, match=f"spans to skip must be an integer of at least 1, got {wrong!r}"):
        skip_spans(Pipeline(source()).state_dict(), wrong)


@pytest.mark.parametrize("wrong", [{}, None, [], {"epoch": 0}, {"model": 1}])
def test_what_is_no_state_is_refused(wrong):
    with pytest.raises(StateError, match="this is no state of a zephon_nodes graph"):
        skip_spans(wrong)
