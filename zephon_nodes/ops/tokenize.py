"""Text to token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.fields import require_field
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.stream import Item, Record
from zephon_nodes.tokenizer import I32, Long, load_tokenizer


class Tokenize(Node):
    """Puts the token ids of a text field into ``output``, int32 (tokens,), and keeps the other fields.

    ``tokenizer`` or ``tokenizer_id``: a ``tokenizers.Tokenizer``, a path to a tokenizer.json or its folder, a
    ``transformers`` tokenizer, or a hub id such as "gpt2" (needs the network once).
    ``field`` ("text"): what is tokenized. ``output`` ("input_ids"). ``keep_fields`` (True): False drops all other fields,
    which saves memory down the graph.
    ``bos``, ``eos`` ("auto"): see ``tokenizer.Encoder``; each is added exactly once. ``max_length``, ``long``: a longer
    document is cut off ("truncate", default) or cut into records of its own ("split", nothing is lost).
    ``fast`` (True): use gigatoken, where it is installed and gives the same ids; see ``tokenizer.Encoder``.

    A field that is missing, null or no str is a bad record: ``RowError``, or a counted drop under on_error="skip".
    Raises ``ConfigError`` when the tokenizer can't be loaded or a setting doesn't fit it.

    >>> from tokenizers import Tokenizer, models, pre_tokenizers
    >>> tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1, "words": 2, "?": 3}, unk_token="?"))
    >>> tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    >>> [row["input_ids"] for row in Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).tokenize(tokenizer, bos=None, eos=None)][:2]
    [array([0], dtype=int32), array([1, 2], dtype=int32)]
    """

    kind = "tokenize"
    takes = ("rows",)
    tokenizes = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        tokenizer: Any = None,
        field: str = "text",
        *,
        tokenizer_id: str | None = None,
        output: str = "input_ids",
        keep_fields: bool = True,
        bos: str | int | None = "auto",
        eos: str | int | None = "auto",
        max_length: int | None = None,
        long: Long | None = None,
        fast: bool = True,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if (tokenizer is None) == (tokenizer_id is None):
            raise ConfigError("tokenize needs a tokenizer: give either tokenizer=... or tokenizer_id=..., and not both")
        given = tokenizer_id if tokenizer is None else tokenizer
        self.encoder = load_tokenizer(given, bos=bos, eos=eos, max_length=max_length, long=long, fast=fast)
        self.field, self.output, self.keep_fields = field, output, keep_fields

    def settings(self) -> dict[str, Any]:
        fields = {"field": self.field, "output": self.output, "keep_fields": self.keep_fields}
        return fields | self.encoder.recipe()

    @property
    def pad_token_id(self) -> int:
        return self.encoder.pad_token_id

    def blank_record(self) -> Any:
        return {self.output: np.zeros(0, np.int32)}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise" and self.encoder.long != "split"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def tokenized(records: list[Record]) -> list[Item]:
            texts = [self._text(setup, record) for record in records]
            pieces = iter(self.encoder.encode([text for text in texts if isinstance(text, str)]))
            out: list[Item] = []
            for record, text in zip(records, texts, strict=True):
                out += self._records(record, next(pieces)) if isinstance(text, str) else [text]
            return out

        return tokenized

    def _text(self, setup: Setup, record: Record) -> str | Item:
        """The text of a record, or what becomes of a record without one."""
        try:
            text = require_field(record.payload, self.field)
            if not isinstance(text, str):
                raise TypeError(
                    f"field {self.field!r} must be a str, got {type(text).__name__}; see decode_text for bytes"
                )
            if not text.isascii():
                text.encode()  # half of a surrogate pair, which JSON can hold, is no text
            return text
        except (TypeError, ValueError) as error:
            return setup.failed(record.origins, error)

    def _records(self, record: Record, pieces: list[I32]) -> list[Record]:
        if len(pieces) == 1:
            return [record.replaced(self._payload(record, pieces[0]))]
        return [record.child(self._payload(record, piece), i) for i, piece in enumerate(pieces)]

    def _payload(self, record: Record, ids: I32) -> dict[str, Any]:
        return {**record.payload, self.output: ids} if self.keep_fields else {self.output: ids}
