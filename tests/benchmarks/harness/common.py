"""The per-sample work, identical for every system, and the packers for systems that have none.

Nothing here imports a data loader. Every system must use decode_image, tokenizer() and, where it
has no packing of its own, FirstFit / Wrap and assemble_*.
"""

import io
import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
import numpy as np

DATA = os.environ.get("BENCH_DATA", os.path.expanduser("~/.cache/zephon_bench/data"))
W1_BATCH = 32  # samples
IMG_TOKENS, SEQ, W2_MB, W2_BINS = 196, 2048, 4, 16
W3_SEQ, W3_MB = 2049, 8
W4_SEQ, W4_MB, W4_BINS = 2048, 8, 32
EOS, IMG_ID = 0, 1

_SCALE = np.float32(1 / 255) / np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
_BIAS = -(np.array([0.485, 0.456, 0.406], np.float32) / np.array([0.229, 0.224, 0.225], np.float32)).reshape(3, 1, 1)


def decode_image(jpeg):
    from PIL import Image

    im = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((224, 224), Image.BILINEAR)
    a = np.asarray(im).transpose(2, 0, 1).astype(np.float32, order="C")
    a *= _SCALE
    a += _BIAS
    return a


_tok = None


def tokenizer():
    global _tok
    if _tok is None:
        from tokenizers import Tokenizer

        _tok = Tokenizer.from_file(f"{DATA}/tokenizer.json")
    return _tok


def caption_ids(text):
    """196 image placeholders + caption + EOS (int32)."""
    ids = tokenizer().encode_batch_fast([text], add_special_tokens=False)[0].ids  # unlike encode, releases the GIL
    out = np.empty(IMG_TOKENS + len(ids) + 1, np.int32)
    out[:IMG_TOKENS] = IMG_ID
    out[IMG_TOKENS:-1] = ids
    out[-1] = EOS
    return out


def text_ids(text):
    return text_ids_many([text])[0]


def text_ids_many(texts):
    return [np.array(e.ids + [EOS], np.int32) for e in tokenizer().encode_batch_fast(texts, add_special_tokens=False)]


class FirstFit:
    """First-fit over a bounded number of open bins; oldest bin leaves when none has room."""

    def __init__(self, cap, bins):
        self.cap, self.bins, self.open = cap, bins, []

    def add(self, item, n):
        """Returns a finished bin (a list of items) or None."""
        if n > self.cap:
            return None
        for b in self.open:
            if b[0] >= n:
                b[0] -= n
                b[1].append(item)
                if b[0] == 0:
                    self.open.remove(b)
                    return b[1]
                return None
        out = self.open.pop(0)[1] if len(self.open) == self.bins else None
        self.open.append([self.cap - n, [item]])
        return out

    def flush(self):
        out, self.open = [b[1] for b in self.open], []
        return out


class Wrap:
    """Concatenates and cuts at n."""

    def __init__(self, n):
        self.n, self.parts, self.have = n, [], 0

    def add(self, ids):
        self.parts.append(ids)
        self.have += len(ids)
        if self.have < self.n:
            return ()
        flat = np.concatenate(self.parts)
        k = self.have // self.n
        self.parts, self.have = [flat[k * self.n :]], self.have - k * self.n
        return list(flat[: k * self.n].reshape(k, self.n))


def _ids_bin(seqs, n):
    tok, seg, pos = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n, np.int32)
    o = 0
    for i, s in enumerate(seqs):
        e = o + len(s)
        tok[o:e], seg[o:e] = s, i + 1
        pos[o:e] = np.arange(len(s))
        o = e
    return tok, seg, pos


def assemble_ids(bins, n):
    """bins of int32 arrays -> (tokens, segment_ids, positions), each (len(bins), n)."""
    return tuple(np.stack(x) for x in zip(*(_ids_bin(b, n) for b in bins)))


def assemble_vlm(bins):
    """bins of (image, ids) -> dict(tokens, segment_ids, positions (4,2048); images (n,3,224,224))."""
    t, s, p = assemble_ids([[i for _, i in b] for b in bins], SEQ)
    return {"tokens": t, "segment_ids": s, "positions": p, "images": np.stack([im for b in bins for im, _ in b])}


def pack_vlm(stream):
    """stream of (image, ids) -> microbatches."""
    ff, out = FirstFit(SEQ, W2_BINS), []
    for im, ids in stream:
        b = ff.add((im, ids), len(ids))
        if b is not None:
            out.append(b)
            if len(out) == W2_MB:
                yield assemble_vlm(out)
                out = []


def pack_text(stream):
    w, out = Wrap(W3_SEQ), []
    for ids in stream:
        for seq in w.add(ids):
            out.append(seq)
            if len(out) == W3_MB:
                yield np.stack(out)
                out = []


def pack_ids(stream):
    ff, out = FirstFit(W4_SEQ, W4_BINS), []
    for ids in stream:
        b = ff.add(ids, len(ids))
        if b is not None:
            out.append(b)
            if len(out) == W4_MB:
                yield assemble_ids(out, W4_SEQ)
                out = []


def batched(stream, n):
    out = []
    for x in stream:
        out.append(x)
        if len(out) == n:
            yield out
            out = []


# --- counting: (samples, non-padding tokens) of one batch in the common form ---
def count_vlm(b):
    return len(b["images"]), int((b["segment_ids"] > 0).sum())


def count_text(b):
    return len(b), b.size


def count_ids(b):
    seg = b[1]
    return int(seg.max(axis=1).sum()), int((seg > 0).sum())


def count_len(b):
    return len(b), 0


# --- records straight from parquet, for the limit ---
def parquet_rows(name, columns=None, forever=False):
    import glob

    import pyarrow.parquet as pq

    while True:
        for p in sorted(glob.glob(f"{DATA}/{name}/*.parquet")):
            f = pq.ParquetFile(p)
            for g in range(f.num_row_groups):
                yield f.read_row_group(g, columns=columns, use_threads=False)
        if not forever:
            return
