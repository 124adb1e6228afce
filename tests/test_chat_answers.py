"""Which tokens of a conversation are learned: against ``transformers``, by hand, and by prefixes against tags."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from chats_for_tests import (
    ANSWER,
    CHATML,
    LLAMA2,
    LLAMA3,
    LOOP,
    NARROW,
    PLAIN,
    TAGGED,
    TOKENS,
    TOOLS,
    TURNS,
    USER,
    contents,
    conversations,
    learned,
    of_transformers,
    tokenizer,
    tool_conversations,
    untagged,
)
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from zephon_nodes.chat_template import ChatTemplate, Span, learned_tokens
from zephon_nodes.conversation import LOSSES, as_messages, as_tools
from zephon_nodes.tokenizer import load_tokenizer


@functools.cache
def compiled(template):
    return ChatTemplate(template, TOKENS)


@functools.cache
def encoder():
    return load_tokenizer(tokenizer(), bos=None, eos=None)


def tokens(template, messages, tools=None, loss="all"):
    """Ids and mask, as lists."""
    text, spans = compiled(template).answers(as_messages(messages), as_tools(tools), loss)
    ((ids, offsets),) = encoder().encode_with_offsets([text])
    return ids.tolist(), learned_tokens(offsets, spans).tolist()


# --- against transformers


@pytest.mark.parametrize("style", TAGGED)
@given(messages=conversations())
def test_ids_and_mask_are_those_of_transformers(style, messages):
    assert tokens(TAGGED[style], messages) == of_transformers(TAGGED[style], messages)


@given(tool_conversations())
def test_ids_and_mask_with_tools_parts_and_reasoning_are_those_of_transformers(drawn):
    messages, tools = drawn
    assert tokens(TOOLS, messages, tools) == of_transformers(TOOLS, messages, tools)


@given(conversations())
def test_ids_without_tags_are_those_of_transformers(messages):
    assert tokens(untagged(LLAMA3), messages)[0] == of_transformers(untagged(LLAMA3), messages)[0]


CHANGES = {
    "NFC": lambda t: setattr(t, "normalizer", normalizers.NFC()),
    "lower case": lambda t: setattr(t, "normalizer", normalizers.Lowercase()),
    "a prepended space": lambda t: setattr(t, "normalizer", normalizers.Prepend(" ")),
    "words": lambda t: setattr(
        t, "pre_tokenizer", pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel()])
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tokenizers_that_change_the_text_give_the_mask_of_transformers(change):
    transformers = pytest.importorskip("transformers")
    changed = Tokenizer.from_str(tokenizer().to_str())
    CHANGES[change](changed)
    messages = [
        USER,
        {"role": "assistant", "content": " e\u0301 \u212b AÉ  "},
        USER,
        {"role": "assistant", "content": "東\u0301"},
    ]
    ours = load_tokenizer(changed, bos=None, eos=None)
    for template in (CHATML, NARROW, PLAIN):
        text, spans = compiled(template).answers(messages)
        ((ids, offsets),) = ours.encode_with_offsets([text])
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=changed, chat_template=template)
        out = fast.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        assert ids.tolist() == out["input_ids"] and any(out["assistant_masks"])
        assert learned_tokens(offsets, spans).tolist() == out["assistant_masks"]


def test_spaces_count_as_characters_of_their_token_also_where_a_post_processor_trims_offsets():
    """The one difference: ``transformers`` lets the post-processor narrow offsets, so a space at an answer's end is lost."""
    transformers = pytest.importorskip("transformers")
    trimming = Tokenizer.from_str(tokenizer().to_str())
    trimming.post_processor = processors.ByteLevel(trim_offsets=True)
    messages = [USER, {"role": "assistant", "content": "a "}]
    text, spans = compiled(NARROW).answers(messages)
    ((ids, offsets),) = load_tokenizer(trimming, bos=None, eos=None).encode_with_offsets([text])
    mask = learned_tokens(offsets, spans)
    assert encoder().decode(ids[mask]) == "a "
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=trimming, chat_template=NARROW)
    theirs = fast.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)["assistant_masks"]
    assert [text[slice(*offsets[i])] for i in np.flatnonzero(mask != np.array(theirs, bool))] == [" "]


# --- which answers, against plain Python


def chatml_by_hand(messages, loss):
    """The text, and for each character whether it is learned."""
    last_user = max([i for i, m in enumerate(messages) if m["role"] == "user"], default=-1)
    last_answer = max([i for i, m in enumerate(messages) if m["role"] == "assistant"], default=-1)
    text, flags = "", []
    for i, m in enumerate(messages):
        head, body = f"<|im_start|>{m['role']}\n", f"{m['content']}<|im_end|>\n"
        is_learned = m["role"] == "assistant" and (
            loss == "all" or (loss == "last" and i == last_answer) or (loss == "after_last_user" and i > last_user)
        )
        text += head + body
        flags += [False] * len(head) + [is_learned] * len(body)
    return text, flags


any_roles = st.lists(
    st.builds(
        lambda role, content: {"role": role, "content": content},
        st.sampled_from(["user", "assistant", "tool"]),
        contents,
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("template", [CHATML, untagged(CHATML)], ids=["tags", "prefixes"])
@pytest.mark.parametrize("loss", LOSSES)
@given(messages=any_roles)
def test_text_and_learned_tokens_are_those_written_by_hand(template, loss, messages):
    expected, flags = chatml_by_hand(messages, loss)
    text, spans = compiled(template).answers(messages, None, loss)
    assert text == expected
    ((_, offsets),) = encoder().encode_with_offsets([text])
    assert learned_tokens(offsets, spans).tolist() == [any(flags[start:stop]) for start, stop in offsets]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, LLAMA2], ids=["chatml", "llama3", "llama2"])
