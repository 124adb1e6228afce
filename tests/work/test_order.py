"""The order of one dataset's rows, checked row by row: who reads what, once, and in how many pieces of storage."""

import threading
from collections import Counter
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.work import order as order_module
from zephon_nodes.work.order import Order

SHUFFLES = ["windows", "global", "none"]
UNITS = st.lists(st.sampled_from([0, 1, 2, 5, 13]), min_size=1, max_size=14).filter(any)


def order_of_rows(units=(13,) * 8, lanes=2, shuffle="windows", window_rows=20, seed=0, name="wiki"):
    return Order(name, np.array(units, np.int64), lanes, shuffle, window_rows, seed)


@st.composite
def orders(draw, shuffles=SHUFFLES):
    return order_of_rows(
        draw(UNITS),
        draw(st.sampled_from([1, 2, 3, 8])),
        draw(st.sampled_from(shuffles)),
        draw(st.sampled_from([1, 2, 10, 100])),
        draw(st.integers(0, 5)),
    )


def pieces(order, pass_=0, epoch=0):
    """(round, lane, piece) of a pass."""
    rounds = range(pass_ * order.rounds, (pass_ + 1) * order.rounds)
    return [(z, lane, order.piece(epoch, z, lane)) for z in rounds for lane in range(order.lanes)]


def rows_of(order, pass_, piece):
    return order.take(pass_, piece, 0, piece[1] - piece[0]).tolist()


def pass_of(order, pass_, epoch=0):
    """All rows of a pass, in the order of positions."""
    return [row for piece in sorted(p for _, _, p in pieces(order, 0, epoch)) for row in rows_of(order, pass_, piece)]


@given(orders(), st.integers(0, 3), st.integers(0, 3))
def test_the_pieces_of_a_pass_hold_every_position_once(order, pass_, epoch):
    held = sorted(at for _, _, (start, stop) in pieces(order, pass_, epoch) for at in range(start, stop))
    assert held == list(range(order.rows))


@given(orders(), st.integers(0, 3))
def test_the_pieces_of_a_round_are_equal_to_a_row_or_two(order, epoch):
    sizes = [stop - start for _, _, (start, stop) in pieces(order, epoch=epoch)]
    assert max(sizes) - min(sizes) <= 2


@given(orders(), st.integers(0, 2**40))
def test_a_pass_holds_every_row_once(order, pass_):
    assert sorted(pass_of(order, pass_)) == list(range(order.rows))


@given(orders(), st.integers(0, 9), st.data())
def test_any_part_of_a_piece_is_that_part_of_the_whole(order, pass_, data):
    """So chunks can be asked for in any order."""
    _, _, piece = data.draw(st.sampled_from(pieces(order)))
    whole = rows_of(order, pass_, piece)
    first = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(first, len(whole)))
    part = order.take(pass_, piece, first, stop)
    assert part.dtype == np.int64
    assert part.tolist() == whole[first:stop]


@given(orders(["none"]), st.integers(0, 9))
def test_without_shuffling_every_pass_is_in_file_order(order, pass_):
    assert pass_of(order, pass_) == list(range(order.rows))
    if order.lanes == 1:
        assert [row for _, _, piece in pieces(order, pass_) for row in rows_of(order, pass_, piece)] == pass_of(
            order, 0
        )


@pytest.mark.parametrize("shuffle", ["windows", "global"])
def test_every_pass_and_epoch_and_seed_and_name_has_an_order_of_its_own(shuffle):
    order = order_of_rows(shuffle=shuffle)
    found = [pass_of(order, pass_) for pass_ in (0, 1, 2, 2**32)]
    found += [
        pass_of(order_of_rows(shuffle=shuffle, seed=1), 0),
        pass_of(order_of_rows(shuffle=shuffle, name="news"), 0),
    ]
    assert len({tuple(rows) for rows in found}) == len(found)
    assert pass_of(order_of_rows(shuffle=shuffle), 2) == found[2]


def test_lanes_take_other_places_in_every_round_and_epoch():
    order = order_of_rows((13,) * 64, lanes=8, window_rows=4)
    taken = [
        tuple(order.piece(epoch, z, lane)[0] for lane in range(8)) for epoch in (0, 1) for z in range(order.rounds)
    ]
    sorted_ = [tuple(sorted(starts)) for starts in taken]
    assert sum(a != b for a, b in zip(taken, sorted_, strict=True)) > len(taken) * 0.9
    assert taken[: order.rounds] != taken[order.rounds :]


