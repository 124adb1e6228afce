"""Sources one after the other and side by side, against lists of their parts' chunks."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import chunks, counted, lane_rows
from torchdata.nodes import IterableWrapper

from zephon_nodes import (
    Concat,
    ConfigError,
    Dataset,
    Mix,
    Phases,
    Pipeline,
    StateError,
    StaticMixtureWorkSource,
    TokenEstimation,
    WorkSource,
    from_node,
)
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

SIZES = st.lists(st.integers(1, 60), min_size=1, max_size=3)


def part(name, rows, lanes=2, chunk_size=8, flush_every=3, **settings):
    return StaticMixtureWorkSource([counted(name, [[rows]])[0]], None, lanes, chunk_size, flush_every, **settings)


def parts_of(sizes, **settings):
    return [part(f"d{k}", rows, **settings) for k, rows in enumerate(sizes)]


@given(SIZES, st.sampled_from([1, 2, 3]), st.sampled_from([1, 3]), st.integers(0, 1))
def test_concat_is_all_of_each_part_in_turn_each_from_a_span_of_its_own(sizes, lanes, flush, epoch):
    parts = parts_of(sizes, lanes=lanes, flush_every=flush)
    whole = Concat(parts)
    for lane in range(lanes):
        want = []
        for one in parts:
            own = chunks(one, lane, epoch)
            want += own + [[]] * (-len(own) % flush if one is not parts[-1] else 0)
        assert [list(chunk) for chunk in chunks(whole, lane, epoch)] == [list(chunk) for chunk in want]
        assert len(want) == whole.chunks(epoch)


@given(SIZES.filter(lambda sizes: len(sizes) > 1), st.data())
def test_mix_takes_of_each_part_its_weight_in_chunks_up_to_every_time(sizes, data):
    """Rows of a part in their order; of part k, after j chunks, those of its first weight * j chunks."""
    parts = parts_of(sizes)
    weights = [data.draw(st.sampled_from([1, 2, "1/3", 0.7])) for _ in parts]
    whole, total = Mix(list(zip(parts, weights, strict=True))), sum(Fraction(str(w)) for w in weights)
    for lane in range(2):
        seen = Counter()
        for index, chunk in enumerate(chunks(whole, lane), 1):
            for at in chunk:
                k = int(at.dataset[1:])
                assert at == lane_rows(parts[k], lane)[seen[k]]
                seen[k] += 1
            for k, one in enumerate(parts):
                upto = Fraction(str(weights[k])) / total * index
                listed = chunks(one, lane)
                before = sum(len(part) for part in listed[: int(upto)])
                inside = (upto - int(upto)) * len(listed[int(upto)]) if int(upto) < len(listed) else 0
                assert seen[k] == before + int(inside)


@given(SIZES.filter(lambda sizes: len(sizes) > 1))
def test_mix_ends_in_all_lanes_when_a_part_has_ended(sizes):
    parts = parts_of(sizes)
    whole = Mix([(one, 1) for one in parts])
    ends = {len(chunks(whole, lane)) for lane in range(2)}
    assert ends == {whole.chunks()} == {min(one.chunks() for one in parts) * len(parts)}


def test_mixtures_of_mixtures_may_follow_each_other():
    web = Mix([(part("wiki", 400), 3), (part("blogs", 400), 1)])
    whole = Concat([Mix([(web, 1), (part("code", 400), 1)]), part("end", 20)])
    rows = lane_rows(whole, 1)
    share = Counter(at.dataset for at in rows[:240])
    assert abs(share["wiki"] - 90) <= 8 and abs(share["blogs"] - 30) <= 8 and abs(share["code"] - 120) <= 8
    assert {at.dataset for at in rows[-10:]} == {"end"}


def tokens(name, rows, length, **settings):
    dataset = Dataset.from_rows(name, [{"d": name, "input_ids": np.full(length, i, np.int32)} for i in range(rows)])
    settings = {"chunk_size": 4, "flush_every": 2, **settings}
    return StaticMixtureWorkSource([dataset], {name: 1}, 4, **settings)


BUILDS = {
    "concat": lambda one, other: Concat([one, other]),
    "mix": lambda one, other: Mix([(one, 2), (other, 1)]),
    "concat of mixes": lambda one, other: Concat([Mix([(one, 1), (other, 1)]), one]),
    "mix of concats": lambda one, other: Mix([(Concat([one, other]), 1), (other, 1)]),
}


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("estimation", [None, TokenEstimation()])
def test_the_promises_hold(build, estimation):
    def make():
        settings = {"token_estimation": estimation}
        source = BUILDS[build](tokens("a", 60, 3, **settings), tokens("b", 40, 5, **settings))
        return Pipeline(source).shuffle(3).pack_flat(8).batch(2)

    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)
    assert_any_schedule(make, schedules=1)


@pytest.mark.parametrize("build", BUILDS)
def test_tokens_of_all_parts_are_measured_once_and_stay_in_the_state(build):
    def graph(estimation=None):
        parts = [
            tokens(name, 60, n, token_estimation=estimation or TokenEstimation()) for name, n in (("a", 3), ("b", 5))
        ]
        return Pipeline(BUILDS[build](*parts), runner="inline").batch(2)

    first = graph()
    next(iter(first))
    assert {name: found.tokens_per_row for name, found in first.estimates.items()} == {"a": 3, "b": 5}
    second = graph()
    second.load_state_dict(first.state_dict())
    next(iter(second))
    assert second.estimates == {} and second.loader.recipe == first.loader.recipe
    with pytest.raises(StateError, match="tokens_per_row"):
        graph(TokenEstimation({"a": 3, "b": 6})).load_state_dict(first.state_dict())


def test_shares_are_those_of_the_part_that_a_span_belongs_to():
    datasets = [counted(name, [[80]])[0] for name in "ab"]
    phases = Phases([(0, {"a": 3, "b": 1}), (4, {"b": 1})])
    one = StaticMixtureWorkSource(datasets, phases, 1, 8, 4)
    whole = Concat([one, part("c", 30, 1, flush_every=4)])
    assert whole.mixes and whole.shares(0, 0) == {"a": 0.75, "b": 0.25} and whole.shares(0, 1) == {"b": 1}
    last = (whole.chunks() - 1) // 4
    assert whole.shares(0, last) == {"c": 1}
    assert not Mix([(one, 1), (part("c", 30, 1, flush_every=4), 1)]).mixes


class Unknown(WorkSource):
    """Ends, and doesn't know when."""

    def chunk(self, lane, index, epoch=0):
        return None


