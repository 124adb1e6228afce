"""torchdata 0.11 nodes on Parquet: IterableWrapper -> ParallelMapper -> hand-written packing node -> Prefetcher.
W1, W4: the mapper reads whole row groups (index in, rows out); W2, W3: rows in, prebatch groups them."""

import glob

from common import (
    DATA,
    W1_BATCH,
    caption_ids,
    count_ids,
    count_len,
    count_text,
    count_vlm,
    decode_image,
    pack_ids,
    pack_text,
    pack_vlm,
    text_ids,
    text_ids_many,
)

MODES = {"thread": [1, 2, 4], "process": [1, 2, 4]}


def imports():
    import torchdata.nodes  # noqa: F401


class _Rows:
    """Endless rows (or row-group addresses) of a parquet directory."""

    def __init__(self, name, columns, addresses=False):
        self.name, self.columns, self.addresses = name, columns, addresses

    def __iter__(self):
        import pyarrow.parquet as pq

        while True:
            for p in sorted(glob.glob(f"{DATA}/{self.name}/*.parquet")):
                f = pq.ParquetFile(p)
                for g in range(f.num_row_groups):
                    if self.addresses:
                        yield p, g
                    else:
                        yield from f.read_row_group(g, columns=self.columns, use_threads=False).to_pylist()


_files = {}


def _rg(addr):
    import pyarrow.parquet as pq

    p, g = addr
    f = _files.get(p) or _files.setdefault(p, pq.ParquetFile(p, memory_map=False))
    return f.read_row_group(g, use_threads=False)


def _read_vlm(addr):
    import pyarrow.parquet as pq

    p, g = addr  # a fresh reader: ParquetFile isn't safe to share between threads
    return pq.ParquetFile(p).read_row_group(g, columns=["image", "caption"], use_threads=False).to_pylist()


def _read_ids(addr):
    import pyarrow.parquet as pq

    p, g = addr
    c = pq.ParquetFile(p).read_row_group(g, use_threads=False).column("input_ids").combine_chunks()
    v, off = c.values.to_numpy(), c.offsets.to_numpy()
    return [v[off[i] : off[i + 1]] for i in range(len(off) - 1)]


def _vlm(r):
    return decode_image(r["image"]), caption_ids(r["caption"])


def _vlm_t(r):
    import torch

    return torch.from_numpy(decode_image(r["image"])), caption_ids(r["caption"])


def _txt(r):
    return text_ids(r["text"])


def _txt_many(rs):
    return text_ids_many([r["text"] for r in rs])


def _pack_node(source, pack):
    from torchdata.nodes import BaseNode

    class Pack(BaseNode):
        def __init__(self):
            super().__init__()

        def reset(self, initial_state=None):
            super().reset(initial_state)
            source.reset(None)

            def rows():
                while True:
                    yield next(source)

            self.it = pack(rows())

        def next(self):
            return next(self.it)

        def get_state(self):
            return {}

    return Pack()


def _loader(node, prefetch):
    from torchdata.nodes import Loader, Prefetcher

    return Loader(Prefetcher(node, int(prefetch)) if int(prefetch) else node)


def _pm(src, fn, mode, par, prebatch=None, **kw):
    from torchdata.nodes import ParallelMapper

    return ParallelMapper(
        src,
        fn,
        num_workers=par,
        method=mode,
        prebatch=prebatch,
        **({"multiprocessing_context": "forkserver"} if mode == "process" else {}),
        **kw,
    )


def w1(mode, par, prefetch="4"):
    from torchdata.nodes import Batcher, IterableWrapper, Unbatcher

    n = _pm(IterableWrapper(_Rows("vlm_parquet", None, True)), _read_vlm, mode, par)
    return _loader(Batcher(Unbatcher(n), W1_BATCH), prefetch), count_len


def w2(mode, par, prefetch="2", prebatch="8", tensor=None):
    from torchdata.nodes import IterableWrapper

    tensor = (mode == "process") if tensor is None else tensor == "1"
    n = _pm(
        IterableWrapper(_Rows("vlm_parquet", ["image", "caption"])),
        _vlm_t if tensor else _vlm,
        mode,
        par,
        int(prebatch),
    )
    return _loader(_pack_node(n, pack_vlm), prefetch), count_vlm


def w3(mode, par, prefetch="4", prebatch="16"):
    from torchdata.nodes import Batcher, IterableWrapper, Unbatcher

    src = Batcher(
        IterableWrapper(_Rows("text_parquet", ["text"])), int(prebatch)
    )  # prebatch by hand, to use encode_batch
    return _loader(_pack_node(Unbatcher(_pm(src, _txt_many, mode, par)), pack_text), prefetch), count_text


def w4(mode, par, prefetch="4"):
    from torchdata.nodes import IterableWrapper, Unbatcher

    n = Unbatcher(_pm(IterableWrapper(_Rows("ids_parquet", None, True)), _read_ids, mode, par))
    return _loader(_pack_node(n, pack_ids), prefetch), count_ids