def furthest_from_its_share(order, rounds=300):
    """Rows that a lane had more or less than its share after some round."""
    had, worst = [0] * order.lanes, 0.0
    for z in range(rounds):
        for lane in range(order.lanes):
            start, stop = order.piece(0, z, lane)
            had[lane] += stop - start
        share = (z + 1) * order.rows / (order.rounds * order.lanes)
        worst = max(worst, *(abs(rows - share) for rows in had))
    return worst


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_lanes_keep_step_however_often_a_dataset_is_gone_through(shuffle):
    """After any round every lane has had its share of the rows to about one, also of a dataset of fewer rows than lanes."""
    sizes = [((1,), 8), ((3,), 8), ((5,), 3), ((21,), 8), ((13,) * 9, 4), ((1003,), 8), ((40,), 8)]
    worst = {(sum(u), lanes): furthest_from_its_share(order_of_rows(u, lanes, shuffle, 4)) for u, lanes in sizes}
    assert max(worst.values()) <= 2, f"(rows, lanes): rows away from the share, {worst}"


@given(orders(["windows"]), st.integers(0, 3))
def test_a_unit_is_read_by_one_lane_but_at_the_edges_of_pieces(order, pass_):
    units = order._unit_rows
    unit_of = np.repeat(np.arange(len(units)), units)
    readers = Counter()
    whole = pieces(order)
    for _, _, piece in whole:
        readers.update(set(unit_of[rows_of(order, pass_, piece)].tolist()))
    assert sum(readers.values()) <= len(units) + len(whole) - 1


def test_a_piece_goes_through_its_units_a_window_at_a_time():
    """64 units of 10 rows, windows of about 2 units: any 20 rows in a row lie in at most four units, and are mixed."""
    order = order_of_rows((10,) * 64, lanes=2, window_rows=20)
    assert order.rounds == 4
    mixed = 0
    for _, _, piece in pieces(order):
        units = [row // 10 for row in rows_of(order, 0, piece)]
        for at in range(0, len(units), 20):
            assert len(set(units[at : at + 20])) <= 4
            mixed += len(set(units[at : at + 10])) > 1
        assert len(set(units)) <= 9
    assert mixed > 28, "windows of two units were read one unit after the other"


@given(orders(["windows"]), st.integers(0, 3), st.data())
def test_rows_are_the_same_whether_a_window_is_small_enough_to_be_kept_or_not(order, pass_, data):
    piece = data.draw(st.sampled_from([piece for _, _, piece in pieces(order)]))
    first = data.draw(st.integers(0, piece[1] - piece[0]))
    stop = data.draw(st.integers(first, piece[1] - piece[0]))
    kept = order.take(pass_, piece, first, stop).tolist()
    with mock.patch.object(order_module, "_KEPT_ROWS", 0):
        assert order.take(pass_, piece, first, stop).tolist() == kept


def test_the_units_of_a_piece_come_from_all_over_the_dataset():
    order = order_of_rows((10,) * 1000, lanes=4, window_rows=40)
    jumps = []
    for _, _, piece in pieces(order):
        units = sorted({row // 10 for row in rows_of(order, 0, piece)})
        jumps.append(units[-1] - units[0])
    assert min(jumps) > 500


def test_a_shuffle_of_a_trillion_rows_makes_only_what_is_asked():
    order = order_of_rows((10**12 // 64,) * 64, lanes=512, shuffle="global", window_rows=10**9)
    piece = order.piece(0, 3, 77)
    middle = (piece[1] - piece[0]) // 2
    rows = order.take(5, piece, middle, middle + 1000)
    assert rows.nbytes == 8000
    assert len(set(rows.tolist())) == 1000
    assert rows.min() >= 0
    assert rows.max() < order.rows
    assert (rows // (10**12 // 10)).max() == 9


def test_threads_that_ask_for_different_passes_get_the_right_ones():
    order = order_of_rows((7,) * 40, lanes=2, window_rows=14)
    want = {pass_: pass_of(order_of_rows((7,) * 40, lanes=2, window_rows=14), pass_) for pass_ in range(8)}
    wrong = []

    def read(first):
        for i in range(40):
            pass_ = (first + i) % 8
            if pass_of(order, pass_) != want[pass_]:
                wrong.append(pass_)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_golden_orders():
    """Frozen: a run of today must find its rows again."""
    windows, everywhere = order_of_rows((3, 4, 0, 5), 2, "windows", 4), order_of_rows((3, 4, 0, 5), 2, "global", 4)
    assert [windows.piece(0, 0, lane) for lane in range(2)] == GOLDEN["pieces"]
    assert pass_of(windows, 0) == GOLDEN["windows"]
    assert pass_of(everywhere, 1) == GOLDEN["global"]
    assert [windows.phase(1, 2, lane) for lane in range(2)] == GOLDEN["phases"]


GOLDEN = {
    "pieces": [(0, 6), (6, 12)],
    "windows": [2, 0, 1, 8, 7, 9, 11, 10, 3, 5, 6, 4],
    "global": [10, 8, 5, 1, 9, 3, 6, 11, 2, 4, 7, 0],
    "phases": [3526495629, 437535512],
}
