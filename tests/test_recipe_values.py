"""Settings as values of a recipe file."""

import functools
import inspect
import operator

import numpy as np
import pytest
from graphs import Delay, copies, double
from hypothesis import given
from hypothesis import strategies as st

from multimodal.augment import compose, random_flip, random_resized_crop
from multimodal.nodes import LoadImages, ResizeImages
from multimodal.vision import FixedGrid
from zephon_nodes import ConfigError, Map, PackSequences, StatefulTransform, Switch, Tokenize
from zephon_nodes.recipe_values import check_known, decoded, encoded, located, parameters, wants_function
from zephon_nodes.toml_text import dumps, parse

plain = st.text("abc", max_size=3) | st.booleans() | st.integers(-9, 9) | st.none()
values = st.recursive(
    plain, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text("xyz", max_size=3), v, max_size=3), max_leaves=8
)


@given(values)
def test_plain_values_come_back_through_toml(value):
    assert decoded(parse(dumps({"v": encoded(value)}), "here")["v"], "here") == value


def test_functions_classes_and_what_is_bound_to_them():
    for thing in (double, Delay, FixedGrid):
        assert decoded(encoded(thing), "here") is thing
        assert decoded(encoded(thing, True), "here", True) is thing
    back = decoded(encoded(functools.partial(copies, 1, n=2)), "here")
    assert (back.func, back.args, back.keywords) == (copies, (1,), {"n": 2})
    assert encoded(functools.partial(Delay, n=3), True) == {"partial": "graphs:Delay", "n": 3}


def test_objects_that_are_their_settings():
    assert encoded(FixedGrid(size=32)) == {"call": "multimodal.vision:FixedGrid", "size": 32}
    assert decoded(encoded(FixedGrid(size=32)), "here") == FixedGrid(size=32)
    augment = compose(functools.partial(random_resized_crop, size=(24, 24)), random_flip)
    assert decoded(encoded(augment), "here").settings == augment.settings.replace("(24, 24)", "[24, 24]")


def test_numbers_of_numpy_are_plain_ones():
    assert encoded(np.float32(0.5)) == 0.5 and type(encoded(np.int64(3))) is int


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (lambda row: row, "a lambda"),
        (operator.itemgetter("text"), "a itemgetter has no form|can't be made anew"),
        ({1: 2}, "a dict with the key 1"),
        ({"call": 2}, "a dict with the key 'call'"),
        (functools.partial(copies, arguments=1), "a partial with the keyword 'arguments'"),
        (np.zeros(3), "ndarray"),
    ],
)
def test_what_can_not_be_written_says_why(value, why):
    with pytest.raises(ValueError, match=why):
        encoded(value)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"import": "graphs:double", "n": 1}, "here: unknown key 'n'"),
        ({"call": "graphs:Delay", "m": 1}, "here: 'graphs:Delay' doesn't take these settings"),
        ({"partial": "graphs.double"}, "here: .* is no import path"),
    ],
)
def test_what_can_not_be_read_says_where(value, said):
    with pytest.raises(ConfigError, match=said):
        decoded(value, "here")


def test_which_settings_are_functions_is_told_by_annotations():
    assert wants_function(Map) == {"function"}
    assert wants_function(StatefulTransform) == {"factory"}
    assert wants_function(PackSequences) == {"length_fn"}
    assert wants_function(Switch) >= {"by"}
    assert wants_function(ResizeImages) == {"augment"}
    assert wants_function(Tokenize) == set()


def test_settings_that_a_class_hands_on_to_its_base_are_among_its_parameters():
    names = list(parameters(LoadImages))
    assert names[:2] == ["vision", "field"]
    assert {"scaled", "root", "background", "name", "parallelism", "on_error"} <= set(names)
    assert "source" not in names and "settings" not in names
    assert list(parameters(Map)) == list(inspect.signature(Map).parameters)[1:]


def test_the_nearest_name_is_told():
    with pytest.raises(ConfigError, match=r"here: unknown key 'sead'; did you mean 'seed'. There are seed, lanes"):
        check_known("here", ["seed", "sead"], ["seed", "lanes"])
    with pytest.raises(ConfigError, match=r"unknown key 'q'. There are none"):
        check_known("here", ["q"], [])


def test_a_tokenizer_beside_the_file_is_found_and_a_hub_id_left_alone(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    assert located("tokenizer", "tokenizer.json", tmp_path) == str(tmp_path / "tokenizer.json")
    assert located("tokenizer", "gpt2", tmp_path) == "gpt2"
    assert located("field", "tokenizer.json", tmp_path) == "tokenizer.json"
    assert located("tokenizer", "tokenizer.json", None) == "tokenizer.json"
