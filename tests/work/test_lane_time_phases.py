"""Lane time whose rates change, against a walk from event to event in plain fractions."""

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mixture_by_hand import Clock

from zephon_nodes.work.lane_time import Segment, phased_time

STOPS = ["last", "first", "redistribute"]
RATE = st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 3), Fraction(5, 7), Fraction(16), Fraction("0.001")])


@st.composite
def phased(draw):
    """(segments, quotas) of up to three components and four phases, each with a rate somewhere, one drawn in each phase."""
    count = draw(st.integers(1, 3))
    gaps = draw(st.lists(st.sampled_from([1, 2, Fraction(7, 3), 40]), max_size=3))
    row = st.tuples(*[RATE] * count).filter(any)
    segments = [Segment(Fraction(sum(gaps[:i])), draw(row)) for i in range(len(gaps) + 1)]
    quotas = [draw(st.sampled_from([Fraction(1), Fraction(7, 3), Fraction(40), Fraction(1000)])) for _ in range(count)]
    for k in range(count):
        if not any(segment.rates[k] for segment in segments):
            quotas[k] = Fraction(10)
    return segments, quotas


def taken(time, k, chunk):
    low, _, denominator = time.edges(k, chunk)
    return Fraction(low, denominator)


def agree(time, plain, components):
    """Both say the same rows, at every corner, between corners, at whole chunks and after the end."""
    assert time.end == plain.end
    times = [corner for corner, _ in plain.corners]
    for k in range(components):
        for t in [*times, *((a + b) / 2 for a, b in itertools.pairwise(times))]:
            assert time.at(k, t) == plain.at(k, t), f"component {k} at {t}"
        last = 50 if time.chunks is None else time.chunks
        for chunk in {0, 1, 2, last // 2, last - 1, last, last + 1, last + 100} & set(range(last + 101)):
            assert taken(time, k, chunk) == plain.at(k, Fraction(chunk)), f"component {k} at chunk {chunk}"


@pytest.mark.parametrize("stop", STOPS)
@given(phased())
def test_rates_that_change_give_what_a_walk_in_fractions_gives(stop, mixture):
    segments, quotas = mixture
    agree(phased_time(segments, quotas, stop), Clock(segments, quotas, stop), len(quotas))


@given(phased())
def test_without_an_end_the_last_rates_go_on_for_ever(mixture):
    segments, quotas = mixture
    time = phased_time(segments, None, "last")
    agree(time, Clock(segments, None, "last", upto=200), len(quotas))
    last = segments[-1]
    for k in range(len(quotas)):
        assert taken(time, k, 10**12 + 200) - taken(time, k, 200) == last.rates[k] * 10**12


@given(phased())
def test_redistribute_gives_every_row_once_unless_its_component_is_drawn_no_more(mixture):
    segments, quotas = mixture
    time = phased_time(segments, quotas, "redistribute")
    assert time.end is not None
    for k, quota in enumerate(quotas):
        had = time.at(k, time.end)
        assert had <= quota
        if segments[-1].rates[k]:
            assert had == quota


@given(phased(), st.sampled_from(STOPS))
def test_nothing_is_ever_given_back(mixture, stop):
    segments, quotas = mixture
    time = phased_time(segments, quotas, stop)
    assert time.chunks is not None
    for k in range(len(quotas)):
        rows = [taken(time, k, chunk) for chunk in range(0, min(time.chunks, 60) + 2)]
        assert rows == sorted(rows)


def test_a_component_that_has_retired_is_not_waited_for():
    """It has a million rows to go, at no rate."""
    segments = [Segment(Fraction(0), (Fraction(8), Fraction(8))), Segment(Fraction(4), (Fraction(0), Fraction(16)))]
    quotas = [Fraction(10**6), Fraction(112)]
    for stop in ("last", "redistribute"):
        time = phased_time(segments, quotas, stop)
        assert time.end == 4 + Fraction(112 - 32, 16)
        assert time.at(0, time.end) == 32
        assert time.at(1, time.end) == 112


def test_the_end_waits_for_a_component_until_it_retires():
    """Component 1 has its 8 rows at chunk 1 and repeats; the plan draws component 0, which has many more, until chunk 4."""
    segments = [Segment(Fraction(0), (Fraction(8), Fraction(8))), Segment(Fraction(4), (Fraction(0), Fraction(16)))]
    time = phased_time(segments, [Fraction(10**6), Fraction(8)], "last")
    assert time.end == 4
    assert time.at(0, time.end) == 32


def test_a_component_that_returns_goes_on_where_it_was():
    one, other = (Fraction(8), Fraction(0)), (Fraction(0), Fraction(8))
    segments = [Segment(Fraction(start), rates) for start, rates in ((0, one), (3, other), (5, one))]
    time = phased_time(segments, [Fraction(40), Fraction(16)], "redistribute")
    assert [time.at(0, Fraction(t)) for t in range(8)] == [0, 8, 16, 24, 24, 24, 32, 40]
    assert time.end == 7


def test_a_run_that_has_given_everything_ends_there_and_not_where_a_later_phase_begins():
    """Else a lane makes empty chunks until then, and after a million of them the source calls itself broken."""
    rates = (Fraction(8), Fraction(8))
    segments = [Segment(Fraction(0), rates), Segment(Fraction(5_000_000), rates)]
    time = phased_time(segments, [Fraction(80), Fraction(80)], "redistribute")
    assert time.end == 10


@settings(max_examples=3)
@given(st.lists(st.floats(0.01, 1), min_size=20, max_size=20, unique=True), st.randoms(use_true_random=False))
def test_sixty_components_in_three_phases_stay_exact(weights, random):
    weights = [*weights, *(w / 3 for w in weights), *(w / 7 for w in weights)]
    segments = []
    for start in (0, 10**4, 10**5):
        random.shuffle(weights)
        segments.append(Segment(Fraction(start), tuple(Fraction(str(round(w, 6))) for w in weights)))
    quotas = [Fraction(random.randrange(1, 10**5), 64) for _ in weights]
    time = phased_time(segments, quotas, "redistribute")
    assert time.chunks is not None
    assert [taken(time, k, time.chunks) for k in range(60)] == quotas
