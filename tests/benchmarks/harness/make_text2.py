"""A second text set for w3, which isn't repetitive: python make_text2.py. Files of Python packages and random words of many scripts.

Manual pages repeat themselves, which flatters tokenizers that remember words. Here each document is cut out of a source file of
another package, or is made of words that were never seen before.
"""

import os
import random
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from common import DATA

FILES, LONGEST, STRINGS, LETTERS = 6000, 8000, 6000, 1500
ALPHABETS = [
    (0x61, 0x7A),
    (0xE0, 0xFF),
    (0x3B1, 0x3C9),
    (0x430, 0x44F),
    (0x5D0, 0x5EA),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
]


def words(draw: random.Random) -> str:
    out, size = [], 0
    while size < LETTERS:
        low, high = draw.choice(ALPHABETS)
        out.append("".join(chr(draw.randint(low, high)) for _ in range(draw.randint(1, 12))))
        size += len(out[-1]) + 1
    return " ".join(out)


def main() -> None:
    draw = random.Random(3)
    paths = [Path(root) / name for root, _, names in os.walk(sysconfig.get_paths()["purelib"]) for name in names]
    paths = sorted(path for path in paths if path.suffix == ".py" and path.stat().st_size > 500)
    draw.shuffle(paths)
    texts = [path.read_text(encoding="utf-8", errors="replace")[:LONGEST] for path in paths[:FILES]]
    texts += [words(draw) for _ in range(STRINGS)]
    draw.shuffle(texts)
    folder = Path(DATA) / "text2_parquet"
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(8):
        pq.write_table(pa.table({"text": texts[shard::8]}), folder / f"{shard}.parquet", row_group_size=100)
    print(f"{len(texts)} documents, {sum(len(text.encode()) for text in texts) / 1e6:.0f} MB in {folder}")


if __name__ == "__main__":
    main()
