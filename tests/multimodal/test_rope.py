"""Positions on three axes."""

import types

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multimodal.rope import rope_positions

grids = st.tuples(st.integers(1, 4), st.integers(1, 4))
documents = st.lists(st.lists(st.one_of(st.integers(1, 4), grids), max_size=6), max_size=4)
"""A document is a list of texts, as numbers of tokens, and of images, as grids."""


def plainly(document):
    """The three positions of each token, as a list of triples."""
    out = []
    for piece in document:
        start = max((max(triple) for triple in out), default=-1) + 1
        if isinstance(piece, int):
            out += [(start + i,) * 3 for i in range(piece)]
        else:
            out += [(start, start + y, start + x) for y in range(piece[0]) for x in range(piece[1])]
    return out


def laid(pieces):
    """The 1-D positions of documents end to end, and what ``rope_positions`` is told of them."""
    positions, told = [], []
    for document in pieces:
        start, images = len(positions), []
        for piece in document:
            if not isinstance(piece, int):
                images.append((len(positions), piece))
            count = piece if isinstance(piece, int) else piece[0] * piece[1]
            positions += range(len(positions) - start, len(positions) - start + count)
        if images:
            told.append((len(positions), images))
    return np.array(positions, np.int64), told


@given(documents)
def test_positions_are_those_that_are_counted_by_hand(pieces):
    positions, told = laid(pieces)
    before = positions.copy()
    out = rope_positions(positions, told)
    assert out.dtype == np.int64 and out.shape == (3, len(positions))
    assert list(map(tuple, out.T.tolist())) == [triple for document in pieces for triple in plainly(document)]
    assert (positions == before).all()


def test_text_goes_on_behind_the_longer_side_of_an_image():
    positions, told = laid([[2, (2, 3), 1], [1]])
    assert rope_positions(positions, told).tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 0],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 0],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 0],
    ]


@pytest.mark.parametrize(
    "pieces", [[3, (2, 3), 4], [(4, 1), 2], [1, (2, 2), 1, (3, 4), 2], [5], [1, (1, 4), 1, (4, 1)]]
)
def test_one_document_is_as_in_transformers(pieces):
    torch = pytest.importorskip("torch")
    model = pytest.importorskip("transformers.models.qwen2_vl.modeling_qwen2_vl").Qwen2VLModel
    config = types.SimpleNamespace(vision_config=types.SimpleNamespace(spatial_merge_size=2))
    stub = types.SimpleNamespace(config=config)
    stub.get_vision_position_ids = types.MethodType(model.get_vision_position_ids, stub)
    kinds = [k for piece in pieces for k in ([0] * piece if isinstance(piece, int) else [1] * (piece[0] * piece[1]))]
    images = [piece for piece in pieces if not isinstance(piece, int)]
    thw = torch.tensor([(1, 2 * h, 2 * w) for h, w in images]).reshape(-1, 3)
    want, _ = model.get_rope_index(stub, torch.zeros(1, len(kinds), dtype=torch.int64), torch.tensor([kinds]), thw)
    positions, told = laid([pieces])
    assert rope_positions(positions, told).tolist() == want[:, 0].tolist()
