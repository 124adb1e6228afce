import dataclasses
import gzip
import json
import os
import tracemalloc
import uuid
from unittest import mock

import fsspec
import pytest
import zstandard
from files_over_http import serve
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.errors import ReadError
from zephon_nodes.formats import decompress, jsonl
from zephon_nodes.formats.base import BadRow
from zephon_nodes.formats.jsonl import JsonlFormat
from zephon_nodes.listing import find_files

BOM = b"\xef\xbb\xbf"
ODD = "\u2028 \u2029 \u0085 \x0b \x0c"
LINES = [b'{"a": 1}', b"{}", json.dumps({"b": [1, None]}).encode(), b'{"s": "' + ODD.encode() + b'"}']
LINES += [b"[1]", b"7", b'{"a": ', b"\xff", b'{"s": "\xff"}', b'{"a": 1}}', b"nul", b"\x0b", BOM + b"{}"]
LINES += [b"", b" ", b"\r", b"\t{} \r"]


def opened(path, index_dir, columns=None):
    (file,) = find_files(path, JsonlFormat.suffixes)
    return JsonlFormat().open(dataclasses.replace(file, cache_dir=str(index_dir)), columns)


def write(tmp_path, data, name="a.jsonl"):
    (tmp_path / name).write_bytes(data)
    return opened(tmp_path / name, tmp_path / "index")


def all_rows(shard):
    return [row for unit, n in enumerate(shard.unit_rows.tolist()) for row in shard.read(unit).take(range(n))]


def reference(data):
    rows = []
    for line in (data[3:] if data.startswith(BOM) else data).split(b"\n"):
        if line.strip(b" \t\r"):
            try:
                row = json.loads(line.decode("utf-8"), strict=False)
            except ValueError:
                row = "bad"
            rows.append(row if isinstance(row, dict) else "bad")
    return rows


def plain(rows):
    return ["bad" if isinstance(row, BadRow) else row for row in rows]


@settings(deadline=None)
@given(st.data(), st.lists(st.sampled_from(LINES), max_size=25), st.sampled_from([b"", BOM]), st.integers(1, 40))
def test_random_bytes_give_the_rows_of_a_plain_split(tmp_path_factory, data, lines, start, unit):
    content = start + b"\n".join(lines)
    with mock.patch.object(jsonl, "UNIT_BYTES", unit):
        shard = write(tmp_path_factory.mktemp("jsonl"), content)
    expected = reference(content)
    assert plain(all_rows(shard)) == expected
    assert shard.unit_rows.sum() == len(expected)
    assert shard.unit_bytes.sum() <= len(content)
    order = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9)) if expected else []
    assert plain(shard.take(order)) == [expected[i] for i in order]
    for number, count in enumerate(shard.unit_rows.tolist()):
        picks = data.draw(st.lists(st.integers(0, count - 1), max_size=3))
        before = int(shard.unit_rows[:number].sum())
        assert plain(shard.read(number).take(picks)) == [expected[before + i] for i in picks]


def test_line_separators_inside_strings_cut_nothing(tmp_path):
    rows = [{"id": i, "text": ODD} for i in range(3)]
    lines = [f'{{"id": {row["id"]}, "text": "{row["text"]}"}}'.encode() for row in rows]
    content = BOM + b"\r\n \r\n" + b"\r\n\r\n".join(lines)
    assert all_rows(write(tmp_path, content)) == rows


