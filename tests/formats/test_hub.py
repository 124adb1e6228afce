import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hub_server import serve_hub

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError
from zephon_nodes.hub import _matches

pytest.importorskip("huggingface_hub")

from huggingface_hub import HfFileSystem


def parquet(*values):
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": values}), sink)
    return sink.getvalue()


def jsonl(*values):
    return "\n".join(json.dumps({"x": value}) for value in values).encode()


CONVERSION = "refs/convert/parquet"
REPOS = {
    "org/plain": {
        "main": {
            "README.md": b"",
            "data/train-00000-of-00002.parquet": parquet(1, 2),
            "data/train-00001-of-00002.parquet": parquet(3),
            "data/test-00000-of-00001.parquet": parquet(4),
        },
        "old": {"train.jsonl": jsonl("old")},
    },
    "org/card": {
        "main": {
            "en/a.jsonl": jsonl("a"),
            "en/deep/b.jsonl": jsonl("b"),
            "en/c.jsonl": jsonl("c"),
            "de/x.parquet": parquet("x"),
            "notes.json": b"{}",
        }
    },
    "org/odd": {
        "main": {"blob.dat": b"?"},
        CONVERSION: {
            "default/train/0000.parquet": parquet(7),
            "default/train/0001.parquet": parquet(8),
            "other/partial-test/0000.parquet": parquet(9),
        },
    },
    "org/empty": {"main": {"blob.dat": b"?"}},
}
CARDS = {
    "org/card": {
        "configs": [
            {
                "config_name": "en",
                "default": True,
                "data_files": [
                    {"split": "train", "path": ["en/[ab].jsonl", "en/**/b.jsonl"]},
                    {"split": "test", "path": "en/c*"},
                ],
            },
            {"config_name": "de", "data_dir": "de", "data_files": "*.parquet"},
        ]
    }
}


@pytest.fixture(scope="module")
def hub():
    with serve_hub(REPOS, cards=CARDS) as served:
        yield served


def opened(hub, path, **options):
    HfFileSystem.clear_instance_cache()
    return Dataset.from_path("d", path, storage_options={"endpoint": hub.url, "token": False}, **options)


def values(dataset):
    return [row["x"] for row in dataset]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hf://org/plain/train", [1, 2, 3]),
        ("hf://org/plain/test/", [4]),
        ("hf://org/plain@old/train", ["old"]),
        ("hf://org/plain/data/train", [1, 2, 3]),
        ("hf://org/card/train", ["a", "b"]),
        ("hf://org/card/en/test", ["c"]),
        ("hf://org/card/de/train", ["x"]),
        ("hf://org/odd/train", [7, 8]),
        ("hf://org/odd/default/train", [7, 8]),
        ("hf://datasets/org/plain/data/train-00001-of-00002.parquet", [3]),
        (["hf://org/plain/test", "hf://org/odd/train"], [4, 7, 8]),
    ],
)
def test_names_of_the_hub(hub, path, expected, tmp_path):
    dataset = opened(hub, path, index_dir=tmp_path)
    assert values(dataset) == expected
    assert dataset.given["path"] == path


def test_the_commit_is_pinned(hub):
    dataset = opened(hub, "hf://org/plain/train")
    assert f"@{hub.sha('org/plain', 'main')}/data/train-00000" in dataset.path_of(0)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("hf://org", r"a dataset of the hub is hf://org/name\[@revision\]\[/config\]/split"),
        ("hf://org/plain", "a dataset of the hub is"),
        ("hf://org/plain/a/b/c", "a dataset of the hub is"),
        ("hf://org/nope/train", "the hub has no dataset 'org/nope', or it needs a token"),
        ("hf://org/plain@nope/train", "the hub has no dataset 'org/plain' at revision 'nope'"),
        ("hf://org/card/valid", "the dataset has no split en/valid; it has en/train, en/test, de/train"),
        ("hf://org/card/fr/train", "the dataset has no split fr/train"),
        ("hf://org/odd/valid", "there is no such split; the Parquet conversion has default/train, other/partial-test"),
        ("hf://org/odd/test", "the hub's Parquet conversion holds only a part of this split"),
        ("hf://org/empty/train", "neither a card nor the files' names say what this split is"),
    ],
)
def test_what_is_not_there_is_named(hub, path, message):
    with pytest.raises(ConfigError, match=message):
        opened(hub, path)


def test_a_format_that_the_split_does_not_have(hub):
    with pytest.raises(ConfigError, match="no file of format 'mds' is of this split"):
        opened(hub, "hf://org/plain/train", fmt="mds")


def test_tokens_and_passing_faults():
    with serve_hub(REPOS, token="secret") as private:
        with pytest.raises(ConfigError, match="it needs a token"):
            opened(private, "hf://org/plain/test")
        HfFileSystem.clear_instance_cache()
        options = {"endpoint": private.url, "token": "secret"}
        private.failing = 1
        dataset = Dataset.from_path("d", "hf://org/plain/test", storage_options=options)
        private.failing = 1
        assert values(dataset) == [4]
        assert "secret" not in repr(dataset)


@pytest.mark.parametrize(
    ("file", "pattern", "fits"),
    [
        ("data/train-1.parquet", "data/train-*", True),
        ("data/x/train-1", "data/train-*", False),
        ("data/x/train-1", "data/*", False),
        ("data/x/train-1", "data/**", True),
        ("train-1", "**/train-*", True),
        ("a/b/train-1", "**/train-*", True),
        ("a-1.b", "a-[0-9].b", True),
        ("a-x.b", "a-[0-9].b", False),
        ("a-x.b", "a-?.b", True),
        ("a+x.b", "a+x.b", True),
        ("axxb", "a.xb", False),
    ],
)
def test_patterns(file, pattern, fits):
    assert _matches(file, pattern) == fits
