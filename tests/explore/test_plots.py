"""Plots: the numbers in them, and that no text leaves the picture."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes import ConfigError
from zephon_nodes.explore.history import Entry, History
from zephon_nodes.explore.plots import document_lengths, powers_of_two, ranks
from zephon_nodes.stream import Pointer

matplotlib = pytest.importorskip("matplotlib")
PLOTS = ("fill", "mixture", "lengths", "throughput", "order")


def history(count=40, names=("web", "a dataset with a name of $ome length")):
    found = History()
    for i in range(count):
        origins = tuple(Pointer(names[k % len(names)], 0, (7 * i + k) % 50) for k in range(4))
        given = {name: 8.0 for name in names}
        wanted = {name: 16 / len(names) for name in names}
        found.entries.append(Entry(i / 10, 2, 16, i % 3, given, wanted, (4, 4, 4, 4), (8, 8), origins))
    return found


@pytest.mark.parametrize("name", PLOTS)
def test_every_plot_is_drawn_whole(name):
    figure = getattr(history(), f"plot_{name}")()
    figure.canvas.draw()
    (axes,) = figure.axes
    assert axes.get_title(loc="left") and axes.get_xlabel() and axes.get_ylabel()
    picture = np.asarray(figure.canvas.buffer_rgba())
    for edge in (picture[0], picture[-1], picture[:, 0], picture[:, -1]):
        assert (edge == 255).all(), "something runs over the edge"


def test_the_lines_are_the_numbers():
    found = history()
    each, over_all = found.plot_fill().axes[0].lines
    assert each.get_ydata() == pytest.approx([100 * (i % 3) / (16 + i % 3) for i in range(40)])
    padding = sum(i % 3 for i in range(40))
    assert over_all.get_ydata()[-1] == pytest.approx(100 * padding / (640 + padding))
    got, wished, *_ = found.plot_mixture().axes[0].lines
    assert got.get_ydata() == pytest.approx([50.0] * 40) and wished.get_ydata() == pytest.approx([50.0] * 40)
    target = found.plot_mixture({"web": 3, "other": 1}).axes[0].lines
    assert sorted(line.get_ydata()[-1] for line in target if line.get_linestyle() == "--") == [0, 25, 75]


def test_names_at_line_ends_do_not_cover_each_other():
    axes = history(names=tuple("abcdefg")).plot_mixture().axes[0]
    axes.figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
    assert len(boxes) == 7 and all(low.y1 <= high.y0 + 2 for low, high in itertools.pairwise(boxes))


@pytest.mark.parametrize("names", ["ab", "abcdefg"])
def test_names_at_line_ends_are_within_the_picture(names):
    figure = history(names=tuple(names)).plot_mixture()
    figure.canvas.draw()
    boxes = [text.get_tightbbox() for text in figure.axes[0].texts]
    assert len(boxes) == len(names) and all(box.x0 < box.x1 for box in boxes), "a name isn't drawn"
    assert all(box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1 for box in boxes)


@given(st.permutations(range(30)))
def test_ranks_of_rows(order):
    run, file = ranks([(i // 10, i % 10) for i in order])
    assert (run * 29).round().astype(int).tolist() == list(range(30))
    assert (file * 29).round().astype(int).tolist() == list(order)


def test_a_document_in_parts_is_one():
    at = Pointer("a", 0, 1)
    parts = [
        Entry(0, 1, 8, 0, {}, {}, (8,), (8,), (at,)),
        Entry(1, 1, 7, 1, {}, {}, (3, 4), (7,), (at, Pointer("a", 0, 2))),
    ]
    assert sorted(document_lengths(parts).tolist()) == [4, 11]
    untold = Entry(0, 1, 8, 0, {}, {}, (5, 3), (8,), ())
    assert sorted(document_lengths([untold, untold]).tolist()) == [3, 3, 5, 5]


@pytest.mark.parametrize("name", PLOTS)
def test_nothing_to_plot_is_said(name):
    with pytest.raises(ConfigError):
        getattr(History(), f"plot_{name}")()


def test_a_long_history_of_order_is_thinned():
    found = History()
    rows = np.random.default_rng(0).permutation(50_000)
    found.entries.append(Entry(0, 1, 1, 0, {}, {}, (), (), tuple(Pointer("a", 0, int(i)) for i in rows)))
    (dots,) = found.plot_order().axes[0].lines
    assert 10_000 <= len(dots.get_xdata()) <= 40_000


@given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_lengths_are_marked_at_a_few_powers_of_two(a, b):
    low, high = min(a, b), max(a, b)
    ticks = powers_of_two(low, high)
    assert 1 <= len(ticks) <= 12 and ticks == sorted(set(ticks))
    assert all(n & (n - 1) == 0 and low <= n <= high for n in ticks) or len(ticks) <= 2
