"""Bytes to text."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.fields import require_field
from zephon_nodes.node import Node, OnError, Runner, Setup, each_record
from zephon_nodes.stream import Record


class DecodeText(Node):
    """Decodes the bytes in ``fields`` to str; fields that are str already are left as they are.

    ``fields`` (("text",)): names of a payload's fields. ``encoding`` ("utf-8"). ``errors`` ("strict"): what Python's
    ``bytes.decode`` takes; "strict" makes undecodable bytes a bad record. ``newlines`` (True): CRLF and CR become LF.

    A field that is missing, None or neither bytes nor str is a bad record: ``RowError``, or a counted drop under
    on_error="skip". Raises ``ConfigError`` for an unknown encoding.

    >>> raw = Dataset.from_rows("raw", [{"text": "café".encode("latin-1")}])
    >>> list(Pipeline(StaticMixtureWorkSource([raw])).decode_text(encoding="latin-1"))
    [{'text': 'café'}]
    """

    kind = "decode_text"

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        fields: Sequence[str] = ("text",),
        *,
        encoding: str = "utf-8",
        errors: str = "strict",
        newlines: bool = True,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        self.fields = [fields] if isinstance(fields, str) else list(fields)
        try:
            codecs.lookup(encoding)
            codecs.lookup_error(errors)
        except LookupError as error:
            raise ConfigError(f"decode_text: {error}; got encoding={encoding!r}, errors={errors!r}") from None
        self.encoding, self.errors, self.newlines = encoding, errors, newlines

    def settings(self) -> dict[str, Any]:
        return {"fields": self.fields, "encoding": self.encoding, "errors": self.errors, "newlines": self.newlines}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def decoded(record: Record) -> list[Record]:
            texts = {field: self._text(record.payload, field) for field in self.fields}
            return [record.replaced({**record.payload, **texts})]

        return each_record(setup, decoded)

    def _text(self, payload: dict[str, Any], field: str) -> str:
        value = require_field(payload, field)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = bytes(value).decode(self.encoding, self.errors)
        if not isinstance(value, str):
            raise TypeError(f"field {field!r} must be bytes or str, got {type(value).__name__}")
        return value.replace("\r\n", "\n").replace("\r", "\n") if self.newlines else value

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"
