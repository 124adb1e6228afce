"""Which ids stand for bos, eos and pad in a tokenizer."""

from __future__ import annotations

import logging

from tokenizers import Tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.tokenizer_source import TokenizerSource

_log = logging.getLogger(__name__)

_WELL_KNOWN_EOS = (
    "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "<EOS>", "[EOS]", "<｜end▁of▁sentence｜>",
)  # fmt: skip
# Part of every recipe: a change of this text makes old checkpoints refuse to load.
PROBE = "Über 3 naïve cafés, 12345.67 €\n\n\tdef f(x):\r\n    return x ** 2  # 東京 Привет 🙂 don't  stop\u00a0here"


class SpecialTokens:
    """Looks ids up in a tokenizer. The rules of "auto" are in the docstring of ``Encoder``.

    ``special``: token to id, of the added tokens that are marked as special. Raises ``ConfigError``.
    """

    def __init__(self, tokenizer: Tokenizer, source: TokenizerSource) -> None:
        self.tokenizer, self.name, self.declared = tokenizer, source.name, source.declared
        self.special = {t.content: i for i, t in tokenizer.get_added_tokens_decoder().items() if t.special}

    def given(self, setting: str, token: str | int | None) -> int | None:
        if token is None:
            return None
        if isinstance(token, str):
            token_id = self.tokenizer.token_to_id(token)
        else:
            known = type(token) is int and 0 <= token < 1 << 31 and self.tokenizer.id_to_token(token) is not None
            token_id = token if known else None
        if token_id is None:
            raise ConfigError(f"{setting}={token!r} isn't in the vocabulary of {self.name}. {self._choices(setting)}")
        return token_id

    def eos(self) -> int | None:
        if "eos_token" in self.declared:
            return self._declared("eos")
        if (behind := self._post_processed("eos")) is not None:
            return behind
        for token in _WELL_KNOWN_EOS:
            if token in self.special:
                return self.special[token]
        _log.warning(
            "%s has no end-of-sequence token that could be found, so nothing will separate documents. %s",
            self.name, self._choices("eos"),
        )  # fmt: skip
        return None

    def bos(self, eos_id: int | None) -> int | None:
        declared = self.declared.get("bos_token")
        if declared is not None and declared != self.declared.get("eos_token"):
            token_id = self._declared("bos")
            if token_id != eos_id:
                return token_id
        return self._post_processed("bos")

    def pad(self, eos_id: int | None) -> int:
        declared = self.declared.get("pad_token")
        token_id = None if declared is None else self.tokenizer.token_to_id(declared)
        return next((i for i in (token_id, eos_id) if i is not None), 0)

    def _declared(self, setting: str) -> int:
        token = self.declared[f"{setting}_token"]
        token_id = self.tokenizer.token_to_id(token)
        if token_id is None:
            raise ConfigError(
                f'{setting}="auto" found the declared {setting}_token {token!r}, which isn\'t in the vocabulary of '
                f"{self.name}. {self._choices(setting)}"
            )
        return token_id

    def _post_processed(self, setting: str) -> int | None:
        """The token that the tokenizer itself would put in front of a text (bos) or behind it (eos)."""
        encoding = self.tokenizer.encode(PROBE, add_special_tokens=True)
        text = [i for i, added in enumerate(encoding.special_tokens_mask) if not added]
        if not text:
            return None
        added = encoding.ids[: text[0]] if setting == "bos" else encoding.ids[text[-1] + 1 :]
        if len(added) > 1:
            tokens = [self.tokenizer.id_to_token(i) for i in added]
            raise ConfigError(
                f'{setting}="auto" found that {self.name} adds {tokens} to a text, and only one token can be added. '
                f"{self._choices(setting)}"
            )
        return added[0] if added else None

    def _choices(self, setting: str) -> str:
        names = ", ".join(repr(token) for token in list(self.special)[:12]) or "none"
        return f"Its special tokens: {names}. Pass {setting}= as a token or id of its vocabulary, or as None."
