"""The contact sheet: images come back from the tensors as they were, and nothing is cut off or lies over another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, PLACEHOLDER, images_in, samples, visions

from multimodal import collate
from multimodal.contact_sheet import _card, _font, _pieces, _wrapped, contact_sheet, pictures
from zephon_nodes import Microbatch


def batch(payloads):
    return Microbatch(payloads, [()] * len(payloads), 0, {})


def words(ids):
    return " ".join(f"w{token}" for token in ids)


@given(st.data(), visions)
def test_images_come_back_from_the_tensors(data, vision):
    payloads = data.draw(st.lists(samples(vision), min_size=1, max_size=3))
    step = collate(batch(payloads), vision, PLACEHOLDER)
    want = [image for payload in payloads for image in images_in(payload)]
    got = pictures(step, vision)
    assert len(want) == len(got) and all(map(np.array_equal, want, got))


@given(st.data(), visions)
def test_a_document_is_its_pieces_in_order(data, vision):
    payload = data.draw(samples(vision))
    step = collate(batch([payload]), vision, PLACEHOLDER, extra=["document_ids"])
    ids = step["input_ids"][0].numpy()
    firsts = {first: object() for _, first in step["image_positions"].tolist()}
    counts = [vision.token_count(*image.shape[:2]) for image in images_in(payload)]
    runs = dict(zip(firsts, counts, strict=True))
    pieces = _pieces(ids, 0, len(payload["input_ids"]), firsts, runs, words)
    again = []
    for piece in pieces:
        again += [f"w{PLACEHOLDER}"] * piece.tokens if piece.image is not None else piece.text.split()
    assert again == words(payload["input_ids"]).split()
    assert [piece.image for piece in pieces if piece.image is not None] == list(firsts.values())


@given(st.text(alphabet="abc dxyzäß\n", max_size=120), st.integers(30, 300))
def test_no_line_is_too_wide_and_no_letter_is_lost(text, width):
    lines = _wrapped(text, 14, width)
    assert all(_font(14).getlength(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize("vision", [FIXED, DYNAMIC])
def test_the_sheet_of_a_packed_step(vision):
    picture = vision(np.full((12, 20, 3), (10, 200, 30), np.uint8))
    count = vision.token_count(12, 20)
    sample = {"input_ids": np.array([10, *[PLACEHOLDER] * count, 11], np.int32), "images": [picture]}
    text = {"input_ids": np.arange(10, 20, dtype=np.int32), "images": []}
    row = {"sequences": [sample, text, sample], "target_length": 60}
    step = collate(batch([row, {"sequences": [], "target_length": 60}]), vision, PLACEHOLDER, extra=["document_ids"])
    page = np.asarray(contact_sheet(step, vision, words, "A title " * 60))
    assert page.shape[1:] == (1600, 3)
    assert (page == (10, 200, 30)).all(-1).sum() == 2 * picture.shape[0] * picture.shape[1]  # both, in full
    assert (page[-1] == page[0, 0]).all() and (page[:, -1] == page[0, 0]).all()  # a margin all around


def test_a_step_without_images_or_documents_has_a_sheet():
    step = collate(
        batch([{"sequences": [], "target_length": 8}]), FIXED, PLACEHOLDER, extra=["document_ids", "origins"]
    )
    assert contact_sheet(step, FIXED, words).width == 1600


def test_a_card_holds_all_of_a_long_text():
    from multimodal.contact_sheet import Piece

    short, long = (_card("document 0", [Piece("word " * n, None, n)]) for n in (3, 300))
    assert long.height > short.height + 300 and (np.asarray(long)[-8:-2, 2:-2] == 255).all()
