"""grain 0.2.18 on ArrayRecord: MapDataset source, its own FirstFit / ConcatThenSplit packing.
thread: read_options.num_threads=par runs the per-sample map in threads of this process.
process: mp_prefetch(num_workers=par) runs everything, packing and batching included, in workers."""

import glob
import struct

import numpy as np
from common import (
    DATA,
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
    caption_ids,
    count_len,
    count_vlm,
    decode_image,
    text_ids,
)

MODES = {"thread": [0, 1, 2, 4], "process": [1, 2, 4]}


def imports():
    import grain  # noqa: F401


def _parse(b):
    n = struct.unpack_from("<QI", b)[1]
    return b[12 : 12 + n], b[12 + n :].decode()


def _vlm(b):
    j, c = _parse(b)
    return {"tokens": caption_ids(c), "images": decode_image(j)}


def _vlm_padded(b):
    j, c = _parse(b)
    return {"tokens": caption_ids(c), "images": decode_image(j)[None]}


def _txt(b):
    return {"tokens": text_ids(b.decode())}


def _ids(b):
    return {"tokens": np.frombuffer(b, np.int32)}


def _collate_vlm(xs):
    return {
        "tokens": np.stack([x["tokens"] for x in xs]),
        "segment_ids": np.stack([x["tokens_segment_ids"] for x in xs]),
        "positions": np.stack([x["tokens_positions"] for x in xs]),
        "images": np.stack([im for x in xs for im in x["images"]]),
    }


def _source(name, fn, mode, par, shuffle="1", buf=None, threads=None):
    import grain

    ds = grain.MapDataset.source(
        grain.sources.ArrayRecordDataSource(sorted(glob.glob(f"{DATA}/{name}/*.array_record")))
    ).seed(42)
    if shuffle == "1":
        ds = ds.shuffle()
    ds = ds.repeat().map(fn)
    n = int(threads if threads is not None else (par if mode == "thread" else 0))
    return ds.to_iter_dataset(
        grain.ReadOptions(num_threads=n, prefetch_buffer_size=int(buf or max(16, 8 * n) if n else 0))
    )


def _finish(ds, mode, par, wbuf="2"):
    import grain

    if mode == "process":
        ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=par, per_worker_buffer_size=int(wbuf)))
    return ds


def w1(mode, par, wbuf="4", **o):
    ds = _source("vlm_ar", _parse, mode, par, **o).batch(W1_BATCH, batch_fn=list)
    return _finish(ds, mode, par, wbuf), count_len


def w2(mode, par, images="meta", wbuf="2", **o):
    from grain.experimental import FirstFitPackIterDataset

    if images == "meta":  # images ride along as a meta feature that is not packed
        ds = FirstFitPackIterDataset(
            _source("vlm_ar", _vlm, mode, par, **o),
            length_struct={"tokens": SEQ},
            num_packing_bins=W2_BINS,
            meta_features=("images",),
            shuffle_bins=False,
        ).batch(W2_MB, batch_fn=_collate_vlm)
        return _finish(ds, mode, par, wbuf), count_vlm
    ds = FirstFitPackIterDataset(
        _source("vlm_ar", _vlm_padded, mode, par, **o),
        length_struct={"tokens": SEQ, "images": SEQ // (IMG_TOKENS + 1)},
        num_packing_bins=W2_BINS,
        shuffle_bins=False,
    ).batch(W2_MB)
    return _finish(ds, mode, par, wbuf), lambda b: (
        int((b["images_segment_ids"] > 0).sum()),
        int((b["tokens_segment_ids"] > 0).sum()),
    )


def w3(mode, par, wbuf="4", **o):
    from grain.experimental import ConcatThenSplitIterDataset

    ds = ConcatThenSplitIterDataset(_source("text_ar", _txt, mode, par, **o), length_struct={"tokens": W3_SEQ}).batch(
        W3_MB
    )
    return _finish(ds, mode, par, wbuf), lambda b: (len(b["tokens"]), int((b["tokens_segment_ids"] > 0).sum()))


def w4(mode, par, wbuf="8", **o):
    from grain.experimental import FirstFitPackIterDataset

    ds = FirstFitPackIterDataset(
        _source("ids_ar", _ids, mode, par, **o),
        length_struct={"tokens": W4_SEQ},
        num_packing_bins=W4_BINS,
        shuffle_bins=False,
    ).batch(W4_MB)
    return _finish(ds, mode, par, wbuf), lambda b: (
        int(b["tokens_segment_ids"].max(axis=1).sum()),
        int((b["tokens_segment_ids"] > 0).sum()),
    )
