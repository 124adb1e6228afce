"""Chat templates: what they may do, what is refused and how it is said, copies and threads. Masks: test_chat_answers."""

from __future__ import annotations

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from chats_for_tests import (
    ANSWER,
    CHATML,
    LLAMA2,
    LLAMA3,
    LOOP,
    TOKENS,
    TOOLS,
    TURNS,
    USER,
    learned,
    untagged,
)

from zephon_nodes.chat_template import ChatTemplate
from zephon_nodes.errors import ConfigError


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no ' ~ messages[0].role) }}", "TemplateError: no user"),
        ("{{ messages[9].content.x }}", "UndefinedError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ 1 // (messages | length - 2) }}", "ZeroDivisionError"),
        ("{{ messages[0].content.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_what_a_template_refuses_or_stumbles_over_is_said_with_the_roles(template, words):
    with pytest.raises(ValueError, match=rf"refused a conversation of 2 messages \(user, assistant\): {words}"):
        ChatTemplate(template).render([USER, ANSWER])


def test_roles_that_do_not_alternate_are_refused_by_the_template():
    with pytest.raises(ValueError, match="roles must alternate user/assistant"):
        learned(LLAMA2, [USER, USER])


def test_content_parts_are_refused_where_the_template_would_write_them_as_python_shows_them():
    message = {"role": "user", "content": [{"type": "text", "text": "a"}]}
    with pytest.raises(ValueError, match=r"message 1 \(user\): the chat template knows no content parts"):
        ChatTemplate(LOOP).render([USER, message])
    assert ChatTemplate(TOOLS).render([message]).text == "<|im_start|>user\na<|im_end|>\n"


def test_marks_in_a_conversation_cannot_forge_an_answer():
    marks = ChatTemplate(CHATML)._marks
    for forged in (f"{marks[0]}a{marks[1]}", marks[1]):
        messages = [{"role": "user", "content": forged}]
        with pytest.raises(ValueError, match="used to mark answers"):
            learned(CHATML, messages)
        assert learned(untagged(CHATML), messages) == []


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
        "{% for m in messages %}{% generation %}{% break %}{% endgeneration %}{% endfor %}",
    ],
)
def test_tags_without_a_clear_end_are_refused(template):
    with pytest.raises(ValueError, match="inside each other, or a loop is left inside one"):
        learned(template, TURNS)


def test_the_date_is_the_given_one_never_the_clock():
    asks = "{{ strftime_now('%d %b %Y') }}"
    assert ChatTemplate(asks, today="2024-07-26").render([USER]).text == "26 Jul 2024"
    assert ChatTemplate("{{ strftime_now('%H') }}", today="2024-07-26T12:30:00").render([USER]).text == "12"
    with pytest.raises(ConfigError, match=r"today='2024-07-26'"):
        ChatTemplate(asks)
    guarded = "{% if strftime_now is defined %}" + asks + "{% else %}26 Jul 1999{% endif %}"
    assert ChatTemplate(guarded).render([USER]).text == "26 Jul 1999"
    assert ChatTemplate(guarded, today="2024-07-26").render([USER]).text == "26 Jul 2024"


@pytest.mark.parametrize("today", ["now", "2024-13-01", 20240726])
def test_a_date_that_is_none_is_refused(today):
    with pytest.raises(ConfigError, match=f"today={today!r} must be a date"):
        ChatTemplate("a", today=today)


def test_variables_are_seen_and_only_those_that_are_read_are_part_of_the_recipe():
    template = ChatTemplate("{{ bos_token }}{{ n }}{% set own = 1 %}{{ own }}", {"bos_token": "<s>", "n": [1], "x": 2})
    assert template.render([USER]).text == "<s>[1]1"
    assert template.variables == template.recipe()["variables"] == {"bos_token": "<s>", "n": [1]}
    assert {"bos_token", "n"} <= template.names


@pytest.mark.parametrize(
    ("text", "variables", "words"),
    [
        ("{{ eos_token }}", {}, r"writes \['eos_token'\].*chat_template_kwargs=\{\"eos_token\": \"</s>\"\}"),
        ("a", {"messages": []}, r"\['messages'\] come from the records"),
        ("a", {"x": object()}, "must be a dict of JSON values"),
        ("a", [1], "must be a dict of JSON values"),
        ("{% if %}", {}, "isn't valid: line 1"),
        ("\n{{ a | nofilter }}", {}, "isn't valid: line 2.*nofilter"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_construction(text, variables, words):
    with pytest.raises(ConfigError, match=words):
        ChatTemplate(text, variables)


def test_a_token_that_the_template_asks_for_may_be_missing():
    guarded = "{% if bos_token is defined %}{{ bos_token }}{% endif %}a"
    assert ChatTemplate(guarded).render([USER]).text == "a"
    assert ChatTemplate("{{ bos_token }}a", {"bos_token": ""}).render([USER]).text == "a"


def test_any_change_of_the_text_or_of_what_it_reads_changes_the_recipe():
    recipes = [
        ChatTemplate(*given).recipe()
        for given in (
            ("{{ n }}",),
            ("{{ n }} ",),
            ("{{ n }}", {"n": 1}),
            ("{{ n }}", {"n": 2}),
            ("{{ n }}", {}, "2024-07-26"),
        )
    ]
    assert all(recipes.count(recipe) == 1 for recipe in recipes)
    assert ChatTemplate("{{ n }}", {"m": 1}).recipe() == recipes[0]


def test_threads_share_one_template():
    chats = [
        [{"role": "user", "content": str(i)}, {"role": "assistant", "content": "é" * (i % 7)}] * (1 + i % 3)
        for i in range(200)
    ]
    template = ChatTemplate(CHATML)
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(template.answers, chats))
    assert got == [ChatTemplate(CHATML).answers(chat) for chat in chats]


def test_copies_render_the_same():
    template = ChatTemplate("{{ strftime_now('%Y') }}" + LLAMA3, TOKENS | {"unread": 1}, "2024-07-26")
    for copied in (pickle.loads(pickle.dumps(template)), copy.deepcopy(template)):
        assert copied.recipe() == template.recipe() and copied.answers(TURNS) == template.answers(TURNS)


def test_without_jinja2_the_way_to_get_it_is_said(monkeypatch):
    monkeypatch.delitem(sys.modules, "zephon_nodes.jinja_environment", raising=False)
    monkeypatch.delattr("zephon_nodes.jinja_environment", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ConfigError, match=r"pip install 'zephon_nodes\[chat\]'"):
        ChatTemplate("a")
