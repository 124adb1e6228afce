"""Where documents, padding, labels and pictures lie in a batch, against the batch itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import source
from tokenizers_for_tests import train_tokenizer

from multimodal.collate import collate
from multimodal.placeholders import expand_images
from multimodal.vision import DynamicResolution, FixedGrid
from zephon_nodes import ConfigError, Microbatch, Pipeline
from zephon_nodes.explore.layout import Placed, array_of, decoder, layout, pictures_of

LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def packed(lengths, algorithm="first_fit", size=10):
    rows = [{"input_ids": np.arange(n, dtype=np.int32) + 1} for n in lengths]
    graph = Pipeline(source(rows), runner="inline").pack_flat(size, algorithm).batch(3)
    return list(graph)


@given(LENGTHS, st.sampled_from(["first_fit", "wrap"]))
def test_segments_and_labels_are_those_of_the_tensors(lengths, algorithm):
    for batch in packed(lengths, algorithm):
        tensors = batch.to_training(extra=["document_ids"])
        for given_as in (batch, tensors):
            found = layout(given_as)
            for row, documents, labels in zip(found.rows, tensors["document_ids"], tensors["labels"], strict=True):
                drawn = [s.document for s in row.segments for _ in range(s.start, s.stop)]
                assert drawn == documents.tolist()
                learned = {i for start, stop in row.learned for i in range(start, stop)}
                assert learned == {i for i, label in enumerate(labels.tolist()) if label != -100}
                assert row.padding == int((documents < 0).sum()) and row.documents == int(documents.max()) + 1


@given(LENGTHS)
def test_without_document_ids_positions_tell_the_same(lengths):
    """But for padding of a single position, which can't be told from a document of one token."""
    for batch in packed(lengths):
        tensors = batch.to_training(extra=["document_ids"])
        want = layout(tensors)
        del tensors["document_ids"]
        got = layout(tensors)
        for a, b in zip(want.rows, got.rows, strict=True):
            if a.padding != 1:
                assert [s[:3] for s in a.segments] == [s[:3] for s in b.segments]
        masked = batch.to_training(extra=["padding_mask"])
        assert [[s[:3] for s in r.segments] for r in layout(masked).rows] == [
            [s[:3] for s in r.segments] for r in want.rows
        ]


def test_flat_tensors_are_one_row():
    (batch,) = packed([4, 5, 3])
    tensors = batch.to_training(extra=["document_ids"], flat=True)
    assert len(layout(tensors).rows) == 1
    assert layout(tensors).length == tensors["input_ids"].numel()


def test_a_dict_of_ids_alone_is_a_document_a_row():
    found = layout({"input_ids": torch.ones(2, 5, dtype=torch.int64)})
    assert [row.documents for row in found.rows] == [1, 1] and found.rows[0].learned == [(0, 5)]


@pytest.mark.parametrize("wrong", [None, 3, {"labels": 1}, [1, 2]])
def test_what_is_no_batch_is_refused(wrong):
    with pytest.raises(ConfigError, match="show needs a Microbatch, or a dict with input_ids"):
        layout(wrong)


def test_documents_are_decoded():
    encoder_source = train_tokenizer()
    graph = Pipeline(source([{"text": "The loader"}, {"text": "a lane"}]), runner="inline").tokenize(
        encoder_source, eos=None
    )
    batch = next(iter(graph.pack_flat(32, "first_fit").batch(2)))
    for given_as in (graph, graph.node, encoder_source):
        texts = [s.text for s in layout(batch, decoder(given_as)).rows[0].segments]
        assert texts == ["The loader", "a lane", ""]
    assert decoder(None) is None and decoder(Pipeline(source(3))) is None


def test_a_long_run_of_one_id_is_read_as_one():
    step = {"input_ids": [[5, *[9] * 300, 1, 1, 1, 2, *[7] * 4]]}
    found = layout(step, lambda ids: " ".join(map(str, ids)))
    assert found.rows[0].segments[0].text == "5 9 1 1 1 2 7"


def test_pictures_of_a_collated_batch_stand_at_their_placeholders():
    rng = np.random.default_rng(0)
    vision = FixedGrid(size=32, patch=16)
    image = rng.integers(0, 255, (32, 32, 3)).astype(np.uint8)
    sample = expand_images({"input_ids": [1, 2, 9, 3], "images": [image]}, vision, 9)
    batch = Microbatch([sample, sample], [(), ()], 0, {})
    found = layout(collate(batch, vision, 9))
    for row in found.rows:
        ((start, picture),) = row.pictures
        assert start == 2
        np.testing.assert_array_equal(picture, image)
    assert [len(row.pictures) for row in layout(batch).rows] == [1, 1]
    assert layout(batch).rows[0].pictures[0].start == 0


@given(st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_pictures_come_back_from_patches(high, wide, normalised):
    from multimodal.pixels import pixel_values

    vision = DynamicResolution(patch=4, merge=2, min_pixels=1, max_pixels=10_000)
    image = np.random.default_rng(high * 7 + wide).integers(0, 256, (8 * high, 8 * wide, 3)).astype(np.uint8)
    image[0, 0], image[0, 1] = 0, 255
    pixels = pixel_values([image, image], vision, "float32" if normalised else "uint8")
    grids = torch.tensor([[1, 2 * high, 2 * wide]] * 2)
    for picture in pictures_of(array_of(pixels), grids):
        if normalised:  # each channel has a scale of its own, and all are stretched alike
            assert picture.shape == image.shape
        else:
            np.testing.assert_array_equal(picture, image)


def test_arrays_of_all_that_carries_numbers():
    assert array_of(torch.ones(2, dtype=torch.bfloat16)).tolist() == [1.0, 1.0]
    assert array_of([1, 2]).tolist() == [1, 2]
    assert Placed(1, None).start == 1
