"""Phases by themselves, and when those counted in tokens or steps begin, against a count chunk by chunk."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import ConfigError, Dataset, MixtureSpec, Phases, StaticMixtureWorkSource, TokenEstimation

WEIGHTS = st.fixed_dictionaries({}, optional={name: st.sampled_from([0, 1, 0.1, "1/3", 17]) for name in "abc"})


def positive(weights):
    return any(weights.values())


@given(WEIGHTS.filter(positive))
def test_shares_are_the_weights_to_a_sum_of_one_and_those_of_zero_rest(weights):
    (phase,) = Phases([(0, weights)]).phases
    total = sum(Fraction(str(weight)) for weight in weights.values())
    assert phase.shares == {name: Fraction(str(w)) / total for name, w in weights.items() if w}


def test_a_phase_takes_a_mixture_spec_with_its_nested_shares():
    (phase,) = Phases([(0, MixtureSpec({"web": (3, {"wiki": 1, "blogs": 2}), "code": 1}))]).phases
    assert phase.shares == {"wiki": Fraction(1, 4), "blogs": Fraction(1, 2), "code": Fraction(1, 4)}


def test_a_phase_takes_nested_weights_as_a_mixture_does():
    """{"web": (0.7, {...})} is how the documentation nests; it needn't be wrapped by hand."""
    weights = {"web": (3, {"wiki": 1, "blogs": 2}), "code": 1}
    assert Phases([(0, weights)]).phases[0].shares == dict(MixtureSpec(weights))


@given(st.integers(1, 300), st.integers(1, 300), WEIGHTS.filter(positive), WEIGHTS.filter(positive))
def test_a_linear_ramp_keeps_to_the_straight_line_within_a_step(first, second, here, there):
    phases = Phases([(0, here), (first, there), (first + second, here)], ramp="linear")
    corners = [(start, phase.shares) for start, phase in zip((0, first, first + second), phases.phases, strict=True)]
    steps = phases.steps([start for start, _ in corners])
    starts = [step.start for step in steps]
    assert starts == sorted(set(starts))
    assert {0, first, first + second} <= set(starts)
    assert steps[-1] == (first + second, phases.phases[-1].shares)
    ends = [*starts[1:], None]
    for (begin, shares), end in zip(steps[:-1], ends, strict=False):
        assert sum(shares.values()) == 1
        low, a = [corner for corner in corners if corner[0] <= begin][-1]
        high, b = next(corner for corner in corners if corner[0] >= end)
        assert high > low, "a step belongs to one ramp"
        for name in "abc":
            have = [
                a.get(name, 0) + (b.get(name, 0) - a.get(name, 0)) * Fraction(at - low, high - low)
                for at in (begin, end)
            ]
            width = abs(b.get(name, 0) - a.get(name, 0)) / min(64, high - low)
            assert min(have) - width <= shares.get(name, 0) <= max(have) + width
            if 64 % (high - low) == 0 or (high - low) % 64 == 0:
                assert shares.get(name, 0) == sum(have) / 2, "the share of a step is that of its middle"


def test_without_a_ramp_a_phase_holds_until_the_next_one():
    phases = Phases([(0, {"a": 1}), (7, {"b": 1})])
    assert [(step.start, step.shares) for step in phases.steps([0, 7])] == [(0, {"a": 1}), (7, {"b": 1})]


# tokens and steps


@st.composite
def counted(draw):
    """(source, unit of the starts in tokens, starts, ramp): phases of at least ten chunks each, over datasets of unlike rows."""
    per_row = {name: draw(st.sampled_from([1, 20, 333.25, 2000])) for name in "abc"}
    weights = draw(st.lists(WEIGHTS.filter(positive), min_size=2, max_size=6))
    weights[-1] = {**weights[-1], "a": 1, "b": 1, "c": 1}
    lanes, chunk_size = draw(st.sampled_from([1, 3, 8])), draw(st.sampled_from([1, 16, 100]))
    most = lanes * chunk_size * 2000
    gaps = draw(st.lists(st.integers(10 * most, 40 * most), min_size=len(weights) - 1, max_size=len(weights) - 1))
    step = draw(st.sampled_from([None, 1, 4096]))
    starts = [sum(gaps[:i]) // (step or 1) for i in range(len(weights))]
    ramp = draw(st.sampled_from(["step", "linear"]))
    phases = Phases(
        list(zip(starts, weights, strict=True)),
        ramp=ramp,
        unit="tokens" if step is None else "steps",
        tokens_per_step=step,
    )
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "abc"]
    source = StaticMixtureWorkSource(
        datasets, phases, lanes, chunk_size, passes=None, token_estimation=TokenEstimation(per_row)
    )
    return source, step or 1, starts, ramp


