"""A batch as HTML and in letters."""

from __future__ import annotations

import xml.dom.minidom

import numpy as np
import pytest
from runs import source
from tokenizers_for_tests import train_tokenizer

from zephon_nodes import ConfigError, Microbatch, Pipeline, show
from zephon_nodes.explore.show import COLOURS


def graph(texts=("<script>alert(1)</script> & more", "two", "three of them")):
    rows = [{"text": text} for text in texts]
    return (
        Pipeline(source(rows), runner="inline")
        .tokenize(train_tokenizer(), eos=None)
        .pack_flat(64, "first_fit")
        .batch(2)
    )


def parsed(view):
    return xml.dom.minidom.parseString(view._repr_html_())


def test_text_is_there_on_hover_and_escaped():
    view = show(next(iter(graph())), graph())
    dom = parsed(view)
    assert "<script" not in view._repr_html_()
    hovers = [node.firstChild.data for node in dom.getElementsByTagName("title")]
    assert hovers[0].startswith("document 0: positions 0 to ") and "<script>alert(1)</script> & more" in hovers[0]
    assert hovers[-1].startswith("padding: ")


def test_padding_is_hatched_and_documents_differ_from_their_neighbours():
    dom = parsed(show(next(iter(graph()))))
    fills = [
        node.getAttribute("fill") for g in dom.getElementsByTagName("g") for node in g.getElementsByTagName("rect")
    ]
    (hatch,) = [node.getAttribute("id") for node in dom.getElementsByTagName("pattern")]
    assert fills[-1] == f"url(#{hatch})" and fills[:3] == list(COLOURS[:3])


def test_two_views_on_one_page_have_hatches_of_their_own():
    one, two = show(next(iter(graph()))), show(next(iter(graph(("other",)))))
    ids = {node.getAttribute("id") for view in (one, two) for node in parsed(view).getElementsByTagName("pattern")}
    assert len(ids) == 2


def test_everything_stays_on_the_panel():
    images = [np.zeros((32, 64, 3), np.uint8)] * 40
    batch = Microbatch([{"input_ids": np.arange(20), "images": images}], [()], 0, {})
    dom = parsed(show(batch))
    width, height = (float(dom.documentElement.getAttribute(name)) for name in ("width", "height"))
    for tag in ("rect", "image"):
        for node in dom.getElementsByTagName(tag):
            x, y = float(node.getAttribute("x") or 0), float(node.getAttribute("y") or 0)
            assert x >= 0 and y >= 0
            assert x + float(node.getAttribute("width")) <= width + 0.1
            assert y + float(node.getAttribute("height")) <= height + 0.1
    assert 0 < len(dom.getElementsByTagName("image")) < 40


def test_letters_for_a_terminal():
    view = show(Microbatch([{"input_ids": np.arange(8)}, {"input_ids": np.arange(4)}], [(), ()], 0, {}))
    first, second = repr(view).splitlines()
    assert first == f"row 0   |{'a' * 72}| 1 document, 0% padding"
    assert second == f"row 1   |{'a' * 36}{'.' * 36}| 1 document, 50% padding"


def test_rows_are_limited_and_the_rest_is_counted():
    batch = Microbatch([{"input_ids": np.arange(8)}] * 12, [()] * 12, 0, {})
    assert repr(show(batch, rows=3)).splitlines()[-1] == "and 9 more rows"
    assert "9 more rows" in show(batch, rows=3)._repr_html_()
    with pytest.raises(ConfigError, match="rows"):
        show(batch, rows=0)


def test_a_pipeline_shows_its_first_batch_without_moving():
    pipeline = graph()
    assert "three of them" in pipeline.show()._repr_html_()
    assert repr(pipeline.show()) == repr(show(next(iter(pipeline)), pipeline))


def test_a_batch_without_rows_is_an_empty_picture():
    assert repr(show(Microbatch([], [], 0, {}))) == ""
    parsed(show(Microbatch([], [], 0, {})))
