"""The pace, against tasks whose times are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.pace import FIRST, LARGEST, TASK_SECONDS, Pace


def fed(pace, times, feeds=200):
    """Feeds that each take ``times[hop]`` seconds a record in each hop."""
    for _ in range(feeds):
        records = pace.quantum
        for hop, seconds in enumerate(times):
            pace.took(hop, records, records * seconds)
    return pace


@given(st.lists(st.floats(1e-7, 1.0), min_size=1, max_size=4))
def test_the_slowest_hop_takes_the_time_of_a_task(times):
    pace = fed(Pace(len(times)), times)
    wanted = TASK_SECONDS / max(times)
    assert pace.quantum == pytest.approx(min(LARGEST, max(1, round(wanted))), abs=1, rel=0.1)


def test_a_hop_that_works_now_and_then_counts_for_all_that_was_fed():
    """A batch of 32 records takes 60 ms to collate: that is 2 ms a record, however fast records come."""
    pace, since = Pace(2), 0
    for _ in range(400):
        records = pace.quantum
        pace.took(0, records, records * 1e-5)
        since += records
        while since >= 32:
            since -= 32
            pace.took(1, 1, 0.064)
    assert 8 <= pace.quantum <= 24


def test_it_begins_small_grows_by_doubling_and_forgets():
    pace = Pace(1)
    assert pace.quantum == FIRST
    seen = [fed(pace, [1e-6], 1).quantum for _ in range(8)]
    assert seen == [16, 32, 64, *[LARGEST] * 5]
    assert fed(pace, [0.01], 300).quantum == 3
    assert fed(pace, [1e-6], 300).quantum == LARGEST


def test_it_does_not_grow_before_a_hop_that_has_begun_is_known():
    """A process that starts for a second would else find tasks of the largest size, and the first batch behind them."""
    pace = Pace(2)
    for _ in range(50):
        pace.sent(1)
        pace.took(0, pace.quantum, 1e-5)
    assert pace.quantum == FIRST
    pace.took(1, FIRST, FIRST * 0.01)
    pace.sent(1)
    assert fed(pace, [1e-6, 0.002], 300).quantum == round(TASK_SECONDS / 0.002)
