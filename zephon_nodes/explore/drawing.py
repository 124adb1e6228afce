"""A graph as an SVG drawing: a box for each hop, in it the nodes that are fused, from the source down.

Plain SVG without script, style sheet or font of its own. It stands on a light panel that it draws itself, so it reads the
same on a dark page; nothing is told by colour alone.
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zephon_nodes.describe import Described, described
from zephon_nodes.explore.grid import escape, plain
from zephon_nodes.node import Node
from zephon_nodes.plan import Plan, Workers

WIDTH, MARGIN, INSET, GAP = 760, 14, 12, 22
LINE, LETTER, _PAUSE = 15, 6.7, 5
_PANEL, _EDGE, _INK, _SOFT, _BOX = "#ffffff", "#c8ccd2", "#1b1f24", "#57606a", "#f2f5f9"
_BARS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
"""Okabe and Ito's colours, told apart with any kind of colour vision."""


class _Text(NamedTuple):
    text: str
    kind: str  # "title", "soft" or "plain"
    aside: str = ""


class _Box(NamedTuple):
    lines: list[_Text]
    bar: str


def draw(root: Node, parallelism: int, run: Plan | None = None, runs_in: Workers = "thread") -> str:
    """The graph that ends in ``root``. The rest as of ``describe``."""
    head, nodes = described(root, parallelism, run, runs_in)
    boxes = [_Box(list(_source_lines(head)), _SOFT)]
    for number, group in itertools.groupby(nodes, key=lambda node: node.hop):
        boxes.append(_hop(list(group), number))
    return _svg(boxes)


def _source_lines(head: str) -> Iterator[_Text]:
    kind, _, rest = head.partition(": ")
    yield _Text(kind, "title", "source")
    yield from _wrapped(rest)


def _hop(nodes: Sequence[Described], number: int) -> _Box:
    lines: list[_Text] = []
    for i, node in enumerate(nodes):
        where = f"hop {number} · {node.runs}" if number else node.runs
        lines.append(_Text(node.title, "title", where if i == 0 else "fused"))
        lines += _wrapped(node.settings)
        lines += [_Text(node.counted, "counted")] if node.counted else []
    return _Box(lines, _BARS[(number - 1) % len(_BARS)] if number else _SOFT)


def _wrapped(text: str) -> Iterator[_Text]:
    room = int((WIDTH - 2 * MARGIN - 2 * INSET - 10) / LETTER)
    for line in textwrap.wrap(plain(text), room, break_on_hyphens=False):
        yield _Text(line, "plain")


def _svg(boxes: Sequence[_Box]) -> str:
    parts, y = [], float(MARGIN)
    for i, box in enumerate(boxes):
        if i:
            parts.append(_arrow(y))
            y += GAP
        drawn, y = _drawn(box, y)
        parts.append(drawn)
    height = round(y + MARGIN)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'style="max-width:100%;height:auto" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="11">'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{_PANEL}"/>{"".join(parts)}</svg>'
    )


def _drawn(box: _Box, top: float) -> tuple[str, float]:
    left, height = MARGIN, 12.0
    places = []
    for i, line in enumerate(box.lines):
        height += LINE + (_PAUSE if i and line.kind == "title" else 0)
        places.append(top + height - 11)
    out = [
        f'<rect x="{left}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{height}" rx="5" fill="{_BOX}" stroke="{_EDGE}"/>',
        f'<rect x="{left}" y="{top}" width="5" height="{height}" rx="2" fill="{box.bar}"/>',
    ]
    out += map(_line, box.lines, places)
    return "".join(out), top + height


def _line(line: _Text, y: float) -> str:
    bold = line.kind == "title"
    fill = _INK if bold else _SOFT
    x = MARGIN + INSET + (0 if bold else 10)
    style = ' font-size="13" font-weight="bold"' if bold else ' font-style="italic"' if line.kind == "counted" else ""
    text = plain(line.text)[:80] if bold else line.text
    out = f'<text x="{x}" y="{y}" fill="{fill}"{style}>{escape(text)}</text>'
    if line.aside:
        right = WIDTH - MARGIN - INSET
        out += f'<text x="{right}" y="{y}" fill="{_SOFT}" text-anchor="end">{escape(line.aside)}</text>'
    return out


def _arrow(y: float) -> str:
    x, tip = WIDTH / 2, y + GAP - 3
    return (
        f'<line x1="{x}" y1="{y + 2}" x2="{x}" y2="{tip - 4}" stroke="{_SOFT}" stroke-width="1.5"/>'
        f'<path d="M {x - 4} {tip - 5} L {x + 4} {tip - 5} L {x} {tip} Z" fill="{_SOFT}"/>'
    )
