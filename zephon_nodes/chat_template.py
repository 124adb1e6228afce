"""Conversations to text by a Jinja chat template, and which characters of the text are answers to be learned.

Where a template marks answers with ``{% generation %}`` tags, those are the answers. Otherwise they are found by
rendering prefixes of the conversation. Either way boundaries are exact, or the conversation is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.conversation import Loss, Message, learned_messages
from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import I64

Tools: TypeAlias = "Sequence[Any] | None"

_GIVEN = ("messages", "tools", "add_generation_prompt")
_HELP = (
    "Put {% generation %} tags around the answers in the template, give it variables that make it fit (such as "
    "enable_thinking), or learn fewer answers with loss="
)


class Span(NamedTuple):
    """Characters [start, stop) of a text."""

    start: int
    stop: int


class Rendered(NamedTuple):
    """A conversation as text, and the spans of characters in it that are answers, in order."""

    text: str
    spans: list[Span]


class ChatTemplate:
    """A chat template, compiled. Rendering is a pure function; any number of threads may render at once. Can be pickled.

    ``text``: the Jinja source. ``variables``: what the template may read besides messages and tools, such as bos_token;
    JSON values. Names that the template doesn't read are left out. ``today`` (None): the date that ``strftime_now``
    tells, "2024-07-26" or with a time, "2024-07-26T12:00:00". The clock is never read, or a run couldn't be repeated.
    Without it the function isn't defined: a template that asks whether it is uses its own fixed date, others are refused.

    Templates see what ``transformers`` shows them, in the same kind of sandbox: see ``jinja_environment``.

    Attributes: ``text``, ``variables`` (dict, those that are read), ``today``, ``names`` (frozenset: all variables that
    the template reads), ``has_generation_tags`` (bool).
    Raises ``ConfigError`` if jinja2 is missing, if the template isn't valid, or if it reads a token (a name that ends in
    _token) that isn't among ``variables``.

    >>> template = ChatTemplate("{% for m in messages %}[{{ m.role }}] {{ m.content }}{{ eos_token }}{% endfor %}",
    ...                         {"eos_token": "</s>"})
    >>> text, spans = template.answers([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    >>> text, [text[start:stop] for start, stop in spans]
    ('[user] Hi</s>[assistant] Hello</s>', ['[assistant] Hello</s>'])
    """

    def __init__(self, text: str, variables: Mapping[str, Any] | None = None, today: str | None = None) -> None:
        try:
            from zephon_nodes import jinja_environment as jinja
        except ModuleNotFoundError as error:
            raise ConfigError(f"chat templates need jinja2 ({error}): pip install 'zephon_nodes[chat]'") from error
        compiled = jinja.compile_template(text, _moment(today))
        self.text, self.today = text, today
        self.names, self.has_generation_tags = compiled.names, compiled.tagged
        self._given, self._template = _json_copy(variables or {}), compiled.template
        self.variables = {name: value for name, value in self._given.items() if name in compiled.names}
        self._refused, self._marks = jinja.REFUSED, (jinja.OPEN, jinja.CLOSE)
        self._check(compiled.names - compiled.optional)

    def render(
        self, messages: Sequence[Message], tools: Tools = None, *, add_generation_prompt: bool = False
    ) -> Rendered:
        """The conversation as text, and what stands in generation tags.

        ``messages``, ``tools``: plain data, as of ``conversation.as_messages`` and ``as_tools``.
        ``add_generation_prompt``: asks the template for the header of an answer at the end.
        Raises ``ValueError`` if the template refuses the conversation or stumbles over it.
        """
        data = {"messages": messages, "tools": tools, "add_generation_prompt": add_generation_prompt}
        try:
            marked = self._template.render({"documents": None, **self.variables, **data})
        except self._refused as error:
            what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise ValueError(f"the chat template refused {_shown(messages)}: {what}") from error
        _check_parts(messages, marked)
        if not self.has_generation_tags:
            return Rendered(marked, [])
        if any(mark in json.dumps([messages, tools], ensure_ascii=False) for mark in self._marks):
            raise ValueError(f"the conversation holds {self._marks}, which are used to mark answers. Take them out.")
        return _unmarked(marked, *self._marks)

    def answers(self, messages: Sequence[Message], tools: Tools = None, loss: Loss = "all") -> Rendered:
        """The conversation as text, and the spans that are learned: those of the messages that ``loss`` chooses.

        ``loss``: "all" (default) answers, the "last" message of the assistant, or those "after_last_user": the
        assistant's messages behind the last user message, tool calls between them included.

        With generation tags, spans are what stands in them, end-of-turn token included or not as the template has it.
        Without, an answer is what the template adds for its message: it begins behind the generation prompt, if the
        template has one (else the header is part of the answer), and ends where the next message begins. So it holds the
        end-of-turn token, which a model must learn to stop, and the newline that some templates write behind it.

        Raises ``ValueError`` as ``render`` does, and if boundaries can't be had, naming the message.
        """
        chosen = learned_messages(messages, loss)
        if self.has_generation_tags:
            return self._by_tags(messages, tools, chosen, loss)
        whole = self.render(messages, tools).text
        return Rendered(whole, [self._by_prefix(messages, tools, index, whole) for index in chosen])

    def recipe(self) -> dict[str, Any]:
        """What decides about the text: ``chat_template`` (SHA-256), ``variables``, ``today``."""
        digest = hashlib.sha256(self.text.encode()).hexdigest()
        return {"chat_template": digest, "variables": self.variables, "today": self.today}

    def _by_tags(self, messages: Sequence[Message], tools: Tools, chosen: list[int], loss: Loss) -> Rendered:
        text, spans = self.render(messages, tools)
        if loss == "all":
            return Rendered(text, spans)
        if not chosen or not spans:
            return Rendered(text, [])
        # Tags don't say whose answer they hold: those that are there without the chosen messages are of earlier ones.
        first = chosen[0]
        before, earlier = self.render(messages[:first], tools) if first else Rendered("", [])
        stop = earlier[-1].stop if earlier else 0
        if spans[: len(earlier)] != earlier or text[:stop] != before[:stop]:
            raise ValueError(
                f"message {first}: which of the template's generation tags hold its answer can't be told, because the "
                f"template writes the answers before it differently when it follows. Choose another loss= than {loss!r}"
            )
        return Rendered(text, spans[len(earlier) :])

    def _by_prefix(self, messages: Sequence[Message], tools: Tools, index: int, whole: str) -> Span:
        try:
            prompt = self.render(messages[:index], tools, add_generation_prompt=True).text
            turn = whole if index + 1 == len(messages) else self.render(messages[: index + 1], tools).text
        except ValueError as error:
            raise ValueError(
                f"message {index} (assistant): its place can't be found, since {error}. {_HELP}"
            ) from error
        _check_prefix(
            prompt, turn, index, "the prompt that the template writes for its answer isn't what it writes before"
        )
        _check_prefix(turn, whole, index, "the template writes the conversation up to it differently when more follows")
        return Span(len(prompt), len(turn))

    def _check(self, needed: frozenset[str]) -> None:
        if clash := self._given.keys() & {*_GIVEN}:
            raise ConfigError(f"{sorted(clash)} come from the records and can't be variables of the chat template")
        missing = sorted(name for name in needed - self.variables.keys() if name.endswith("_token"))
        if missing:
            raise ConfigError(
                f"the chat template writes {missing}, which the tokenizer doesn't declare. Give the text to write, for "
                f'example chat_template_kwargs={{"{missing[0]}": "</s>"}}, or "" for none.'
            )
        if "strftime_now" in needed:
            raise ConfigError(
                "the chat template writes today's date. Give a fixed one, for example today='2024-07-26'."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return ChatTemplate, (self.text, self._given, self.today)


def learned_tokens(offsets: I64, spans: Iterable[Span]) -> npt.NDArray[np.bool_]:
    """Which tokens are learned: bool (tokens,). ``offsets``: int64 (tokens, 2), the characters each token stands for.

    The rule is that of ``transformers``: a token is learned if it begins before a span's end and ends behind its start. So
    a token that straddles an edge of an answer is learned: the model can't write that answer without it.
    """
    out = np.zeros(len(offsets), np.bool_)
    for start, stop in spans:
        out |= (offsets[:, 0] < stop) & (offsets[:, 1] > start)
    return out


def _json_copy(variables: Mapping[str, Any]) -> dict[str, Any]:
    try:
        copied: dict[str, Any] = json.loads(json.dumps(dict(variables)))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the variables of a chat template must be a dict of JSON values: {error}") from error
    return copied


def _moment(today: str | None) -> datetime | None:
    try:
        return None if today is None else datetime.fromisoformat(today)
    except (TypeError, ValueError) as error:
        raise ConfigError(f'today={today!r} must be a date such as "2024-07-26": {error}') from error


def _unmarked(marked: str, opened: str, closed: str) -> Rendered:
    """Takes the marks of generation tags out of a text and gives their places."""
    outside, *blocks = marked.split(opened)
    pieces, length, spans = [outside], len(outside), []
    for block in blocks:
        inside, found, after = block.partition(closed)
        if not found:
            raise ValueError("the template's generation tags stand inside each other, or a loop is left inside one")
        spans.append(Span(length, length + len(inside)))
        pieces += inside, after
        length += len(inside) + len(after)
    return Rendered("".join(pieces), spans)


def _check_parts(messages: Sequence[Message], text: str) -> None:
    """Templates that know no parts write a list of them as Python would show it."""
    for index, message in enumerate(messages):
        parts = message.get("content")
        if isinstance(parts, list) and parts and str(parts) in text:
            raise ValueError(
                f"message {index} ({message['role']}): the chat template knows no content parts. Give its content as a str."
            )


def _check_prefix(start: str, text: str, index: int, what: str) -> None:
    if not text.startswith(start):
        at = next((i for i, (a, b) in enumerate(zip(start, text, strict=False)) if a != b), min(len(start), len(text)))
        raise ValueError(
            f"message {index} (assistant): {what}. From character {at} on it is {start[at : at + 40]!r} "
            f"instead of {text[at : at + 40]!r}. {_HELP}"
        )


def _shown(messages: Sequence[Message]) -> str:
    roles = [str(message["role"]) for message in messages]
    return f"a conversation of {len(roles)} messages ({', '.join([*roles[:6], '...'] if len(roles) > 6 else roles)})"
