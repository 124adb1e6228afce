"""The table that peek gives: a list that prints well."""

from __future__ import annotations

import io
import xml.dom.minidom

import numpy as np
from PIL import Image

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.explore.peek import Table

EVIL = '<script>alert("1")</script> & \x07 \ud800'


def table():
    return Table(
        [{"text": EVIL, "n": 1}, {"n": 2, "more": None}], [[("a/x.jsonl", 3)], [("a", 1), ("b", 2), ("c", 3)]], "m<b>"
    )


def test_it_is_a_list_of_payloads_with_origins():
    found = table()
    assert len(found) == 2 and found[1] == {"n": 2, "more": None} and list(found) == found.payloads
    assert found[:1] == [found[0]] and found[:1].origins == [[("a/x.jsonl", 3)]]
    assert found.columns == ["text", "n", "more"]
    assert found != 3 and found == table()


def test_it_prints_a_line_for_each_record_with_where_it_is_from():
    head, rule, first, second = repr(table()).splitlines()
    assert head.split() == ["text", "n", "more", "from"] and set(rule) == {"-", " "}
    assert first.endswith("a/x.jsonl:3") and "\\x07" in first and "\x07" not in first
    assert second.split() == ["2", "None", "a:1,", "b:2", "+1"]
    assert repr(Table([], [], "read")) == "no records at read"


def test_html_is_well_formed_and_escaped():
    found = table()._repr_html_()
    xml.dom.minidom.parseString(found)
    assert "<script" not in found and "&lt;script&gt;" in found and "m&lt;b&gt;" in found


def test_pictures_are_thumbnails_and_broken_ones_say_what_they_are():
    stream = io.BytesIO()
    Image.fromarray(np.full((300, 200, 3), 7, np.uint8)).save(stream, "JPEG")
    rows = [{"jpg": stream.getvalue(), "array": np.zeros((20, 30, 3), np.uint8)}, {"jpg": stream.getvalue()[:40]}]
    data = Dataset.from_rows("pictures", rows)
    found = Pipeline(StaticMixtureWorkSource([data], shuffle="none")).peek(2)
    dom = xml.dom.minidom.parseString(found._repr_html_())
    sizes = [
        (int(one.getAttribute("width")), int(one.getAttribute("height"))) for one in dom.getElementsByTagName("img")
    ]
    assert sizes == [(64, 96), (30, 20)]
    assert "JPEG, 40 bytes" in found._repr_html_()
    assert "uint8 (20, 30, 3)" in repr(found)


def test_payloads_that_are_no_dicts_have_one_column():
    data = Dataset.from_rows("numbers", [1, {"a": 2}, "three"])
    found = Pipeline(StaticMixtureWorkSource([data], shuffle="none")).peek(3)
    assert found.columns == ["value"]
    assert [line.split("  ")[0] for line in repr(found).splitlines()[2:]] == ["1", "{a: 2}", "three"]
    assert found.origins == [[("numbers/rows", i)] for i in range(3)]


def test_batches_and_packed_rows_name_the_first_of_their_rows():
    data = Dataset.from_rows("d", [{"input_ids": [1, 2]} for _ in range(8)])
    graph = Pipeline(StaticMixtureWorkSource([data], shuffle="none")).pack_flat(8, "first_fit").batch(2)
    assert "d/rows:0, d/rows:1 +6" in repr(graph.peek(1))
    assert graph.peek(1, at="pack_flat").origins == [[("d/rows", i) for i in range(4)]]
