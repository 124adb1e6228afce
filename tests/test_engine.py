"""The engine, driven by hand (``engine_by_hand``): bounds, order, marks and failures under drawn orders of completion."""

from __future__ import annotations

import itertools
import tracemalloc
from collections import Counter

import pytest
from engine_by_hand import Hand, Lanes, Work, bare, by_rounds, outputs, plan_of, seen
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.engine import LaneEnd, LaneFailure, Output, Start
from zephon_nodes.stream import Cut

BARREN, BURST = [0] * 70, [40]
SPANS = st.lists(
    st.one_of(st.lists(st.sampled_from([1, 1, 1, 0, 3]), max_size=12), st.sampled_from([BARREN, BURST, []])), max_size=4
)
LANES = st.lists(SPANS, min_size=1, max_size=4)
KNOBS = st.fixed_dictionaries({"window": st.integers(1, 8), "target": st.integers(1, 4), "seed": st.integers(0, 10**6)})
THREADS = st.sampled_from([(0,), (1,), (1, 1), (0, 1), (1, 0, 1)])


@given(LANES, st.sampled_from([1, 5]), THREADS, KNOBS)
def test_outputs_leave_by_rounds_whatever_ends_first(lanes, quantum, threads, knobs):
    assert seen(Hand(plan_of(lanes, quantum, threads), **knobs).events()) == by_rounds(lanes)


@given(LANES, st.sampled_from([1, 5]), THREADS, st.integers(2, 4), KNOBS)
def test_no_group_reaches_over_a_mark(lanes, quantum, threads, groups, knobs):
    hand = Hand(plan_of(lanes, quantum, threads, groups), **knobs)
    assert seen(hand.events()) == by_rounds(lanes, groups)


@given(LANES, st.booleans(), KNOBS, st.integers(0, 60))
def test_a_start_from_any_cut_gives_the_rest(lanes, unread, knobs, stop):
    if unread:
        lanes = [[[1 for _ in span] for span in spans] for spans in lanes]
    want = by_rounds(lanes)
    starts = {lane: Start(Cut(0, 0)) for lane in range(len(lanes))}
    for lane, _, cut in want[:stop]:
        starts[lane] = Start(Cut(*cut), starts[lane].rounds + 1)
    assert seen(Hand(plan_of(lanes, 5, unread=unread), starts, **knobs).events()) == want[stop:]


@given(LANES, st.integers(1, 4), THREADS, KNOBS, st.integers(0, 20))
def test_counted_groups_run_on_over_spans_and_start_again_from_any_cut(lanes, size, threads, knobs, stop):
    mine = [[payload for payload, _ in outputs(spans)] for spans in lanes]
    groups = [[tuple(lane[i : i + size]) for i in range(0, len(lane), size)] for lane in mine]
    want = [g for round_ in itertools.zip_longest(*groups) for g in round_ if g is not None]
    plan = plan_of(lanes, 5, threads, size, counted=True)
    events = [event for event in Hand(plan, **knobs).events() if isinstance(event, Output)]
    assert [bare(event.payload) for event in events] == want
    starts = {lane: Start(Cut(0, 0)) for lane in range(len(lanes))}
    for event in events[:stop]:
        starts[event.lane] = Start(event.cut, starts[event.lane].rounds + 1)
    rest = [event for event in Hand(plan, starts, **knobs).events() if isinstance(event, Output)]
    assert [bare(event.payload) for event in rest] == want[stop:]


@given(LANES, KNOBS)
def test_every_drop_leaves_once_with_the_next_output_or_the_end(lanes, knobs):
    got = Counter()
    for event in Hand(plan_of(lanes, 3), **knobs).events():
        got[event.lane] += len(event.drops)
    assert got == Counter({lane: sum(span.count(0) for span in spans) for lane, spans in enumerate(lanes)})


@given(LANES, st.sampled_from([1, 7]), THREADS, KNOBS)
def test_tasks_and_held_outputs_keep_to_the_stated_bounds(lanes, quantum, threads, knobs):
    hand = Hand(plan_of(lanes, quantum, threads), **knobs)
    for _ in hand.events():
        pass
    fan = max(
        (sum(span[i : i + quantum]) for s in lanes for span in s for i in range(0, len(span), quantum)), default=0
    )
    assert hand.most_tasks <= knobs["window"]
    assert hand.most_held <= len(lanes) * (knobs["target"] - 1 + knobs["window"] * fan)