def test_a_unit_is_the_lines_that_begin_in_the_same_mebibyte(tmp_path):
    assert jsonl.UNIT_BYTES == 1 << 20
    line = b'{"x": "' + b"y" * 1000 + b'"}\n'
    long = b'{"x": "' + b"z" * (3 << 20) + b'"}\n'
    shard = write(tmp_path, line * 1500 + long + line)
    first = -(-(1 << 20) // len(line))
    assert shard.unit_rows.tolist() == [first, 1501 - first, 1]
    assert shard.unit_bytes.tolist() == [first * len(line), (1500 - first) * len(line) + len(long), len(line)]


def test_files_without_lines_are_fine(tmp_path):
    for content in (b"", b"\n", BOM, b" \r\n\n"):
        shard = write(tmp_path, content, f"{len(content)}.jsonl")
        assert shard.unit_rows.tolist() == []
        assert shard.take([]) == []


def test_fields_may_differ_from_line_to_line(tmp_path):
    rows = [{"a": None, "b": 1}] * 2000 + [{"b": "text", "a": 1.5}, {"a": "x"}, {}]
    got = all_rows(write(tmp_path, b"\n".join(json.dumps(row).encode() for row in rows)))
    assert got == rows
    assert [list(row) for row in got[-3:]] == [["b", "a"], ["a"], []]


def test_rows_are_fresh(tmp_path):
    unit = write(tmp_path, b'{"a": [1]}').read(0)
    unit.take([0])[0]["a"].append(2)
    assert unit.take([0]) == [{"a": [1]}]


def test_columns_are_keys_and_missing_ones_are_none(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"b": 1, "a.x": 2, "c": 3}\n{"c": 4}\n[]')
    shard = opened(tmp_path / "a.jsonl", tmp_path, ["a.x", "b"])
    expected = [{"a.x": 2, "b": 1}, {"a.x": None, "b": None}, "bad"]
    assert plain(all_rows(shard)) == plain(shard.take([0, 1, 2])) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": "unfinished', "not JSON: Unterminated string starting at (character 6 of the line); the line: "),
        (b'{"a": 1} x', "not JSON: Extra data (character 9 of the line)"),
        (b'{"a": "\xe9"}', "not UTF-8 at byte 7 of the line (invalid continuation byte)"),
        (b"[1, 2]", "a JSON object was expected, a list came; the line: '[1, 2]'"),
        (b"null", "a JSON object was expected, a NoneType came"),
        (b"[" * 10**6, "JSON that can't be read: maximum recursion depth"),
        (b'{"a": ' + b"1" * 5000 + b"}", "JSON that can't be read: Exceeds the limit"),
    ],
)
def test_a_bad_line_says_why_and_its_neighbours_are_read(tmp_path, line, message):
    rows = all_rows(write(tmp_path, b"{}\n" + line + b"\n{}"))
    assert [rows[0], rows[2]] == [{}, {}]
    assert isinstance(rows[1], BadRow)
    assert str(rows[1].cause).startswith(message)
    assert len(str(rows[1].cause)) < 400


def zst(data):
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


COMPRESSED = [("a.jsonl.gz", gzip.compress), ("a.ndjson.zst", zst), ("A.JSONL.GZ", gzip.compress)]
PLAIN = b"".join(json.dumps({"i": i, "t": "x" * i}).encode() + b"\n" for i in range(300))


@pytest.mark.parametrize(("name", "compress"), COMPRESSED)
def test_compressed_files_give_the_same_rows_and_are_decompressed_once(tmp_path, name, compress, monkeypatch):
    for content in (compress(PLAIN), compress(PLAIN[:900]) + compress(b"") + compress(PLAIN[900:])):
        assert all_rows(write(tmp_path, content, name)) == reference(PLAIN)
    monkeypatch.setattr(decompress, "_decompress", lambda *args: pytest.fail("it is decompressed again"))
    shard = opened(tmp_path / name, tmp_path / "index")
    assert shard.take([7, 3]) == [{"i": 7, "t": "x" * 7}, {"i": 3, "t": "xxx"}]
    assert shard.file.name == name


@pytest.mark.parametrize(("name", "compress"), COMPRESSED[:2])
@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b[: len(b) // 2], lambda b: b + b"junk", lambda b: b"junk" * 9]
)
def test_a_corrupt_or_cut_stream_is_a_read_error_and_leaves_nothing(tmp_path, name, compress, spoil):
    with pytest.raises(ReadError, match=rf"{name}: can't decompress") as caught:
        write(tmp_path, spoil(compress(PLAIN)), name)
    assert caught.value.path == str(tmp_path / name)
    left = [name for folder, _, names in os.walk(tmp_path / "index") for name in names]
    assert not any(os.path.getsize(tmp_path / "index/copies" / name) for name in left), left


