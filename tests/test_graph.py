"""Graph: names, recipe and plan of a chain of nodes."""

import json

import numpy as np
import pytest
from runs import source
from tokenizers_for_tests import train_tokenizer

from zephon_nodes import ConfigError, Node, Pipeline
from zephon_nodes.graph import Graph
from zephon_nodes.plan import chain
from zephon_nodes.recipe import canonical


def upper(payload):
    return payload


def lower(payload):
    return payload


class Hold:
    def push(self, payload):
        yield payload


class Let:
    def push(self, payload):
        yield payload


def start():
    return Pipeline(source([{"text": "a b", "input_ids": [1, 2, 3, 4, 5]}] * 8))


def recipe(pipeline, **options):
    return Graph(pipeline.node, **options).recipe(pipeline.node.work_source.recipe())


def test_nodes_go_from_the_source_to_the_root():
    pipeline = start().map(upper).shuffle(3).batch(2)
    assert [node.kind for node in chain(pipeline.node)] == ["read", "map", "shuffle", "batch"]
    assert Graph(pipeline.node).nodes[-1] is pipeline.node


def test_names_are_the_kinds_numbered_from_the_second_on_and_given_names_stay():
    pipeline = start().map(upper).map(upper, name="map_2").map(upper).filter(upper, name="x").map(upper)
    assert Graph(pipeline.node).names == ["read", "map", "map_2", "map_3", "x", "map_4"]


def test_a_name_given_twice_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"different names, got \['x'\] more than once; pass another name="):
        Graph(start().map(upper, name="x").filter(upper, name="x").node)


CHANGES = {
    "map": (lambda p, **s: p.map(**{"function": upper, **s}), [{"function": lower}, {"version": 2}, {"name": "x"}]),
    "filter": (lambda p, **s: p.filter(**{"function": upper, **s}), [{"function": lower}, {"version": 2}]),
    "flat_map": (lambda p, **s: p.flat_map(**{"function": upper, **s}), [{"function": lower}, {"version": "b"}]),
    "map_group": (lambda p, **s: p.map_group(**{"function": list, "size": 4, **s}), [{"size": 5}, {"function": tuple}]),
    "stateful_transform": (
        lambda p, **s: p.stateful_transform(**{"factory": Hold, **s}),
        [{"factory": Let}, {"version": 1}],
    ),
    "shuffle": (lambda p, **s: p.shuffle(**s), [{"buffer_size": 9}, {"seed": 1}]),
    "group_by_length": (lambda p, **s: p.group_by_length(**s), [{"window": 9}, {"run": 3}, {"seed": 1}]),
    "ensure_mixture": (
        lambda p, **s: p.ensure_mixture(**s),
        [{"buffer_size": 9}, {"weight_by": "tokens"}, {"mixture": {"d": 1}}, {"strict": True}],
    ),
    "fill_in_the_middle": (
        lambda p, **s: p.fill_in_the_middle(**{"prefix_id": 7, "middle_id": 8, "suffix_id": 9, **s}),
        [{"prefix_id": 6}, {"middle_id": 6}, {"suffix_id": 6}, {"rate": 0.1}, {"suffix_first": 1}, {"keep": (1, 1)}],
    ),
    "decode_text": (lambda p, **s: p.decode_text(**s), [{"fields": ("text", "input_ids")}]),
    "tokenize": (
        lambda p, **s: p.tokenize(**{"tokenizer": train_tokenizer(), **s}),
        [{"field": "t"}, {"output": "ids"}, {"keep_fields": False}, {"eos": None}, {"max_length": 9}],
    ),
    "pack_flat": (
        lambda p, **s: p.pack_flat(**{"max_length": 8, "algorithm": "best_fit", **s}),
        [{"max_length": 9}, {"algorithm": "first_fit"}, {"num_bins": 3}, {"max_documents": 2}, {"overlong": "drop"}]
        + [{"homogeneity": "component"}, {"fields": ["input_ids2"]}, {"pad_token_id": 3}],
    ),
    "pack_sequences": (
        lambda p, **s: p.pack_sequences(**{"target_length": 8, **s}),
        [{"target_length": 9}, {"algorithm": "best_fit"}, {"num_bins": 3}, {"max_documents": 2}, {"overlong": "drop"}],
    ),
    "batch": (
        lambda p, **s: p.batch(**{"microbatch_size": 2, **s}),
        [{"drop_last": True}, {"pad_token_id": 3}, {"max_tokens": 99}],
    ),
    "take": (lambda p, **s: p.take(**{"rounds": 3, **s}), [{"rounds": 4}]),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_every_data_setting_changes_the_recipe_and_none_of_speed_does(kind):
    make, changes = CHANGES[kind]
    plain = recipe(make(start()))
    recipes = [recipe(make(start(), **changed)) for changed in changes]
    assert len({plain, *recipes}) == 1 + len(changes)
    if kind in ("map", "filter", "tokenize", "pack_flat", "batch"):
        assert recipe(make(start(), parallelism=3)) == plain


def test_the_order_of_nodes_and_their_policies_are_in_the_recipe():
    one, other = start().map(upper).filter(upper), start().filter(upper).map(upper)
    assert recipe(one) != recipe(other)
    skips = recipe(one, on_error="skip")
    assert json.loads(skips)["on_error"] == {"read": "skip", "map": "skip", "filter": "skip"}
    assert json.loads(recipe(start().map(upper, on_error="skip")))["on_error"] == {"map": "skip"}
    assert json.loads(recipe(start().map(upper, on_error="raise"), on_error="skip"))["on_error"] == {"read": "skip"}


def test_the_recipe_is_canonical_json():
    text = recipe(start().map(upper).pack_flat(8).batch(2))
    assert canonical(json.loads(text)) == text


def test_a_setting_that_is_no_json_is_an_error_that_names_the_node():
    class Odd(Node):
        kind = "odd"

        def settings(self):
            return {"scale": {1, 2}}

    with pytest.raises(ConfigError, match="odd"):
        recipe(start().then(Odd))


def test_numbers_of_numpy_are_settings_as_well():
    assert recipe(start().fill_in_the_middle(*np.array([7, 8, 9]))) == recipe(start().fill_in_the_middle(7, 8, 9))


TO_TOKENS = [
    (lambda p: p.map(upper).pack_flat(8).batch(2), ["read", "map"]),
    (lambda p: p.filter(upper).tokenize(train_tokenizer()).filter(lower).pack_flat(8), ["read", "filter", "tokenize"]),
    (lambda p: p.switch({"d": lambda n: n}).map(upper).batch(2), ["read", "switch", "map"]),
    (lambda p: p.switch({"d": lambda n: Pipeline(n).tokenize(train_tokenizer()).node}).map(upper), ["read", "switch"]),
    (lambda p: p.batch(2), ["read"]),
]


@pytest.mark.parametrize(("build", "names"), TO_TOKENS)
def test_tokens_are_measured_behind_the_last_tokenizer_or_else_before_packing(build, names):
    pipeline = build(start())
    plan = Graph(pipeline.node).plan_to_tokens(pipeline.node.work_source, 2)
    assert [name for hop in plan.hops for name in hop.names] == names
