"""How a mixture in tokens is asked for."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes import ConfigError, TokenEstimation

POSITIVE = st.floats(1e-9, 1e12) | st.integers(1, 10**9) | st.fractions(Fraction(1, 10**6), 10**6)


@given(POSITIVE)
def test_a_ratio_is_kept_to_the_nearest_32nd_power_of_a_half(number):
    kept = TokenEstimation({"a": number}).given["a"]
    assert kept > 0 and kept * 2**32 == int(kept * 2**32)
    assert abs(kept - Fraction(number)) <= Fraction(1, 2**32)
    assert TokenEstimation({"a": kept}).given["a"] == kept
    assert TokenEstimation({"a": str(kept)}).given["a"] == kept, "as a recipe writes it"


def test_numbers_of_numpy_and_files_are_taken(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps({"wiki": 812.5, "новости": "5/2"}))
    for given_ in (path, str(path), {"wiki": np.float64(812.5), "новости": np.float32(2.5)}):
        assert TokenEstimation(given_).given == {"wiki": Fraction(1625, 2), "новости": Fraction(5, 2)}
    assert TokenEstimation().given == {}


@pytest.mark.parametrize("wrong", [0, -1, 0.0, float("nan"), float("inf"), True, "many", "1/0", None, [3]])
def test_what_is_no_positive_number_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match="tokens per row of 'wiki' must be a positive number, got"):
        TokenEstimation({"wiki": wrong})


@pytest.mark.parametrize("text", ["", "[1, 2]", "7", "{"])
def test_a_file_that_is_no_dict_is_refused(tmp_path, text):
    path = tmp_path / "tokens.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"TokenEstimation.*tokens per row"):
        TokenEstimation(path)


@pytest.mark.parametrize("given_", ["missing.json", 7, [("a", 1)]])
def test_what_is_neither_a_dict_nor_a_file_is_refused(given_):
    with pytest.raises(ConfigError, match=r"TokenEstimation"):
        TokenEstimation(given_)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tolerance": 0}, "tolerance must be a relative error between 0 and 1, got 0"),
        ({"tolerance": 1}, "tolerance .* got 1"),
        ({"tolerance": "0.1"}, "tolerance .* got '0.1'"),
        ({"most_rows": 10}, "most_rows must be an integer of at least 64, got 10"),
        ({"most_rows": 1e4}, "most_rows must be an integer of at least 64, got 10000.0"),
    ],
)
def test_bounds_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        TokenEstimation(**settings)
