"""A component: which rows are due in a stretch of its own clock, against the definition in fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mixtures import counted

from zephon_nodes.stream import pass_number
from zephon_nodes.work.component import Component
from zephon_nodes.work.order import Order


@st.composite
def components(draw):
    files = draw(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=3))
    if not any(map(any, files)):
        files = [[1]]
    dataset = counted("d", files)[0]
    lanes, shuffle = draw(st.sampled_from([1, 2, 3, 8])), draw(st.sampled_from(["windows", "global", "none"]))
    window = draw(st.sampled_from([1, 3, 40]))
    order = Order("d", dataset.unit_rows, lanes, shuffle, window, draw(st.integers(0, 9)))
    return Component(dataset, order), dataset


def by_definition(component, dataset, lane, epoch, upto):
    """(u, shard, row, pass) of the rows that a lane has had when its clock has come to ``upto`` rows."""
    order, out = component.order, []
    each = Fraction(dataset.rows, order.rounds * order.lanes)
    starts = [0, *itertools.accumulate(dataset.shard_rows.tolist())]
    for z in range(int(upto / each) + 1):
        piece = order.piece(epoch, z, lane)
        number = pass_number(epoch, z // order.rounds)
        phase = Fraction(order.phase(epoch, z, lane), 2**32)
        for i, row in enumerate(order.take(number, piece, 0, piece[1] - piece[0]).tolist()):
            u = (z + (i + phase) / (piece[1] - piece[0])) * each
            shard = max(s for s, start in enumerate(starts[:-1]) if start <= row)
            if u < upto:
                out.append((u, shard, row - starts[shard], number))
    return out


@given(
    components(), st.lists(st.fractions(0, 3, max_denominator=60), min_size=2, max_size=6), st.integers(0, 2), st.data()
)
def test_stretches_hold_what_is_due_in_them_in_order_and_meet_without_gap(made, cuts, epoch, data):
    component, dataset = made
    lane = data.draw(st.integers(0, component.order.lanes - 1))
    edges = [cut * dataset.rows / component.order.lanes for cut in sorted({Fraction(0), *cuts})]
    want = by_definition(component, dataset, lane, epoch, edges[-1])
    got = []
    for low, high in itertools.pairwise(edges):
        denominator = int(np.lcm(low.denominator, high.denominator))
        found = component.due(lane, epoch, (int(low * denominator), int(high * denominator)), denominator)
        for due in found:
            times = due.time.tolist()
            assert times == sorted(times) and all(0 <= time < 1 + 1e-9 for time in times)
            where = zip(due.shard.tolist(), due.row.tolist(), due.pass_.tolist(), strict=True)
            got += [(low + Fraction(time) * (high - low), *at) for time, at in zip(times, where, strict=True)]
    assert [at[1:] for at in got] == [at[1:] for at in want]
    assert all(abs(a[0] - b[0]) < 1e-6 for a, b in zip(got, want, strict=True))


@given(components(), st.integers(0, 2))
def test_a_pass_of_all_lanes_is_every_row_once_and_the_next_one_has_its_own_number(made, epoch):
    component, dataset = made
    lanes = component.order.lanes
    for pass_ in range(2):
        edges = pass_ * dataset.rows, (pass_ + 1) * dataset.rows
        rows = [
            (int(shard), int(row), int(number))
            for lane in range(lanes)
            for due in component.due(lane, epoch, edges, lanes)
            for shard, row, number in zip(due.shard, due.row, due.pass_, strict=True)
        ]
        each = [(s, r) for s, n in enumerate(dataset.shard_rows.tolist()) for r in range(n)]
        assert sorted(rows) == [(s, r, pass_number(epoch, pass_)) for s, r in each]
