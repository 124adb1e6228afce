"""How fast texts become ids, and that they are the same: python tests/benchmarks/tokenizers_.py [TOKENIZER.json]

One thread, texts of Python's own library and random Unicode strings; ratios within one run.
"""

import random
import sys
import sysconfig
import time
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from zephon_nodes.tokenizer import load_tokenizer

RANDOM_TEXTS, LETTERS = 5000, 200


def library() -> list[str]:
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def strings() -> list[str]:
    draw = random.Random(0)
    tops = (0x80, 0x250, 0x3000, 0xD800)
    return ["".join(chr(draw.randrange(draw.choice(tops))) for _ in range(LETTERS)) for _ in range(RANDOM_TEXTS)]


def trained(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=32_000, initial_alphabet=alphabet))
    return tokenizer


def main() -> None:
    sets = {"library": library(), "random": strings()}
    tokenizer = Tokenizer.from_file(sys.argv[1]) if len(sys.argv) > 1 else trained(sets["library"])
    exact, fast = (load_tokenizer(tokenizer, bos=None, eos=None, fast=flag) for flag in (False, True))
    for name, texts in sets.items():
        size = sum(len(text.encode()) for text in texts) / 1e6
        seconds, ids = {}, {}
        for which, encoder in (("tokenizers", exact), ("fast", fast)):
            encoder.encode(["warm"])
            begin = time.perf_counter()
            ids[which] = [encoder.encode([text])[0][0] for text in texts]
            seconds[which] = time.perf_counter() - begin
        same = all(a.tolist() == b.tolist() for a, b in zip(ids["tokenizers"], ids["fast"], strict=True))
        ratio = seconds["tokenizers"] / seconds["fast"]
        print(
            f"{name:8s} {size:6.1f} MB   tokenizers {size / seconds['tokenizers']:6.2f} MB/s   fast "
            f"{size / seconds['fast']:7.2f} MB/s   {ratio:5.1f} times   {'same ids' if same else 'OTHER ids'}"
        )


if __name__ == "__main__":
    main()