def test_a_lane_that_gives_nothing_for_a_million_records_holds_nothing_up():
    class Barren(Lanes):
        """Lane 0 begins with a million records that give nothing: the same quantum again and again."""

        def feed(self, lane, epoch, start):
            yield from itertools.repeat([Work(0, 0, -2)] * 64, 1_000_000 // 64 if lane == 0 else 0)
            yield from super().feed(lane, epoch, start)

    lanes = [[[1]], [[1] * 5000], [[1] * 5000]]
    plan = plan_of(lanes, 64, (1,))
    plan.source = Barren(lanes, 64)
    hand = Hand(plan, window=8, target=3)
    assert seen(hand.events()) == by_rounds(lanes)
    assert hand.most_held <= 3 * (3 - 1 + 8 * 64), "the other lanes were fed on while they waited for lane 0"
    assert hand.most_tasks <= 8


def test_what_a_barren_lane_leaves_out_is_not_all_kept_in_memory():
    def peak(fan):
        hand = Hand(plan_of([[[fan] * 40_000 + [1]]], 64, (0,)))
        tracemalloc.start()
        try:
            assert len([event for event in hand.events() if isinstance(event, Output)]) == 1
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(0) - peak(-2) < 1_000_000, "every drop is held until the lane gives something"


def test_empty_spans_do_not_pile_up_behind_a_slow_task():
    hand = Hand(plan_of([[[1]], [[]] * 20_000], 1, (1,)))
    steps = sum(1 for _ in itertools.takewhile(lambda _: hand.engine.step(), range(10_000)))
    assert steps < 10_000, "an endless number of marks waits in memory"


@given(LANES, st.integers(0, 3), st.integers(0, 20), KNOBS, THREADS)
def test_a_failure_comes_after_all_that_stands_before_it(lanes, lane, place, knobs, threads):
    spans = [list(span) for span in lanes[lane % len(lanes)]] or [[]]
    spans[-1].insert(min(place, len(spans[-1])), -1)
    lanes = [*lanes[: lane % len(lanes)], spans, *lanes[lane % len(lanes) + 1 :]]
    bad = lane % len(lanes)
    before = len(outputs([*spans[:-1], spans[-1][: spans[-1].index(-1)]]))
    want = [o for n, o in _numbered(by_rounds(lanes)) if (n, o[0]) < (before, bad)]
    events = list(Hand(plan_of(lanes, 5, threads), **knobs).events())
    assert seen(events) == want
    assert isinstance(events[-1], LaneFailure) and events[-1].lane == bad
    assert f"lane {bad}, record {spans[-1].index(-1)}" in str(events[-1].error)


def _numbered(rounds):
    """Each output with its number in its lane."""
    count = Counter()
    for output in rounds:
        yield count[output[0]], output
        count[output[0]] += 1


@given(LANES, st.sampled_from([1, 5]), KNOBS, st.sampled_from([None, 1, 2, 5]), st.booleans())
def test_no_lane_promises_rounds_that_it_does_not_give(lanes, quantum, knobs, rounds, failing):
    """``sure`` decides in a world of ranks whether one more round is run."""
    if failing:
        lanes = [[*spans, [1, 1, -1, 1, 1, 1]] for spans in lanes]
    events = list(Hand(plan_of(lanes, quantum, rounds=rounds), **knobs).events())
    given_ = Counter(event.lane for event in events if isinstance(event, Output))
    for event in events:
        if isinstance(event, Output) and not isinstance(events[-1], LaneFailure):
            assert event.sure <= given_[event.lane]
        elif isinstance(event, Output) and event.lane == events[-1].lane:
            assert event.sure <= given_[event.lane], "rounds behind a failure were promised"


@given(LANES, st.integers(1, 6), KNOBS)
def test_take_ends_every_lane_after_its_rounds(lanes, rounds, knobs):
    events = list(Hand(plan_of(lanes, 3, rounds=rounds), **knobs).events())
    assert seen(events) == [output for n, output in _numbered(by_rounds(lanes)) if n < rounds]
    assert sorted(event.lane for event in events if isinstance(event, LaneEnd)) == list(range(len(lanes)))


@pytest.mark.parametrize("threads", [(0,), (1,)])
def test_an_error_of_the_source_comes_in_its_place(threads):
    class Broken(Lanes):
        def feed(self, lane, epoch, start):
            yield from itertools.islice(super().feed(lane, epoch, start), 21)
            raise OSError("disk")

    plan = plan_of([[[1] * 60]], 1, threads)
    plan.source = Broken([[[1] * 60]])
    got = []
    with pytest.raises(OSError, match="disk"):
        for event in Hand(plan, window=8, target=4).events():
            if isinstance(event, LaneFailure):
                raise event.error
            got.append(event.payload)
    assert len(got) == 20


@pytest.mark.deep
def test_a_lane_that_gives_nothing_for_a_million_records_neither_starves_nor_grows_the_others():
    barren = [[0] * 1_000_000 + [1]]
    hand = Hand(plan_of([barren, [[1] * 50], [[1] * 50]], 64, (2,)), window=8, target=3)
    given = [event.lane for event in hand.events() if isinstance(event, Output)]
    assert sorted(given) == [0] + [1] * 50 + [2] * 50
    assert hand.most_held <= 3 * (3 - 1 + 8 * 64)
