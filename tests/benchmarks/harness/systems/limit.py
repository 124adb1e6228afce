"""No framework: records in memory, a Pool(n) or ThreadPool(n), or one loop.
modes: inline (one loop), thread, process (results come back to the parent by pickle),
noipc (n processes each do everything and return counts only: compute alone), mem (W1 only)."""

import itertools
import multiprocessing as mp
import multiprocessing.pool

from common import (
    W1_BATCH,
    batched,
    caption_ids,
    count_ids,
    count_len,
    count_text,
    count_vlm,
    decode_image,
    pack_ids,
    pack_text,
    pack_vlm,
    parquet_rows,
    text_ids,
    text_ids_many,
)

MODES = {"inline": [1], "thread": [2], "process": [2], "noipc": [2]}
CHUNK = {"w1": 64, "w2": 4, "w3": 16, "w4": 512}
_recs = None


def _vlm(i):
    r = _recs[i]
    return decode_image(r[0]), caption_ids(r[1])


def _txt(i):
    return text_ids(_recs[i])


def _ids(i):
    return _recs[i]


def _raw(i):
    return _recs[i]


def _load(w):
    if w in ("w1", "w2"):
        return [
            (r["image"], r["caption"]) for t in parquet_rows("vlm_parquet", ["image", "caption"]) for r in t.to_pylist()
        ]
    if w == "w3":
        return [x for t in parquet_rows("text_parquet") for x in t.column("text").to_pylist()]
    return [x.values.to_numpy(zero_copy_only=False) for t in parquet_rows("ids_parquet") for x in t.column("input_ids")]


def _indices(n):
    return itertools.chain.from_iterable(itertools.repeat(range(n)))


def _bounded(pool, fn, idx, chunk, depth):
    """imap with backpressure (Pool.imap reads its input without bound)."""
    from collections import deque

    q = deque()
    idx = iter(idx)
    while True:
        while len(q) < depth:
            q.append(pool.apply_async(_many, (fn, list(itertools.islice(idx, chunk)))))
        yield from q.popleft().get()


def _many(fn, ids):
    if fn is _txt:
        return text_ids_many([_recs[i] for i in ids])
    return [fn(i) for i in ids]


def _noipc(w, k, n, out):
    idx = itertools.chain.from_iterable(itertools.repeat(range(k, len(_recs), n)))
    fn, pack, count = _WORK[w]
    for b in pack(x for i in iter(lambda: list(itertools.islice(idx, CHUNK[w])), []) for x in _many(fn, i)):
        out.put(count(b))


_WORK = {
    "w1": (_raw, lambda s: batched(s, W1_BATCH), count_len),
    "w2": (_vlm, pack_vlm, count_vlm),
    "w3": (_txt, pack_text, count_text),
    "w4": (_ids, pack_ids, count_ids),
}


def _run(w, mode, par, chunk=None):
    global _recs
    _recs = _load(w)
    fn, pack, count = _WORK[w]
    chunk = int(chunk or CHUNK[w])
    if mode == "noipc":
        q = mp.get_context("fork").Queue(64)
        for k in range(par):
            mp.get_context("fork").Process(target=_noipc, args=(w, k, par, q), daemon=True).start()
        return (q.get() for _ in itertools.count()), lambda b: b
    idx = _indices(len(_recs))
    if mode == "inline":
        stream = (x for ids in iter(lambda: list(itertools.islice(idx, chunk)), []) for x in _many(fn, ids))
    else:
        pool = multiprocessing.pool.ThreadPool(par) if mode == "thread" else mp.get_context("fork").Pool(par)
        _keep.append(pool)
        stream = _bounded(pool, fn, idx, chunk, 4 * par)
    return pack(stream), count


_keep = []


def w1(mode, par, **o):
    if mode == "inline":  # fetch: pyarrow row groups -> python rows -> batches
        return batched(
            (r for t in parquet_rows("vlm_parquet", ["image", "caption"], forever=True) for r in t.to_pylist()),
            W1_BATCH,
        ), count_len
    return _run("w1", mode, par, **o)


def w2(mode, par, **o):
    return _run("w2", mode, par, **o)


def w3(mode, par, **o):
    return _run("w3", mode, par, **o)


def w4(mode, par, **o):
    if mode == "inline":

        def rows():
            for t in parquet_rows("ids_parquet", forever=True):
                c = t.column("input_ids").combine_chunks()
                v, off = c.values.to_numpy(), c.offsets.to_numpy()
                for i in range(len(off) - 1):
                    yield v[off[i] : off[i + 1]]

        return pack_ids(rows()), count_ids
    return _run("w4", mode, par, **o)
