"""What holds for a dataset of any format: it pickles, an index of it opens nothing, and a loader gives each row once."""

import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from zephon_nodes import Dataset, Loader, Read, StaticMixtureWorkSource
from zephon_nodes.formats.tokens import TokensFormat

GOLDEN = Path(__file__).parent / "golden"


def arrow(folder):
    with pa.ipc.new_stream(folder / "a.arrow", pa.schema([("x", pa.int64())])) as writer:
        for i in range(5):
            writer.write_batch(pa.record_batch({"x": [i, i + 10]}))


def images(folder):
    for i in range(4):
        (folder / f"{i}.png").write_bytes(bytes([i]))
        (folder / f"{i}.txt").write_text(str(i))


def tar(folder):
    for i in range(4):
        (folder / f"{i}.x").write_bytes(bytes([i]))
    with tarfile.open(folder / "a.tar", "w") as made:
        for i in range(4):
            made.add(folder / f"{i}.x", f"{i}.x")
    for i in range(4):
        (folder / f"{i}.x").unlink()


def vortex(folder):
    library = pytest.importorskip("vortex")
    library.io.write(library.array(pa.table({"x": range(9)})), str(folder / "a.vortex"))


def lance(folder):
    library = pytest.importorskip("lance")
    library.write_dataset(pa.table({"x": range(9)}), str(folder / "a.lance"), max_rows_per_file=4)


def array_record(folder):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
    for i in range(9):
        writer.write(b"%d" % i)
    writer.close()


MADE = {
    "arrow": arrow,
    "images": images,
    "webdataset": tar,
    "vortex": vortex,
    "lance": lance,
    "array_record": array_record,
    "text": lambda folder: (folder / "a.txt").write_text("\n".join("abcdefgh")),
    "tokens": lambda folder: np.save(folder / "a.npy", np.arange(20).reshape(5, 4)),
    "flat tokens": lambda folder: np.arange(20, dtype=np.uint16).tofile(folder / "a.bin"),
}
KEPT = {
    **{f"mds {name}": GOLDEN / "mds" / name for name in ("plain", "zstd", "tiny")},
    **{
        f"litdata {name}": GOLDEN / "litdata" / name
        for name in ("plain", "chunk", "sample", "batch", "arrow", "arrow_zstd", "tokens_numpy")
    },
    "megatron": GOLDEN / "megatron/int32.idx",
}


def text(row):
    return repr({name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()})


@pytest.fixture(params=[*MADE, *KEPT])
def dataset(request, tmp_path):
    fmt = {"megatron": "megatron", "flat tokens": TokensFormat(3, "uint16")}.get(request.param)
    path = KEPT.get(request.param, tmp_path / "d")
    if request.param in MADE:
        path.mkdir()
        MADE[request.param](path)
    return Dataset.from_path("d", path, fmt, index_dir=tmp_path / "index")


def test_it_pickles_and_an_index_of_it_travels_along(dataset):
    rows = [*map(text, dataset)]
    assert len(rows) == len(dataset) > 1
    again = pickle.loads(pickle.dumps(dataset))
    assert [*map(text, again)] == rows
    assert again.fingerprint() == dataset.fingerprint()
    known = pickle.loads(pickle.dumps(dataset.indexed()))
    known.format = None  # nothing is opened for counts
    assert known.unit_rows.tolist() == dataset.unit_rows.tolist()
    assert [*map(text, pickle.loads(pickle.dumps(dataset.indexed())))] == rows


@pytest.mark.parametrize("shuffle", ["none", "windows", "global"])
def test_a_loader_gives_each_row_once(dataset, shuffle):
    rows = [*map(text, dataset)]
    with Loader(Read(StaticMixtureWorkSource([dataset], shuffle=shuffle)), runner="inline") as loader:
        found = [*map(text, loader)]
    assert sorted(found) == sorted(rows)
    assert shuffle != "none" or found == rows
