import gzip
import io
import json
import os
import tarfile
import uuid

import fsspec
import numpy as np
import pytest
import zstandard
from files_over_http import serve
from hypothesis import given, settings
from hypothesis import strategies as st
from shards import all_payloads, check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.formats import webdataset
from zephon_nodes.formats.webdataset import WebDatasetFormat


def tar(members, kind=tarfile.PAX_FORMAT, end=True):
    """A tar of (name, bytes) pairs; with bytes None, a folder."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=kind) as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            info.size = len(data or b"")
            out.addfile(info, io.BytesIO(data or b""))
        end_of_members = out.offset
    return sink.getvalue() if end else sink.getvalue()[:end_of_members]


def opened(tmp_path, data=None, name="a.tar", **options):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    return Dataset.from_path("d", tmp_path / name, index_dir=tmp_path / "index", **options)


def text_rows(n):
    rows = [{"__key__": f"x/{i:03d}", "jpg": os.urandom(i * 7), "txt": f"ü {i}"} for i in range(n)]
    return rows, [(f"{row['__key__']}.{field}", bytes_of(row[field])) for row in rows for field in ("jpg", "txt")]


def bytes_of(value):
    return value.encode() if isinstance(value, str) else value


def test_rows_written_by_webdataset_read_back_equal(tmp_path):
    wds = pytest.importorskip("webdataset")
    rows = [
        {
            "__key__": f"d.ir/{'k' * (i * 9)}{i}",
            "jpg": os.urandom(i),
            "txt": "ünï\u2028" * i,
            "json": {"i": i, "none": None, "deep": [[1], []]},
            "cls": i - 3,
            "seg.png": b"\x89" * i,
            "npy": np.arange(i, dtype=np.float32).reshape(1, -1),
        }
        for i in range(30)
    ]
    with wds.TarWriter(str(tmp_path / "a.tar")) as writer:
        for row in rows:
            writer.write(row)
    check_rows(opened(tmp_path), [{name: row[name] for name in ("__key__", *sorted(row)[1:])} for row in rows])
    raw = opened(tmp_path, fmt=WebDatasetFormat(decode=False))[4]
    assert (raw["cls"], raw["txt"]) == (b"1", ("ünï\u2028" * 4).encode())


NAME = st.text("ab./_", min_size=1, max_size=6)


@settings(deadline=None)
@given(st.lists(st.tuples(NAME, st.binary(max_size=700) | st.none()), max_size=12))
def test_any_members_are_grouped_as_a_simple_loop_groups_them(tmp_path_factory, members):
    members = [(name, data) for name, data in members if name.strip("/") and not name.endswith("/")]
    expected = []
    with tarfile.open(fileobj=io.BytesIO(tar(members))) as whole:
        for member in whole:
            folder, slash, base = member.name.rpartition("/")
            stem, dot, field = base.partition(".")
            if not member.isfile() or not stem or not dot or (base.startswith("__") and base.endswith("__")):
                continue
            if not expected or expected[-1]["__key__"] != folder + slash + stem:
                expected.append({"__key__": folder + slash + stem})
            twice = f"{folder + slash + stem!r} has two members for field {field!r}"
            row = expected[-1]
            row.setdefault("bad", twice) if field in row else row.update({field: whole.extractfile(member).read()})
    dataset = opened(tmp_path_factory.mktemp("tar"), tar(members), fmt=WebDatasetFormat(decode=False))
    assert all_payloads(dataset) == [row.get("bad", row) for row in expected]


@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_and_every_dialect(tmp_path, kind):
    key = "folder.with.dots/" + "é" * 200
    check_rows(opened(tmp_path, tar([(f"{key}.Seg.TXT", b"x")], kind)), [{"__key__": key, "seg.txt": "x"}])


def test_members_that_belong_to_no_row(tmp_path):
    members = [("a", None), ("a/.hidden.txt", b"x"), ("README", b"y"), ("__meta__", b""), ("__i.json__", b"")]
    assert len(opened(tmp_path, tar(members))) == 0
    check_rows(opened(tmp_path, tar([*members, ("a/1.txt", b"")]), "b.tar"), [{"__key__": "a/1", "txt": ""}])


def test_archives_of_no_and_of_one_row_and_of_big_rows(tmp_path):
    for name, members in {
        "0": [],
        "1": [("k.bin", b"x")],
        "big": [("k.bin", os.urandom(3 << 20)), ("l.bin", b"")],
    }.items():
        expected = [{"__key__": member[0][:-4], "bin": member[1]} for member in members]
        check_rows(opened(tmp_path, tar(members), f"{name}.tar"), expected)


def test_a_unit_is_about_a_mebibyte(tmp_path):
    members = [(f"{i}.bin", bytes(100_000)) for i in range(64)]
    dataset = opened(tmp_path, tar(members))
    assert dataset.unit_rows.tolist() == [10, 11, 11, 10, 11, 11]
    assert dataset.unit_bytes.sum() == pytest.approx(64 * 100_600, rel=0.01)


def test_columns_are_read_without_the_others(tmp_path):
    rows, members = text_rows(9)
    sizes = [[name, data + bytes(50_000) if name.endswith("jpg") else data] for name, data in members]
    with serve({"a.tar": tar(sizes)}) as site:
        dataset = Dataset.from_path("d", f"{site.url}/a.tar", index_dir=tmp_path, columns=["txt", "__key__"])
        check_rows(dataset, [{"txt": row["txt"], "__key__": row["__key__"]} for row in rows])
        site.sent.clear()
        assert dataset[7]["txt"] == "ü 7"
        assert sum(site.sent) < 100
    with pytest.raises(ConfigError, match="no file has column 'gif'; the columns are: __key__, jpg, txt"):
        len(opened(tmp_path, tar(members), columns=["gif"]))


def test_a_field_that_a_row_lacks_is_none(tmp_path):
    dataset = opened(tmp_path, tar([("a.txt", b"1"), ("b.jpg", b"2")]), columns=["txt"])
    check_rows(dataset, [{"txt": "1"}, {"txt": None}])


@pytest.mark.parametrize(
    ("name", "compress"),
    [("a.tar.gz", gzip.compress), ("a.TGZ", gzip.compress), ("a.tar.zst", zstandard.ZstdCompressor().compress)],
)
def test_compressed_archives(tmp_path, name, compress):
    rows, members = text_rows(9)
    check_rows(opened(tmp_path, compress(tar(members)), name), rows)
    with pytest.raises(ReadError, match=rf"{name}: can't decompress"):
        len(opened(tmp_path, compress(tar(members))[:-20], name))


def test_an_index_is_built_once_and_a_stale_one_is_noticed(tmp_path, monkeypatch):
    rows, members = text_rows(5)
    scans = []
    scan = webdataset._scan
    monkeypatch.setattr(webdataset, "_scan", lambda *args: scans.append(1) or scan(*args))
    check_rows(opened(tmp_path, tar(members)), rows)
    webdataset._index.cache_clear()
    check_rows(opened(tmp_path), rows)
    assert len(scans) == 1
    dataset = opened(tmp_path)
    assert len(dataset) == 5
    check_rows(opened(tmp_path, tar(members[:4])), rows[:2])
    assert len(scans) == 2
    with pytest.raises(ReadError, match=r"a\.tar: the file has changed"):
        dataset[4]
    for name in os.listdir(tmp_path / "index"):
        os.truncate(tmp_path / "index" / name, 100)
    webdataset._index.cache_clear()
    check_rows(opened(tmp_path), rows[:2])


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_cut_archive_has_its_rows_before_the_cut_and_then_a_bad_one(tmp_path, share):
    rows, members = text_rows(20)
    whole = tar(members, end=False)
    found = all_payloads(opened(tmp_path, whole[: int(len(whole) * share)]))
    assert len(found) > 2
    assert found[:-1] == rows[: len(found) - 1]
    assert found[-1].startswith("the tar is cut short or broken (")


def test_every_cut_is_noticed(tmp_path):
    _, members = text_rows(3)
    whole = tar(members, end=False)
    for size in range(0, len(whole) + 1, 256):
        (tmp_path / f"{size}.tar").write_bytes(whole[:size])
        try:
            found = all_payloads(opened(tmp_path, name=f"{size}.tar"))
        except ReadError as error:
            assert f"{size}.tar: it isn't a tar, or is empty or broken: " in str(error)
            continue
        assert "cut short" in found[-1]


def test_garbage_in_the_middle_is_noticed(tmp_path):
    rows, members = text_rows(5)
    found = all_payloads(opened(tmp_path, tar(members[:5], end=False) + b"\x01" * 5000))
    assert found[:2] == rows[:2]
    assert "no header and no end mark is at byte" in found[2]


@pytest.mark.parametrize("data", [b"", b"junk", b"\x01" * 2000, json.dumps({"a": 1}).encode() * 200])
def test_what_is_no_tar_is_a_read_error(tmp_path, data):
    with pytest.raises(ReadError, match=r"a\.tar: it isn't a tar"):
        len(opened(tmp_path, data))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("k.txt", b"\xff", "member k.txt can't be decoded: 'utf-8' codec"),
        ("k.json", b"{", "member k.json can't be decoded: Expecting property name"),
        ("k.cls", b"two", "member k.cls can't be decoded: invalid literal"),
        ("k.npy", b"\x93NUMPY", "member k.npy can't be decoded: "),
    ],
)
def test_a_member_that_cannot_be_decoded_is_a_bad_row(tmp_path, name, data, message):
    found = all_payloads(opened(tmp_path, tar([("a.txt", b"1"), (name, data), ("z.txt", b"2")])))
    assert found[1].startswith(message)
    assert [found[0], found[2]] == [{"__key__": "a", "txt": "1"}, {"__key__": "z", "txt": "2"}]


def test_remote_archives_are_read_by_ranges(tmp_path):
    rows, members = text_rows(20)
    url = f"memory://{uuid.uuid4().hex}/a.tar"
    fsspec.filesystem("memory").pipe_file(url, tar(members))
    check_rows(Dataset.from_path("d", url, index_dir=tmp_path), rows)
    with serve({"a.tar": tar(members)}) as site:
        dataset = Dataset.from_path("d", f"{site.url}/a.tar", index_dir=tmp_path)
        check_rows(dataset, rows)
        site.sent.clear()
        assert dataset[3] == rows[3]
        assert sum(site.sent) < 3000
