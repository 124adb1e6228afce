"""zephon only: checkpoint size/time/restore, padding share with and without flushes, SHA-256 across dp_degree.
python zephon_checks.py ckpt w2|w3 [CHUNK] [thread|process] [N] | padding [CHUNK] [FLUSH] [N] | sha DP"""

import hashlib
import json
import os
import pickle
import sys
import time

import common  # noqa: F401
import numpy as np
from common import IMG_TOKENS, SEQ
from systems import zephon_ as Z


def out(**k):
    print("JSON " + json.dumps(k), flush=True)


def ckpt(w, chunk=None, mode="thread", n=100, flush=None):
    """After n batches: checkpoint() time and size, then restore in a fresh Pipeline in this process, time to the first batch,
    and whether the next 5 batches equal those of the uninterrupted run."""
    Z.imports()

    def h(b):
        return hashlib.sha256(
            b"".join(np.ascontiguousarray(x).tobytes() for r in b.records for x in leaves(r.payload))
        ).hexdigest()[:16]

    p = Z.build(w, mode, 2, chunk_size=chunk, flush=flush)
    t0 = time.perf_counter()
    it = iter(p)
    next(it)
    fresh = time.perf_counter() - t0
    for _ in range(n - 1):
        next(it)
    ts = []
    for _ in range(3):
        t = time.perf_counter()
        c = p.checkpoint()
        ts.append(time.perf_counter() - t)
    js = json.dumps(c, default=str)
    want = [h(next(it)) for _ in range(5)]
    close(it)
    p2 = Z.build(w, mode, 2, chunk_size=chunk, flush=flush)
    t = time.perf_counter()
    p2.restore(c)
    it2 = iter(p2)
    first = next(it2)
    dt = time.perf_counter() - t
    got = [h(first)] + [h(next(it2)) for _ in range(4)]
    out(
        check="ckpt",
        workload=w,
        mode=mode,
        chunk=chunk,
        batches=n,
        fresh_first_batch_s=round(fresh, 2),
        checkpoint_s=[round(x, 4) for x in ts],
        bytes_pickle=len(pickle.dumps(c)),
        bytes_json=len(js),
        restore_first_batch_s=round(dt, 2),
        same_next_5=want == got,
        keys=sorted(c)[:20],
    )


def leaves(x):
    if isinstance(x, dict):
        for k in sorted(x):
            yield from leaves(x[k])
    elif isinstance(x, (list, tuple)) and x and not isinstance(x[0], (int, float)):
        for y in x:
            yield from leaves(y)
    elif isinstance(x, (str, bytes)):
        yield np.frombuffer(x.encode() if isinstance(x, str) else bytes(x), np.uint8)
    else:
        yield np.asarray(x)


def close(it):
    if hasattr(it, "close"):
        it.close()


def padding(chunk=None, flush=None, n=150):
    Z.imports()
    Z.decode_image = lambda j: np.zeros((1,), np.float32)  # lengths only
    p = Z.build("w2", "thread", 2, chunk_size=chunk, flush=flush)
    used = seqs = 0
    for k, b in enumerate(p):
        for r in b.records:
            used += sum(IMG_TOKENS + len(s["input_ids"]) for s in r.payload["packed_samples"])
            seqs += 1
        if k + 1 >= n:
            break
    out(
        check="padding",
        chunk=chunk,
        flush=flush,
        sequences=seqs,
        padding_share=round(1 - used / (seqs * SEQ), 6),
        tokens=used,
    )


def sha(dp, steps=24, mode="thread", chunk=256):
    """Global batches: step s consumes 4 batches, one per lane (canonical_replicas=4), from dp groups in order."""
    Z.imports()
    ps = [
        iter(
            Z.build(
                "w3",
                mode,
                2,
                chunk_size=chunk,
                canonical_replicas=4,
                dp_degree=dp,
                dp_group_id=g,
                world_size=dp,
                global_rank=g,
                **(
                    {"aggregate_dir": os.path.expanduser("~/.cache/zephon_bench/agg"), "run_id": f"sha{os.getpid()}"}
                    if dp > 1
                    else {}
                ),
            )
        )
        for g in range(dp)
    ]
    o, first = hashlib.sha256(), None
    for s in range(steps):
        mbs = []
        for g in range(dp):
            for _ in range(4 // dp):
                t = next(ps[g]).to_training()["input_ids"].numpy()
                mbs.append(np.ascontiguousarray(t).tobytes())
        step = hashlib.sha256(b"".join(sorted(hashlib.sha256(m).digest() for m in mbs))).hexdigest()
        first = first or step
        o.update(step.encode())
    out(check="sha", dp=dp, mode=mode, steps=steps, first_step=first[:16], all_steps=o.hexdigest())


if __name__ == "__main__":
    a = sys.argv[1:]
    if a[0] == "ckpt":
        ckpt(
            a[1],
            a[2] if len(a) > 2 and a[2] != "-" else None,
            a[3] if len(a) > 3 else "thread",
            int(a[4]) if len(a) > 4 else 100,
        )
    elif a[0] == "padding":
        padding(*(x if x != "-" else None for x in a[1:3]), n=int(a[3]) if len(a) > 3 else 150)
    else:
        sha(int(a[1]), int(a[2]) if len(a) > 2 else 24, a[3] if len(a) > 3 else "thread")
    sys.stdout.flush()
    os._exit(0)
