"""Small real tokenizers for tests: byte-level BPE, at most 500 tokens, trained in a few milliseconds."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL = ("<|endoftext|>", "<s>", "</s>")
TEXTS = (
    "The loader reads each document once, cuts it into tokens and packs the tokens into rows of equal length.",
    "def cut(rows, length):\n    return [rows[i : i + length] for i in range(0, len(rows), length)]\n",
    "A lane is a stream of records; a rank owns lanes, and when the number of ranks changes only the lanes move.",
    "Der Zug fährt um 12:45 Uhr nach München. Les élèves étudient à l'école. 東京は日本の首都です。",
)


@functools.cache
def _trained_json(special: tuple[str, ...], vocab_size: int) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(special), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 2, trainer)
    return str(tokenizer.to_str())


def train_tokenizer(special: tuple[str, ...] = SPECIAL, vocab_size: int = 500) -> Tokenizer:
    """A fresh tokenizer of at most ``vocab_size`` tokens, without a post-processor. Ids 0, 1, ... are ``special``."""
    return Tokenizer.from_str(_trained_json(special, vocab_size))


def add_template(tokenizer: Tokenizer, template: str = "<s> $A </s>") -> Tokenizer:
    """Gives the tokenizer a post-processor that adds special tokens. Returns it."""
    used = [(token, tokenizer.token_to_id(token)) for token in template.split() if not token.startswith("$")]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=used)
    return tokenizer


def save_folder(folder: Path, tokenizer: Tokenizer, config: Any = None, special_tokens_map: Any = None) -> Path:
    """Writes tokenizer.json and, if given, the two configs of ``transformers``. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, settings in (("tokenizer_config", config), ("special_tokens_map", special_tokens_map)):
        if settings is not None:
            (folder / f"{name}.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder
