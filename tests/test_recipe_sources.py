"""Datasets and sources as tables of a recipe file."""

import inspect

import fsspec
import pytest
from recipes_for_tests import Backwards, datasets, write_files

from zephon_nodes import Concat, ConfigError, Dataset, Mix, Phases, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.formats.litdata import LitDataFormat
from zephon_nodes.formats.mds import MdsFormat
from zephon_nodes.formats.tokens import TokensFormat
from zephon_nodes.formats.webdataset import WebDatasetFormat
from zephon_nodes.recipe_sources import dataset_from, dataset_table, public, source_from, source_table
from zephon_nodes.recipe_values import decoded
from zephon_nodes.toml_text import dumps, parse


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


def named(folder):
    return {dataset.name: dataset for dataset in datasets(folder)}


def test_a_dataset_remembers_all_that_it_was_given(folder):
    given = datasets(folder, ["wiki"])[0].given
    assert set(given) == set(inspect.signature(Dataset.from_path).parameters) - {"name", "cache"}


def test_a_dataset_there_and_back(folder, monkeypatch):
    monkeypatch.chdir(folder)
    options = {
        "auto_mkdir": False,
        "token": "geheim",
        "client_kwargs": {"endpoint_url": "http://x", "password": "geheim"},
    }
    made = Dataset.from_path("w", "wiki.parquet", "parquet", ["text"], {"auto_mkdir": False}, "index")
    made.given["storage_options"] = options
    table = dataset_table(made)
    assert table == {
        "name": "w",
        "path": str(folder / "wiki.parquet"),
        "format": "parquet",
        "columns": ["text"],
        "index_dir": str(folder / "index"),
        "storage_options": {"auto_mkdir": False, "client_kwargs": {"endpoint_url": "http://x"}},
    }
    assert "geheim" not in str(table)
    table["storage_options"] = {"auto_mkdir": False}
    assert dataset_from(table, "here", None).fingerprint() == made.fingerprint()


FORMATS = [
    LitDataFormat(block_size=64),
    MdsFormat(allow_pickle=True),
    TokensFormat(128, "uint16"),
    WebDatasetFormat(decode=False),
]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_the_settings_of_a_format_go_along(folder, fmt):
    made = datasets(folder, ["code"])[0]
    made.given["fmt"] = fmt
    back = decoded(parse(dumps({"d": dataset_table(made)}), "here")["d"]["format"], "here")
    assert type(back) is type(fmt) and vars(back) == vars(fmt)


def test_a_cache_can_be_named_in_a_file_and_is_not_written(folder, tmp_path):
    cache = {"call": "zephon_nodes.shard_cache:ShardCache", "folder": str(tmp_path), "max_bytes": 1 << 20}
    found = dataset_from({"name": "j", "path": "code.jsonl", "cache": cache}, "here", folder)
    assert found.rows == 60 and "cache" not in dataset_table(found)


def test_lists_patterns_and_urls_keep_their_form(folder, monkeypatch):
    monkeypatch.chdir(folder)
    made = Dataset.from_path("j", ["code.jsonl", f"file://{folder}/news.jsonl"])
    assert dataset_table(made)["path"] == [str(folder / "code.jsonl"), f"file://{folder}/news.jsonl"]
    assert dataset_table(Dataset.from_path("j", "*.jsonl"))["path"] == str(folder / "*.jsonl")


def test_relative_paths_begin_in_the_folder_of_the_file(folder):
    found = dataset_from({"name": "j", "path": ["code.jsonl", "news.jsonl"]}, "here", folder)
    assert found.rows == 60 + 75


def test_secrets_that_come_apart_from_the_file_reach_the_store(folder):
    table = {"name": "j", "path": f"file://{folder}/code.jsonl", "storage_options": {"auto_mkdir": False}}
    found = dataset_from(table, "here", None, {"auto_mkdir": True})
    assert found.given["storage_options"] == {"auto_mkdir": True}
    fsspec.filesystem("memory").pipe("/recipes/code.jsonl", (folder / "code.jsonl").read_bytes())
    asked = []
    far = dataset_from(
        {"name": "j", "path": "memory://recipes/code.jsonl"}, "here", None, lambda: asked.append(1) or {}
    )
    assert far.rows == 60 and asked, "a function gives all of them"
    assert "storage_options" not in dataset_table(far)


def test_names_that_sound_like_secrets_are_left_out_at_any_depth():
    kept = {"endpoint_url": "x", "anon": False, "deep": {"region": "y"}}
    secret = (
        "key",
        "secret",
        "AWS_ACCESS_KEY_ID",
        "sas_token",
        "Password",
        "connection_string",
        "credential",
        "account_key",
    )
    assert (
        public({**kept, **dict.fromkeys(secret, "geheim"), "deep": {"region": "y", "session_token": "geheim"}}) == kept
    )


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"name": "d", "pfad": "x"}, "here: unknown key 'pfad'; did you mean 'path'"),
        ({"name": "d"}, "here: 'path' is missing"),
        ({"path": "x"}, "here: 'name' is missing"),
        ({"name": "d", "path": "nowhere.jsonl"}, "here: .*nowhere.jsonl"),
        ({"name": "d", "path": "wiki.parquet", "columns": "text"}, "here: .*columns must be a list"),
        ("d", "here: a dataset is a table"),
    ],
)
def test_a_dataset_that_can_not_be_read_says_where(folder, table, said):
    with pytest.raises(ConfigError, match=said):
        dataset_from(table, "here", folder)


