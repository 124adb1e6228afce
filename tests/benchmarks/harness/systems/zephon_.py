"""zephon 0.2.0: its own tokenize, pack_flat / pack_sequences, batch, map_batch, to_training."""

import numpy as np
from common import (
    DATA,
    IMG_ID,
    IMG_TOKENS,
    SEQ,
    W1_BATCH,
    W2_BINS,
    W2_MB,
    W3_MB,
    W3_SEQ,
    W4_BINS,
    W4_MB,
    W4_SEQ,
    assemble_vlm,
    count_vlm,
    decode_image,
    text_ids,
)

MODES = {"thread": [1, 2, 4], "process": [1, 2, 4]}


def imports():
    import zephon, zephon.io, zephon.work, torch, transformers  # noqa


def _ws(name, path, chunk_size=None, canonical=None, repeat=True):
    from zephon.io import Dataset
    from zephon.work import MixtureSpec, StaticMixtureWorkSource

    kw = {"exhausted_policy": "repeat"} if repeat else {}
    if chunk_size:
        kw["chunk_size"] = int(chunk_size)
    return StaticMixtureWorkSource(
        datasets=[Dataset.from_path(name, path)], mixture=MixtureSpec({name: 1.0}), seed=42, **kw
    )


def _opts(p, mode, par, mtp="0", flush=None, **kw):
    o = {"runner": "threads" if mode == "thread" else "process"}
    if mtp == "1":
        o["mtp_mode"] = True
    if flush:
        o["flush_every_k_chunks"] = int(flush)
    o.update(kw)
    return p.options(**o)


def _prep(payload):
    return {"image": decode_image(payload["image"]), "caption": payload["caption"]}


def _txt(payload):
    return {"input_ids": text_ids(payload["text"])}


def _len(record):
    return IMG_TOKENS + len(record.payload["input_ids"])


def _assemble(bins):
    """packed_samples payloads -> the common microbatch."""
    pre = np.full(IMG_TOKENS, IMG_ID, np.int32)
    return assemble_vlm(
        [[(s["image"], np.concatenate([pre, np.asarray(s["input_ids"], np.int32)])) for s in b] for b in bins]
    )


def build(
    w, mode, par, fmt=None, chunk_size=None, mtp="0", flush=None, fetch=None, repeat=True, bins=None, tok="op", **extra
):
    from zephon import Pipeline

    fmt = fmt or "parquet"
    path = {"w1": f"vlm_{fmt}", "w2": f"vlm_{fmt}", "w3": f"text_{fmt}", "w4": "ids_parquet"}[w]
    # the default chunk_size of 16384 is refused with exhausted_policy="repeat" on fewer samples than that
    chunk_size = chunk_size or (2048 if w in ("w1", "w2") else 8192)
    p = Pipeline(_ws("d", f"{DATA}/{path}", chunk_size, repeat=repeat)).fetch(parallelism=int(fetch or par))
    tk = dict(tokenizer_id=f"{DATA}/hf_tok", special_tokens="eos", add_attention_mask=False, parallelism=par)
    if w == "w1":
        p = p.batch(W1_BATCH)
    elif w == "w2":
        p = (
            p.map_transform(_prep, parallelism=par)
            .tokenize(field="caption", preserve_upstream_payload=True, **tk)
            .pack_sequences(SEQ, num_bins=int(bins or W2_BINS), algorithm="first_fit", length_fn=_len)
            .batch(W2_MB)
        )
    elif w == "w3" and tok == "map":  # not zephon's tokenize, but the same call as the other systems make
        p = p.map_transform(_txt, parallelism=par).pack_flat(W3_SEQ, algorithm="wrap", pad_token_id=0).batch(W3_MB)
    elif w == "w3":
        p = p.tokenize(field="text", **tk).pack_flat(W3_SEQ, algorithm="wrap", pad_token_id=0).batch(W3_MB)
    else:
        p = p.pack_flat(W4_SEQ, algorithm="first_fit", num_bins=int(bins or W4_BINS), pad_token_id=0).batch(W4_MB)
    return _opts(p, mode, par, mtp, flush, **extra)


def w1(mode, par, **o):
    return build("w1", mode, par, **o), lambda b: (len(b.records), 0)


def w2(mode, par, **o):
    p = build("w2", mode, par, **o)
    return (_assemble([r.payload["packed_samples"] for r in b.records]) for b in p), count_vlm


def w3(mode, par, **o):
    p = build("w3", mode, par, **o)
    return (b.to_training() for b in p), lambda t: (t["input_ids"].shape[0], t["input_ids"].numel())


def w4(mode, par, **o):
    p = build("w4", mode, par, **o)

    def count(x):
        b, t = x
        return 0, t["input_ids"].numel() - sum(int(r.meta.padding_length or 0) for r in b.records)

    return ((b, b.to_training()) for b in p), count