WRONG = [
    (lambda: Concat([]), "Concat needs work sources, got none"),
    (lambda: Mix([]), "Mix needs work sources, got none"),
    (lambda: Concat([counted("a", [[3]])[0]]), r"Concat needs work sources, got \['Dataset'\]"),
    (lambda: Concat([from_node(IterableWrapper([1]))]), "Concat needs work sources"),
    (lambda: Concat([part("a", 3), part("b", 3, lanes=3)]), r"same num_lanes, they have \[2, 3\]"),
    (lambda: Mix([(part("a", 3), 1), (part("b", 3, flush_every=4), 1)]), r"same flush_every, they have \[3, 4\]"),
    (lambda: Concat([part("a", 3, passes=None), part("b", 3)]), r"parts \[0\] never end.*passes="),
    (lambda: Concat([part("a", 3), part("a", 3)]), "two different datasets are called 'a'; rename one"),
    (lambda: Mix([part("a", 3), part("b", 3)]), r"\(source, weight\) pairs"),
    (lambda: Mix({"a": 1}), r"\(source, weight\) pairs"),
    (lambda: Mix([(part("a", 3), 0), (part("b", 3), 1)]), "weight of 'part 0' must be positive, got 0"),
    (lambda: Mix([(part("a", 3), -1)]), "weight of 'part 0' must be positive, got -1"),
    (lambda: Mix([(part("a", 3), "many")]), "weight of 'part 0' must be a positive number, got 'many'"),
]


@pytest.mark.parametrize(("build", "words"), WRONG, ids=[words for _, words in WRONG])
def test_parts_that_cannot_work_are_refused_with_what_to_do(build, words):
    with pytest.raises(ConfigError, match=words):
        build()


def test_a_part_that_does_not_know_its_end_is_named():
    whole = Concat([Unknown([counted("a", [[3]])[0]], 2, 3), part("b", 3)])
    with pytest.raises(ConfigError, match=r"part 0, Unknown, doesn't know its chunks; override chunks"):
        whole.chunk(0, 0)


def test_the_order_the_weights_and_every_part_are_in_the_recipe():
    one, other = (lambda: part("a", 30)), (lambda: part("b", 30))
    recipes = [
        Concat([one(), other()]),
        Concat([other(), one()]),
        Concat([one(), part("b", 31)]),
        Mix([(one(), 1), (other(), 1)]),
        Mix([(one(), 1), (other(), 2)]),
    ]
    assert len({str(source.recipe()) for source in recipes}) == 5
    assert Mix([(one(), 2), (other(), 2)]).recipe() == Mix([(one(), "0.5"), (other(), "0.5")]).recipe()
