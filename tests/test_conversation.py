"""Conversations: what is plain, what is refused and how it is said, and which messages are learned."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from chats_for_tests import tool_conversations
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.conversation import as_messages, as_plain, as_tools, learned_messages

USER = {"role": "user", "content": "Hi"}
BAD = {
    "a str": ("[]", TypeError, "must be a list of messages, got str; parse it with map"),
    "a dict": (USER, TypeError, "must be a list of messages, got dict"),
    "empty": ([], ValueError, "is an empty list"),
    "no dict": ([USER, "Hi"], TypeError, "message 1 must be a dict with role and content, got str"),
    "no role": ([{"from": "user", "value": "Hi"}], ValueError, r"message 0 has no role; its keys are \['from', 'value'\]"),
    "null role": ([USER, {"role": None, "content": "a"}], ValueError, r"message 1 has no role; its keys are \['content'\]"),
    "empty role": ([{"role": "", "content": "a"}], ValueError, "message 0 has no role"),
    "role of another type": ([{"role": 1, "content": "a"}], ValueError, "message 0 has no role"),
    "null content": ([USER, {"role": "assistant", "content": None}], ValueError, r"message 1 \(assistant\) has no content, or null"),
    "no content": ([{"role": "user"}], ValueError, r"message 0 \(user\) has no content"),
    "no content and no calls": ([{"role": "assistant", "tool_calls": []}], ValueError, r"message 0 \(assistant\) has no content"),
    "a number": ([{"role": "user", "content": 5}], TypeError, r"message 0 \(user\): content must be .*, got int"),
    "bytes": ([{"role": "user", "content": b"a"}], TypeError, r"message 0 \(user\): content must be .*, got bytes"),
    "a part of another type": ([{"role": "user", "content": ["a"]}], TypeError, r"message 0 \(user\): part 0 .* must be a dict, got str"),
    "a text of another type": (
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": b"a"}]}],
        TypeError,
        r"message 0 \(user\): the text of part 1 must be a str, got bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_conversation_is_refused_by_message(name):
    value, kind, words = BAD[name]
    with pytest.raises(kind, match=words):
        as_messages(value)


@given(tool_conversations())
def test_a_good_conversation_stays_as_it_is_but_for_nulls_and_is_not_changed(drawn):
    messages = drawn[0]
    before = copy.deepcopy(messages)
    got = as_messages(tuple(messages))
    assert got == [{key: value for key, value in message.items() if value is not None} for message in messages]
    for message in got:
        message["content"] = message.pop("tool_calls", None)
    assert messages == before


def test_null_stands_for_absent_in_messages_parts_and_calls_and_not_inside_arguments():
    part = {"type": "text", "text": "a", "image": None}
    call = {"id": None, "function": {"name": "f", "arguments": {"city": None}}}
    message = {"role": "assistant", "content": [part], "tool_calls": [call], "name": None}
    assert as_messages([message]) == [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}],
            "tool_calls": [{"function": {"name": "f", "arguments": {"city": None}}}],
        }
    ]


def test_plain_values_are_json_types_and_anything_else_is_its_name():
    value = {
        1: np.int64(2),
        "b": np.bool_(False),
        "f": np.float32(0.5),
        "t": (1, None),
        "image": b"\x89",
        "a": np.zeros(2),
    }
    assert as_plain(value) == {"1": 2, "b": False, "f": 0.5, "t": [1, None], "image": "<bytes>", "a": "<ndarray>"}
    assert type(as_plain(np.str_("a"))) is str and as_plain(np.str_("a")) == "a"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(json_values)
def test_json_values_are_plain(value):
    assert as_plain(value) == value


def test_tools_are_a_list_or_its_json():
    tools = [{"name": "f", "parameters": {"a": None}}]
    assert as_tools(tools) == as_tools(tuple(tools)) == as_tools(json.dumps(tools)) == tools
    assert as_tools(None) is as_tools([]) is as_tools("[]") is as_tools("null") is None


@pytest.mark.parametrize(
    ("tools", "kind", "words"),
    [
        ("f(x)", ValueError, "a str that isn't JSON"),
        ({"name": "f"}, TypeError, "list of JSON schemas.*got dict"),
        ('{"name": "f"}', TypeError, "list of JSON schemas.*got dict"),
        (3, TypeError, "got int"),
    ],
)
def test_other_tools_are_refused(tools, kind, words):
    with pytest.raises(kind, match=words):
        as_tools(tools)


@given(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), max_size=8))
def test_learned_messages_are_the_assistants_all_the_last_or_those_after_the_last_user(roles):
    messages = [{"role": role} for role in roles]
    every, after = [], []
    for i, role in enumerate(roles):
        if role == "user":
            after = []
        if role == "assistant":
            every.append(i)
            after.append(i)
    assert learned_messages(messages, "all") == every
    assert learned_messages(messages, "last") == every[-1:]
    assert learned_messages(messages, "after_last_user") == after
