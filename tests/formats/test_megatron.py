import itertools
import shutil
import sys
import uuid
from pathlib import Path

import fsspec
import numpy as np
import pytest
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError

GOLDEN = Path(__file__).parent / "golden/megatron"
sys.path.append(str(GOLDEN.parent))

from golden_rows import megatron_documents  # noqa: E402


def expected(dtype):
    return [{"input_ids": np.array([*itertools.chain(*sequences)], dtype)} for sequences in megatron_documents()]


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "int64"])
@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_documents_written_by_megatron_read_back_equal(dtype, ending):
    check_rows(Dataset.from_path("d", GOLDEN / f"{dtype}{ending}", fmt="megatron"), expected(dtype))


def test_pairs_in_a_folder_are_told_by_their_index(tmp_path):
    for name in ("a", "b"):
        for ending in (".bin", ".idx"):
            shutil.copy(GOLDEN / f"uint16{ending}", tmp_path / f"{name}{ending}")
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.format.name == "megatron"
    assert dataset.files == ("a.bin", "b.bin")
    check_rows(dataset, expected("uint16") * 2)


def test_remote_pairs():
    url = f"memory://{uuid.uuid4().hex}"
    for ending in (".bin", ".idx"):
        fsspec.filesystem("memory").pipe_file(f"{url}/a{ending}", (GOLDEN / f"int32{ending}").read_bytes())
    check_rows(Dataset.from_path("d", url), expected("int32"))
    check_rows(Dataset.from_path("d", f"{url}/a.bin", fmt="megatron"), expected("int32"))


def copy(tmp_path):
    for ending in (".bin", ".idx"):
        shutil.copy(GOLDEN / f"uint16{ending}", tmp_path / f"a{ending}")
    return tmp_path / "a.bin", tmp_path / "a.idx"


def test_a_missing_half_is_an_error_that_names_it(tmp_path):
    data, index = copy(tmp_path)
    index.unlink()
    with pytest.raises(ConfigError, match=r"a\.idx' does not exist"):
        Dataset.from_path("d", data, fmt="megatron")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda data, index: (data[:-2], index),
            "its sequences take 92 bytes, the .bin has 90: one of them is cut short",
        ),
        (lambda data, index: (data, index[:-1]), "can't hold 5 sequences and 5 document marks: it is cut short"),
        (lambda data, index: (data, index[:20]), "unpack_from requires"),
        (lambda data, index: (data, b""), "unpack_from requires"),
        (lambda data, index: (data, b"X" + index[1:]), "it begins with b'XMIDIDX"),
        (lambda data, index: (data, index[:17] + b"\x09" + index[18:]), "dtype code 9"),
        (lambda data, index: (data, index[:54] + b"\x02" + index[55:]), "don't lie one behind the other"),
        (lambda data, index: (data, index[:-8] + b"\x04" + index[-7:]), "don't cover its 5 sequences"),
        (lambda data, index: (data, index[:34] + b"\xff" * 4 + index[38:]), "don't lie one behind the other"),
    ],
)
def test_pairs_that_do_not_fit_are_read_errors(tmp_path, spoil, message):
    paths = copy(tmp_path)
    for path, content in zip(paths, spoil(*(path.read_bytes() for path in paths))):
        path.write_bytes(content)
    with pytest.raises(ReadError, match=rf"a\.idx: it isn't the index of .*a\.bin: .*{message}"):
        len(Dataset.from_path("d", tmp_path))
