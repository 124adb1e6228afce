import io
import json
import os
import shutil
import sys
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image
from shards import all_payloads, check_rows, plain

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.litdata import LitDataFormat

GOLDEN = Path(__file__).parent / "golden/litdata"
sys.path.append(str(GOLDEN.parent))

from golden_rows import litdata_tree, small  # noqa: E402


def opened(tmp_path, source, **options):
    return Dataset.from_path("d", source, index_dir=tmp_path / "index", **options)


def copy(tmp_path, name):
    shutil.copytree(GOLDEN / name, tmp_path / "d")
    return tmp_path / "d"


def with_array(i):
    return small(i) | {"a": np.arange(i, dtype=np.int64)}


def without_pictures(row):
    """A row of ``litdata_tree`` as it compares: pictures by their pixels' shape, number lists as arrays."""
    row = dict(row)
    for name in ("ints", "floats", "bools"):
        row[name] = np.asarray(row[name])
    for name in ("jpeg", "jpegs"):
        files = row[name] if isinstance(row[name], list) else [row[name]]
        row[name] = [(Image.open(io.BytesIO(file)) if isinstance(file, bytes) else file).size for file in files]
    return plain(row)


def test_every_serialiser_and_container(tmp_path):
    dataset = opened(tmp_path, GOLDEN / "tree")
    assert dataset.shard_rows.tolist() == [2, 2, 1]
    check_rows(dataset, map(litdata_tree, range(5)), without_pictures)
    assert list(dataset[0]) == list(litdata_tree(0))


@pytest.mark.parametrize("name", ["plain", "chunk", "sample"])
def test_rows_of_each_compression(tmp_path, name):
    dataset = opened(tmp_path, GOLDEN / name)
    assert dataset.unit_rows.tolist() == [5, 5, 2]
    check_rows(dataset, map(with_array, range(12)))


def test_frames_of_rows_are_units(tmp_path):
    dataset = opened(tmp_path, GOLDEN / "batch")
    assert dataset.unit_rows.tolist() == [3, 3, 2, 3, 1]
    check_rows(dataset, map(with_array, range(12)))


@pytest.mark.parametrize("name", ["arrow", "arrow_zstd"])
def test_chunks_that_are_arrow_files(tmp_path, name):
    dataset = opened(tmp_path, GOLDEN / name)
    assert dataset.unit_rows.tolist() == [5, 5, 2]
    check_rows(dataset, map(small, range(12)))
    assert (dataset.shard(0).take([1]) is None) == (name == "arrow_zstd")


def test_rows_that_are_no_dicts(tmp_path):
    check_rows(opened(tmp_path, GOLDEN / "values"), [{"value": f"ü {i}"} for i in range(3)])


@pytest.mark.parametrize(
    ("name", "dtype", "chunks"),
    [
        ("tokens_numpy", np.uint16, [(10, 25, 3), (9,)]),
        ("tokens_torch", np.int32, [(10,), (25,), (3, 9)]),
        ("tokens_zstd", np.uint16, [(10, 25)]),
    ],
)
@pytest.mark.parametrize("block", [1, 8, 2048])
def test_tokens_in_blocks(tmp_path, name, dtype, chunks, block):
    flat = [np.concatenate([np.arange(n, dtype=dtype) for n in chunk]) for chunk in chunks]
    rows = [{"input_ids": ids[at : at + block]} for ids in flat for at in range(0, len(ids), block)]
    check_rows(opened(tmp_path, GOLDEN / name, fmt=LitDataFormat(block_size=block)), rows)


@pytest.mark.parametrize("name", ["plain", "chunk", "sample", "batch", "arrow", "arrow_zstd"])
def test_columns_are_read_alone(tmp_path, name):
    dataset = opened(tmp_path, GOLDEN / name, columns=["id", "caption"])
    check_rows(dataset, [{"id": i - 2, "caption": small(i)["caption"]} for i in range(12)])
    with pytest.raises(ConfigError, match="no file has column 'nope'; the columns are: id, image, caption"):
        len(opened(tmp_path, GOLDEN / name, columns=["nope"]))


def test_columns_of_trees(tmp_path):
    rows = [{name: litdata_tree(i)[name] for name in ("n_int8", "tree", "none")} for i in range(5)]
    check_rows(opened(tmp_path, GOLDEN / "tree", columns=["n_int8", "tree", "none"]), rows)


def test_files_that_the_index_does_not_list_are_left_out(tmp_path):
    folder = copy(tmp_path, "plain")
    (folder / "chunk-0-9.bin").write_bytes(b"left by a download")
    (folder / "chunk-0-1.bin.part").write_bytes(b"")
    check_rows(opened(tmp_path, folder), map(with_array, range(12)))


