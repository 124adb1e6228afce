"""A whole graph as a file: the same recipe and the same data come back, and what can't be isn't written or read."""

import sys

import pytest
from graphs import double
from hypothesis import given
from hypothesis import strategies as st
from recipes_for_tests import datasets, pipelines, write_files
from runs import plain

from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.recipe import recipe_hash

pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("data"))


@given(st.data())
def test_a_random_graph_has_the_same_recipe_when_read_back(folder, data):
    pipeline = data.draw(pipelines(folder))
    text = pipeline.to_toml()
    back = Pipeline.from_toml(text)
    assert back.recipe == pipeline.recipe
    assert back.recipe_hash == pipeline.recipe_hash == recipe_hash(pipeline.recipe)
    assert back.to_toml() == text


def packed(folder, **options):
    source = StaticMixtureWorkSource(datasets(folder), {"code": 1, "news": 0.5, "wiki": "1/3"}, 4, 16, 2, seed=3)
    return Pipeline(source, **options).map(double).tokenize(folder / "tokenizer.json").pack_flat(64).batch(2)


def test_the_data_are_the_same_and_a_state_goes_over(folder):
    first = packed(folder, runner="inline")
    second = Pipeline.from_toml(first.to_toml(), runner="inline")
    want = [plain_tokens(batch) for batch in first]
    assert [plain_tokens(batch) for batch in second] == want
    stopped = iter(second)
    for _ in range(4):
        next(stopped)
    moved = packed(folder, runner="inline")
    moved.load_state_dict(second.state_dict())
    assert [plain_tokens(batch) for batch in moved] == [plain_tokens(batch) for batch in stopped]


def plain_tokens(batch):
    return [row["input_ids"].tolist() for row in plain(batch)]


def test_a_file_names_its_neighbours_by_relative_paths(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (folder / "recipe.toml").write_text(
        """
[[datasets]]
name = "wiki"
path = "*.parquet"

[source]
num_lanes = 4

[[nodes]]
op = "tokenize"
tokenizer = "tokenizer.json"

[options]
prefetch = 2
"""
    )
    with Pipeline.from_toml(folder / "recipe.toml", runner="inline") as pipeline:
        assert "input_ids" in next(iter(pipeline))
        assert pipeline._options == {"prefetch": 2, "runner": "inline"}
    assert Pipeline.from_toml(str(folder / "recipe.toml"), prefetch=9)._options == {"prefetch": 9}


def test_run_options_are_written_without_those_of_a_rank(folder):
    text = packed(folder, on_error="skip", rank=1, world_size=2, prefetch=4, max_errors=3).to_toml()
    assert text.endswith('[options]\non_error = "skip"\nmax_errors = 3\n')
    assert Pipeline.from_toml(text)._options == {"on_error": "skip", "max_errors": 3}


def test_the_hash_is_that_of_the_data_and_not_of_the_text(folder):
    text = packed(folder).to_toml()
    again = Pipeline.from_toml("# another text\n" + text + "\n[options]\nprefetch = 9\n")
    assert again.recipe_hash == packed(folder).recipe_hash
    assert Pipeline.from_toml(text.replace("seed = 3", "seed = 4")).recipe_hash != again.recipe_hash
    assert len(again.recipe_hash) == 64


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[source]", "[sorce]"), "unknown key 'sorce'; did you mean 'source'"),
        (
            ('op = "pack_flat"', 'op = "pack_flad"'),
            r"nodes\[2\] \(pack_flad\): unknown node 'pack_flad'; did you mean 'pack_flat'",
        ),
        (("max_length", "max_len"), r"nodes\[2\] \(pack_flat\): unknown setting 'max_len'; did you mean 'max_length'"),
        (("graphs:double", "graphs:doubel"), r"nodes\[0\] \(map\): function: 'graphs:doubel' isn't there"),
        (("num_lanes", "lanes"), "source: unknown key 'lanes'; did you mean 'num_lanes'"),
        (("version = 1", "version = 2"), "version 2, but this zephon_nodes reads version 1"),
        (("version = 1", "version = 1\noptions = {rank = 1}"), "options: unknown option 'rank'"),
        (
            ("version = 1", "version = 1\nread = {parallel = 1}"),
            "read: unknown setting 'parallel'; did you mean 'parallelism'",
        ),
        (("[[nodes]]", "[nodes]"), "isn't TOML|nodes must be a list of tables"),
        (('name = "wiki"', 'name = "news"'), r"datasets\[2\] \(news\): a dataset of this name stands before"),
        (("seed = 3", "seed = 3\nseed = 4"), "isn't TOML"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_file_key_and_the_nearest_name(folder, tmp_path, change, said):
    path = tmp_path / "run.toml"
    path.write_text(packed(folder).to_toml().replace(*change))
    with pytest.raises(ConfigError, match=said) as caught:
        Pipeline.from_toml(path)
    assert str(caught.value).startswith(str(path))


def test_datasets_that_no_source_uses_are_refused(folder):
    text = packed(folder).to_toml().replace('datasets = ["code", "news", "wiki"]', 'datasets = ["code", "news"]')
    text = text.replace(', wiki = "2/11"', "")
    with pytest.raises(ConfigError, match=r"the recipe: datasets \['wiki'\] are in no source"):
        Pipeline.from_toml(text)


def test_files_that_are_not_there_and_things_that_are_no_files(tmp_path):
    with pytest.raises(ConfigError, match=r"recipe file .*none.toml can't be read: .*No such file"):
        Pipeline.from_toml(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="by its path or as TOML text, got int"):
        Pipeline.from_toml(3)
    with pytest.raises(ConfigError, match="storage_options: unknown dataset 'x'"):
        Pipeline.from_toml("version = 1\n", storage_options={"x": {}})


def test_what_has_no_form_names_the_node(folder):
    with pytest.raises(ConfigError, match=r"node 'map': function=.* a lambda has no import path"):
        Pipeline(StaticMixtureWorkSource(datasets(folder))).map(lambda row: row).to_toml()
    with pytest.raises(ConfigError, match="dataset 'd' can't be written"):
        Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", [1])])).to_toml()
    with pytest.raises(ConfigError, match="runner= is a function"):
        packed(folder, runner=lambda make, plan: None).to_toml()


class Hidden:
    """Looks like its settings, and isn't."""

    def __init__(self, n=1):
        self.n = n
        self.twice = 2 * n

    def __call__(self, row):
        return row


def test_what_would_come_back_as_another_recipe_is_not_written(folder):
    function = Hidden(3)
    function.twice = 7
    pipeline = Pipeline(StaticMixtureWorkSource(datasets(folder))).map(function)
    with pytest.raises(ConfigError, match=r"read back it would differ: .*twice: 7 -> 6"):
        pipeline.to_toml()
    function.twice = 6
    assert 'call = "test_recipe_file:Hidden", n = 3' in pipeline.to_toml()
