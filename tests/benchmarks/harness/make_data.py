"""Builds the benchmark data: python make_data.py [OUT] (default: $BENCH_DATA or ~/.cache/zephon_bench/data).

VLM: image+caption samples, the same samples as Parquet, MDS, LitData and ArrayRecord.
Text: real documents (docs, man pages, source) as Parquet, JSONL and ArrayRecord, a 32k byte-level
BPE trained on them (tokenizer.json + hf_tok/ for transformers), and the tokenized documents
(int32) as Parquet and ArrayRecord.
Deterministic by --seed, given the same machine's files. Images come from Debian wallpaper packages
(see IMG below): apt-get download mate-backgrounds ukui-wallpapers plasma-workspace-wallpapers
lomiri-wallpapers-16.04; dpkg -x each into $BENCH_IMG (setup.sh does it).
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import struct
import sys
import time

import numpy as np

CACHE = os.path.expanduser("~/.cache/zephon_bench")
IMG = os.environ.get("BENCH_IMG", CACHE + "/img")
DRAWN = {
    "Flow",
    "Path",
    "Volna",
    "PastelHills",
    "SafeLanding",
    "Honeywave",
    "Shell",
    "Kite",
    "GreenTraditional",
    "2004default",
    "firstgeneration",
    "Grey",
}
N_VLM, TEXT_BYTES = 3000, 60_000_000


def files(roots, exts):
    for root in roots:
        for d, ds, fs in os.walk(root):
            ds[:] = sorted(x for x in ds if x not in ("__pycache__", ".git", "bench_data"))
            for f in sorted(fs):
                if f.endswith(exts):
                    p = os.path.join(d, f)
                    if not os.path.islink(p):
                        yield p


def unroff(t):
    out = []
    for line in t.splitlines():
        if line.startswith(('.\\"', "'\\\"")):
            continue
        if line.startswith((".", "'")):
            line = re.sub(r"^[.'][A-Za-z]{1,4}\s*", "", line)
        out.append(re.sub(r"\\f[A-Z]|\\f\(..|\\s[-+]?\d|\\&|\\\|", "", line).replace("\\-", "-").replace("\\(aq", "'"))
    return "\n".join(out)


def read_text(p):
    try:
        b = gzip.open(p).read() if p.endswith(".gz") else open(p, "rb").read()
        t = b.decode("utf-8")
    except (UnicodeDecodeError, OSError, EOFError):
        return None
    return unroff(t) if "/man/" in p else t


def documents(rng):
    """About TEXT_BYTES of documents: prose first, then Python source for the rest."""
    prose = list(
        files(
            [
                "/usr/share/doc",
                "/usr/share/man",
                "/usr/share/vim",
                "/usr/share/perl",
                os.path.dirname(sys.base_prefix),
                "/usr/lib/google-cloud-sdk",
                "/usr/share/cmake-3.25",
                "/usr/lib/node_modules",
            ],
            (".md", ".rst", ".txt", ".1.gz", ".2.gz", ".3.gz", ".5.gz", ".7.gz", ".8.gz", ".pod"),
        )
    )
    code = list(
        files(
            [
                os.path.dirname(sys.base_prefix),
                "/usr/lib/python3",
                "/usr/lib/google-cloud-sdk",
                os.path.dirname(os.path.dirname(np.__file__)),
            ],
            (".py",),
        )
    )
    rng.shuffle(prose)
    rng.shuffle(code)
    docs, seen, total, n_prose = [], set(), 0, 0
    for group, cap in ((prose, TEXT_BYTES * 0.65), (code, TEXT_BYTES)):
        for p in group:
            if total >= cap:
                break
            t = read_text(p)
            if t is None or len(t) < 200 or len(t) > 400_000:
                continue
            h = hashlib.md5(t.encode()).digest()
            if h in seen:
                continue
            seen.add(h)
            docs.append(t)
            total += len(t.encode())
        if group is prose:
            n_prose = len(docs)
    captions_from = [d for d in docs[:n_prose]]
    rng.shuffle(docs)
    return docs, captions_from


def captions(rng, prose, n):
    words_of, out = {}, []
    while len(out) < n:
        i = rng.randrange(len(prose))
        if i not in words_of:
            words_of[i] = re.findall(r"[A-Za-z][A-Za-z0-9'(),.:;-]*", prose[i])
        w = words_of[i]
        k = int(min(200, max(5, rng.lognormvariate(3.6, 0.9))))
        if len(w) < 2 * k:
            continue
        j = rng.randrange(len(w) - k)
        out.append(" ".join(w[j : j + k]))
    return out


def images(rng, n):
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    src = []
    for p in sorted(files([IMG], (".jpg", ".jpeg", ".png"))):
        if os.path.getsize(p) < 100_000 or any(f"/{d}/" in p or os.path.basename(p).startswith(d + ".") for d in DRAWN):
            continue
        im = Image.open(p).convert("RGB")
        if min(im.size) < 700:
            continue
        if max(im.size) > 2200:
            im.thumbnail((2200, 2200), Image.LANCZOS)
        src.append(im)
    print(len(src), "source pictures", flush=True)
    out = []
    while len(out) < n:
        im = src[rng.randrange(len(src))]
        w, h = rng.randint(256, 768), rng.randint(256, 768)
        s = rng.uniform(1.0, 2.0)
        cw, ch = int(w * s), int(h * s)
        if cw > im.width or ch > im.height:
            s = min(im.width / w, im.height / h)
            cw, ch = min(im.width, int(w * s)), min(im.height, int(h * s))
        x, y = rng.randint(0, im.width - cw), rng.randint(0, im.height - ch)
        crop = im.crop((x, y, x + cw, y + ch)).resize((w, h), Image.LANCZOS)
        b = io.BytesIO()
        crop.save(b, "JPEG", quality=rng.randint(85, 92))
        if len(b.getvalue()) < 0.06 * w * h and rng.random() < 0.85:  # mostly skip flat sky
            continue
        out.append(b.getvalue())
    return out


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("out", nargs="?", default=os.environ.get("BENCH_DATA", CACHE + "/data"))
    ap.add_argument("--seed", type=int, default=7)
    a = ap.parse_args()
    out, rng = a.out, random.Random(a.seed)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    import pyarrow as pa
    import pyarrow.parquet as pq
    from array_record.python import array_record_module as arm

    t0 = time.time()

    def say(*x):
        return print(f"[{time.time() - t0:6.1f}s]", *x, flush=True)

    docs, prose = documents(rng)
    say(len(docs), "documents,", sum(map(len, docs)), "chars")
    caps = captions(rng, prose, N_VLM)
    jpgs = images(rng, N_VLM)
    sz = np.array([len(j) for j in jpgs])
    say("jpeg bytes mean/median/max", sz.mean(), np.median(sz), sz.max())

    # --- text ---
    os.makedirs(f"{out}/text_parquet")
    os.makedirs(f"{out}/text_jsonl")
    os.makedirs(f"{out}/text_ar")
    shards = 8
    for s in range(shards):
        part = docs[s::shards]
        pq.write_table(pa.table({"text": part}), f"{out}/text_parquet/part-{s:03d}.parquet", row_group_size=100)
        with open(f"{out}/text_jsonl/part-{s:03d}.jsonl", "w") as f:
            for d in part:
                f.write(json.dumps({"text": d}) + "\n")
        w = arm.ArrayRecordWriter(f"{out}/text_ar/part-{s:03d}.array_record", "group_size:1,uncompressed")
        for d in part:
            w.write(d.encode())
        w.close()
    # --- tokenizer ---
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(
        docs,
        trainers.BpeTrainer(
            vocab_size=32000,
            special_tokens=["<|endoftext|>", "<|image|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tok.save(f"{out}/tokenizer.json")
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|endoftext|>", pad_token="<|endoftext|>").save_pretrained(
        f"{out}/hf_tok"
    )
    say("tokenizer trained")
    # --- pretokenized (documents cut at 2048, as first-fit does not split) ---
    os.makedirs(f"{out}/ids_parquet")
    os.makedirs(f"{out}/ids_ar")
    ids = []
    for i in range(0, len(docs), 256):
        for e in tok.encode_batch(docs[i : i + 256]):
            x = np.array(e.ids, np.int32)
            ids += [x[k : k + 2048] for k in range(0, len(x), 2048)]
    rng.shuffle(ids)
    for s in range(shards):
        part = ids[s::shards]
        pq.write_table(
            pa.table({"input_ids": pa.array([x for x in part], pa.list_(pa.int32()))}),
            f"{out}/ids_parquet/part-{s:03d}.parquet",
            row_group_size=1000,
        )
        w = arm.ArrayRecordWriter(f"{out}/ids_ar/part-{s:03d}.array_record", "group_size:1,uncompressed")
        for x in part:
            w.write(x.tobytes())
        w.close()
    say(len(ids), "id documents,", sum(map(len, ids)), "tokens")
    # --- vlm ---
    for d in ("vlm_parquet", "vlm_ar"):
        os.makedirs(f"{out}/{d}")
    samples = [{"id": i, "image": j, "caption": c} for i, (j, c) in enumerate(zip(jpgs, caps))]
    for s in range(shards):
        part = samples[s::shards]
        pq.write_table(
            pa.table({k: [r[k] for r in part] for k in ("id", "image", "caption")}),
            f"{out}/vlm_parquet/part-{s:03d}.parquet",
            row_group_size=100,
            compression="none",
        )
        w = arm.ArrayRecordWriter(f"{out}/vlm_ar/part-{s:03d}.array_record", "group_size:1,uncompressed")
        for r in part:  # u64 id, u32 image length, image, caption
            w.write(struct.pack("<QI", r["id"], len(r["image"])) + r["image"] + r["caption"].encode())
        w.close()
    try:
        from litdata.streaming import Cache
        from streaming import MDSWriter
    except ImportError:
        say("no streaming or litdata here: their copies are left out")
    else:
        with MDSWriter(
            out=f"{out}/vlm_mds", columns={"id": "int", "image": "bytes", "caption": "str"}, size_limit=1 << 25
        ) as w:
            for r in samples:
                w.write(r)
        c = Cache(f"{out}/vlm_lit", chunk_bytes="32MB")
        for i, r in enumerate(samples):
            c[i] = r
        c.done()
        c.merge()
    say("vlm written")
    h = hashlib.sha256()
    for r in samples:
        h.update(r["image"])
        h.update(r["caption"].encode())
    json.dump(
        {
            "seed": a.seed,
            "vlm_samples": N_VLM,
            "vlm_sha256": h.hexdigest(),
            "jpeg_mean_bytes": float(sz.mean()),
            "caption_words_mean": float(np.mean([len(c.split()) for c in caps])),
            "docs": len(docs),
            "text_bytes": sum(len(d.encode()) for d in docs),
            "id_docs": len(ids),
            "id_tokens": int(sum(map(len, ids))),
            "doc_chars_quantiles": np.quantile([len(d) for d in docs], [0.05, 0.5, 0.95, 1]).tolist(),
        },
        open(f"{out}/meta.json", "w"),
        indent=1,
    )
    print(open(f"{out}/meta.json").read())


if __name__ == "__main__":
    main()
