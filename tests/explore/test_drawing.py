"""The drawing of a graph: well formed, complete, escaped, and within its edges."""

from __future__ import annotations

import xml.dom.minidom

from runs import source
from tokenizers_for_tests import train_tokenizer

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.explore.drawing import LETTER, WIDTH


def double(payload):
    return payload


def texts(svg):
    dom = xml.dom.minidom.parseString(svg)
    return [(node.firstChild.data, node) for node in dom.getElementsByTagName("text") if node.firstChild]


def test_every_node_stands_in_it_with_its_settings_and_who_runs_it():
    graph = Pipeline(source(20), parallelism=3).map(double, name="a").filter(double).shuffle(7).batch(4).take(2)
    found = [text for text, _ in texts(graph._repr_svg_())]
    titles = [
        t for t in found if t in ("StaticMixtureWorkSource", "read", "a (map)", "filter", "shuffle", "batch", "take")
    ]
    assert titles == ["StaticMixtureWorkSource", "read", "a (map)", "filter", "shuffle", "batch", "take"]
    assert "hop 1 · 3 threads" in found and found.count("fused") == 2
    assert any("buffer_size=7" in text for text in found) and any("microbatch_size=4" in text for text in found)
    assert "no work of its own" in found


def test_counters_stand_in_it_once_it_has_run():
    graph = Pipeline(source(20)).map(double).batch(4)
    assert "out" not in graph._repr_svg_().replace("function", "").replace("without", "")
    assert len(list(graph)) == 5
    found = [text for text, _ in texts(graph._repr_svg_())]
    assert sum(text.startswith("20 out, ") for text in found) == 2 and any(t.startswith("5 out, ") for t in found)
    assert "20 out" in graph.describe()


def test_a_node_draws_the_graph_below_it():
    graph = Pipeline(source(20)).map(double, name="lower").batch(4)
    svg = graph.node.source._repr_svg_()
    assert "lower (map)" in svg and ">batch<" not in svg
    assert len([graph.node.source.next() for _ in range(3)]) == 3
    assert " out, " in graph.node.source._repr_svg_()
    graph.node.source.close()


def test_names_and_settings_are_escaped():
    data = Dataset.from_rows("<script>alert(1)</script>\x07", [{"text": "x"}])
    graph = Pipeline(StaticMixtureWorkSource([data])).map(double, name="<b>&'\"\ud800")
    svg = graph._repr_svg_()
    assert "<script" not in svg and "<b>" not in svg and "\x07" not in svg
    assert [text for text, _ in texts(svg) if text.startswith("<b>&'\"")] == ["<b>&'\"\\ud800 (map)"]


def test_no_line_leaves_the_panel():
    data = Dataset.from_rows("d" * 300, [{"text": "x"}])
    graph = Pipeline(StaticMixtureWorkSource([data], mixture={"d" * 300: 1})).tokenize(train_tokenizer()).pack_flat(64)
    svg = graph.map(double, name="n" * 400)._repr_svg_()
    dom = xml.dom.minidom.parseString(svg)
    height = float(dom.documentElement.getAttribute("height"))
    for text, node in texts(svg):
        letter = 13 / 11 * LETTER if node.getAttribute("font-weight") else LETTER
        if node.getAttribute("text-anchor") != "end":
            assert float(node.getAttribute("x")) + letter * len(text) <= WIDTH, text
        assert 0 < float(node.getAttribute("y")) < height
