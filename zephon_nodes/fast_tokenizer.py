"""The same ids, sooner: gigatoken in the place of `tokenizers`, where it is installed and proves to be exact.

Ids are the contract, speed isn't: which of the two made them is no data setting. So gigatoken is only used after it has
given, for each of some hundred awkward texts, the very ids of `tokenizers`; otherwise a warning says for which text it
didn't, and `tokenizers` is used. Measured on a 32k byte-level BPE: 120 to 270 MB/s of manual pages a thread, against 0.7
to 1.2 (``tests/benchmarks/tokenizers.py``).

gigatoken remembers all words that it has seen and forgets none: 0.1 to 0.3 MB for each MB of prose or code, 5 MB for each
of random letters. So it is made anew, in 60 ms, after ``_RENEWED_AFTER`` characters.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from zephon_nodes.hashing import draw, key
from zephon_nodes.special_tokens import PROBE

_log = logging.getLogger(__name__)
_RENEWED_AFTER = 256_000_000
_RANDOM_TEXTS = 40
_KEPT = 8


class FastTokenizer:
    """gigatoken for one tokenizer, given as its JSON. Any number of threads may use it."""

    def __init__(self, text: str) -> None:
        self._text, self._seen = text, 0
        self._made = self._make()

    def _make(self) -> Any:
        from gigatoken import Tokenizer as Gigatoken

        return Gigatoken.from_json(self._text)

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """The ids of each text, uint32 (tokens,), without any that a post-processor would add."""
        if self._seen > _RENEWED_AFTER:  # threads that meet here renew it twice, which is harmless
            self._seen, self._made = 0, self._make()
        self._seen += sum(map(len, texts))
        encode = self._made.encode
        return [encode(text) for text in texts]


@lru_cache(maxsize=_KEPT)
def fast_tokenizer(text: str) -> FastTokenizer | None:
    """The fast twin of a tokenizer (its JSON, without post-processor), or None: not installed, not exact, or of a kind
    that gigatoken doesn't know."""
    try:
        import gigatoken  # noqa: F401
    except ImportError:
        return None
    try:
        made = FastTokenizer(text)
        wrong = _first_difference(made, Tokenizer.from_str(text))
    except Exception as error:  # noqa: BLE001 - whatever it can't do, tokenizers can
        _log.warning(
            "gigatoken can't take this tokenizer (%s); the slower tokenizers is used", str(error).split("\n")[0]
        )
        return None
    if wrong is not None:
        _log.warning("gigatoken gives other ids than tokenizers, as for %.60r; the slower tokenizers is used", wrong)
        return None
    return made


def _first_difference(fast: FastTokenizer, exact: Tokenizer) -> str | None:
    """The first probe text of which the ids differ; None if there is none."""
    texts = list(probe_texts([token.content for token in exact.get_added_tokens_decoder().values()]))
    right = exact.encode_batch_fast(texts, add_special_tokens=False)
    for text, ids, encoding in zip(texts, fast.encode(texts), right, strict=True):
        if ids.tolist() != encoding.ids:
            return text
    return None


def probe_texts(added: Sequence[str] = ()) -> Iterator[str]:
    """Texts on which tokenizers fall out: digits, white space, scripts, marks, broken bytes, and the tokens in ``added``."""
    yield from ("", PROBE, PROBE.upper(), PROBE * 20, "a" * 3000, "ab" * 3000, " " * 300, "\n" * 300, "1" * 300)
    for blank in (" ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\ufeff", "\x00", "\x1f", "\x85"):
        for count in (1, 2, 3, 7):
            yield f"x{blank * count}y{blank * count}1{blank * count}.{blank * count}"
            yield blank * count + "word"
    for length in range(1, 13):
        yield f"{'7' * length} {'٣' * length}x{'9' * length},{'½' * length}"
    yield "I'm you've HE'LL it’s 'tis rock'n'roll ''' don'T 'S's we'd\"'re"
    yield "https://a.b/c?d=e&f#g user@host.tld C:\\dir\\file.txt $x_1 += 0x1F; // --flag=3.14e-10"
    yield "e\u0301 \u1100\u1161\u11a8 🇩🇪 👩‍👩‍👧‍👦 ﷽ ﬃ Ǆ İı ẞß ไทย हिन्दी עברית العربية 日本語テキスト 한국어 ᚠᛇᚻ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff"
    for token in added[:100]:
        yield f"a{token}b {token} c\n{token}{token}\n{token.lower()}{token[:-1]} {token[1:]}"
    for number in range(_RANDOM_TEXTS):
        yield _random_bytes(number).decode("utf-8", "replace")
        yield _random_bytes(number).decode("latin-1")
        yield "".join(_character(number, place) for place in range(200))


def _random_bytes(number: int) -> bytes:
    base = key("probe bytes", number)
    return b"".join(draw(base, place).to_bytes(8, "little") for place in range(50))


def _character(number: int, place: int) -> str:
    """A character of a random plane or block: small ones, where letters and digits are, as often as large ones."""
    drawn = draw(key("probe characters", number), place)
    top = (0x80, 0x250, 0x3000, 0x10000, 0x110000)[drawn % 5]
    code = (drawn >> 8) % top
    return " " if 0xD800 <= code < 0xE000 else chr(code)