def test_messages_about_a_compressed_file_name_the_file_of_the_user(tmp_path):
    shard = write(tmp_path, gzip.compress(PLAIN), "a.jsonl.gz")
    for folder, _, names in os.walk(tmp_path / "index"):
        for name in names:
            os.unlink(os.path.join(folder, name))
    os.unlink(tmp_path / "a.jsonl.gz")
    with pytest.raises(ReadError, match=rf"^{tmp_path}/a\.jsonl\.gz: can't "):
        shard.read(0)


def test_no_room_for_the_decompressed_copy_is_a_read_error_that_says_so(tmp_path):
    (tmp_path / "index").write_bytes(b"no folder")
    with pytest.raises(
        ReadError, match=r"a\.jsonl\.gz: can't write its copy into .*index/copies.*name a folder with room"
    ):
        write(tmp_path, gzip.compress(PLAIN), "a.jsonl.gz")


def test_a_file_that_shrinks_or_grows_after_opening_is_refused(tmp_path):
    shard = write(tmp_path, PLAIN)
    for change in (
        lambda: os.truncate(tmp_path / "a.jsonl", 1000),
        lambda: (tmp_path / "a.jsonl").write_bytes(PLAIN * 2),
    ):
        change()
        for read in (lambda: shard.read(0), lambda: shard.take([299])):
            with pytest.raises(ReadError, match=r"a\.jsonl: the file has changed.*make the Dataset again"):
                read()


def test_remote_files_read_alike_by_ranges(tmp_path):
    url = f"memory://{uuid.uuid4().hex}/a.jsonl"
    fsspec.filesystem("memory").pipe_file(url, PLAIN)
    fsspec.filesystem("memory").pipe_file(f"{url}.gz", gzip.compress(PLAIN))
    assert all_rows(opened(url, tmp_path)) == all_rows(opened(f"{url}.gz", tmp_path)) == reference(PLAIN)
    with serve({"a.jsonl": PLAIN, "b.jsonl.zst": zst(PLAIN)}) as site:
        shard = opened(f"{site.url}/a.jsonl", tmp_path)
        assert all_rows(shard) == all_rows(opened(f"{site.url}/b.jsonl.zst", tmp_path)) == reference(PLAIN)
        site.sent.clear()
        assert [row["i"] for row in shard.take([250, 10, 250])] == [250, 10, 250]
        assert sum(site.sent) < 1000
        opened(f"{site.url}/a.jsonl", tmp_path)
        assert sum(site.sent) < 1000, "the index is there: the file isn't read again"


def test_a_store_without_versions_has_a_compressed_file_decompressed_each_time(tmp_path):
    site_files = {"a.jsonl.gz": gzip.compress(b'{"v": 1}')}
    with serve(site_files, tags=False, sizes=False) as site:
        assert all_rows(opened(f"{site.url}/a.jsonl.gz", tmp_path)) == [{"v": 1}]
        site_files["a.jsonl.gz"] = gzip.compress(b'{"v": 2}')
        assert all_rows(opened(f"{site.url}/a.jsonl.gz", tmp_path)) == [{"v": 2}]


def test_reading_one_row_of_many_holds_little_memory(tmp_path):
    """The file is neither read whole nor kept: it is scanned in blocks, and of its index only the map is held."""
    line = b'{"x": "' + b"y" * 90 + b'"}\n'
    (tmp_path / "a.jsonl").write_bytes(line * 200_000)
    opened(tmp_path / "a.jsonl", tmp_path / "index")
    tracemalloc.start()
    shard = opened(tmp_path / "a.jsonl", tmp_path / "index")
    assert shard.take([199_999]) == [json.loads(line)]
    assert len(shard.read(3).take([5])) == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
