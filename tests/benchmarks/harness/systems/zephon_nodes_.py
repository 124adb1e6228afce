"""zephon_nodes: its own read, tokenize, packing and batch. One lane unless lanes=4, default shuffle, endless. Other options
are those of the run, such as prefetch=8. w2 decodes and resizes by the harness's own function in a ``map``, as every other
system does; ``zephon_nodes_load_`` is the same work by this project's own nodes for images."""

from common import (
    DATA,
    EOS,
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
    caption_ids,
    count_len,
    count_vlm,
    decode_image,
)

MODES = {"inline": [1], "thread": [1, 2, 4], "process": [2]}


def imports():
    import zephon_nodes  # noqa: F401


def pipeline(name, mode, par, lanes="1", **options):
    from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

    source = StaticMixtureWorkSource(
        [Dataset.from_path("d", f"{DATA}/{name}")],
        num_lanes=int(lanes),
        passes=None,
        seed=42,
        shuffle=options.pop("shuffle", "windows"),
    )
    return Pipeline(source, runner=mode, parallelism=par, **{k: int(v) for k, v in options.items()})


def _prep(row):
    return {"image": decode_image(row["image"]), "input_ids": caption_ids(row["caption"])}


def _assemble(batch):
    return assemble_vlm([[(one["image"], one["input_ids"]) for one in row["sequences"]] for row in batch])


def w1(mode, par, **o):
    return pipeline("vlm_parquet", mode, par, **o).batch(W1_BATCH), count_len


def w2(mode, par, **o):
    p = pipeline("vlm_parquet", mode, par, **o)
    return p.map(_prep).pack_sequences(SEQ, num_bins=W2_BINS).batch(W2_MB).map_batch(_assemble), count_vlm


def w3(mode, par, fast="0", text="text_parquet", **o):
    """``fast=1``: gigatoken, with the same ids. ``text=text2_parquet``: the second set, which isn't repetitive (``make_text2.py``)."""
    p = pipeline(text, mode, par, **o).tokenize(f"{DATA}/tokenizer.json", bos=None, eos=EOS, fast=fast == "1")
    batches = p.pack_flat(W3_SEQ, "wrap").batch(W3_MB)
    return (batch.to_training() for batch in batches), lambda t: (len(t["input_ids"]), t["input_ids"].numel())


def w4(mode, par, **o):
    p = pipeline("ids_parquet", mode, par, **o).pack_flat(W4_SEQ, "first_fit", num_bins=W4_BINS).batch(W4_MB)
    return (batch.to_training(["document_ids"]) for batch in p), _count_packed


def _count_packed(batch):
    ids = batch["document_ids"].numpy()
    return int((ids.max(axis=1) + 1).sum()), int((ids >= 0).sum())