def tokens_of(source, shares):
    """Tokens that all lanes give in a chunk: chunk_size rows a lane, dealt by share over tokens a row."""
    per_row = {name: float(tokens) for name, tokens in source.tokens_per_row.items()}
    rows = {name: float(share) / per_row[name] for name, share in shares.items()}
    whole = source.chunk_size * source.num_lanes / sum(rows.values())
    return sum(whole * part * per_row[name] for name, part in rows.items())


def tokens_before(source, steps, chunk):
    """Tokens of all chunks before one, stretch by stretch."""
    ends = [*(step.start for step in steps[1:]), None]
    stretches = [(s.start, chunk if e is None else min(e, chunk), s.shares) for s, e in zip(steps, ends, strict=True)]
    return sum((end - begin) * tokens_of(source, shares) for begin, end, shares in stretches if begin < end)


@settings(max_examples=10)
@given(counted())
def test_a_phase_begins_where_so_many_tokens_have_been_delivered_to_within_a_chunk(drawn):
    source, scale, wanted, ramp = drawn
    steps = source.phases()
    begins = [step.start for step in steps]
    assert begins[0] == 0
    assert ramp == "linear" or len(begins) == len(wanted)
    for begin, start in [(begins[-1], wanted[-1])] if ramp == "linear" else zip(begins, wanted, strict=True):
        near = steps if ramp == "linear" else [step for step in steps if step.start <= begin][-2:]
        a_chunk = max(tokens_of(source, step.shares) for step in near)
        assert abs(tokens_before(source, steps, begin) - start * scale) <= 1.000001 * a_chunk, f"that begins at {start}"


def test_many_short_phases_do_not_add_up_their_rounding():
    """Each begins half a chunk too late; the fortieth would be twenty chunks late."""
    flips = [(150 * i, {"a": 1 + i % 2}) for i in range(40)]
    phases = Phases([*flips, (6000, {"b": 1})], unit="tokens")
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "ab"]
    given_ = TokenEstimation({"a": 20, "b": 20})
    source = StaticMixtureWorkSource(datasets, phases, 1, 5, passes=None, token_estimation=given_)
    assert abs(source.phases()[-1].start * 5 * 20 - 6000) <= 100


def test_a_ramp_from_short_to_long_rows_ends_where_its_tokens_say():
    """Rows of 20 tokens at first and of 2000 at last: most chunks of a ramp in shares of tokens hold short rows."""
    phases = Phases([(0, {"a": 1}), (10_000_000, {"b": 1})], unit="tokens", ramp="linear")
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "ab"]
    given_ = TokenEstimation({"a": 20, "b": 2000})
    source = StaticMixtureWorkSource(datasets, phases, 1, 16, passes=None, token_estimation=given_)
    steps = source.phases()
    assert tokens_before(source, steps, steps[-1].start) == pytest.approx(10_000_000, abs=16 * 2000)


def test_steps_are_so_many_tokens_each():
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "ab"]
    weights = [{"a": 1}, {"b": 1}]

    def begins(starts, **unit):
        phases = Phases(list(zip(starts, weights, strict=True)), **unit)
        made = StaticMixtureWorkSource(
            datasets, phases, 2, 16, passes=None, token_estimation=TokenEstimation({"a": 7, "b": 9})
        )
        return [phase.start for phase in made.phases()]

    assert begins([0, 3000], unit="steps", tokens_per_step=512) == begins([0, 3000 * 512], unit="tokens")


# what a tired user gets wrong


