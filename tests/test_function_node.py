"""What Map, Filter, FlatMap and MapGroup share: generators of their own, and what of a function is in the recipe."""

import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, run, source

from zephon_nodes import ConfigError, Filter, FlatMap, Map, Pipeline, Read
from zephon_nodes.function_node import generator, wants_rng

KINDS = ["map", "filter", "flat_map", "map_group"]


def draw(payload, rng):
    return {"v": payload["v"], "draw": int(rng.integers(1 << 60))}


def drawn(lanes=1, rows=40, **settings):
    out = run(Pipeline(source(rows, lanes), runner="inline").map(draw, **settings))[0]
    return {p["v"]: p["draw"] for p in out}


def test_no_two_records_and_no_two_epochs_share_a_draw():
    """Report D1."""
    pipeline = Pipeline(source(100, 4), parallelism=4).map(draw)
    epochs = [{p["v"]: p["draw"] for p in run(pipeline)[0]} for _ in range(3)]
    assert len({number for epoch in epochs for number in epoch.values()}) == 300
    again = Pipeline(source(100, 4), runner="inline").map(draw)
    assert [{p["v"]: p["draw"] for p in run(again)[0]} for _ in range(3)] == epochs


def test_a_record_draws_the_same_in_any_lane_and_order():
    want = drawn()
    for lanes in (2, 5):
        assert drawn(lanes) == want
    shuffled = run(Pipeline(source(40, shuffle="global")).shuffle(8).map(draw))[0]
    assert {p["v"]: p["draw"] for p in shuffled} == want


@given(st.lists(st.integers(0, 9), max_size=6), st.sampled_from([None, 3]))
def test_any_chain_of_resumes_draws_the_same(cuts, batch):
    def make():
        pipeline = Pipeline(source(40, 2), runner="inline").filter(lambda p: p["v"] % 3).map(draw)
        return pipeline if batch is None else pipeline.batch(batch)

    assert chained(make, cuts)[0] == run(make())[0]


def test_seed_and_name_of_the_node_decide_and_a_second_node_draws_anew():
    assert len({str(drawn(**changed)) for changed in ({}, {"seed": 1}, {"name": "crop"})}) == 3
    twice = run(Pipeline(source(40)).map(draw).map(lambda p, rng: (p["draw"], int(rng.integers(1 << 60)))))[0]
    assert all(one != other for one, other in twice)


def test_the_bits_that_a_record_draws_from_are_frozen():
    """Other bits would change runs that are under way: raise ``ALGORITHM`` in ``recipe`` then."""
    assert generator(3, 7).bit_generator.random_raw(3).tolist() == FROZEN
    assert len({generator(*keys).random() for keys in ((3, 7), (3, 8), (4, 7), (7, 3))}) == 4


FROZEN = [9641812506480752404, 15417964643309834338, 5031423265519432588]


class Callable:
    def __init__(self, side):
        self.side = side

    def __call__(self, payload, rng):
        return int(rng.integers(self.side))


@pytest.mark.parametrize(
    ("function", "wants"),
    [
        (draw, True),
        (lambda p: p, False),
        (lambda p, rng=None: p, True),
        (lambda p, *, rng: p, True),
        (lambda p, **kwargs: p, False),
        (functools.partial(draw), True),
        (Callable(9), True),
        (Callable(9).__call__, True),
        (dict, False),
        (str.upper, False),
        (int, False),
    ],
)
def test_whoever_has_a_parameter_named_rng_gets_a_generator(function, wants):
    assert wants_rng(function) is wants


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_hands_a_generator_on_and_draws_the_same_twice(kind):
    functions = {
        "map": lambda p, rng: float(rng.random()),
        "filter": lambda p, rng: rng.random() < 0.5,
        "flat_map": lambda p, rng: [p["v"]] * int(rng.integers(4)),
        "map_group": lambda ps, rng: rng.permutation([p["v"] for p in ps]).tolist(),
    }
    more = {"size": 5} if kind == "map_group" else {}
    runs = [
        run(getattr(Pipeline(source(60), **options), kind)(functions[kind], **more))[0]
        for options in ({"runner": "inline"}, {"parallelism": 3})
    ]
    assert runs[0] == runs[1] and len({str(value) for value in runs[0]}) > 10


def double(payload):
    return payload


def scaled(payload, by):
    return payload


def other(payload):
    return payload


def powers(exponent):
    def power(payload):
        return {"v": payload["v"] ** exponent}

    return power


CHANGES = {
    "another function": (double, other, "function"),
    "another bound number": (functools.partial(scaled, by=1), functools.partial(scaled, by=2), r"bound\.by"),
    "another bound number of numpy": (
        functools.partial(scaled, by=np.int64(1)),
        functools.partial(scaled, by=np.int64(2)),
        r"bound\.by",
    ),
    "another number in the closure": (powers(2), powers(3), r"bound\.exponent"),
    "another default": (lambda p, n=1: p, lambda p, n=2: p, r"bound\.n"),
    "another attribute": (Callable(5), Callable(6), r"bound\.side"),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_function_is_refused_by_name_at_a_restore(kind, name):
    before, after, path = CHANGES[name]
    more = {"size": 5} if kind == "map_group" else {}
    saved = getattr(Pipeline(source()), kind)(before, **more).state_dict()
    with pytest.raises(ValueError, match=rf"nodes\.{kind}\.{path}: .* -> "):
        getattr(Pipeline(source()), kind)(after, **more).load_state_dict(saved)


def test_a_version_that_is_raised_is_refused_and_a_seed_counts_only_with_a_generator():
    saved = Pipeline(source()).map(double, version=1).state_dict()
    with pytest.raises(ValueError, match=r"nodes\.map\.version: 1 -> 2"):
        Pipeline(source()).map(double, version=2).load_state_dict(saved)
    Pipeline(source()).map(double, seed=2).load_state_dict(Pipeline(source()).map(double, seed=1).state_dict())
    saved = Pipeline(source()).map(draw, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"nodes\.map\.seed: 1 -> 2"):
        Pipeline(source()).map(draw, seed=2).load_state_dict(saved)


@pytest.mark.parametrize("node", [Map, Filter, FlatMap])
@pytest.mark.parametrize("seed", [None, "42", 1.5])
def test_a_seed_that_is_no_integer_is_refused_at_construction(node, seed):
    with pytest.raises(ConfigError, match="seed must be an integer, got"):
        node(Read(source()), draw, seed=seed)


def test_parallelism_changes_nothing_but_threads():
    pipeline = Pipeline(source(60, 2))
    outputs = [run(pipeline.map(draw, parallelism=n).map_group(list, 4, parallelism=n))[0] for n in (0, 1, 3)]
    assert outputs[0] == outputs[1] == outputs[2]
