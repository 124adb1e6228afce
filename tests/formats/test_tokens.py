import io
import os

import numpy as np
import pytest
from files_over_http import serve
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats.tokens import TokensFormat


def windows(ids, length):
    return [{"input_ids": ids[start : start + length]} for start in range(0, len(ids), length)]


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 255), max_size=30),
    st.integers(1, 12),
    st.sampled_from(["uint8", "uint16", "int32", "int64", ">i4"]),
    st.booleans(),
)
def test_windows_of_flat_files(tmp_path_factory, ids, length, dtype, npy):
    path = tmp_path_factory.mktemp("ids") / ("a.npy" if npy else "a.bin")
    ids = np.array(ids, dtype if npy else np.dtype(dtype).newbyteorder("<"))
    np.save(path, ids) if npy else ids.tofile(path)
    fmt = TokensFormat(length, None if npy else ids.dtype.name)
    check_rows(Dataset.from_path("d", path, fmt=fmt), windows(ids, length))


def test_npy_of_two_dimensions_has_its_own_rows(tmp_path):
    table = np.arange(12, dtype=np.uint16).reshape(3, 4)
    np.save(tmp_path / "a.npy", table)
    np.save(tmp_path / "b.npy", np.zeros((0, 4), np.uint16))
    dataset = Dataset.from_path("d", tmp_path)
    assert dataset.format.name == "tokens"
    check_rows(dataset, [{"input_ids": row} for row in table])


def test_default_windows_and_units(tmp_path):
    ids = np.arange(3 << 20, dtype=np.uint16)
    np.save(tmp_path / "a.npy", ids)
    dataset = Dataset.from_path("d", tmp_path / "a.npy")
    assert dataset.rows == 1536
    assert len(dataset.unit_rows) == 6
    assert np.array_equal(dataset[1000]["input_ids"], ids[1000 * 2048 : 1001 * 2048])


def test_a_folder_of_dumps_and_remote_ones(tmp_path):
    ids = np.arange(50, dtype=np.uint16)
    for name in ("a.bin", "b.bin"):
        ids.tofile(tmp_path / name)
    fmt = TokensFormat(20, "uint16")
    check_rows(Dataset.from_path("d", tmp_path, fmt=fmt), windows(ids, 20) * 2)
    for sizes in (True, False):
        with serve({"x.dump": ids.tobytes()}, sizes=sizes) as site:
            dataset = Dataset.from_path("d", f"{site.url}/x.dump", fmt=fmt, index_dir=tmp_path / "index")
            check_rows(dataset, windows(ids, 20))


def npy(array):
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no npy header"),
        (b"junk" * 99, "no npy header"),
        (npy(np.arange(9))[:40], "no npy header"),
        (
            npy(np.arange(9))[:-1],
            r"its header says \(9,\) of int64, 200 bytes in all, it has 199: the file is cut short",
        ),
        (npy(np.arange(9)) + b"x", "it has 201"),
        (npy(np.arange(9.0)), "integers in one or two dimensions"),
        (npy(np.zeros((2, 2, 2), int)), "integers in one or two dimensions"),
        (npy(np.zeros((2, 3), int, order="F")), "in C order"),
    ],
)
def test_broken_npy_files_are_read_errors_that_name_the_file(tmp_path, data, message):
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(ReadError, match=rf"a\.npy: .*{message}"):
        len(Dataset.from_path("d", tmp_path / "a.npy"))


def test_a_dump_of_half_a_token_is_a_read_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"123")
    with pytest.raises(ReadError, match=r"a\.bin: 3 bytes are no whole number of uint16 ids"):
        len(Dataset.from_path("d", tmp_path / "a.bin", fmt=TokensFormat(8, "uint16")))


def test_a_dump_that_grows_is_noticed(tmp_path):
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    dataset = Dataset.from_path("d", tmp_path / "a.bin", fmt=TokensFormat(4, "uint16"))
    assert len(dataset) == 3
    os.truncate(tmp_path / "a.bin", 20)
    with pytest.raises(ReadError, match="the file has changed"):
        dataset[0]


@pytest.mark.parametrize("settings", [{"length": 0}, {"length": 2.0}, {"length": True}, {"dtype": "float32"}])
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ConfigError):
        TokensFormat(**settings)


def test_columns(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(3))
    assert Dataset.from_path("d", tmp_path, columns=["input_ids"]).rows == 1
    with pytest.raises(ConfigError, match="no file has column 'text'; the columns are: input_ids"):
        len(Dataset.from_path("d", tmp_path, columns=["text"]))