@pytest.mark.parametrize(
    ("phases", "settings", "words"),
    [
        ([], {}, "whole numbers|at least one"),
        (None, {}, r"list of \(start, weights\)"),
        ({"a": 1}, {}, r"list of \(start, weights\)|whole numbers"),
        ({0: {"a": 1}}, {}, r"list of \(start, weights\)"),
        ([(0, {"a": 1}, "linear")], {}, r"list of \(start, weights\)"),
        ([(5, {"a": 1})], {}, "begin with 0"),
        ([(0, {"a": 1}), (0, {"b": 1})], {}, "ascend.*sort"),
        ([(0, {"a": 1}), (9, {"b": 1}), (3, {"a": 1})], {}, "ascend.*sort"),
        ([(0, {"a": 1}), (2e4, {"b": 1})], {}, "whole numbers.*20000.0"),
        ([(False, {"a": 1})], {}, "whole numbers.*False"),
        ([(0, {"a": 0})], {}, "positive weight"),
        ([(0, {})], {}, "positive weight"),
        ([(0, {"a": -1, "b": 2})], {}, "'a'.*positive.*-1"),
        ([(0, {"a": float("nan")})], {}, "'a'.*nan"),
        ([(0, {"a": float("inf")})], {}, "'a'.*inf"),
        ([(0, ["a"])], {}, "dict of weights"),
        ([(0, {"a": 1})], {"ramp": True}, "ramp.*'step' or 'linear'.*True"),
        ([(0, {"a": 1})], {"unit": "rows"}, "unit.*'chunks', 'tokens' or 'steps'.*rows"),
        ([(0, {"a": 1})], {"unit": "steps"}, "tokens_per_step.*unit='steps'"),
        ([(0, {"a": 1})], {"tokens_per_step": 4096}, "tokens_per_step.*unit='steps'"),
        ([(0, {"a": 1})], {"unit": "steps", "tokens_per_step": 0}, "tokens_per_step.*at least 1.*0"),
        ([(0, {"a": 1})], {"unit": "steps", "tokens_per_step": -4096}, "tokens_per_step.*at least 1"),
        ([(0, {"a": 1})], {"unit": "steps", "tokens_per_step": 4e6}, "tokens_per_step.*integer"),
    ],
)
def test_phases_that_can_not_be_are_refused_with_what_to_do(phases, settings, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        Phases(phases, **settings)


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        ([(0, {"a": 1}), (5, {"c": 1})], r"without a dataset \['c'\].*no phase gives a weight \['b'\]"),
        ([(0, {"a": 1, "b": 0})], r"no phase gives a weight \['b'\]"),
    ],
)
def test_phases_and_datasets_must_name_the_same(phases, words):
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "ab"]
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        StaticMixtureWorkSource(datasets, Phases(phases))


@pytest.mark.parametrize("unit", [{"unit": "tokens"}, {"unit": "steps", "tokens_per_step": 10}])
def test_phases_in_tokens_need_an_estimation(unit):
    dataset = Dataset.from_rows("a", [{"v": 0}])
    with pytest.raises(ConfigError, match=r"token_estimation=TokenEstimation\(\)"):
        StaticMixtureWorkSource([dataset], Phases([(0, {"a": 1})], **unit))


def test_the_conversion_is_part_of_the_recipe_once_it_is_known():
    """A later release that rounded otherwise would be refused, and not go on elsewhere."""
    datasets = [Dataset.from_rows(name, [{"v": 0}]) for name in "ab"]
    phases = Phases([(0, {"a": 1}), (6000, {"b": 1})], unit="tokens")
    source = StaticMixtureWorkSource(datasets, phases, 1, 5, token_estimation=TokenEstimation({"a": 20}))
    assert source.recipe()["starts_in_chunks"] is None
    known = source.measured({"b": 7})
    assert known.recipe()["starts_in_chunks"] == [phase.start for phase in known.phases()] == [0, 60]
    assert "starts_in_chunks" not in StaticMixtureWorkSource(datasets, {"a": 1, "b": 1}).recipe()


def test_a_start_may_be_a_number_of_numpy():
    assert Phases([(0, {"a": 1}), (np.int64(7), {"b": 1})]).recipe() == Phases([(0, {"a": 1}), (7, {"b": 1})]).recipe()
