"""A mixture that changes: chunks against their definition, all lanes in step, every row once, any world."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_by_hand import chunks_by_hand, clock
from mixtures import counted, lane_rows, mixture

from zephon_nodes import Dataset, Phases, Pipeline, StateError, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

NAMES = ("d0", "d1", "d2")


@st.composite
def phased(draw, stops=("last", "first", "redistribute"), lanes=(1, 2, 3, 8)):
    """(source, its phases as (start, weights) pairs)."""
    weight = st.sampled_from([0, 1, "0.5", "1/3"])
    starts = sorted(draw(st.sets(st.integers(1, 12), max_size=3)) | {0})
    listed = [
        (start, dict(zip(NAMES, draw(st.tuples(weight, weight, weight).filter(any)), strict=True))) for start in starts
    ]
    for name in NAMES:
        if not any(weights[name] for _, weights in listed):
            listed[-1][1][name] = 1
    datasets = [counted(name, [[8] * draw(st.sampled_from([1, 5, 20])) + [3]])[0] for name in NAMES]
    source = StaticMixtureWorkSource(
        datasets,
        Phases(listed),
        draw(st.sampled_from(lanes)),
        draw(st.sampled_from([1, 5, 16])),
        draw(st.sampled_from([1, 3])),
        seed=draw(st.integers(0, 9)),
        shuffle=draw(st.sampled_from(["windows", "global", "none"])),
        passes=draw(st.sampled_from([1, 2])),
        stop=draw(st.sampled_from(stops)),
    )
    return source, listed


@pytest.mark.parametrize("stop", ["last", "first", "redistribute"])
def test_chunks_are_what_the_definition_says(stop):
    @settings(max_examples=12)
    @given(phased([stop]), st.integers(0, 2))
    def check(drawn, epoch):
        source, listed = drawn
        want = chunks_by_hand(source, clock(source, listed), epoch)
        for (lane, index), rows in want.items():
            assert list(source.chunk(lane, index, epoch)) == rows, f"chunk {index} of lane {lane}"
        after = 1 + max((index for _, index in want), default=-1)
        assert not any(source.chunk(lane, after, epoch) for lane in range(source.num_lanes))

    check()


@given(phased(["redistribute"]))
def test_every_row_comes_once_a_pass_however_the_mixture_changes(drawn):
    """A dataset whose last phase has come before it was through has given a part of its rows, and none of them twice."""
    source, listed = drawn
    seen = Counter(at for lane in range(source.num_lanes) for at in lane_rows(source, lane))
    assert max(seen.values()) == 1
    for dataset in source.datasets:
        had = sum(1 for at in seen if at.dataset == dataset.name)
        assert had <= source.passes * dataset.rows
        if listed[-1][1][dataset.name]:
            assert had == source.passes * dataset.rows


@given(phased())
def test_all_lanes_change_in_the_same_chunk(drawn):
    """A dataset that rests in a phase is in none of its chunks, in no lane; all lanes end in the same chunk."""
    source, listed = drawn
    ends = [*(start for start, _ in listed[1:]), 1000]
    for (start, weights), end in zip(listed, ends, strict=True):
        resting = {name for name, weight in weights.items() if not weight}
        for index in range(start, end):
            chunks = [source.chunk(lane, index) for lane in range(source.num_lanes)]
            if chunks[0] is None:
                assert all(chunk is None for chunk in chunks)
                break
            assert not {at.dataset for chunk in chunks for at in chunk} & resting


def test_a_ramp_has_in_every_chunk_the_share_that_the_line_has_there():
    ramp = Phases([(0, {"d0": 1}), (50, {"d1": 1})], ramp="linear")
    source = StaticMixtureWorkSource(
        [counted(f"d{k}", [[50] * 400])[0] for k in range(2)], ramp, 2, 100, shuffle="global"
    )
    for lane in range(2):
        for index in range(50):
            share = Counter(at.dataset for at in source.chunk(lane, index))["d1"]
            assert abs(share - 100 * (index + 0.5) / 50) <= 3


def test_one_phase_is_the_same_recipe_and_data_as_its_weights_alone():
    weights = {"d0": 3, "d1": 1}
    plain, phase = (mixture((40, 9), (3, 1), 2, 8), mixture((40, 9), (3, 1), 2, 8))
    phase = StaticMixtureWorkSource(phase.datasets, Phases([(0, weights)]), 2, 8)
    assert phase.recipe() == plain.recipe()
    assert [lane_rows(phase, lane) for lane in range(2)] == [lane_rows(plain, lane) for lane in range(2)]


def test_every_epoch_goes_through_the_phases():
    source = StaticMixtureWorkSource(
        [counted(f"d{k}", [[8] * 20])[0] for k in range(2)], Phases([(0, {"d0": 1}), (3, {"d1": 1})]), 2, 8
    )
    for epoch in range(3):
        names = [{at.dataset for at in source.chunk(1, index, epoch)} for index in range(6)]
        assert names == [{"d0"}] * 3 + [{"d1"}] * 3


# graphs


def rows(name, count):
    return Dataset.from_rows(name, [{"d": name, "input_ids": np.full(1 + i % 5, i, np.int32)} for i in range(count)])


@st.composite
def graphs(draw):
    ramp = draw(st.sampled_from(["step", "linear"]))
    estimation = draw(st.sampled_from([None, TokenEstimation(), TokenEstimation({"a": 3, "b": 2.5})]))
    unit = "chunks" if estimation is None else draw(st.sampled_from(["chunks", "tokens"]))
    scale = 1 if unit == "chunks" else 40
    listed = [(0, {"a": 3, "b": 1}), (2 * scale, {"a": 1, "b": 1}), (5 * scale, {"b": 1, "a": draw(st.integers(0, 3))})]
    stop, seed = draw(st.sampled_from(["last", "first", "redistribute"])), draw(st.integers(0, 9))
    shuffle = draw(st.sampled_from([1, 4]))

    def make():
        source = StaticMixtureWorkSource(
            [rows("a", 40), rows("b", 24)],
            Phases(listed, ramp=ramp, unit=unit),
            *(4, 4, 2, seed),
            stop=stop,
            token_estimation=estimation,
        )
        return Pipeline(source).shuffle(shuffle).batch(2)

    return make


@settings(max_examples=5)
@given(graphs())
def test_a_mixture_that_changes_is_the_same_on_any_world_and_across_any_stop(make):
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, steps=12, ahead=4)


@settings(max_examples=3)
@given(graphs())
def test_a_mixture_that_changes_is_the_same_under_any_runner(make):
    assert_any_schedule(make, schedules=1)


CHANGED = {
    "a start": Phases([(0, {"a": 1, "b": 1}), (6, {"b": 1})]),
    "a weight": Phases([(0, {"a": 1, "b": 2}), (5, {"b": 1})]),
    "the ramp": Phases([(0, {"a": 1, "b": 1}), (5, {"b": 1})], ramp="linear"),
    "the unit": Phases([(0, {"a": 1, "b": 1}), (5, {"b": 1})], unit="tokens"),
    "a phase more": Phases([(0, {"a": 1, "b": 1}), (5, {"b": 1}), (9, {"a": 1})]),
    "no phases": {"a": 1, "b": 1},
}


@pytest.mark.parametrize("change", CHANGED)
def test_a_state_of_other_phases_is_refused_by_name(change):
    def graph(phases):
        given_ = TokenEstimation({"a": 3, "b": 3})
        source = StaticMixtureWorkSource([rows("a", 60), rows("b", 40)], phases, 2, 4, 2, token_estimation=given_)
        return Pipeline(source, runner="inline").batch(2)

    state = graph(Phases([(0, {"a": 1, "b": 1}), (5, {"b": 1})])).state_dict()
    with pytest.raises(StateError, match=r"source\.mixture.*->"):
        graph(CHANGED[change]).load_state_dict(state)


def test_ramps_of_many_datasets_with_measured_tokens_stay_short_numbers():
    """Fractions that grew with every step of a ramp made a source of 20 datasets take a minute to make its first chunk."""
    names = [f"d{k}" for k in range(6)]
    measured = {name: Fraction(2**32 // (3 + k) * 100 + k, 2**32) for k, name in enumerate(names)}
    first, last = ({name: 1 + (k * 7 + shift) % 5 for k, name in enumerate(names)} for shift in (0, 2))
    source = StaticMixtureWorkSource(
        [rows(name, 50) for name in names],
        Phases([(0, first), (1000, last)], ramp="linear"),
        passes=None,
        token_estimation=TokenEstimation(measured),
    )
    time = source.time()
    digits = [max(abs(x.numerator), x.denominator).bit_length() for k in range(6) for x in [time.at(k, Fraction(1000))]]
    assert max(digits) < 2000
