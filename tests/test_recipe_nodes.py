"""Nodes as tables of a recipe file."""

import functools

import pytest
from graphs import Pairs, copies, double, keep
from tokenizers_for_tests import save_folder, train_tokenizer

import zephon_nodes
from multimodal.nodes import LoadImages
from multimodal.vision import FixedGrid
from zephon_nodes import Batch, ConfigError, Dataset, Filter, Map, Node, Pipeline, Read, StaticMixtureWorkSource
from zephon_nodes.recipe_nodes import node_classes, node_from, node_table


class Upper(Node):
    """A user's own node."""

    kind = "upper"

    def __init__(self, source, field="text", *, by=None, name=None):
        super().__init__(source, name=name)
        self.field, self.by = field, by

    def settings(self):
        return {"field": self.field}


def pipeline():
    return Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", [{"v": 1, "text": "a"}])]))


def read():
    return pipeline().node


def test_every_node_class_of_the_package_can_be_named():
    public = [getattr(zephon_nodes, name) for name in zephon_nodes.__all__]
    nodes = {n for n in public if isinstance(n, type) and issubclass(n, Node)} - {Node, Read}
    assert set(node_classes().values()) == nodes
    assert node_classes()["pack_flat"] is zephon_nodes.PackFlat and "read" not in node_classes()


@pytest.mark.parametrize(
    ("node", "table"),
    [
        (lambda n: Map(n, double), {"op": "map", "function": "graphs:double"}),
        (lambda n: Map(source=n, function=double, seed=3), {"op": "map", "function": "graphs:double", "seed": 3}),
        (
            lambda n: Filter(n, functools.partial(keep, n=2), name="third", parallelism=2, on_error="skip"),
            {
                "op": "filter",
                "function": {"partial": "graphs:keep", "n": 2},
                "name": "third",
                "parallelism": 2,
                "on_error": "skip",
            },
        ),
        (
            lambda n: LoadImages(n, FixedGrid(size=32), "picture", root="/data", background=(0, 0, 0)),
            {
                "op": "multimodal.nodes:LoadImages",
                "vision": {"call": "multimodal.vision:FixedGrid", "size": 32},
                "field": "picture",
                "root": "/data",
                "background": [0, 0, 0],
            },
        ),
        (lambda n: Upper(n, by=len), {"op": "test_recipe_nodes:Upper", "by": {"import": "builtins:len"}}),
        (lambda n: Batch(n, None, max_tokens=64), {"op": "batch", "max_tokens": 64}),
        (
            lambda n: zephon_nodes.StatefulTransform(n, Pairs, version=2),
            {"op": "stateful_transform", "factory": "graphs:Pairs", "version": 2},
        ),
        (
            lambda n: zephon_nodes.Switch(n, {"d": lambda m: Filter(Map(m, double), len)}, default=lambda m: m),
            {
                "op": "switch",
                "branches": {
                    "d": [{"op": "map", "function": "graphs:double"}, {"op": "filter", "function": "builtins:len"}]
                },
                "default": [],
            },
        ),
    ],
    ids=["map", "keywords", "partial", "object", "own", "none is the default", "class", "switch"],
)
def test_a_table_says_what_was_given_and_gives_it_back(node, table):
    made = node(read())
    assert node_table(made) == table
    back = node_from(table, read(), "here", None)
    assert type(back) is type(made) and back.settings() == made.settings()
    assert node_table(back) == table


def test_a_setting_of_none_that_is_not_the_default_is_said(tmp_path):
    save_folder(tmp_path, train_tokenizer())
    node = pipeline().tokenize(tmp_path / "tokenizer.json", bos=None).node
    assert node_table(node) == {"op": "tokenize", "tokenizer": str(tmp_path / "tokenizer.json"), "bos": {"none": True}}


def test_a_tokenizer_beside_the_file_is_found_from_everywhere(tmp_path):
    save_folder(tmp_path / "tok", train_tokenizer())
    node = node_from({"op": "tokenize", "tokenizer": "tok/tokenizer.json"}, read(), "here", tmp_path)
    assert node.settings() == pipeline().tokenize(tmp_path / "tok").node.settings()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda p: p.map(lambda row: row), "node 'map': function=.* a lambda has no import path"),
        (lambda p: p.map(lambda row: row, name="clean"), "node 'clean': function="),
        (lambda p: p.flat_map(functools.partial(copies, n=object)), None),
        (lambda p: p.tokenize(train_tokenizer()), "node 'tokenize': tokenizer=.* by the path of its file or folder"),
        (lambda p: p.switch({1: lambda n: n}, by=len), "node 'switch': branches=.* keys of branches must be strings"),
    ],
)
def test_what_can_not_be_written_names_the_node_and_the_setting(build, said):
    if said is None:
        assert node_table(build(pipeline()).node)["function"]["n"] == {"import": "builtins:object"}
        return
    with pytest.raises(ConfigError, match=said):
        node_table(build(pipeline()).node)


def test_a_class_of_a_function_has_no_name_and_a_copy_does_not_know_its_settings():
    class Local(Node):
        kind = "local"

    with pytest.raises(ConfigError, match="node 'local' can't be written"):
        node_table(Local(read()))
    with pytest.raises(ConfigError, match="node 'map' is a copy"):
        node_table(Map(read(), double).detached())


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"op": "pack_flatt"}, r"here \(pack_flatt\): unknown node 'pack_flatt'; did you mean 'pack_flat'\?"),
        ({"op": "map", "funktion": "x"}, r"here \(map\): unknown setting 'funktion'; did you mean 'function'\?"),
        ({"op": "map"}, r"here \(map\): the setting 'function' is missing"),
        ({"op": "map", "function": "graphs:dubble"}, r"here \(map\): function: 'graphs:dubble' isn't there"),
        ({"op": "batch", "microbatch_size": 0}, r"here \(batch\): microbatch_size must be"),
        ({"op": "graphs:double"}, r"is no node class but <function double"),
        ({"op": "multimodal.nodes:LoadImage"}, "isn't there"),
        ({"op": 3}, "every node is a table with op"),
        ("map", "every node is a table with op"),
        ({"op": "switch", "branches": {"d": {"op": "map"}}}, r"branches\.d must be a list of nodes"),
        ({"op": "switch", "branches": []}, "branches must be a table of lists of nodes"),
        ({"op": "switch", "branches": {"d": [{"op": "mapp"}]}}, r"branches\.d\[0\] \(mapp\): unknown node 'mapp'"),
    ],
)
def test_what_can_not_be_read_names_place_key_and_the_nearest_name(table, said):
    with pytest.raises(ConfigError, match=said):
        node_from(table, read(), "here", None)
