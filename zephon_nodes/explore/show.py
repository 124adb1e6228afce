"""A batch as a picture: documents along each sequence, padding hatched, what is learned below, pictures in place.

As HTML with an inline SVG, which draws its own light panel and so reads the same on a dark page; as a matplotlib figure;
and as letters in a terminal. Neighbouring documents differ in colour and are parted by a line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from zephon_nodes.explore.grid import escape, plain, shortened
from zephon_nodes.explore.layout import Layout, Row, Segment, decoder, layout
from zephon_nodes.explore.values import thumbnail
from zephon_nodes.work.base import check_at_least

COLOURS = ("#77aadd", "#eedd88", "#99ddff", "#ee8866", "#ffaabb", "#bbcc33", "#44bb99")
"""Paul Tol's light scheme, told apart with any kind of colour vision, under black letters."""
_INK, _SOFT, _PANEL, _GREY = "#1b1f24", "#57606a", "#ffffff", "#e4e6e9"
_LEFT, _BAR, _RIGHT, _HIGH, _STRIP, _ROW, _PICTURE = 56, 640, 172, 20, 6, 38, 44
_LETTER, _TEXT, _COLUMNS = 5.6, 300, 72


class BatchView:
    """A batch to look at. A notebook shows it as HTML, with the decoded text of a document under the mouse; a terminal as
    letters: one for each document, dots for padding. ``layout``: what lies where."""

    def __init__(self, found: Layout, most: int) -> None:
        self.layout, self._most = found, most

    def __repr__(self) -> str:
        lines = [f"row {i:<3d} |{self._letters(row)}| {summary(row, self.layout)}" for i, row in enumerate(self._shown)]
        return "\n".join(lines + ([self._more] if self._more else []))

    def _repr_html_(self) -> str:
        return svg(self.layout, self._most)

    def _letters(self, row: Row) -> str:
        places = [
            min(self.layout.length - 1, (2 * i + 1) * self.layout.length // (2 * _COLUMNS)) for i in range(_COLUMNS)
        ]
        holders = [next(s for s in row.segments if s.start <= place < s.stop) for place in places]
        return "".join("." if at.document < 0 else chr(ord("a") + at.document % 26) for at in holders)

    @property
    def _shown(self) -> list[Row]:
        return self.layout.rows[: self._most]

    @property
    def _more(self) -> str:
        rest = len(self.layout.rows) - self._most
        return f"and {rest} more rows" if rest > 0 else ""


def show(batch: Any, tokenizer: Any = None, *, figure: bool = False, rows: int = 8) -> Any:
    """A batch drawn: coloured documents along each sequence, padding hatched, positions with a label marked below, and
    pictures where they stand.

    ``batch``: a ``Microbatch``, the dict that its ``to_training`` gives, or that of ``multimodal.collate``. A dict without
    "document_ids" is read by its "position_ids". ``tokenizer``: for decoded text on hover and in wide documents: what
    ``load_tokenizer`` takes, or a pipeline or node that tokenizes. ``rows`` (8): most rows drawn.
    ``figure`` (False): True gives a ``matplotlib`` Figure (``pip install "zephon_nodes[plots]"``) in place of a view that a
    notebook shows as HTML and a terminal as text. Raises ``ConfigError`` for what isn't a batch.

    >>> batch = next(iter(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).pack_flat(8, "first_fit").batch(2)))
    >>> show(batch)
    row 0   |aaaaaaaaabbbbbbbbbbbbbbbbbbccccccccccccccccccccccccccc..................| 3 documents, 25% padding
    row 1   |aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa....................................| 1 document, 50% padding
    """
    check_at_least("rows", rows, 1)
    found = layout(batch, decoder(tokenizer))
    if not figure:
        return BatchView(found, rows)
    from zephon_nodes.explore.show_figure import figure_of

    return figure_of(found, rows)


def summary(row: Row, found: Layout) -> str:
    """How many documents and how much padding a row has."""
    return f"{row.documents} document{'s' * (row.documents != 1)}, {row.padding / max(1, found.length):.0%} padding"


def svg(found: Layout, most: int) -> str:
    """The drawing of a layout's first rows."""
    parts, y = list[str](), 14.0
    for i, row in enumerate(found.rows[:most]):
        y += _PICTURE + 6 if row.pictures else 0
        parts += _row(i, row, found, y)
        y += _ROW
    rest = len(found.rows) - most
    said = f"{found.length} positions · colours: documents · hatched: padding · line below: positions with a label"
    parts.append(_label(_LEFT, y + 12, said + (f" · {rest} more rows" if rest > 0 else "")))
    width, height = _LEFT + _BAR + _RIGHT, round(y + 24)
    body = "".join(parts)
    hatch = "hatch" + hashlib.sha256(body.encode()).hexdigest()[:12]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="max-width:100%;height:auto" font-family="ui-monospace,Menlo,Consolas,monospace" font-size="10">'
        f'<defs><pattern id="{hatch}" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="6" height="6" fill="{_GREY}"/><line x1="0" y1="0" x2="0" y2="6" stroke="{_SOFT}" stroke-width="1.5"/>'
        f'</pattern></defs><rect width="{width}" height="{height}" rx="8" fill="{_PANEL}"/>{body.replace(_HATCH, hatch)}</svg>'
    )


