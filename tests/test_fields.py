"""require_field: the value, or what there is instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.fields import require_field

VALUES = st.one_of(st.integers(), st.text(), st.just(0), st.just(""), st.just([]), st.just(False))


@given(st.dictionaries(st.text(max_size=3), VALUES, min_size=1))
def test_any_value_but_none_is_given_as_it_is(payload):
    for field, value in payload.items():
        assert require_field(payload, field) is value


@given(st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), VALUES))
def test_a_missing_field_is_named_with_those_that_there_are(payload):
    with pytest.raises(ValueError, match="field 'wanted' is missing; the record has") as found:
        require_field(payload, "wanted")
    assert str(sorted(map(str, payload))) in str(found.value)


def test_null_is_no_value():
    with pytest.raises(ValueError, match="field 'text' is null"):
        require_field({"text": None}, "text")


@pytest.mark.parametrize("payload", [None, "text", 3, ["text"], b"text"])
def test_what_is_no_dict_is_named_by_its_type(payload):
    with pytest.raises(TypeError, match=f"must be a dict with a field 'text', got {type(payload).__name__}"):
        require_field(payload, "text")
