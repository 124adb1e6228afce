"""Windows: as wide as fits, never more than four units, and a plan that says what they cost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import counted

from zephon_nodes import ConfigError, StaticMixtureWorkSource
from zephon_nodes.work.windows import MOST_UNITS, fit_windows, memory_plan, window_need

UNITS = st.lists(st.integers(0, 50), min_size=1, max_size=12).filter(any)


def datasets(files):
    """Units of 100 bytes a row."""
    return [counted(f"d{k}", [units])[0] for k, units in enumerate(files)]


@given(st.lists(UNITS, min_size=1, max_size=3), st.integers(1, 8), st.integers(1, 60_000))
def test_windows_are_the_widest_that_fit_and_refused_if_one_unit_does_not(files, lanes, budget):
    made = datasets(files)
    needs = {units: window_need(made, units, lanes) for units in range(1, MOST_UNITS + 1)}
    fitting = [units for units, need in needs.items() if need <= budget]
    if not fitting:
        with pytest.raises(ConfigError, match=rf"num_lanes={lanes} holds at least {needs[1]:,} .*raise window_bytes"):
            fit_windows(made, lanes, budget)
        return
    assert fit_windows(made, lanes, budget) == max(fitting)


@given(UNITS, st.integers(1, 8), st.integers(1, MOST_UNITS))
def test_what_windows_hold_is_two_of_them_a_lane_and_never_more_than_the_dataset(units, lanes, width):
    (made,) = datasets([units])
    real = [rows * 100 for rows in units if rows]
    mean = sum(real) / len(real)
    need = window_need([made], width, lanes)
    assert need <= sum(real)
    assert need == sum(real) or abs(need - 2 * width * lanes * mean) <= 1


def test_a_source_that_cannot_hold_its_windows_is_refused_and_one_that_needs_none_is_not():
    made = datasets([[10] * 8])
    with pytest.raises(ConfigError, match=r"window_bytes allows 3,999.*or use shuffle='none'"):
        StaticMixtureWorkSource(made, None, 2, window_bytes=3_999)
    assert StaticMixtureWorkSource(made, None, 2, window_bytes=4_000).window_units == 1
    assert StaticMixtureWorkSource(made, None, 2, window_bytes=1, shuffle="none").window_units == 1


def test_the_plan_has_a_line_for_each_number_of_ranks_that_divides_the_lanes():
    made = datasets([[10] * 100, [4] * 3])
    lines = memory_plan(made, 2, 6).splitlines()
    said = {int(world): int(need.replace(",", "")) for world, need in re.findall(r"(\d+) ranks: ([\d,]+)", str(lines))}
    assert said == {world: window_need(made, 2, 6 // world) for world in (1, 2, 3, 6)}
    assert (
        StaticMixtureWorkSource(made, None, 6).memory_plan().splitlines()[1:]
        == memory_plan(made, 4, 6).splitlines()[1:]
    )
