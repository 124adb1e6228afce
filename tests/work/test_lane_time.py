"""Lane time against integrals in plain fractions, and against the definition of each way to end."""

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.work.lane_time import LaneTime, Segment, lane_time

STOPS = ["last", "first", "redistribute"]
WEIGHT = st.sampled_from(["1", "0.5", "0.1", "1/3", "0.001", "0.999", "2.25", "17"])
RATES = st.lists(WEIGHT.map(Fraction), min_size=1, max_size=5)


@st.composite
def mixtures(draw):
    """(rates, quotas): rows a lane and chunk, rows a lane."""
    weights = draw(RATES)
    chunk, lanes = draw(st.sampled_from([1, 5, 16, 256])), draw(st.sampled_from([1, 2, 3, 8, 512]))
    rates = [chunk * weight / sum(weights) for weight in weights]
    rows = draw(st.lists(st.sampled_from([1, 2, 7, 40, 1000, 10**6 + 3]), min_size=len(rates), max_size=len(rates)))
    return rates, [Fraction(n, lanes) for n in rows]


@st.composite
def segment_lists(draw):
    components = draw(st.integers(1, 3))
    gaps = draw(st.lists(st.sampled_from([1, 2, Fraction(1, 3), Fraction(7, 2), 100]), max_size=4))
    rate = st.sampled_from([Fraction(0), Fraction(1), Fraction(5, 7), Fraction(128)])
    return [
        Segment(Fraction(sum(gaps[:i])), tuple(draw(rate) for _ in range(components))) for i in range(len(gaps) + 1)
    ]


def integral(segments, k, t):
    """Rows of component k until t, summed stretch by stretch."""
    total = Fraction(0)
    for i, segment in enumerate(segments):
        stop = segments[i + 1].start if i + 1 < len(segments) else t
        total += segment.rates[k] * max(Fraction(0), min(t, stop) - segment.start)
    return total


def taken(time, k, chunk):
    low, _, denominator = time.edges(k, chunk)
    assert isinstance(low, int)
    return Fraction(low, denominator)


@given(segment_lists(), st.none() | st.fractions(0, 120, max_denominator=12), st.lists(st.integers(0, 130), max_size=6))
def test_rows_are_the_integral_of_the_rates(segments, end, chunks):
    time = LaneTime(segments, end)
    assert time.chunks == (None if end is None else math.ceil(end))
    for k in range(len(segments[0].rates)):
        for chunk in chunks:
            upto = Fraction(chunk) if end is None else min(Fraction(chunk), end)
            assert taken(time, k, chunk) == integral(segments, k, upto)
            assert time.at(k, upto) == integral(segments, k, upto)


@given(mixtures())
def test_without_an_end_every_component_goes_on_at_its_rate(mixture):
    rates, _ = mixture
    time = lane_time(rates, None, "last")
    assert time.end is None
    assert time.chunks is None
    for chunk in (0, 1, 12345, 10**9 + 1):
        assert [taken(time, k, chunk) for k in range(len(rates))] == [rate * chunk for rate in rates]


@given(mixtures())
def test_last_ends_when_the_slowest_component_has_its_quota_and_the_others_repeat(mixture):
    rates, quotas = mixture
    time = lane_time(rates, quotas, "last")
    assert time.end is not None
    had = [time.at(k, time.end) / quota for k, quota in enumerate(quotas)]
    assert min(had) == 1
    assert [time.at(k, time.end) for k in range(len(rates))] == [rate * time.end for rate in rates]


@given(mixtures())
def test_first_ends_when_the_fastest_component_has_its_quota(mixture):
    rates, quotas = mixture
    time = lane_time(rates, quotas, "first")
    assert time.end is not None
    had = [time.at(k, time.end) / quota for k, quota in enumerate(quotas)]
    assert max(had) == 1
    assert [time.at(k, time.end) for k in range(len(rates))] == [rate * time.end for rate in rates]