_HATCH = "\0hatch\0"


def _row(number: int, row: Row, found: Layout, y: float) -> Iterator[str]:
    scale = _BAR / found.length
    yield _label(8, y + 14, f"row {number}")
    for segment in row.segments:
        yield _segment(segment, scale, y)
    for start, stop in row.learned:
        yield f'<rect x="{_LEFT + start * scale:.2f}" y="{y + _HIGH + 2}" width="{(stop - start) * scale:.2f}" height="{_STRIP - 2}" fill="{_INK}"/>'
    yield _label(_LEFT + _BAR + 8, y + 14, summary(row, found))
    yield from _pictures(row, scale, y)


def _segment(segment: Segment, scale: float, y: float) -> str:
    x, wide = _LEFT + segment.start * scale, (segment.stop - segment.start) * scale
    padding = segment.document < 0
    fill = f"url(#{_HATCH})" if padding else COLOURS[segment.document % len(COLOURS)]
    name = "padding" if padding else f"document {segment.document}"
    said = f"{name}: positions {segment.start} to {segment.stop - 1}, {segment.stop - segment.start} in all"
    told = f"{said}\n{shortened(segment.text, _TEXT)}" if segment.text else said
    room = int((wide - 6) / _LETTER)
    inside = plain(segment.text).strip()[:room] if room >= 4 else ""
    return (
        f'<g><title>{escape(told)}</title><rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_HIGH}" fill="{fill}" '
        f'stroke="{_PANEL}" stroke-width="1"/>'
        + (f'<text x="{x + 3:.2f}" y="{y + 14}" fill="{_INK}" font-size="9">{escape(inside)}</text>' if inside else "")
        + "</g>"
    )


def _pictures(row: Row, scale: float, y: float) -> Iterator[str]:
    """Pictures above the bar, each with a line to its position, moved on where they would cover each other."""
    free = float(_LEFT)
    for start, picture in row.pictures:
        at = _LEFT + start * scale
        drawn = thumbnail(picture, _PICTURE)
        if drawn is None:
            continue
        uri, wide, high = drawn
        x = max(at, free)
        if x + wide > _LEFT + _BAR + _RIGHT:
            return
        free = x + wide + 3
        yield f'<line x1="{at:.2f}" y1="{y + _HIGH}" x2="{at:.2f}" y2="{y - 3}" stroke="{_INK}" stroke-width="1.5"/>'
        yield f'<line x1="{at:.2f}" y1="{y - 3}" x2="{x + 2:.2f}" y2="{y - 5}" stroke="{_INK}"/>'
        yield f'<image x="{x:.2f}" y="{y - 5 - high}" width="{wide}" height="{high}" href="{uri}"/>'


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{_SOFT}">{escape(text)}</text>'
