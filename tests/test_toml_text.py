"""What is written is TOML that the standard library reads as the same values."""

import math
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.errors import ConfigError
from zephon_nodes.toml_text import dumps, parse

pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
plain = texts | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
values = st.recursive(plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(texts, v, max_size=3), max_leaves=12)


@given(st.dictionaries(texts, values, max_size=5))
def test_any_document_comes_back_with_its_types(document):
    back = parse(dumps(document), "here")
    assert back == document
    assert repr(back) == repr({key: back[key] for key in back}) and kinds(back) == kinds(document)


def kinds(value):
    if isinstance(value, dict):
        return {key: kinds(part) for key, part in value.items()}
    return [kinds(part) for part in value] if isinstance(value, list) else type(value)


def test_odd_numbers_and_characters():
    odd = {"big": 1e300, "small": 1e-7, "inf": -math.inf, "text": "a\x7f\x00\u2028\"'\\\n\t", "a.b c": "é"}
    assert parse(dumps(odd), "here") == odd
    assert math.isnan(parse(dumps({"n": math.nan}), "here")["n"])


def test_tables_stand_at_the_top_in_the_form_that_people_write():
    text = dumps(
        {"version": 1, "source": {"seed": 2, "mixture": {"a": "1/3"}}, "nodes": [{"op": "batch"}, {"op": "x"}]}
    )
    assert text == (
        'version = 1\n\n[source]\nseed = 2\nmixture = { a = "1/3" }\n\n[[nodes]]\nop = "batch"\n\n[[nodes]]\nop = "x"\n'
    )


def test_a_value_without_a_form_is_an_error():
    with pytest.raises(TypeError, match="no value for None"):
        dumps({"a": None})


def test_python_3_10_needs_a_package_that_the_error_names(monkeypatch):
    monkeypatch.setattr("zephon_nodes.toml_text.sys", SimpleNamespace(version_info=(3, 10)))
    monkeypatch.setitem(sys.modules, "tomli", None)
    with pytest.raises(ConfigError, match=r"from 3\.11 on: pip install 'zephon_nodes\[toml\]'"):
        parse("a = 1", "here")
    monkeypatch.setitem(
        sys.modules, "tomli", SimpleNamespace(loads=lambda text: {"read": text}, TOMLDecodeError=ValueError)
    )
    assert parse("a = 1", "here") == {"read": "a = 1"}


def test_a_text_that_is_no_toml_is_told_with_its_place():
    with pytest.raises(ConfigError, match=r"run\.toml isn't TOML: .*line 2"):
        parse("a = 1\nb = = 2\n", "run.toml")
