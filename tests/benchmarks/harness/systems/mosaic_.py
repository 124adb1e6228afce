"""mosaicml-streaming 0.13 (MDS, local) + torch DataLoader workers. No packing of its own: for W2 a subclass
of StreamingDataset packs inside each worker's __iter__ and yields finished microbatches."""

from common import DATA, W1_BATCH, W2_MB, caption_ids, count_len, count_vlm, decode_image, pack_vlm

MODES = {"process": [1, 2, 4], "inline": [0]}


def imports():
    import streaming, torch  # noqa


def _make(epoch, bs):
    from streaming import StreamingDataset

    class Packed(StreamingDataset):
        def __iter__(self):
            return pack_vlm((decode_image(s["image"]), caption_ids(s["caption"])) for s in super().__iter__())

    return StreamingDataset, Packed


def _loader(ds, n, **kw):
    from torch.utils.data import DataLoader

    if n:
        kw.update(persistent_workers=True, prefetch_factor=int(kw.pop("pf", 4)))
    else:
        kw.pop("pf", None)
    dl = DataLoader(ds, num_workers=n, **kw)
    while True:
        yield from dl


def _clean():
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()


def w1(mode, par, epoch="300000", shuffle="0"):
    _clean()
    SD, _ = _make(0, 0)
    ds = SD(
        local=f"{DATA}/vlm_mds",
        batch_size=W1_BATCH,
        shuffle=shuffle == "1",
        epoch_size=int(epoch),
        num_canonical_nodes=1,
    )
    return _loader(ds, par, batch_size=W1_BATCH, collate_fn=list), count_len


def w2(mode, par, epoch="300000", shuffle="0"):
    _clean()
    _, P = _make(0, 0)
    ds = P(
        local=f"{DATA}/vlm_mds", batch_size=W2_MB, shuffle=shuffle == "1", epoch_size=int(epoch), num_canonical_nodes=1
    )
    return _loader(ds, par, batch_size=None, pf=2), count_vlm
