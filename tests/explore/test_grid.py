"""Tables as text and HTML, with anything in them."""

from __future__ import annotations

import xml.dom.minidom

from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.explore.grid import Markup, escape, html_grid, plain, shortened, text_grid, width

TEXT = st.text(st.characters(codec=None), max_size=30)
ROWS = st.integers(1, 4).flatmap(lambda n: st.lists(st.lists(TEXT, min_size=n, max_size=n), min_size=1, max_size=5))


@given(ROWS, st.integers(60, 120))
def test_text_keeps_its_columns_below_each_other_within_the_line(rows, total):
    lines = text_grid([f"c{i}" for i in range(len(rows[0]))], rows, total).split("\n")
    assert len(lines) == len(rows) + 2
    assert all(width(line) <= total for line in lines)
    starts = [i for i, c in enumerate(lines[1]) if c == "-" and (i == 0 or lines[1][i - 1] == " ")]
    assert len(starts) == len(rows[0])


@given(ROWS)
def test_html_parses_and_holds_no_markup_of_the_cells(rows):
    dom = xml.dom.minidom.parseString(html_grid(["<i>"] * len(rows[0]), rows, "<caption>"))
    assert len(dom.getElementsByTagName("td")) == sum(map(len, rows))
    assert {e.tagName for e in dom.getElementsByTagName("*")} == {
        "table",
        "caption",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }


@given(TEXT)
def test_escaped_text_comes_back_from_xml(text):
    dom = xml.dom.minidom.parseString(f"<a>{escape(text)}</a>")
    found = "".join(node.data for node in dom.documentElement.childNodes)
    if text.isprintable():
        assert found == text
    assert "<" not in escape(text)


def test_markup_goes_in_as_it_is():
    assert "<b>x</b>" in html_grid(["a"], [[Markup("<b>x</b>")]])
    assert escape("<b>") == "&lt;b&gt;"


def test_plain_text_stays_on_its_line():
    assert plain("a\nb\tc\r\x1b[31m") == "a\\nb\\tc\\r\\x1b[31m"


def test_wide_characters_take_two_columns():
    assert width("日本") == 4 and width("e\u0301") == 1 and width("abc") == 3
    first, _, second = text_grid(["a", "b"], [["日本", "x"]], 80).splitlines()
    assert first == "a     b" and second == "日本  x"


def test_shortened_says_how_much_is_missing():
    assert shortened("abcdef", 6) == "abcdef"
    assert shortened("a" * 2000, 10) == "a" * 10 + "… +1,990"
