"""Conversations to token ids, with a mask of the answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from zephon_nodes.chat_template import ChatTemplate, Rendered, learned_tokens
from zephon_nodes.conversation import LOSSES, Loss, as_messages, as_tools
from zephon_nodes.errors import ConfigError
from zephon_nodes.fields import require_field
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.stream import Drop, Item, Record
from zephon_nodes.tokenizer import I32, Encoder
from zephon_nodes.tokenizer_source import TokenizerSource, choose_chat_template, find_tokenizer

LongChat: TypeAlias = Literal["truncate", "drop", "raise"]


class TokenizeChat(Node):
    """Renders the conversation in ``field`` by a chat template and puts two arrays of one length into the record:
    ``input_ids`` int32 (tokens,), and ``loss_mask`` bool (tokens,), True where token t is to be learned as a target.

    ``tokenizer`` or ``tokenizer_id``: as in ``Tokenize``.
    ``field`` ("messages"): a list of messages with role and content, see ``conversation``.
    ``tools_field`` ("tools"): a field with the tools' JSON schemas, or the JSON text of them; it may be missing, null or
    empty. None: tools are never shown.
    ``chat_template`` (None): the tokenizer's own. Or Jinja source, a path to a file of it, or, if the tokenizer has
    several, the name of one. ``chat_template_kwargs``: variables for the template, such as enable_thinking; they win over
    the tokens that the tokenizer declares. ``today``: the date that templates see, see ``ChatTemplate``.
    ``loss`` ("all"): which answers, the messages of role "assistant", are learned: "all", "last" or "after_last_user".
    ``ChatTemplate.answers`` says how their boundaries are found, ``chat_template.learned_tokens`` what becomes of a token
    on a boundary.
    ``max_length`` (None): most tokens a conversation. ``long`` ("truncate"): longer ones are cut off on the right, which
    may leave nothing to learn; "drop" leaves them out, counted; "raise" makes them bad records.
    ``drop_unlearned`` (False): leaves conversations out, counted, of which no token is learned after truncation. Kept,
    they cost compute and teach nothing; but dropping changes how many records there are.
    ``keep_fields`` (True): False drops all other fields.

    The text is tokenized whole, so ids are those that the model sees. Nothing is added: bos, eos and the ends of turns are
    what the template writes. The name of a special token in a user's text becomes that token, as in ``transformers``;
    it never moves the mask. Take such names out with ``Map`` if your users can't be trusted.

    A conversation that is missing, null, empty, malformed or refused by the template, or whose answers can't be found
    exactly, is a bad record: ``RowError``, or a counted drop under on_error="skip". Raises ``ConfigError`` if the tokenizer
    or the template can't be loaded, or a setting doesn't fit.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> words = {"?": 0, "user": 1, "assistant": 2, ":": 3, "hi": 4, "hello": 5}
    >>> tokenizer = Tokenizer(models.WordLevel(words, unk_token="?"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    >>> chats = Dataset.from_rows("chats", [{"messages": chat}])
    >>> template = "{% for m in messages %}{{ m.role }} : {% if m.role == 'assistant' %}{% generation %}"
    >>> template += "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }} {% endif %}{% endfor %}"
    >>> row = next(iter(Pipeline(StaticMixtureWorkSource([chats])).tokenize_chat(tokenizer, chat_template=template)))
    >>> row["input_ids"].tolist(), row["loss_mask"].tolist()
    ([1, 3, 4, 2, 3, 5], [False, False, False, False, False, True])
    """

    kind = "tokenize_chat"
    takes = ("rows",)
    tokenizes = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        tokenizer: Any = None,
        field: str = "messages",
        *,
        tokenizer_id: str | None = None,
        tools_field: str | None = "tools",
        chat_template: str | Path | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        today: str | None = None,
        loss: Loss = "all",
        max_length: int | None = None,
        long: LongChat | None = None,
        drop_unlearned: bool = False,
        keep_fields: bool = True,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if (tokenizer is None) == (tokenizer_id is None):
            raise ConfigError(
                "tokenize_chat needs a tokenizer: give either tokenizer=... or tokenizer_id=..., not both"
            )
        if loss not in LOSSES:
            raise ConfigError(f"loss must be one of {list(LOSSES)}, got {loss!r}")
        _check_length(max_length, long)
        given = tokenizer_id if tokenizer is None else tokenizer
        found = find_tokenizer(given)
        self.encoder = _encoder(found)
        text = choose_chat_template(chat_template, given)
        self.template = _template(text, found, chat_template_kwargs or {}, today)
        self.field, self.tools_field, self.loss = field, tools_field, loss
        self.max_length, self.long = max_length, (long or "truncate") if max_length is not None else None
        self.drop_unlearned, self.keep_fields = drop_unlearned, keep_fields

    def settings(self) -> dict[str, Any]:
        own = ("field", "tools_field", "loss", "max_length", "long", "drop_unlearned", "keep_fields")
        ids = {
            name: part for name, part in self.encoder.recipe().items() if name not in ("bos_token_id", "eos_token_id")
        }
        return {**ids, **self.template.recipe(), **{name: getattr(self, name) for name in own}}

    @property
    def pad_token_id(self) -> int:
        return self.encoder.pad_token_id

    def blank_record(self) -> Any:
        return {"input_ids": np.zeros(0, np.int32), "loss_mask": np.zeros(0, np.bool_)}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise" and self.long != "drop" and not self.drop_unlearned

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def tokenized(records: list[Record]) -> list[Item]:
            chats = [self._rendered(setup, record) for record in records]
            texts = [chat.text for chat in chats if isinstance(chat, Rendered)]
            encoded = iter(self.encoder.encode_with_offsets(texts))
            out: list[Item] = []
            for record, chat in zip(records, chats, strict=True):
                if isinstance(chat, Rendered):
                    ids, offsets = next(encoded)
                    out.append(self._record(setup, record, ids, learned_tokens(offsets, chat.spans)))
                else:
                    out.append(chat)
            return out

        return tokenized

    def _rendered(self, setup: Setup, record: Record) -> Rendered | Item:
        """The text of a conversation, or what becomes of a record without one."""
        try:
            messages = as_messages(require_field(record.payload, self.field))
            tools = as_tools(record.payload.get(self.tools_field)) if self.tools_field is not None else None
            rendered = self.template.answers(messages, tools, self.loss)
            rendered.text.encode()  # half of a surrogate pair, which JSON can hold, is no text
            return rendered
        except (TypeError, ValueError) as error:
            return setup.failed(record.origins, error)

    def _record(self, setup: Setup, record: Record, ids: I32, mask: npt.NDArray[np.bool_]) -> Item:
        if self.max_length is not None and len(ids) > self.max_length:
            reason = f"too long: {len(ids)} tokens, max_length is {self.max_length}"
            if self.long == "drop":
                return Drop(setup.name, reason, record.origins)
            if self.long == "raise":
                return setup.failed(record.origins, ValueError(f'{reason}; pass long="truncate" or long="drop"'))
            ids, mask = ids[: self.max_length], mask[: self.max_length]
        if self.drop_unlearned and not mask.any():
            return Drop(setup.name, f"nothing to learn: none of its {len(ids)} tokens", record.origins)
        arrays = {"input_ids": ids, "loss_mask": mask}
        return record.replaced({**record.payload, **arrays} if self.keep_fields else arrays)


def _encoder(found: TokenizerSource) -> Encoder:
    if found.encode_special_tokens:
        raise ConfigError(
            f"{found.name} reads the names of special tokens as ordinary text, also those that the chat template writes. "
            "Set split_special_tokens (encode_special_tokens in tokenizers) to False."
        )
    return Encoder(found, bos=None, eos=found.declared.get("eos_token"))  # eos is only the default for padding


def _template(text: str, found: TokenizerSource, variables: Mapping[str, Any], today: str | None) -> ChatTemplate:
    template = ChatTemplate(text, {**found.declared, **variables}, today)
    if unknown := sorted(variables.keys() - template.names):
        raise ConfigError(
            f"chat_template_kwargs has {unknown}, which the chat template doesn't read; it reads {sorted(template.names)}"
        )
    return template


def _check_length(max_length: int | None, long: str | None) -> None:
    if long not in (None, "truncate", "drop", "raise"):
        raise ConfigError(f'long={long!r} is unknown; pass "truncate", "drop" or "raise"')
    if max_length is None and long is not None:
        raise ConfigError(f"long={long!r} needs max_length=, the most tokens a conversation may have")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise ConfigError(f"max_length={max_length!r} must be an int of at least 1")