@pytest.mark.parametrize("loss", LOSSES)
@given(messages=conversations(most=6))
def test_prefixes_find_what_tags_mark(template, loss, messages):
    assert compiled(untagged(template)).answers(messages, None, loss) == compiled(template).answers(
        messages, None, loss
    )


@given(tool_conversations())
def test_the_prompt_before_an_answer_is_never_learned_and_the_answer_always_is(drawn):
    messages, tools = as_messages(drawn[0]), as_tools(drawn[1])
    prompted = untagged(TOOLS) + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    text, spans = compiled(prompted).answers(messages, tools)
    assert len(spans) == sum(m["role"] == "assistant" for m in messages)
    for start, stop in spans:
        assert text[:start].endswith("<|im_start|>assistant\n") and text[:stop].endswith("<|im_end|>\n")


def test_without_a_generation_prompt_the_header_is_part_of_the_answer():
    assert learned(untagged(NARROW), TURNS, "last") == ["<|im_start|>assistant\nBye<|im_end|>\n"]


def test_several_tags_of_one_message_go_together():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}
    messages = [USER, ANSWER, USER, call, {"role": "tool", "content": "4"}, ANSWER]
    last, called = ["Hello", "<|im_end|>"], ["", '<call>{\n  "name": "f"\n}</call><|im_end|>']
    assert learned(TOOLS, messages) == [*last, *called, *last]
    assert learned(TOOLS, messages, "after_last_user") == [*called, *last]
    assert learned(TOOLS, messages, "last") == last
    assert learned(TOOLS, messages[:-1], "last") == called


def test_nothing_is_learned_where_nobody_answered():
    for template in (CHATML, untagged(CHATML)):
        assert learned(template, [USER]) == learned(template, TURNS[:3], "after_last_user") == []
        assert learned(template, TURNS[:3], "last") == ["Hello<|im_end|>\n"]
    assert learned(CHATML, [ANSWER, USER], "last") == ["Hello<|im_end|>\n"]


def test_a_template_that_only_marks_the_last_answer_is_followed():
    only = "{% for m in messages %}{% if loop.last and m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    for loss in LOSSES:
        assert learned(only, TURNS, loss) == ["Bye"]


MERGING = (
    "{% generation %}{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}{% endgeneration %}"
)
QWEN = """{% for m in messages %}
<|im_start|>{{ m.role }}
{{ m.content if loop.last else m.content.split('</think>')[-1] }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
THINKING = [USER, {"role": "assistant", "content": "<think>a</think>b"}] * 2


def test_tags_that_hold_several_answers_are_refused_where_one_is_wanted():
    assert learned(MERGING, TURNS) == ["HelloBye"]
    with pytest.raises(ValueError, match=r"message 3: .*can't be told.*another loss= than 'last'"):
        learned(MERGING, TURNS, "last")


def test_tags_whose_earlier_answers_are_written_differently_are_refused_where_later_ones_are_wanted():
    hiding = "{% for m in messages %}{% generation %}{{ m.content if loop.revindex0 < 3 else '*' * (m.content | length) }}{% endgeneration %}{% endfor %}"
    with pytest.raises(ValueError, match=r"message 3: .*can't be told"):
        learned(hiding, TURNS, "last")


def test_a_template_that_rewrites_earlier_answers_is_refused_by_message_unless_they_are_not_wanted():
    with pytest.raises(
        ValueError, match=r"message 1 \(assistant\): the template writes .* differently when more follows.*generation"
    ):
        learned(QWEN, THINKING)
    for loss in ("last", "after_last_user"):
        assert learned(QWEN, THINKING, loss) == ["<think>a</think>b<|im_end|>\n"]


def test_a_generation_prompt_that_is_no_part_of_the_answer_is_refused_by_message_and_place():
    prompted = LOOP + "{% if add_generation_prompt %}assistant: <think>{% endif %}"
    with pytest.raises(
        ValueError, match=r"message 1 \(assistant\): the prompt .* From character 20 on it is '<think>'"
    ):
        learned(prompted, TURNS)
    assert learned(prompted, [USER, {"role": "assistant", "content": "<think>a"}]) == ["a\n"]


def test_a_prefix_that_the_template_refuses_is_named():
    first = "{{ messages[0].content.strip() }}" + LOOP
    with pytest.raises(
        ValueError, match=r"message 0 \(assistant\): its place can't be found, since .*0 messages.*generation"
    ):
        learned(first, [ANSWER])


# --- characters to tokens


offsets_and_spans = st.tuples(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=8),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted), max_size=4),
)


@given(offsets_and_spans)
def test_a_token_is_learned_if_it_overlaps_a_span(drawn):
    offsets, spans = drawn
    expected = [any(begin < stop and end > start for start, stop in spans) for begin, end in offsets]
    got = learned_tokens(np.array(offsets, np.int64).reshape(-1, 2), [Span(*span) for span in spans])
    assert got.dtype == np.bool_ and got.tolist() == expected


def test_a_token_that_straddles_an_edge_is_learned_as_a_whole():
    messages = [USER, {"role": "assistant", "content": "reads"}]
    text, (span,) = compiled(PLAIN).answers(messages)
    ids, mask = tokens(PLAIN, messages)
    assert text[span.start - 1] == " " and text[span.start : span.stop] == "reads"
    assert encoder().decode([i for i, one in zip(ids, mask, strict=True) if one]) == " reads"
    assert (ids, mask) == of_transformers(PLAIN, messages)


def test_no_tokens_and_no_spans():
    assert learned_tokens(np.zeros((0, 2), np.int64), [Span(0, 3)]).tolist() == []
    assert learned_tokens(np.array([[0, 3]], np.int64), []).tolist() == [False]
