import decimal
import io
import json
import os
import shutil
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from files_over_http import serve
from PIL import Image
from shards import all_payloads, check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.mds import MdsFormat

GOLDEN = Path(__file__).parent / "golden"
CODECS = ["plain", "zstd", "gz", "br", "snappy", "bz2"]


@pytest.fixture
def golden_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(GOLDEN))
    import golden_rows

    return golden_rows


def small(golden_rows, n):
    return [{name: golden_rows.small(i)[name] for name in ("caption", "id", "image")} for i in range(n)]


def opened(tmp_path, source, **options):
    return Dataset.from_path("d", source, index_dir=tmp_path / "index", **options)


def shape_of(data):
    return Image.open(io.BytesIO(data)).size


def test_every_encoding(tmp_path, golden_rows):
    rows = list(opened(tmp_path, GOLDEN / "mds/encodings", fmt=MdsFormat()))
    assert len(rows) == 4
    for i, row in enumerate(rows):
        assert list(row) == sorted(golden_rows.MDS_COLUMNS)
        assert row["a_bytes"] == bytes([i]) * i
        assert (row["b_str"], row["c_int"]) == (golden_rows.text(i), i - 3)
        any_kind = (np.arange(6 + i) * 1.5).astype([np.float32, np.int64, np.uint8][i % 3]).reshape(1, -1)
        for name, array in (
            ("d_any", any_kind),
            ("e_typed", np.arange(2 + 2 * i, dtype=np.int16).reshape(2, -1)),
            ("f_fixed", np.full((2, 3), i + 0.5, np.float32)),
        ):
            assert row[name].dtype == array.dtype
            assert row[name].flags.writeable
            assert np.array_equal(row[name], array)
        numbers = [row[name] for name in golden_rows.MDS_COLUMNS if name[:2] in ("g_", "h_")]
        assert numbers == [i * 2] * 11
        assert (row["i_str_int"], row["j_str_float"]) == (10**30 + i, i / 3)
        assert row["k_str_decimal"] == decimal.Decimal(i) / 7
        assert row["l_pil"] == golden_rows.picture(i, ["RGB", "L", "1"][i % 3])
        assert shape_of(row["m_png"]) == shape_of(row["n_jpeg"]) == golden_rows.picture(i).size
        assert [Image.open(io.BytesIO(data)).convert("RGB") for data in row["p_list_png"]] == [
            golden_rows.picture(j) for j in range(i)
        ]
        sizes = [golden_rows.picture(j).size for j in range(i)]
        assert [*map(shape_of, row["o_jpeg_array"])] == [*map(shape_of, row["s_list_jpeg"])] == sizes
        assert row["t_list_pil"] == [golden_rows.picture(j) for j in range(i)]
        assert row["q_json"] == {"i": i, "deep": [golden_rows.text(i), None]}
        assert row["r_pkl"] == {"i": i, "s": {1, 2}}
        assert [*map(shape_of, row["u_jpegarray"])] == [golden_rows.picture(i).size]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("index", [True, False])
def test_rows_read_back_whatever_the_compression_with_and_without_the_index(tmp_path, golden_rows, codec, index):
    shutil.copytree(GOLDEN / "mds" / codec, tmp_path / "d")
    if not index:
        os.unlink(tmp_path / "d/index.json")
    dataset = opened(tmp_path, tmp_path / "d")
    assert dataset.shard_rows.tolist() == [8, 4]
    assert dataset.unit_rows.tolist() == [8, 4]
    check_rows(dataset, small(golden_rows, 12))


def test_the_index_spares_decompression_until_rows_are_read(tmp_path):
    shutil.copytree(GOLDEN / "mds/zstd", tmp_path / "d")
    dataset = opened(tmp_path, tmp_path / "d")
    assert len(dataset) == 12
    assert not (tmp_path / "index").exists()
    assert dataset[11]["id"] == 9
    assert len(os.listdir(tmp_path / "index")) == 1


def test_units_and_counts_are_those_of_the_file_with_or_without_index(tmp_path):
    shutil.copytree(GOLDEN / "mds/plain", tmp_path / "d")
    with_index = opened(tmp_path, tmp_path / "d")
    os.unlink(tmp_path / "d/index.json")
    without = opened(tmp_path, tmp_path / "d")
    assert with_index.unit_rows.tolist() == without.unit_rows.tolist()
    assert with_index.fingerprint() == without.fingerprint()


def test_shards_of_no_and_of_one_row(tmp_path, golden_rows):
    dataset = opened(tmp_path, GOLDEN / "mds/tiny")
    assert dataset.shard_rows.tolist() == [0, 1, 1, 1]
    check_rows(dataset, small(golden_rows, 3))