def test_chunks_named_by_a_pattern_find_their_index(tmp_path):
    check_rows(opened(tmp_path, f"{GOLDEN}/plain/*-1.bin"), map(with_array, range(5, 10)))


def test_chunks_without_an_index_are_an_error(tmp_path):
    folder = copy(tmp_path, "plain")
    os.unlink(folder / "index.json")
    with pytest.raises(ConfigError, match=r"index\.json' does not exist"):
        opened(tmp_path, folder)


def test_a_chunk_that_is_gone_or_cut_short_is_a_read_error_that_names_it(tmp_path):
    folder = copy(tmp_path, "plain")
    os.truncate(folder / "chunk-0-1.bin", 100)
    with pytest.raises(ReadError, match=r"chunk-0-1\.bin: it has 100 bytes, index\.json says .*cut short"):
        opened(tmp_path, folder)
    os.unlink(folder / "chunk-0-1.bin")
    with pytest.raises(ReadError, match=r"chunk-0-1\.bin: index\.json beside it lists this chunk"):
        opened(tmp_path, folder)


def change_index(folder, change):
    index = json.loads((folder / "index.json").read_text())
    change(index)
    (folder / "index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("name", ["plain", "chunk", "sample", "batch", "arrow", "tokens_numpy"])
def test_an_index_with_other_counts_is_noticed(tmp_path, name):
    folder = copy(tmp_path, name)

    def change(index):
        index["chunks"][0]["chunk_size"] += 1

    change_index(folder, change)
    with pytest.raises(ReadError, match=r"chunk-0-0\.(zstd\.)?bin: .*index\.json"):
        all_payloads(opened(tmp_path, folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda index: index["config"].update(data_format=["int", "zip"]), "serialiser 'zip' isn't known"),
        (lambda index: index["config"].pop("data_spec"), "KeyError: 'data_spec'"),
        (lambda index: index["config"]["data_format"].pop(), "index.json doesn't describe rows"),
        (lambda index: index["config"].update(encryption={"a": 1}), "it is encrypted"),
        (
            lambda index: index["config"].update(data_spec='[1, {"type": "x.Y", "context": "1", "children_spec": []}]'),
            "rows hold a x.Y",
        ),
        (lambda index: index["chunks"][0].pop("chunk_size"), "it isn't an index of LitData chunks"),
    ],
)
def test_an_index_that_cannot_be_used_is_a_read_error(tmp_path, change, message):
    folder = copy(tmp_path, "plain")
    change_index(folder, change)
    with pytest.raises(ReadError, match=message):
        len(opened(tmp_path, folder))


@pytest.mark.parametrize("name", ["plain", "chunk", "sample", "batch", "arrow", "arrow_zstd", "tokens_numpy", "tree"])
def test_garbage_in_any_place_is_an_error_or_a_bad_row_or_other_values_but_never_ends_the_process(tmp_path, name):
    folder = copy(tmp_path, name)
    path = next(folder.glob("chunk-0-0*"))
    whole = path.read_bytes()
    for place in range(0, len(whole) - 3, 11 if len(whole) < 2000 else 97):
        path.write_bytes(whole[:place] + b"\xf1\xff\xff\x7f" + whole[place + 4 :])
        os.utime(path, ns=(place * 1000, place * 1000))
        try:
            found = all_payloads(opened(tmp_path, folder))
        except ReadError as error:
            assert path.name in str(error)
            continue
        assert len(found) == len(opened(tmp_path, folder))


def test_a_row_whose_sizes_lie_is_a_bad_row(tmp_path):
    folder = copy(tmp_path, "plain")
    path = folder / "chunk-0-0.bin"
    data = bytearray(path.read_bytes())
    data[int.from_bytes(data[4:8], "little")] += 5
    path.write_bytes(data)
    found = all_payloads(opened(tmp_path, folder))
    assert found[0] == "its leaves add up to 29 bytes, the row has 24: the chunk is broken"
    assert found[1]["id"] == -1


def test_remote_chunks(tmp_path):
    for name in ("plain", "chunk", "batch", "arrow"):
        url = f"memory://{uuid.uuid4().hex}"
        for file in os.listdir(GOLDEN / name):
            fsspec.filesystem("memory").pipe_file(f"{url}/{file}", (GOLDEN / name / file).read_bytes())
        check_rows(opened(tmp_path, url), map(small if name == "arrow" else with_array, range(12)))


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_block_sizes_that_make_no_sense(size):
    with pytest.raises(ConfigError, match="block_size"):
        LitDataFormat(block_size=size)
