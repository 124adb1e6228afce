import json
import os
import uuid

import fsspec
import pytest
from shards import all_payloads, check_rows

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError, ReadError


def folder(tmp_path, files):
    for name, data in files.items():
        path = tmp_path / "d" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return tmp_path / "d"


def opened(tmp_path, files, **options):
    return Dataset.from_path("d", folder(tmp_path, files), **options)


def lines(*rows):
    return "\n".join(map(json.dumps, rows))


def test_captions_of_the_same_name(tmp_path):
    files = {"b.JPG": b"B", "b.txt": "ünï\n", "a.png": b"", "a.caption": "", "sub/c.d.webp": b"C", "e.gif": b"E"}
    dataset = opened(tmp_path, files)
    assert dataset.files == (".", "sub")
    assert dataset.format.name == "images"
    expected = [
        {"file_name": "a.png", "image": b"", "text": ""},
        {"file_name": "b.JPG", "image": b"B", "text": "ünï\n"},
        {"file_name": "e.gif", "image": b"E", "text": None},
        {"file_name": "sub/c.d.webp", "image": b"C"},
    ]
    check_rows(dataset, expected)


def test_metadata_of_the_folder_or_of_one_above(tmp_path):
    said = lines(
        {"file_name": "a.png", "text": "one", "boxes": [[1, 2]]},
        {"file_name": "deep/er/b.png", "score": None},
        {"file_name": "./own/../deep/c.png"},
    )
    files = {"a.png": b"A", "deep/er/b.png": b"B", "deep/c.png": b"C", "metadata.jsonl": said, "own/d.png": b"D"}
    files["own/metadata.jsonl"] = lines({"file_name": "d.png", "label": 3})
    none = {"text": None, "boxes": None, "score": None}
    check_rows(
        opened(tmp_path, files),
        [
            {"file_name": "a.png", "image": b"A"} | none | {"text": "one", "boxes": [[1, 2]]},
            {"file_name": "deep/c.png", "image": b"C"} | none,
            {"file_name": "deep/er/b.png", "image": b"B"} | none,
            {"file_name": "own/d.png", "image": b"D", "label": 3},
        ],
    )


def test_rows_are_fresh(tmp_path):
    dataset = opened(tmp_path, {"a.png": b"A", "metadata.jsonl": lines({"file_name": "a.png", "l": [1]})})
    dataset[0]["l"].append(2)
    dataset.shard(0).read(0).take([0])[0]["l"].append(2)
    unit = dataset.shard(0).read(0)
    unit.take([0])[0]["l"].append(2)
    assert dataset[0]["l"] == unit.take([0])[0]["l"] == [1]


def test_without_the_image_column_images_are_not_read(tmp_path):
    files = {"a.png": b"A", "a.txt": "one"}
    dataset = opened(tmp_path, files, columns=["text"])
    os.unlink(tmp_path / "d/a.png")
    check_rows(dataset, [{"text": "one"}])
    with pytest.raises(ConfigError, match="no file has column 'label'; the columns are: file_name, image, text"):
        len(opened(tmp_path, files, columns=["label"]))


def test_a_unit_is_about_a_mebibyte(tmp_path):
    dataset = opened(tmp_path, {f"{i:02d}.png": bytes(200_000) for i in range(12)} | {"z.png": bytes(5 << 20)})
    assert dataset.unit_rows.tolist() == [6, 5, 2]
    assert dataset.unit_bytes.sum() == 12 * 200_000 + (5 << 20)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            lines({"file_name": "gone.png"}),
            r"metadata\.jsonl: it has a line for .*gone\.png, and there is no such image",
        ),
        ('{"text": 1}', 'line 1 is no JSON object with a "file_name": KeyError'),
        ('{"file_name": "a.png"}\n{', "line 2 is no JSON object"),
        ("[]", "line 1 is no JSON object"),
        (lines({"file_name": "a.png"}, {"file_name": "./a.png"}), r"line 2 names .*a\.png a second time"),
    ],
)
def test_metadata_that_lies_is_a_read_error(tmp_path, said, message):
    with pytest.raises(ReadError, match=message):
        opened(tmp_path, {"a.png": b"A", "metadata.jsonl": said})


def test_an_image_that_changed_or_is_gone_is_a_read_error_that_names_it(tmp_path):
    dataset = opened(tmp_path, {"a.png": b"A", "b.png": b"B"})
    (tmp_path / "d/a.png").write_bytes(b"longer")
    os.unlink(tmp_path / "d/b.png")
    for place, name in enumerate(("a.png", "b.png")):
        with pytest.raises(ReadError, match=name):
            dataset.shard(0).take([place])


def test_a_caption_that_is_no_utf8_is_a_bad_row(tmp_path):
    found = all_payloads(opened(tmp_path, {"a.png": b"A", "a.txt": b"\xff", "b.png": b"B", "b.txt": "b"}))
    assert "a.txt: not UTF-8" in found[0]
    assert found[1] == {"file_name": "b.png", "image": b"B", "text": "b"}


def test_other_files_in_the_folder_are_an_error_unless_the_format_is_named(tmp_path):
    files = {"a.png": b"A", "b.jsonl": "{}"}
    with pytest.raises(ConfigError, match="files of several formats"):
        opened(tmp_path, files)
    check_rows(opened(tmp_path, files, fmt="images"), [{"file_name": "a.png", "image": b"A"}])
    check_rows(Dataset.from_path("d", tmp_path / "d/*.png"), [{"file_name": "a.png", "image": b"A"}])


def test_remote_folders(tmp_path):
    url = f"memory://{uuid.uuid4().hex}"
    for name, data in {"x/a.png": b"A", "x/a.txt": b"one", "b.png": b"B"}.items():
        fsspec.filesystem("memory").pipe_file(f"{url}/{name}", data)
    rows = [{"file_name": "b.png", "image": b"B"}, {"file_name": "x/a.png", "image": b"A", "text": "one"}]
    check_rows(Dataset.from_path("d", url), rows)
