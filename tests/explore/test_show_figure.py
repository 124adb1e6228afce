"""A batch as a matplotlib figure: what is drawn in it, and that it stays within."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from zephon_nodes import ConfigError, Microbatch, show

ROWS = [{"input_ids": np.arange(8), "images": [np.zeros((8, 16, 3), np.uint8)]}, {"input_ids": np.arange(5)}]


def batch():
    return Microbatch(ROWS, [(), ()], 0, {})


def test_documents_padding_labels_and_pictures_are_drawn():
    pytest.importorskip("matplotlib")
    figure = show(batch(), figure=True)
    (axes,) = figure.axes
    hatched = [bars for bars in axes.collections if bars.get_hatch()]
    assert len(hatched) == 1 and len(axes.images) == 1
    assert {text.get_text() for text in axes.texts} >= {"row 0", "row 1", "1 document, 38% padding"}
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_no_text_is_cut_off():
    pytest.importorskip("matplotlib")
    figure = show(batch(), figure=True)
    figure.canvas.draw()
    edges = figure.bbox
    for text in figure.axes[0].texts:
        box = text.get_window_extent()
        assert box.x0 >= edges.x0 and box.x1 <= edges.x1 and box.y0 >= edges.y0 and box.y1 <= edges.y1


def test_nothing_global_changes_and_no_pyplot_is_imported():
    pytest.importorskip("matplotlib")
    before = "matplotlib.pyplot" in sys.modules
    show(batch(), figure=True)
    assert ("matplotlib.pyplot" in sys.modules) == before


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r'pip install "zephon_nodes\[plots\]"'):
        show(batch(), figure=True)
