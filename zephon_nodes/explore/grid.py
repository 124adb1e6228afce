"""Tables as text and as HTML. Everything that is a plain str is escaped."""

from __future__ import annotations

import html
import shutil
import unicodedata
from collections.abc import Sequence

NARROWEST = 8
_CELL = "padding:2px 10px 2px 0;border-bottom:1px solid #88888855;text-align:left;vertical-align:top"
_TABLE = "color:inherit;border-collapse:collapse;font-family:ui-monospace,monospace;font-size:12px"


class Markup(str):
    """HTML that is safe as it is."""

    __slots__ = ()


def text_grid(columns: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None) -> str:
    """Rows under their columns, cut to ``total`` characters a line (default: the terminal's)."""
    total = total or shutil.get_terminal_size((120, 24)).columns
    lines = [[plain(cell) for cell in line] for line in [columns, *rows]]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    room = total - 2 * (len(widths) - 1)
    while sum(widths) > room and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    shown = ["  ".join(_padded(cell, size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([shown[0], "  ".join("-" * size for size in widths), *shown[1:]])


def html_grid(columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table in the colours of the page it stands on. Cells that are ``Markup`` go in as they are."""
    head = _line("th", columns)
    body = "".join(_line("td", row) for row in rows)
    said = f'<caption style="text-align:left;padding:4px 0">{escape(caption)}</caption>' if caption else ""
    return f'<table style="{_TABLE}">{said}<thead>{head}</thead><tbody>{body}</tbody></table>'


def escape(text: str) -> str:
    """Text for HTML and SVG: markup escaped, characters that XML forbids shown by name."""
    return text if isinstance(text, Markup) else html.escape(printable(text))


def plain(text: str) -> str:
    """Text on one line of a terminal."""
    return printable(text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r"))


def printable(text: str) -> str:
    """Control characters, lone surrogates and the like as escapes, so that neither a terminal nor XML stumbles."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def shortened(text: str, most: int) -> str:
    """The first ``most`` characters, with how many more there are."""
    return text if len(text) <= most else f"{text[:most]}… +{len(text) - most:,}"


def width(text: str) -> int:
    """Columns of a terminal that a text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _padded(text: str, size: int) -> str:
    if width(text) > size:
        while width(text) > size - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (size - width(text))


def _line(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"
