"""Conversations as records hold them, checked and made plain. Knows no templates and no nodes.

A conversation is a list of messages. A message is a dict with a ``role`` ("system", "user", "assistant", "tool" or what
a template knows) and a ``content``: a str, or a list of parts such as {"type": "text", "text": ...} and {"type": "image"}.
An assistant's message may have ``tool_calls`` in place of a content. Other keys are handed to the template as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

Message: TypeAlias = "dict[str, Any]"
Loss: TypeAlias = Literal["all", "last", "after_last_user"]

LOSSES = ("all", "last", "after_last_user")


def as_messages(value: Any) -> list[Message]:
    """The messages of a conversation, as plain data (see ``as_plain``). The value itself isn't changed.

    Null stands for absent, since Parquet can't leave a key out: keys whose value is null are left out of messages and of
    the objects in their lists (content parts, tool calls).
    Raises ``TypeError`` or ``ValueError``, naming the message by its index.
    """
    if not isinstance(value, (list, tuple)):
        raise TypeError(
            f"a conversation must be a list of messages, got {type(value).__name__}; parse it with map first"
        )
    if not value:
        raise ValueError("the conversation is an empty list; it needs at least one message")
    return [_message(index, message) for index, message in enumerate(value)]


def as_tools(value: Any) -> list[Any] | None:
    """The tools of a conversation: a list of JSON schemas, or the JSON text of one. None for null and for an empty list.

    Raises ``TypeError`` or ``ValueError`` for anything else.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"tools were given as a str that isn't JSON: {error}") from error
    if value is not None and not isinstance(value, (list, tuple)):
        raise TypeError(f"tools must be a list of JSON schemas, or the JSON text of one, got {type(value).__name__}")
    return [as_plain(tool) for tool in value] if value else None


def learned_messages(messages: Sequence[Message], loss: Loss) -> list[int]:
    """Indices of the assistant's messages that carry loss: all, the last one, or those behind the last user message."""
    assistant = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if loss == "last":
        return assistant[-1:]
    if loss == "after_last_user":
        last_user = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=-1)
        return [i for i in assistant if i > last_user]
    return assistant


def as_plain(value: Any) -> Any:
    """Plain JSON types, copied: all that a template may see. Numpy numbers become Python's. Anything else, such as the
    bytes or the pixels of an image, becomes its type's name, "<bytes>"; templates only ask whether it is there.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(part) for part in value]
    if isinstance(value, np.generic):
        return as_plain(value.item())
    return f"<{type(value).__name__}>"


def _message(index: int, value: Any) -> Message:
    if not isinstance(value, Mapping):
        raise TypeError(f"message {index} must be a dict with role and content, got {type(value).__name__}")
    message = {key: _without_nulls(part) for key, part in as_plain(value).items() if part is not None}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise ValueError(f"message {index} has no role; its keys are {sorted(message)}")
    _check_content(f"message {index} ({role})", value.get("content"), message)
    return message


def _check_content(which: str, content: Any, message: Message) -> None:
    if content is None:
        if message.get("tool_calls"):
            return
        raise ValueError(f"{which} has no content, or null, and no tool_calls; its keys are {sorted(message)}")
    if not isinstance(content, (str, list, tuple)):
        raise TypeError(f"{which}: content must be a str or a list of parts, got {type(content).__name__}")
    for number, part in enumerate(() if isinstance(content, str) else content):
        if not isinstance(part, Mapping):
            raise TypeError(f"{which}: part {number} of its content must be a dict, got {type(part).__name__}")
        if not isinstance(part.get("text", ""), (str, type(None))):
            raise TypeError(f"{which}: the text of part {number} must be a str, got {type(part['text']).__name__}")


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [{k: v for k, v in part.items() if v is not None} if isinstance(part, dict) else part for part in value]
