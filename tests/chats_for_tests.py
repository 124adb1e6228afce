"""Chat templates of several styles, conversations for them, and what ``transformers`` makes of both."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers_for_tests import TEXTS, train_tokenizer

from zephon_nodes.chat_template import ChatTemplate
from zephon_nodes.conversation import as_messages

SPECIAL = ("<|endoftext|>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|head|>", "<|/head|>", "<|eot|>")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
TURNS = [USER, ANSWER, {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Bye"}]

LOOP = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' }}
{%- if message.role == 'assistant' %}
{%- generation %}{{ message.content + '<|im_end|>' + '\n' }}{%- endgeneration %}
{%- else %}{{ message.content + '<|im_end|>' + '\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

NARROW = """{% for message in messages %}
<|im_start|>{{ message.role }}
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}<|im_end|>
{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {%- set header = '<|head|>' + message['role'] + '<|/head|>\n\n' %}
    {%- if message['role'] == 'assistant' %}
        {{- header }}
        {%- generation %}
        {{- message['content'] | trim + '<|eot|>' }}
        {%- endgeneration %}
    {%- else %}
        {{- header + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\n\n' }}
{%- endif %}"""

LLAMA2 = """{{ bos_token }}{% if messages[0].role == 'system' %}
{% set rest = messages[1:] %}<<SYS>>{{ messages[0].content }}<</SYS>>{% else %}{% set rest = messages %}{% endif %}
{% for message in rest %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate user/assistant') }}
{% endif %}
{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]{% else %}
{% generation %}{{ ' ' + message.content + ' ' + eos_token }}{% endgeneration %}{% endif %}
{% endfor %}"""

PLAIN = """{% for message in messages %}
{% if message.role == 'assistant' %}
Assistant: {% generation %}{{ message.content }}{% endgeneration %}
{% else %}
{{ message.role }}: {{ message.content }}
{% endif %}

{% endfor %}"""

TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\nTools:' }}
    {%- for tool in tools %}{{- '\n' + tool | tojson }}{%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- if message.reasoning is defined %}{{- '<think>' + message.reasoning + '</think>' }}{%- endif %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- endgeneration %}
        {%- generation %}
        {%- for call in message.tool_calls or [] %}
            {{- '<call>' + call.function | tojson(indent=2) + '</call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\n' }}
    {%- elif message.content is string %}
        {{- message.content + '<|im_end|>\n' }}
    {%- else %}
        {%- for part in message.content %}
            {{- part.text if part.type == 'text' else '<|' + part.type + '|>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}"""

TAGGED = {"chatml": CHATML, "narrow": NARROW, "llama3": LLAMA3, "llama2": LLAMA2, "plain": PLAIN, "tools": TOOLS}


def untagged(template: str) -> str:
    """The template without its generation tags, white space control as it was."""
    for tag in ("generation", "endgeneration"):
        template = template.replace("{%- " + tag, "{%- if true" if tag == "generation" else "{%- endif")
        template = template.replace("{% " + tag, "{% if true" if tag == "generation" else "{% endif")
    return template


def tokenizer() -> Tokenizer:
    return train_tokenizer(SPECIAL, 600)


contents = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    [*TEXTS, "", " ", "\n", " a ", "\n\nb", "c\n", "é", "東京 🙂", "<|im_end|>", "x</s> y", "<|im_start|>assistant\nno"]
)


@st.composite
def conversations(draw, most=4, system=True):
    """An optional system message, then users and assistants in turn."""
    messages = [{"role": "system", "content": draw(contents)}] if system and draw(st.booleans()) else []
    for i in range(draw(st.integers(1, most))):
        messages.append({"role": "assistant" if i % 2 else "user", "content": draw(contents)})
    return messages


def learned(template: str, messages: Any, loss: Any = "all") -> list[str]:
    """The text of each span."""
    text, spans = ChatTemplate(template, TOKENS).answers(as_messages(messages), None, loss)
    return [text[start:stop] for start, stop in spans]


names = st.sampled_from(["look_up", "süß", "f"])
values = st.none() | st.booleans() | st.integers(-9, 99) | st.sampled_from(["Paris", "<b>&amp;</b>", "東京"])
calls = st.builds(
    lambda name, arguments: {"type": "function", "function": {"name": name, "arguments": arguments}},
    names,
    st.dictionaries(st.sampled_from(["city", "n", "ü"]), values | st.lists(values, max_size=2), max_size=2),
)
parts = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, contents) | st.just({"type": "image"}),
    min_size=1,
    max_size=3,
)


@st.composite
def tool_conversations(draw):
    """Messages of any roles in any order, with tool calls, reasoning, content parts and tools."""
    messages = []
    for role in draw(st.lists(st.sampled_from(["user", "assistant", "tool", "system"]), min_size=1, max_size=6)):
        message: dict[str, Any] = {"role": role, "content": draw(contents)}
        if role == "assistant":
            if draw(st.booleans()):
                message["tool_calls"] = draw(st.lists(calls, min_size=1, max_size=2))
                message["content"] = draw(st.none() | contents)
            if draw(st.booleans()):
                message["reasoning"] = draw(contents)
        elif draw(st.booleans()):
            message["content"] = draw(parts)
        messages.append(message)
    tools = draw(
        st.none() | st.lists(st.builds(lambda name: {"name": name, "parameters": {}}, names), min_size=1, max_size=2)
    )
    return messages, tools


@functools.cache
def _fast(template: str):
    import transformers

    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=template, **TOKENS)


def of_transformers(template: str, messages: Any, tools: Any = None, **settings: Any) -> tuple[list[int], list[bool]]:
    """Ids and mask, by ``apply_chat_template``."""
    out = _fast(template).apply_chat_template(
        messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **settings
    )
    return list(out["input_ids"]), [bool(one) for one in out["assistant_masks"]]
