"""Counters add up what tasks say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.counters import HopCounters, Lap, RunCounters

LAPS = st.lists(st.builds(Lap, st.floats(0, 10), st.integers(0, 100)), max_size=3)


@given(st.lists(st.tuples(LAPS, st.floats(0, 5), st.integers(0, 99)), max_size=8))
def test_sums_over_tasks(tasks):
    counters = HopCounters()
    for _ in tasks:
        counters.began()
    for laps, cpu, nbytes in tasks:
        counters.ended(laps, cpu, nbytes)
    assert counters.tasks == len(tasks) and counters.under_way == 0
    assert counters.queued == sum(range(1, len(tasks) + 1)), "all were submitted before the first was done"
    assert counters.nbytes == sum(nbytes for _, _, nbytes in tasks)
    assert counters.cpu == pytest.approx(sum(cpu for _, cpu, _ in tasks))
    assert counters.busy == pytest.approx(sum(lap.seconds for laps, _, _ in tasks for lap in laps))
    assert len(counters.laps) == max((len(laps) for laps, _, _ in tasks), default=0)
    for i, lap in enumerate(counters.laps):
        assert lap.records == sum(laps[i].records for laps, _, _ in tasks if i < len(laps))


def test_what_the_trainer_waited_and_found():
    run = RunCounters()
    run.begun = 10.0
    run.got(asked=11.0, now=12.5, ready=0)
    run.got(asked=13.0, now=13.0, ready=4)
    assert (run.waited, run.gets, run.ready, run.last) == (1.5, 2, 4, 13.0)