def test_raw_shards_win_over_compressed_ones(tmp_path, golden_rows):
    shutil.copytree(GOLDEN / "mds/zstd", tmp_path / "d")
    for name in ("shard.00000.mds", "shard.00001.mds"):
        shutil.copy(GOLDEN / "mds/plain" / name, tmp_path / "d" / name)
    dataset = opened(tmp_path, tmp_path / "d")
    assert dataset.files == ("shard.00000.mds", "shard.00001.mds")
    check_rows(dataset, small(golden_rows, 12))


def test_columns_are_read_alone(tmp_path, golden_rows):
    dataset = opened(tmp_path, GOLDEN / "mds/plain", columns=["id", "caption"])
    check_rows(dataset, [{"id": row["id"], "caption": row["caption"]} for row in small(golden_rows, 12)])
    with pytest.raises(ConfigError, match="no file has column 'nope'; the columns are: caption, id, image"):
        len(opened(tmp_path, GOLDEN / "mds/plain", columns=["nope"]))


@pytest.mark.parametrize("kept", [0, 3, 20, 100, 400, -1])
def test_a_shard_cut_short_is_a_read_error_that_names_it(tmp_path, kept):
    shutil.copytree(GOLDEN / "mds/plain", tmp_path / "d")
    path = tmp_path / "d/shard.00001.mds"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ReadError, match=r"shard\.00001\.mds: .*(cut short|0 bytes)"):
        len(opened(tmp_path, tmp_path / "d"))


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b[:20] + bytes(30) + b[50:], lambda b: b""])
def test_a_broken_compressed_shard_is_a_read_error_that_names_it(tmp_path, codec, spoil):
    shutil.copytree(GOLDEN / "mds" / codec, tmp_path / "d")
    path = tmp_path / f"d/shard.00001.mds.{codec}"
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    with pytest.raises(ReadError, match=rf"shard\.00001\.mds\.{codec}: "):
        all_payloads(opened(tmp_path, tmp_path / "d"))


def test_an_index_that_lies_is_noticed(tmp_path):
    shutil.copytree(GOLDEN / "mds/plain", tmp_path / "d")
    index = json.loads((tmp_path / "d/index.json").read_text())
    index["shards"][1]["samples"] = 3
    (tmp_path / "d/index.json").write_text(json.dumps(index))
    dataset = opened(tmp_path, tmp_path / "d")
    with pytest.raises(ReadError, match=r"shard\.00001\.mds: it holds 4 rows, index\.json says 3"):
        dataset.shard(1).read(0)
    index["shards"][1]["raw_data"]["bytes"] += 1
    (tmp_path / "d/index.json").write_text(json.dumps(index))
    assert len(opened(tmp_path, tmp_path / "d")) == 12, "an index of other files is stale: the shard itself is asked"
    (tmp_path / "d/index.json").write_text("{")
    with pytest.raises(ReadError, match=r"index\.json: it isn't an index of MDS shards"):
        opened(tmp_path, tmp_path / "d")


def test_a_shard_that_the_index_lists_and_that_is_gone_is_an_error(tmp_path):
    shutil.copytree(GOLDEN / "mds/zstd", tmp_path / "d")
    os.unlink(tmp_path / "d/shard.00001.mds.zstd")
    with pytest.raises(ReadError, match=r"shard\.00001\.mds: index\.json beside it lists this shard"):
        opened(tmp_path, tmp_path / "d")


def test_a_row_whose_sizes_lie_is_a_bad_row_and_its_neighbours_are_read(tmp_path, golden_rows):
    shutil.copytree(GOLDEN / "mds/plain", tmp_path / "d")
    path = tmp_path / "d/shard.00000.mds"
    data = bytearray(path.read_bytes())
    first = int.from_bytes(data[4:8], "little")
    data[first] += 7
    path.write_bytes(data)
    found = all_payloads(opened(tmp_path, tmp_path / "d"))
    assert found[0] == "its columns add up to 23 bytes, the row has 16: the shard is broken"
    assert found[1:] == small(golden_rows, 12)[1:]


def test_bytes_that_are_no_utf8_are_a_bad_row_that_names_the_column(tmp_path):
    shutil.copytree(GOLDEN / "mds/plain", tmp_path / "d")
    path = tmp_path / "d/shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"plain", b"pl\xffin"))
    found = all_payloads(opened(tmp_path, tmp_path / "d"))
    assert "column 'caption' can't be decoded: 'utf-8' codec" in found[1]


def test_remote_rows_are_read_by_ranges(tmp_path, golden_rows):
    url = f"memory://{uuid.uuid4().hex}"
    for name in os.listdir(GOLDEN / "mds/zstd"):
        fsspec.filesystem("memory").pipe_file(f"{url}/{name}", (GOLDEN / "mds/zstd" / name).read_bytes())
    check_rows(opened(tmp_path, url), small(golden_rows, 12))
    for sizes in (True, False):
        with serve({"a.mds": (GOLDEN / "mds/plain/shard.00000.mds").read_bytes()}, sizes=sizes) as site:
            check_rows(opened(tmp_path, f"{site.url}/a.mds"), small(golden_rows, 8))
