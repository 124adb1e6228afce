"""litdata 0.2.76 StreamingDataset + StreamingDataLoader. No packing of its own: workers decode and tokenize
(transform=), the main process packs what the loader yields."""

from common import DATA, W1_BATCH, caption_ids, count_len, count_vlm, decode_image, pack_vlm

MODES = {"process": [1, 2, 4], "inline": [0]}


def imports():
    import litdata, torch  # noqa


def _vlm(s, *_):
    import torch

    return torch.from_numpy(decode_image(s["image"])), caption_ids(s["caption"])


def _loader(n, bs, transform=None, subsample=50, pf=4, collate=list):
    import litdata as ld

    kw = {"prefetch_factor": pf, "persistent_workers": True} if n else {}
    ds = ld.StreamingDataset(
        f"{DATA}/vlm_lit", shuffle=False, subsample=float(subsample), **({"transform": transform} if transform else {})
    )
    dl = ld.StreamingDataLoader(ds, batch_size=bs, num_workers=n, collate_fn=collate, **kw)
    while True:
        yield from dl


def w1(mode, par, subsample="50"):
    return _loader(par, W1_BATCH, subsample=subsample), count_len


def w2(mode, par, bs="16", subsample="50"):
    return pack_vlm(x for b in _loader(par, int(bs), _vlm, subsample, 2) for x in b), count_vlm
