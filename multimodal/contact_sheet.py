"""A training step as a picture: the images of each packed sequence in their places, the text decoded beside them.

Everything is taken from the step's tensors, and nothing from the data behind them: what the sheet shows is what a model
would be given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from multimodal.pixels import Array
from multimodal.vision import DynamicResolution, Vision

Draw: TypeAlias = ImageDraw.ImageDraw
Decode: TypeAlias = Callable[[Sequence[int]], str]

_WIDTH, _MARGIN, _COLUMNS, _GAP = 1600, 24, 4, 14
_CARD = (_WIDTH - 2 * _MARGIN - (_COLUMNS - 1) * _GAP) // _COLUMNS
_PICTURE = (170, 130)
_INK, _FAINT, _PAPER, _LINE = (28, 30, 36), (120, 124, 134), (250, 250, 251), (214, 216, 222)
_IMAGE_INKS, _TEXT_INK, _PADDING_INK = ((60, 120, 216), (110, 160, 236)), (240, 158, 64), (226, 227, 231)
_LARGE, _NORMAL, _SMALL = 19, 14, 12


class Piece(NamedTuple):
    """A stretch of one document: text, or an image with its number of positions."""

    text: str
    image: Image.Image | None
    tokens: int


def contact_sheet(step: Mapping[str, Any], vision: Vision, decode: Decode, title: str = "") -> Image.Image:
    """The sheet, RGB, 1600 pixels wide.

    ``step``: of ``collate`` with uint8 pixels and not flat, with "document_ids", and with "origins" where the file and row
    of each document are to be told. ``decode``: token ids to text.
    """
    images = [Image.fromarray(image) for image in pictures(step, vision)]
    places: list[list[int]] = step["image_positions"].tolist()
    sheet = _Sheet(title)
    for row, ids in enumerate(step["input_ids"].numpy()):
        documents = step["document_ids"][row].numpy()
        firsts = {first: images[n] for n, (of, first) in enumerate(places) if of == row}
        runs = {first: vision.token_count(image.height, image.width) for first, image in firsts.items()}
        sheet.header(row, ids, documents, runs)
        cards = []
        for document in range(int(documents.max(initial=-1)) + 1):
            at = np.flatnonzero(documents == document)
            start, stop = int(at[0]), int(at[-1]) + 1
            cards.append((_heading(step, row, document), _pieces(ids, start, stop, firsts, runs, decode)))
        sheet.cards(cards)
    return sheet.image()


def pictures(step: Mapping[str, Any], vision: Vision) -> list[Array]:
    """The images of a step as uint8 (H, W, 3), from its ``pixel_values``, which must be uint8."""
    values = step["pixel_values"].numpy()
    if not isinstance(vision, DynamicResolution):
        return list(np.ascontiguousarray(values.transpose(0, 2, 3, 1)))
    out, start, merge, patch = [], 0, vision.merge, vision.patch
    for _, h, w in step["image_grid_thw"].tolist():
        rows = values[start : start + h * w].reshape(
            h // merge, w // merge, merge, merge, 3, vision.temporal_patch, patch, patch
        )
        planes = rows[:, :, :, :, :, 0].transpose(0, 2, 5, 1, 3, 6, 4)
        out.append(np.ascontiguousarray(planes.reshape(h * patch, w * patch, 3)))
        start += h * w
    return out


def _heading(step: Mapping[str, Any], row: int, document: int) -> str:
    origins = step.get("origins")
    if not origins or document >= len(origins[row]):
        return f"document {document}"
    return f"document {document}: row {origins[row][document].row} of {origins[row][document].file}"


def _pieces(
    ids: Any, start: int, stop: int, firsts: Mapping[int, Image.Image], runs: Mapping[int, int], decode: Decode
) -> list[Piece]:
    """What stands in a document from ``start`` to ``stop``, in order."""
    out, at = [], start
    for first in sorted(place for place in firsts if start <= place < stop):
        if first > at:
            out.append(Piece(decode(ids[at:first].tolist()), None, first - at))
        out.append(Piece("", firsts[first], runs[first]))
        at = first + runs[first]
    return [*out, Piece(decode(ids[at:stop].tolist()), None, stop - at)] if stop > at else out


class _Sheet:
    """A page that grows downwards."""

    def __init__(self, title: str) -> None:
        self._page, self._y = Image.new("RGB", (_WIDTH, 400), _PAPER), _MARGIN
        if title:
            for line in _wrapped(title, _LARGE, _WIDTH - 2 * _MARGIN):
                self._draw(_LARGE + 8).text((_MARGIN, self._y), line, _INK, _font(_LARGE))
                self._y += _LARGE + 8
            self._legend()

    def _legend(self) -> None:
        canvas, x = self._draw(30), _MARGIN
        inks = {"images": _IMAGE_INKS[0], "text": _TEXT_INK, "padding": _PADDING_INK}
        for name, ink in inks.items():
            canvas.rectangle([x, self._y + 2, x + 14, self._y + 14], ink)
            canvas.text((x + 20, self._y), name, _FAINT, _font(_SMALL))
            x += 40 + int(_font(_SMALL).getlength(name))
        canvas.line([(x, self._y), (x, self._y + 16)], _INK)
        canvas.text((x + 8, self._y), "a document ends", _FAINT, _font(_SMALL))
        self._y += 22

    def image(self) -> Image.Image:
        return self._page.crop((0, 0, _WIDTH, self._y + _MARGIN))

    def _draw(self, height: int) -> Draw:
        """The page with room for ``height`` more pixels."""
        if self._y + height + _MARGIN > self._page.height:
            page = Image.new("RGB", (_WIDTH, 2 * self._page.height + height), _PAPER)
            page.paste(self._page)
            self._page = page
        return ImageDraw.Draw(self._page)

    def header(self, row: int, ids: Any, documents: Any, runs: Mapping[int, int]) -> None:
        """A sequence in a line of words, and as a strip with a colour for images, text and padding."""
        canvas, width = self._draw(80), _WIDTH - 2 * _MARGIN
        used, pictured = int((documents >= 0).sum()), sum(runs.values())
        text = (
            f"Sequence {row}: {documents.max(initial=-1) + 1} documents, {len(runs)} images, {used:,} of {len(ids):,} "
            f"positions used: {pictured:,} for images, {used - pictured:,} for text"
        )
        self._y += 12
        canvas.text((_MARGIN, self._y), text, _INK, _font(_NORMAL + 2))
        self._y += 26

        def bar(start: int, stop: int, ink: tuple[int, int, int]) -> None:
            left, right = (_MARGIN + width * place // len(ids) for place in (start, stop))
            canvas.rectangle([left, self._y, max(left, right - 1), self._y + 16], ink)

        bar(0, len(ids), _PADDING_INK)
        bar(0, used, _TEXT_INK)
        for n, (first, run) in enumerate(sorted(runs.items())):
            bar(first, first + run, _IMAGE_INKS[n % 2])
        for edge in np.flatnonzero(np.diff(documents)) + 1:  # where a document ends
            x = _MARGIN + width * int(edge) // len(ids)
            canvas.line([(x, self._y - 3), (x, self._y + 19)], _INK)
        self._y += 32

    def cards(self, cards: Sequence[tuple[str, list[Piece]]]) -> None:
        """Documents, each in a frame, in columns: every one goes to the column that is shortest."""
        tops = [self._y] * _COLUMNS
        for heading, pieces in cards:
            card = _card(heading, pieces)
            column = tops.index(min(tops))
            self._draw(tops[column] + card.height - self._y)
            self._page.paste(card, (_MARGIN + column * (_CARD + _GAP), tops[column]))
            tops[column] += card.height + _GAP
        self._y = max(tops)


def _card(heading: str, pieces: Sequence[Piece]) -> Image.Image:
    """A document: each image with the text behind it at its side, text without an image over the whole width."""
    rows: list[Piece] = []
    for piece in pieces:
        if piece.image is None and rows and rows[-1].image is not None and not rows[-1].text:
            rows[-1] = Piece(piece.text, rows[-1].image, rows[-1].tokens)
        else:
            rows.append(piece)
    pad, beside = 10, _PICTURE[0] + 12
    laid = [_wrapped(row.text, _NORMAL, _CARD - 2 * pad - (beside if row.image else 0)) for row in rows]
    heights = [
        max(_small(row.image).height + 22 if row.image else 0, len(lines) * (_NORMAL + 5)) + 8
        for row, lines in zip(rows, laid, strict=True)
    ]
    titles = _wrapped(heading, _SMALL, _CARD - 2 * pad)
    card = Image.new("RGB", (_CARD, pad + len(titles) * (_SMALL + 4) + 6 + sum(heights)), (255, 255, 255))
    canvas, y = ImageDraw.Draw(card), pad
    for line in titles:
        canvas.text((pad, y), line, _FAINT, _font(_SMALL))
        y += _SMALL + 4
    y += 6
    for row, lines, height in zip(rows, laid, heights, strict=True):
        if row.image is not None:
            small = _small(row.image)
            card.paste(small, (pad, y))
            note = f"{row.image.height} x {row.image.width}: {row.tokens} positions"
            canvas.text((pad, y + small.height + 3), note, _FAINT, _font(_SMALL))
        for n, line in enumerate(lines):
            canvas.text((pad + (beside if row.image else 0), y + n * (_NORMAL + 5)), line, _INK, _font(_NORMAL))
        y += height
    canvas.rectangle([0, 0, _CARD - 1, card.height - 1], outline=_LINE)
    return card


def _small(image: Image.Image) -> Image.Image:
    small = image.copy()
    small.thumbnail(_PICTURE)
    return small


def _wrapped(text: str, size: int, width: int) -> list[str]:
    """Lines no wider than ``width`` pixels; words that are wider by themselves are cut."""
    font, lines = _font(size), list[str]()
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}" if line else word
            if font.getlength(longer) <= width:
                line = longer
                continue
            lines += [line] if line else []
            while font.getlength(word) > width:
                cut = next(n for n in range(len(word) - 1, 0, -1) if n == 1 or font.getlength(word[:n]) <= width)
                lines.append(word[:cut])
                word = word[cut:]
            line = word
        lines += [line] if line else []
    return lines


def _font(size: int) -> Any:
    return ImageFont.load_default(size)
