"""zephon_nodes with its nodes for images: ``LoadImages`` (JPEGs are decoded at a smaller scale, pixels differ by a few of
255), ``PackImages``, ``CollateImages``. pixels=uint8 leaves normalising to the device, a quarter of the bytes.
resample=bilinear_fast resizes by torch. How far pixels are from the other systems': ``pixels.py``."""

import numpy as np
from common import EOS, IMG_ID, SEQ, W2_BINS, W2_MB, tokenizer

from systems.zephon_nodes_ import pipeline

MODES = {"thread": [2]}


def imports():
    import multimodal  # noqa: F401


def _ids(row):
    ids = tokenizer().encode_batch_fast([row["caption"]], add_special_tokens=False)[0].ids
    return {"images": row["images"], "input_ids": np.array([IMG_ID, *ids, EOS], np.int32)}


def _loaded(p, pixels, resample):
    from multimodal import CollateImages, ExpandImages, FixedGrid, LoadImages, PackImages

    vision = FixedGrid(224, 16, resample=resample, fit="squash", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    p = p.then(LoadImages, vision).map(_ids).then(ExpandImages, vision, IMG_ID).then(PackImages, SEQ, num_bins=W2_BINS)
    return p.batch(W2_MB).then(CollateImages, vision, IMG_ID, pixels=pixels, extra=["document_ids"])


def _count_loaded(step):
    return len(step["image_positions"]), int((step["document_ids"] >= 0).sum())


def w2(mode, par, pixels="float32", resample="bilinear", **o):
    return _loaded(pipeline("vlm_parquet", mode, par, **o), pixels, resample), _count_loaded
