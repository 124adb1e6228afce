from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes import ConfigError, MixtureSpec

NAMES = st.text(min_size=1, max_size=5)
POSITIVE = (
    st.integers(1, 10**9)
    | st.floats(min_value=1e-6, max_value=1e6)
    | st.fractions(min_value=Fraction(1, 1000), max_value=1000)
    | st.decimals("0.001", "1000", places=3)
)


@given(st.dictionaries(NAMES, POSITIVE, min_size=1, max_size=6))
def test_weights_are_exact_fractions_that_sum_to_one_in_the_given_proportions(weights):
    spec = MixtureSpec(weights)
    assert sum(spec.values()) == 1
    total = sum(Fraction(str(weight)) for weight in weights.values())
    assert dict(spec) == {name: Fraction(str(weight)) / total for name, weight in weights.items()}
    assert all(isinstance(weight, Fraction) for weight in spec.values())


@given(st.dictionaries(NAMES, POSITIVE, min_size=1, max_size=6), st.integers(1, 1000))
def test_only_proportions_count(weights, factor):
    scaled = {name: Fraction(str(weight)) * factor for name, weight in reversed(list(weights.items()))}
    assert MixtureSpec(weights) == MixtureSpec(scaled)
    assert MixtureSpec(MixtureSpec(weights)) == MixtureSpec(weights)


@pytest.mark.parametrize(
    ("weight", "exact"),
    [
        (0.1, "1/10"),
        (0.3, "3/10"),
        ("1/3", "1/3"),
        (" 0.25 ", "1/4"),
        (1e-9, "1/1000000000"),
        (Fraction(2, 7), "2/7"),
        (Decimal("0.7"), "7/10"),
        (np.float64(0.1), "1/10"),
        (np.float32(0.1), "1/10"),
        (np.int64(3), "3"),
        (10**30, str(10**30)),
    ],
)
def test_a_number_means_what_it_looks_like(weight, exact):
    """0.1 is one tenth, not 3602879701896397/36028797018963968."""
    spec = MixtureSpec({"a": weight, "b": 1})
    assert spec["a"] / spec["b"] == Fraction(exact)


@pytest.mark.parametrize(
    "weight",
    [0, 0.0, -1, "-0.5", float("nan"), float("inf"), -float("inf"), "", "half", "1/0", "1/-2", None, True, {}, 1j],
    ids=repr,
)
def test_what_is_no_positive_number_is_refused_with_its_name_and_value(weight):
    with pytest.raises(ConfigError, match=r"'news' must be .*positive") as caught:
        MixtureSpec({"wiki": 1, "news": weight})
    assert repr(weight) in str(caught.value)


@pytest.mark.parametrize("weight", [[1], (), (1, 2, 3), (0.5, 3), (0.5, {}), (0, {"a": 1}), ({"a": 1}, 0.5)], ids=repr)
def test_a_nested_mixture_that_is_no_pair_of_weight_and_weights_is_refused(weight):
    with pytest.raises(ConfigError, match=r"weight|mixture"):
        MixtureSpec({"wiki": 1, "news": weight})


@pytest.mark.parametrize("weights", [{}, None, [], ()])
def test_no_weights_at_all_are_refused(weights):
    with pytest.raises(ConfigError, match="at least one"):
        MixtureSpec(weights)


@pytest.mark.parametrize("weights", [[("wiki", 1)], ["wiki"], "wiki", 0.5, {"wiki"}], ids=repr)
def test_what_is_no_dict_is_refused_with_what_came(weights):
    with pytest.raises(ConfigError, match="dict"):
        MixtureSpec(weights)


def test_a_spec_is_a_mapping_that_can_be_read():
    spec = MixtureSpec({"wiki": 3, "news": 1})
    assert (len(spec), list(spec), spec["wiki"], "news" in spec) == (2, ["wiki", "news"], Fraction(3, 4), True)
    assert "'wiki': '3/4'" in repr(spec)
    with pytest.raises(KeyError):
        spec["code"]


def test_of_takes_sizes_when_nothing_is_said():
    assert dict(MixtureSpec.of(None, {"a": 30, "b": 10})) == {"a": Fraction(3, 4), "b": Fraction(1, 4)}


@pytest.mark.parametrize(
    ("mixture", "words"),
    [
        ({"a": 1}, r"without a weight \['b'\].*exactly one weight"),
        ({"a": 1, "b": 1, "c": 1}, r"without a dataset \['c'\]"),
        ({"A": 1, "b": 1}, r"without a dataset \['A'\].*without a weight \['a'\]"),
        ([1, 2], r"dict of weights by dataset name.*\[1, 2\]"),
        (0.5, "dict of weights.*0.5"),
        ({"a": 1, "b": 1, 3: 1, None: 1}, "without a dataset"),
    ],
)
def test_of_refuses_names_that_do_not_match_and_says_which(mixture, words):
    with pytest.raises(ConfigError, match=words):
        MixtureSpec.of(mixture, {"a": 10, "b": 20})


def test_of_keeps_the_weights_that_were_given():
    for mixture in ({"b": 1, "a": 3}, MixtureSpec({"b": 1, "a": 3})):
        assert dict(MixtureSpec.of(mixture, {"a": 1, "b": 1000})) == {"a": Fraction(3, 4), "b": Fraction(1, 4)}