@given(mixtures())
def test_redistribute_ends_with_exactly_every_quota(mixture):
    rates, quotas = mixture
    time = lane_time(rates, quotas, "redistribute")
    assert time.end is not None
    assert [time.at(k, time.end) for k in range(len(rates))] == quotas
    assert time.end == sum(quotas) / sum(rates), "a chunk always holds as many rows"


@given(mixtures(), st.fractions(0, 1, max_denominator=50))
def test_redistribute_keeps_the_proportions_of_those_that_stay(mixture, part):
    """At any time there is a level v, the same for all, such that u_k = min(rate_k * v, quota_k)."""
    rates, quotas = mixture
    time = lane_time(rates, quotas, "redistribute")
    assert time.end is not None
    now = time.end * part
    rows = [time.at(k, now) for k in range(len(rates))]
    level = max(had / rate for had, rate in zip(rows, rates, strict=True))
    assert rows == [min(rate * level, quota) for rate, quota in zip(rates, quotas, strict=True)]
    assert sum(rows) == sum(rates) * now


@given(mixtures(), st.sampled_from(STOPS), st.data())
def test_chunks_meet_without_gap_or_overlap_and_nothing_comes_after_the_end(mixture, stop, data):
    rates, quotas = mixture
    time = lane_time(rates, quotas, stop)
    assert time.end is not None
    assert time.chunks is not None
    assert time.chunks - 1 < time.end <= time.chunks
    chunk = data.draw(st.integers(0, time.chunks - 1))
    for k in range(len(rates)):
        assert taken(time, k, 0) == 0
        low, high, denominator = time.edges(k, chunk)
        assert low <= high
        assert Fraction(high, denominator) == taken(time, k, chunk + 1)
        at_end = [taken(time, k, time.chunks + i) for i in range(3)]
        assert at_end == [time.at(k, time.end)] * 3
    per_chunk = sum(taken(time, k, chunk + 1) - taken(time, k, chunk) for k in range(len(rates)))
    whole = chunk + 1 <= time.end
    assert per_chunk == sum(rates) if whole else per_chunk < sum(rates)


@pytest.mark.parametrize("stop", STOPS)
def test_one_component_ends_alike_however_it_stops(stop):
    time = lane_time([Fraction(256)], [Fraction(1000, 3)], stop)
    assert time.end == Fraction(1000, 3 * 256)
    assert time.chunks == 2
    assert taken(time, 0, 2) == Fraction(1000, 3)


def test_components_that_end_at_the_same_time_end_together():
    rates, quotas = [Fraction(3), Fraction(1), Fraction(2)], [Fraction(30), Fraction(10), Fraction(40)]
    time = lane_time(rates, quotas, "redistribute")
    assert [taken(time, k, 10) for k in range(3)] == [30, 10, 20]
    assert time.end == Fraction(80, 6)
    assert [taken(time, k, 14) for k in range(3)] == quotas


@settings(max_examples=5)
@given(st.lists(st.floats(0.01, 1), min_size=40, max_size=40, unique=True), st.randoms(use_true_random=False))
def test_forty_components_with_weights_of_seventeen_digits_stay_exact(weights, random):
    rates = [Fraction(str(weight)) for weight in weights]
    quotas = [Fraction(random.randrange(1, 10**9), 64) for _ in weights]
    time = lane_time(rates, quotas, "redistribute")
    assert time.end == sum(quotas) / sum(rates)
    assert time.chunks is not None
    assert [taken(time, k, time.chunks) for k in range(40)] == quotas


def test_a_chunk_far_out_costs_no_walk_through_those_before_it():
    """u at chunk 10**30 is asked for directly; nothing can have been counted up to it."""
    time = lane_time([Fraction(1, 3), Fraction(2, 3)], None, "last")
    assert taken(time, 1, 10**30) == Fraction(2 * 10**30, 3)
    ending = lane_time([Fraction(1, 3), Fraction(2, 3)], [Fraction(10**30), Fraction(5)], "redistribute")
    assert ending.chunks == 10**30 + 5
    assert taken(ending, 0, ending.chunks) == 10**30