def test_a_password_in_a_url_is_not_written(folder):
    made = datasets(folder, ["wiki"])[0]
    made.given["path"] = "https://me:geheim@host/wiki.parquet"
    with pytest.raises(ConfigError, match="'wiki' can't be written to a recipe file: its URL holds") as caught:
        dataset_table(made)
    assert "geheim" not in str(caught.value)


def test_rows_of_this_process_are_not_written():
    with pytest.raises(ConfigError, match="dataset 'd' can't be written to a recipe file: it isn't made of files"):
        dataset_table(Dataset.from_rows("d", [1]))


def test_a_mixture_by_size_stays_one_and_defaults_are_not_said(folder):
    assert source_table(StaticMixtureWorkSource(datasets(folder))) == {"datasets": ["code", "news", "wiki"]}


def test_a_source_there_and_back(folder):
    phases = Phases([(0, {"code": 1, "wiki": 0}), (4, {"code": 0.25, "wiki": "3/4"})], ramp="linear", unit="tokens")
    estimation = TokenEstimation({"code": 3.7, "wiki": 2}, tolerance=0.2)
    source = StaticMixtureWorkSource(
        datasets(folder, ["code", "wiki"]), phases, 4, passes=None, token_estimation=estimation
    )
    source = source.measured({"wiki": 2.25}).amended(7, {"news": 1, "wiki": 2}, datasets(folder, ["news"]))
    table = source_table(source)
    assert table["phases"] == [
        {"start": 0, "weights": {"code": "1"}},
        {"start": 4, "weights": {"code": "1/4", "wiki": "3/4"}},
    ]
    assert table["amendments"][0]["at"] == 7 and table["passes"] == {"none": True}
    back = source_from(table, named(folder), "here")
    assert back.recipe() == source.recipe()
    assert back.tokens_per_row == source.tokens_per_row


def test_sources_of_sources(folder):
    of = named(folder)
    parts = [StaticMixtureWorkSource([of[name]], num_lanes=2, seed=k) for k, name in enumerate(of)]
    for source in (Concat(parts), Mix([(parts[0], 1), (Concat(parts[1:]), 0.3)])):
        assert source_from(source_table(source), of, "here").recipe() == source.recipe()


def test_a_source_of_the_users_own_by_its_class(folder):
    found = source_from({"op": "recipes_for_tests:Backwards", "datasets": ["wiki"], "seed": 2}, named(folder), "here")
    assert type(found) is Backwards and found.seed == 2
    with pytest.raises(ConfigError, match="a source of type Backwards can't be written"):
        source_table(found)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"sead": 1}, "here: unknown key 'sead'; did you mean 'seed'"),
        ({"datasets": ["viki"]}, "here: unknown dataset 'viki'; did you mean 'wiki'"),
        ({"mixture": {"wiki": 1}}, "here: the mixture and the datasets name different things"),
        ({"mixture": {"wiki": 1}, "phases": []}, "mixture and phases are both given"),
        ({"ramp": "linear"}, "ramp goes with phases"),
        ({"phases": [{"begin": 0}]}, r"phases\[0\]: unknown key 'begin'"),
        ({"op": "contat"}, "here: unknown source 'contat'; did you mean 'concat'"),
        ({"op": "mix", "parts": [{}], "weights": [1, 2]}, "here: 1 parts, but 2 weights"),
        ({"op": "concat", "parts": [{"seed": 1}, {"sead": 1}]}, r"here: parts\[1\]: unknown key 'sead'"),
        ({"op": "recipes_for_tests:own_pipeline"}, "made a Pipeline, and no WorkSource"),
        ({"op": "recipes_for_tests:Backwards", "lanes": 1}, "doesn't take these settings"),
        ({"amendments": [{"at": 3}]}, r"amendments\[0\]: an amendment needs at"),
        ({"amendments": [{"ad": 3}]}, r"amendments\[0\]: unknown key 'ad'"),
        ({"token_estimation": {"toleranz": 1}}, "token_estimation: unknown key 'toleranz'"),
        ({"num_lanes": 0}, "here: num_lanes must be"),
        ({"datasets": "wiki"}, "here: datasets must be a list of names"),
        ([], "here must be a table"),
    ],
)
def test_a_source_that_can_not_be_read_says_where(folder, table, said):
    with pytest.raises(ConfigError, match=said):
        source_from(table, named(folder), "here")
