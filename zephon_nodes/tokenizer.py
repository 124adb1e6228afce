"""Texts to token ids. Knows no nodes.

An ``Encoder`` owns a copy of the tokenizer with truncation and padding off. Nothing ever changes the copy, so any number
of threads may use it at once ("Already borrowed" comes from changing a tokenizer that another thread is using).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.fast_tokenizer import fast_tokenizer
from zephon_nodes.hashing import I64
from zephon_nodes.special_tokens import PROBE, SpecialTokens
from zephon_nodes.tokenizer_source import TokenizerSource, explained, find_tokenizer

I32: TypeAlias = "npt.NDArray[np.int32]"
Long: TypeAlias = Literal["truncate", "split"]


def load_tokenizer(
    tokenizer: Any,
    *,
    bos: str | int | None = "auto",
    eos: str | int | None = "auto",
    max_length: int | None = None,
    long: Long | None = None,
    fast: bool = True,
) -> Encoder:
    """Loads a tokenizer and makes an ``Encoder`` of it. The tokenizer that was given is copied, never changed.

    ``tokenizer``: one of
        a ``tokenizers.Tokenizer``, or one of ``tokenizers.implementations`` such as ``ByteLevelBPETokenizer``;
        a path to a tokenizer.json, or to its folder. A file of that name is read together with the
        tokenizer_config.json and special_tokens_map.json beside it, which declare bos, eos and pad;
        a fast tokenizer of ``transformers``;
        a hub id such as "gpt2". What exists as a local path is a path.

    The other settings are those of ``Encoder``. The same tokenizer gives the same ``recipe()`` in whichever of these
    forms it comes, with two exceptions. A bare ``Tokenizer`` and a file with another name declare no bos or eos, so
    "auto" may find others. And ``transformers`` may change a tokenizer that it loads: declared tokens that the file
    lacks are added, and some classes rebuild the whole.

    Raises ``ConfigError`` if there is no tokenizer, if it can't be loaded, or if a setting doesn't fit it.
    """
    return Encoder(find_tokenizer(tokenizer), bos=bos, eos=eos, max_length=max_length, long=long, fast=fast)


class Encoder:
    """Texts to token ids. Made by ``load_tokenizer``. Thread-safe, immutable, can be pickled and deep-copied.

    ``bos``, ``eos``: the token before and after each document: "auto", None for none, an id, or a token. They are added
    exactly once, whatever the tokenizer's post-processor would add. "auto" takes, for ``eos``, the declared eos_token,
    else what the post-processor puts behind a text, else a special token with a well-known name such as
    "<|endoftext|>", else none, with a warning. For ``bos`` it takes the declared bos_token unless that is the eos as
    well, else what the post-processor puts in front, else none.

    ``fast`` (True): let gigatoken do it if it is installed (pip install 'zephon_nodes[fast]') and gives the same ids on
    a set of probe texts, see ``fast_tokenizer``. No data setting.

    ``max_length``: most ids a piece, bos and eos included; None (default) for no limit.

    ``long``: what happens to a longer document. "truncate" (default with ``max_length``) cuts content off at the end and
    keeps bos and eos. "split" makes several pieces and loses nothing: bos on the first only, eos on the last only, and
    each holds content. Joined, the pieces are the ids without a limit.

    The name of a special token inside a text, such as "<|endoftext|>", becomes that token. To have it read as text, set
    ``encode_special_tokens = True`` on the ``Tokenizer`` (``split_special_tokens`` in ``transformers``) before loading.

    Attributes: ``bos_token_id`` and ``eos_token_id`` (int or None), ``pad_token_id`` (int: the declared pad, else eos,
    else 0), ``vocab_size`` (int, added tokens included), ``max_length``, ``long`` (None without ``max_length``).
    Raises ``ConfigError``.
    """

    def __init__(
        self,
        source: TokenizerSource,
        *,
        bos: str | int | None = "auto",
        eos: str | int | None = "auto",
        max_length: int | None = None,
        long: Long | None = None,
        fast: bool = True,
    ) -> None:
        self._tokenizer = _private_copy(source)
        special = SpecialTokens(self._tokenizer, source)
        self.eos_token_id = special.eos() if eos == "auto" else special.given("eos", eos)
        self.bos_token_id = special.bos(self.eos_token_id) if bos == "auto" else special.given("bos", bos)
        self.pad_token_id = special.pad(self.eos_token_id)
        self._tokenizer.post_processor = None
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self._front = [] if self.bos_token_id is None else [self.bos_token_id]
        self._behind = [] if self.eos_token_id is None else [self.eos_token_id]
        _check_length(max_length, long, len(self._front) + len(self._behind))
        self.max_length = max_length
        self.long = (long or "truncate") if max_length is not None else None
        self._identity = _identity(self._tokenizer)
        self._text = self._tokenizer.to_str()
        self._fast = fast and not self._tokenizer.encode_special_tokens

    def encode(self, texts: Sequence[str]) -> list[list[I32]]:
        """The ids of each text: a list of pieces, one unless ``long="split"`` cut it.

        Each piece is a writable 1-D int32 array; the pieces of one text are views of one array. An empty text gives bos
        and eos only. Pass groups of texts: one call of `tokenizers` uses all cores (unless TOKENIZERS_PARALLELISM or
        RAYON_NUM_THREADS says otherwise) and leaves Python's lock to other threads. It needs about 30 times the memory of
        the group's text while it works, and 110 times that of the texts in progress: half a GB for one of 5 MB.
        Raises ``TypeError`` for what isn't a str and ``ValueError`` for a str that isn't valid Unicode. Both name the
        index of the text; nothing of the group is returned.
        """
        _check_texts(texts)
        fast = fast_tokenizer(self._text) if self._fast else None
        if fast is not None:
            return [self._pieces(ids) for ids in fast.encode(texts)]
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._pieces(encoding.ids) for encoding in encodings]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[I32, I64]]:
        """The ids of each text, whole and without bos and eos, whatever ``bos``, ``eos`` and ``max_length`` are.

        Each is a pair: ids, int32 (tokens,), and offsets, int64 (tokens, 2): start and stop of the characters that a token
        stands for. White space counts as part of its token. Tokens that share a character have the same offsets.
        Slower than ``encode``. Raises as ``encode`` does.
        """
        _check_texts(texts)
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [(np.array(e.ids, np.int32), np.array(e.offsets, np.int64).reshape(-1, 2)) for e in encodings]

    def token_id(self, token: str) -> int:
        """The id of a token of the vocabulary. Raises ``ConfigError`` if there is none, naming the special tokens."""
        found = self._tokenizer.token_to_id(token)
        if found is None:
            special = sorted(t.content for t in self._tokenizer.get_added_tokens_decoder().values() if t.special)
            raise ConfigError(f"the tokenizer has no token {token!r}; its special tokens are {special}")
        return int(found)

    def decode(self, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """The text of ids (ints, 0 or more; unknown ones are left out), with special tokens shown by name."""
        return str(self._tokenizer.decode(np.asarray(ids, np.int64).tolist(), skip_special_tokens=False))

    def recipe(self) -> dict[str, Any]:
        """What decides which ids come out: str, int, bool or None under str keys.

        ``tokenizer``: SHA-256 of the parts of the tokenizer's JSON that decide about ids (not truncation, padding,
        post-processor, decoder). ``probe``: SHA-256 of the ids of a fixed text. ``encode_special_tokens``: see the
        class. The rest are the attributes.
        """
        settings = ("vocab_size", "bos_token_id", "eos_token_id", "max_length", "long")
        return {**self._identity, **{name: getattr(self, name) for name in settings}}

    def _pieces(self, ids: Sequence[int] | npt.NDArray[np.uint32]) -> list[I32]:
        front, behind = len(self._front), len(self._behind)
        if self.max_length is not None and self.long == "truncate":
            ids = ids[: self.max_length - front - behind]
        whole = np.empty(front + len(ids) + behind, np.int32)
        whole[:front], whole[front : front + len(ids)], whole[front + len(ids) :] = self._front, ids, self._behind
        if self.max_length is None or len(whole) <= self.max_length:
            return [whole]
        starts = list(range(0, len(whole), self.max_length))
        if self._behind and starts[-1] == len(whole) - 1:
            starts[-1] -= 1  # else eos would stand alone
        return [whole[start:stop] for start, stop in zip(starts, [*starts[1:], len(whole)], strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        # A Tokenizer's own pickle forgets encode_special_tokens.
        return {**self.__dict__, "_tokenizer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._tokenizer = Tokenizer.from_str(self._text)
        self._tokenizer.encode_special_tokens = self._identity["encode_special_tokens"]


def _private_copy(source: TokenizerSource) -> Tokenizer:
    with explained(f"{source.name} isn't a tokenizer that can be loaded; a tokenizer.json of `tokenizers` is needed."):
        tokenizer = Tokenizer.from_str(source.text)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = source.encode_special_tokens
    if getattr(tokenizer.model, "dropout", None):
        raise ConfigError(
            f"{source.name} has dropout={tokenizer.model.dropout}, so each call draws other ids and no run could be "
            "repeated. Set tokenizer.model.dropout = None."
        )
    return tokenizer


def _check_length(max_length: int | None, long: str | None, specials: int) -> None:
    if long not in (None, "truncate", "split"):
        raise ConfigError(f'long={long!r} is unknown; pass "truncate" or "split".')
    if max_length is None:
        if long is not None:
            raise ConfigError(f"long={long!r} needs max_length=, the most ids a piece may have.")
        return
    if type(max_length) is not int or max_length <= specials:
        raise ConfigError(
            f"max_length={max_length!r} must be an int of at least {specials + 1}: {specials} special tokens (bos, eos) "
            "and one of the text. Raise it, or pass bos=None or eos=None."
        )


def _identity(tokenizer: Tokenizer) -> dict[str, Any]:
    # Taken from the copy, so every form has gone through one reading: some scores change in the last bit then.
    parts = json.loads(tokenizer.to_str())
    del parts["decoder"]
    # transformers writes "" where tokenizers writes null, and newer versions write settings that older ones don't know.
    parts["model"] = {k: v for k, v in parts["model"].items() if v is not None and v is not False and v != ""}
    probe = np.array(tokenizer.encode(PROBE, add_special_tokens=False).ids, "<i4")
    return {
        "tokenizer": hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest(),
        "probe": hashlib.sha256(probe.tobytes()).hexdigest(),
        "encode_special_tokens": tokenizer.encode_special_tokens,
    }


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str):
        raise TypeError("an encoder takes a list of texts and was given one str; pass [text]")
    for index, text in enumerate(texts):
        _check_text(text, f"text {index} of {len(texts)}")


def _check_text(text: object, which: str) -> None:
    if not isinstance(text, str):
        raise TypeError(f"only str can be tokenized; {which} is a {type(text).__name__}")
    if text.isascii():
        return
    try:
        text.encode()  # some versions of tokenizers replace silently what can't be encoded; costs far below 1% of the work
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{which} isn't valid Unicode: half of a surrogate pair at character {error.start}, as JSON's \\ud800 gives. "
            'Drop the row, or mend it with text.encode("utf-8", "replace").decode().'
        ) from error
