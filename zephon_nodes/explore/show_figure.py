"""A batch as a matplotlib figure. The same picture as ``show``'s HTML, for papers and for hosts that strip HTML."""

from __future__ import annotations

from typing import Any

from zephon_nodes.explore.grid import plain
from zephon_nodes.explore.layout import Layout, Row, Segment
from zephon_nodes.explore.matplotlib_figure import new_figure
from zephon_nodes.explore.show import COLOURS, summary
from zephon_nodes.explore.values import is_picture

_WIDTH, _ROW, _PICTURES, _LETTERS = 10.0, 0.42, 0.6, 118
_INK, _SOFT, _GREY = "#1b1f24", "#57606a", "#e4e6e9"


def figure_of(found: Layout, most: int) -> Any:
    """A Figure of the first ``most`` rows."""
    rows = found.rows[:most]
    heights = [1.0 + (_PICTURES / _ROW if row.pictures else 0.0) for row in rows]
    figure, axes = new_figure(_WIDTH, _ROW * sum(heights) + 0.75)
    y = 0.0
    for number, (row, height) in enumerate(zip(rows, heights, strict=True)):
        y -= height
        _draw(axes, row, y, found)
        axes.text(-0.01 * found.length, y + 0.5, f"row {number}", ha="right", va="center", fontsize=8)
        axes.text(1.01 * found.length, y + 0.5, summary(row, found), ha="left", va="center", fontsize=8, color=_SOFT)
    axes.set_xlim(0, found.length)
    axes.set_ylim(y - 0.1, 0)
    axes.set_yticks([])
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.set_xlabel("position (colours: documents; hatched: padding; line below: positions with a label)", fontsize=8)
    axes.tick_params(labelsize=8)
    return figure


def _draw(axes: Any, row: Row, y: float, found: Layout) -> None:
    for segment in row.segments:
        _segment(axes, segment, y, found)
    axes.broken_barh([(start, stop - start) for start, stop in row.learned], (y + 0.12, 0.1), facecolors=_INK)
    free = 0.0
    for start, picture in row.pictures:
        free = _picture(axes, start, picture, y, max(free, float(start)), found)


def _segment(axes: Any, segment: Segment, y: float, found: Layout) -> None:
    wide = segment.stop - segment.start
    style = {"facecolors": COLOURS[segment.document % len(COLOURS)], "edgecolors": "white"}
    if segment.document < 0:
        style = {"facecolors": _GREY, "edgecolors": _SOFT, "hatch": "////"}
    axes.broken_barh([(segment.start, wide)], (y + 0.28, 0.6), linewidth=0.8, **style)
    room = int(_LETTERS * wide / found.length) - 1
    if segment.text and room >= 4:
        text = plain(segment.text).strip()[:room].replace("$", r"\$")
        axes.text(segment.start + 0.004 * found.length, y + 0.56, text, va="center", fontsize=6.5, family="monospace")


def _picture(axes: Any, start: int, picture: Any, y: float, at: float, found: Layout) -> float:
    """Draws a picture above its position, or as near to the right of it as is free. Where the next one may stand."""
    import numpy as np
    from PIL import Image

    if not is_picture(picture) or not isinstance(picture, np.ndarray):
        return at
    image = Image.fromarray(picture)
    image.thumbnail((96, 96))
    high = 0.9 * _PICTURES / _ROW
    wide: float = high * _ROW * image.width / image.height * found.length / (_WIDTH * 0.72)
    if at + wide > 1.2 * found.length:
        return at
    axes.imshow(np.asarray(image), extent=(at, at + wide, y + 1.02, y + 1.02 + high), aspect="auto", clip_on=False)
    axes.plot([start, start], [y + 0.28, y + 1.0], color=_INK, linewidth=1.2)
    return at + wide + 0.005 * found.length
