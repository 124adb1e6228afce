import dataclasses
import functools
import hashlib
import json
import operator
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import source

from zephon_nodes import Dataset, Pipeline, StateError, StaticMixtureWorkSource
from zephon_nodes.recipe import canonical, describe_function, differences

KEYS = st.text("abcxyz_", min_size=1, max_size=3)
LEAF = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=3)
TREES = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
RECIPES = st.dictionaries(KEYS, TREES, max_size=4)


def shuffled(value):
    """The same tree with every dict in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    return [shuffled(part) for part in value] if isinstance(value, list) else value


@given(RECIPES)
def test_one_recipe_has_one_text_that_reads_back(recipe):
    text = canonical(recipe)
    assert text == canonical(shuffled(recipe)) == canonical(json.loads(text))
    assert json.loads(text) == recipe


@given(RECIPES, RECIPES)
def test_two_recipes_that_differ_have_a_line_for_it(one, other):
    assert bool(differences(one, other)) == (canonical(one) != canonical(other))
    assert not differences(one, shuffled(one))


@given(st.dictionaries(KEYS, LEAF, min_size=1, max_size=5), st.data())
def test_every_setting_that_differs_is_named_with_both_values(settings, data):
    changed = data.draw(st.sets(st.sampled_from(sorted(settings)), min_size=1))
    now = {key: f"now {key}" if key in changed else value for key, value in settings.items()}
    lines = differences({"node": [1, {"in": settings}]}, {"node": [1, {"in": now}]})
    want = [
        f'node[1].in.{key}: {json.dumps(settings[key], ensure_ascii=False)} -> "now {key}"' for key in sorted(changed)
    ]
    assert sorted(lines) == sorted(want)


def test_a_setting_that_only_one_has_is_said_to_be_absent():
    assert differences({"a": 1}, {"a": 1, "b": None}) == ["b: (absent) -> null"]
    assert differences({"a": "(absent)", "l": [1, 2]}, {"l": [1, 2, 3]}) == [
        'a: "(absent)" -> (absent)',
        "l: [1, 2] -> [1, 2, 3]",
    ]


def test_settings_that_only_one_has_are_named_and_not_the_empty_dict_that_the_other_has():
    assert differences({"on_error": {"map": "skip"}}, {"on_error": {}}) == ['on_error.map: "skip" -> (absent)']
    assert differences({"on_error": {}}, {"on_error": {"map": "skip"}}) == ['on_error.map: (absent) -> "skip"']


def test_names_with_dots_do_not_hide_a_difference():
    """Datasets may be called anything: "en.wiki" beside a dataset "en"."""
    assert differences({"d": {"en": {"wiki": 1}}}, {"d": {"en.wiki": 1}})
    assert differences({"d[0]": 1}, {"d": [1, []]})


# functions


def plain(payload):
    return payload


def bound(payload, n=1, *, kind="a"):
    return n, kind


class Method:
    limit = 3

    def __init__(self, n):
        self.n = n
        self.cache = {}
        self._private = object()

    def __call__(self, payload):
        return payload

    def method(self, payload):
        return payload

    @staticmethod
    def static(payload):
        return payload

    @classmethod
    def made(cls, payload):
        return payload


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("n",)
    n: int

    def __call__(self, payload):
        return payload


def closed_over(n):
    def inner(payload):
        return payload, n

    return inner


def counter():
    count = 0

    def inner(payload):
        nonlocal count
        count += 1
        return payload

    return inner


def nested_counter():
    count = 0

    def inner(payload):
        def bump():
            nonlocal count
            count += 1

        bump()
        return payload

    return inner


def late():
    def inner(payload):
        return later

    if len(sys.argv) > 10**6:
        later = 1
    return inner


SEEN = {
    "partial, keyword": lambda n: functools.partial(bound, kind=f"{n}"),
    "partial over a default": lambda n: functools.partial(bound, n=n),
    "partial, position": lambda n: functools.partial(bound, "x", n),
    "partial of partial": lambda n: functools.partial(functools.partial(bound, n=7), kind=n),
    "partial overridden": lambda n: functools.partial(functools.partial(bound, n=7), n=n),
    "partial, list": lambda n: functools.partial(bound, n=[1, {"a": n}]),
    "partial of a method": lambda n: functools.partial(Method(n).method, kind=1),
    "numpy number": lambda n: functools.partial(bound, n=np.int64(n)),
    "closure": closed_over,
    "closure, tuple": lambda n: closed_over((1, (n, "a"))),
    "callable object": Method,
    "method": lambda n: Method(n).method,
    "object with slots": Slotted,
    "itemgetter": operator.itemgetter,
    "module": lambda n: torch.nn.Dropout(n / 10),
}


@pytest.mark.parametrize("kind", SEEN)
def test_a_constant_bound_to_a_function_is_seen(kind):
    one, same, other = (describe_function(SEEN[kind](n)) for n in (2, 2, 3))
    assert one == same
    assert one != other
    assert json.loads(json.dumps(one)) == one


FUNCTIONS = {
    "function": plain,
    "default": bound,
    "builtin": len,
    "method of a builtin": str.upper,
    "bound method of a builtin": "-".join,
    "static": Method.static,
    "class method": Method.made,
    "class": Method,
    "ufunc": np.sqrt,
    "torch": torch.relu,
    "cached": functools.lru_cache(plain),
    "closure not set yet": late(),
    "lambda": lambda payload: payload,
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_any_function_can_be_described_by_its_name(kind):
    described = describe_function(FUNCTIONS[kind])
    assert "None" not in described["function"].split(".")
    assert json.loads(json.dumps(described)) == described
    name = getattr(FUNCTIONS[kind], "__name__", None)
    assert name is None or described["function"].endswith(name)


def test_functions_that_look_alike_are_told_apart():
    described = [describe_function(f)["function"] for f in (np.sqrt, np.square, str.upper, str.lower, bytes.lower, len)]
    assert len(set(described)) == len(described)


@pytest.mark.parametrize("make", [counter, nested_counter])
def test_what_a_function_counts_while_it_runs_is_not_in_the_recipe(make):
    """Else a state can't be loaded in the process that saved it."""
    function = make()
    before = describe_function(function)
    function(1)
    assert describe_function(function) == before


