"""DecodeText: bytes to str, and which bytes are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run, source

from zephon_nodes import ConfigError, DecodeText, Pipeline, Read, RowError


def decoded(rows, *args, **settings):
    return run(Pipeline(source(rows, chunk=64)).decode_text(*args, **settings))


@given(st.lists(st.text(), max_size=8), st.sampled_from(["utf-8", "utf-16", "utf-8-sig"]), st.booleans())
def test_text_comes_back_as_it_was_written_but_for_line_ends(texts, encoding, newlines):
    texts = [*texts, "a\r\nb\rc\n\r"]
    out, error = decoded([{"text": t.encode(encoding)} for t in texts], encoding=encoding, newlines=newlines)
    want = ["\n".join("\n".join(t.split("\r\n")).split("\r")) if newlines else t for t in texts]
    assert error is None and [p["text"] for p in out] == want


def test_text_that_is_text_already_and_other_fields_are_left_alone():
    rows = [{"text": "schon\r\nda", "id": 7, "raw": b"\xff"}, {"text": b"bytes", "id": 8, "raw": None}]
    assert decoded(rows)[0] == [
        {"text": "schon\nda", "id": 7, "raw": b"\xff"},
        {"text": "bytes", "id": 8, "raw": None},
    ]


@pytest.mark.parametrize(
    "value", [b"ab", bytearray(b"ab"), memoryview(b"ab")], ids=["bytes", "bytearray", "memoryview"]
)
def test_all_kinds_of_bytes_are_decoded(value):
    out = run(Pipeline(source(1)).map(lambda p: {"text": value}).decode_text())[0]
    assert out == [{"text": "ab"}]


def test_several_fields_may_be_named_and_one_may_be_a_plain_name():
    rows = [{"a": b"1", "b": b"2", "c": b"3"}]
    assert decoded(rows, ["a", "b"])[0] == [{"a": "1", "b": "2", "c": b"3"}]
    assert decoded(rows, "c")[0] == [{"a": b"1", "b": b"2", "c": "3"}]


BAD = {
    "broken": ({"text": b"ab\xff"}, "utf-8"),
    "missing": ({"txt": b"ab"}, "'text' is missing"),
    "null": ({"text": None}, "'text' is null"),
    "number": ({"text": 5}, "must be bytes or str, got int"),
    "list": ({"text": ["a"]}, "must be bytes or str, got list"),
    "no dict": ("just a text", "must be a dict with a field 'text', got str"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_is_an_error_that_names_the_row_and_what_was_wrong(name):
    bad, words = BAD[name]
    out, error = decoded([{"text": b"ok"}, bad, {"text": b"ok"}])
    assert out == [{"text": "ok"}] and isinstance(error, RowError)
    assert "decode_text failed on row 1 of rows (dataset 'd')" in str(error) and words in str(error)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_is_skipped_and_counted_by_policy(name):
    bad, words = BAD[name]
    pipeline = Pipeline(source([{"text": b"ok"}, bad, {"text": b"ok"}]), on_error="skip").decode_text()
    assert run(pipeline) == ([{"text": "ok"}] * 2, None)
    assert pipeline.drops.failed == 1 and words in pipeline.drops.rows[0].reason


def test_broken_bytes_may_be_replaced():
    assert decoded([{"text": b"ab\xff"}], errors="replace")[0] == [{"text": "ab\ufffd"}]
    assert decoded([{"text": b"ab\xff"}], errors="ignore")[0] == [{"text": "ab"}]


@pytest.mark.parametrize("wrong", [{"encoding": "utf-9"}, {"errors": "lenient"}])
def test_an_unknown_encoding_or_handler_is_refused_at_construction(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"decode_text: unknown.*{name}='{value}'"):
        DecodeText(Read(source()), **wrong)


@pytest.mark.parametrize("changed", [{"encoding": "latin-1"}, {"errors": "replace"}, {"newlines": False}])
def test_its_settings_are_data_settings(changed):
    ((name, _),) = changed.items()
    with pytest.raises(ValueError, match=rf"nodes\.decode_text\.{name}:"):
        Pipeline(source()).decode_text(**changed).load_state_dict(Pipeline(source()).decode_text().state_dict())