def test_what_an_object_keeps_while_it_runs_is_not_in_the_recipe():
    function = Method(1)
    before = describe_function(function)
    function.cache["a"] = 1
    assert describe_function(function) == before
    assert "_private" not in json.dumps(before)


@pytest.mark.parametrize("version", [2, "b", 0])
def test_a_raised_version_is_another_function(version):
    assert describe_function(plain, version) != describe_function(plain) == describe_function(plain, None)
    assert describe_function(plain, version)["version"] == version


# as a user meets it


def test_a_changed_constant_is_refused_at_the_restore_with_both_values():
    state = Pipeline(source()).map(functools.partial(bound, n=3)).state_dict()
    with pytest.raises(StateError, match=r"nodes\.map\.bound\.n: 3 -> 4"):
        Pipeline(source()).map(functools.partial(bound, n=4)).load_state_dict(state)


def test_several_changes_are_all_named_at_once():
    state = Pipeline(source(seed=1)).map(plain, version=1).shuffle(8).state_dict()
    other = Pipeline(source(seed=2)).map(bound, version=2).shuffle(9)
    with pytest.raises(StateError) as caught:
        other.load_state_dict(state)
    lines = str(caught.value).splitlines()
    for words in (
        ["source.seed", "1 -> 2"],
        ["map.function", "plain", "bound"],
        ["buffer_size", "8 -> 9"],
        ["version", "1 -> 2"],
    ):
        assert any(all(word in line for word in words) for line in lines), words


def a_recipe():
    rows = [{"v": i, "t": {"b": 1, "a": {"x", "y", "z"}}} for i in range(3)]
    datasets = [Dataset.from_rows(name, rows) for name in ("wiki", "news", "code")]
    mixture = StaticMixtureWorkSource(datasets, {"code": 1, "news": "1/3", "wiki": 0.5}, 2)
    return Pipeline(mixture).map(functools.partial(bound, n={"b": 1, "a": 2}, kind="k")).batch(2).recipe


def test_the_recipe_is_the_same_text_in_every_process():
    code = "import test_recipe, hashlib; print(hashlib.sha256(test_recipe.a_recipe().encode()).hexdigest())"
    here = hashlib.sha256(a_recipe().encode()).hexdigest()
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parent)}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert other.stdout.strip() == here
