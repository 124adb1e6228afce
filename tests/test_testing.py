"""The shipped kit: it passes graphs that keep the promises, and names the first output of those that don't."""

from __future__ import annotations

import functools
import itertools
import random
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from zephon_nodes import Accumulator, Dataset, Node, Pipeline, StaticMixtureWorkSource
from zephon_nodes.stream import Drop
from zephon_nodes.testing import (
    assert_any_schedule,
    assert_any_world,
    assert_resumes_everywhere,
    digest,
    loader_of,
    run_rounds,
    scheduled,
)


def rows(count=320, lanes=4):
    dataset = Dataset.from_rows("d", [{"v": i} for i in range(count)])
    return Pipeline(StaticMixtureWorkSource([dataset], None, lanes, 20, 2, seed=1))


def check_resumes(make):
    assert_resumes_everywhere(make, steps=16)


def check_schedules(make):
    assert_any_schedule(make, schedules=1)


def check_worlds(make):
    assert_any_world(make, [1, 2, 4])


CHECKS = [check_resumes, check_schedules, check_worlds]


class Sum:
    """A running sum, honest as long as each span has one of its own."""

    def __init__(self):
        self.sum = 0

    def push(self, payload):
        self.sum += payload["v"]
        return [{"v": payload["v"], "sum": self.sum}]


class EveryThird(Node):
    """A node of a user's, right: it holds and drops, and its memory is the span's."""

    kind = "every_third"
    holds = True

    def accumulator(self, place):
        class Third(Accumulator):
            seen = 0

            def push(self, record):
                self.seen += 1
                return [record] if self.seen % 3 == 0 else [Drop(place.node, "not a third one", record.origins)]

            def flush(self):
                return ()

        return Third()


class Lying(Node):
    """A node of a user's, wrong: it says that it gives each record, and leaves some out."""

    kind = "lying"

    def worker(self, setup):
        return lambda records: [record for record in records if record.payload["v"] % 3]

    def one_to_one(self, setup):
        return True


def noisy(payload, rng):
    return {**payload, "noise": rng.integers(1 << 40)}


def square(payload):
    return {**payload, "v": payload["v"] ** 2}


GOOD = {
    "map": lambda: rows().map(square).batch(5),
    "map with a generator of its own": lambda: rows().map(noisy).batch(5),
    "filter, without batch": lambda: rows(200).filter(lambda payload: payload["v"] % 7),
    "sum over a span": lambda: rows().stateful_transform(Sum).batch(5),
    "shuffle": lambda: rows().shuffle(16).batch(5),
    "own node": lambda: rows().then(EveryThird).batch(2),
    "take": lambda: rows().batch(5).take(4),
    "a node, not a pipeline": lambda: rows().batch(7).node,
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", GOOD)
def test_a_graph_that_keeps_the_promises_passes(name, check):
    check(GOOD[name])


@pytest.mark.parametrize("check", CHECKS)
def test_a_take_of_rows_passes(check):
    check(lambda: rows().take(9))


TOTAL = itertools.count()
SHARED = Sum()


def counted(payload):
    return {**payload, "n": next(TOTAL)}


def drawn(payload):
    return {**payload, "n": random.random()}


def timed(payload):
    return {**payload, "n": time.perf_counter_ns()}


@dataclass
class Boxed:
    n: float


def boxed(payload):
    return Boxed(random.random())


def numbered_anew():
    """Numbers records in the order in which they are worked on: right only in one thread, from the start."""
    order = itertools.count()
    return rows().map(lambda payload: {**payload, "n": next(order)}).batch(5)


def shared_anew():
    """One sum for all lanes and spans, new in every graph."""
    total = Sum()
    return rows().stateful_transform(lambda: total).batch(5)


BROKEN = {
    "a map with global state": (lambda: rows().map(counted).batch(5), CHECKS),
    "a random function": (lambda: rows().map(drawn).batch(5), CHECKS),
    "numpy's global generator": (lambda: rows().map(lambda p: {**p, "n": np.random.rand()}).batch(5), CHECKS),
    "torch's global generator": (lambda: rows().map(lambda p: {**p, "n": torch.rand(2)}).batch(5), CHECKS),
    "the time": (lambda: rows().map(timed).batch(5), CHECKS),
    "the order of work": (numbered_anew, CHECKS),
    "state shared over lanes and graphs": (lambda: rows().stateful_transform(lambda: SHARED).batch(5), CHECKS),
    "state shared over lanes": (shared_anew, [check_resumes, check_worlds]),
    "a node that hides what it drops": (lambda: rows().then(Lying).batch(5), [check_resumes, check_worlds]),
    "randomness in an object": (lambda: rows().map(boxed).batch(5), CHECKS),
}


@pytest.mark.parametrize(
    ("name", "check"),
    [(name, check) for name, (_, checks) in BROKEN.items() for check in checks],
    ids=lambda part: part if isinstance(part, str) else part.__name__,
)
def test_a_broken_graph_is_caught_and_its_first_wrong_output_is_named(name, check):
    with pytest.raises(AssertionError, match=r"(output|round) \d+ differs|outputs?:|rounds?:"):
        check(BROKEN[name][0])


def test_a_broken_graph_that_needs_a_schedule_to_show_is_told_which():
    with pytest.raises(AssertionError, match=r"threads|schedule"):
        check_schedules(numbered_anew)


def test_the_state_is_checked_as_well_as_the_data(monkeypatch):
    from zephon_nodes import Loader

    def tired(self):
        return {**state(self), "steps": next(TOTAL)}

    state = Loader.state_dict
    monkeypatch.setattr(Loader, "state_dict", tired)
    with pytest.raises(AssertionError, match="another state"):
        check_resumes(GOOD["map"])


def test_a_schedule_is_the_same_for_the_same_seed_and_another_for_others():
    def order(seed):
        begun = []
        graph = rows(2000).map(lambda payload: begun.append(payload["v"]) or payload).batch(50)
        list(loader_of(graph, runner=scheduled(seed), parallelism=3))
        return begun

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(3)}) > 1


def test_rounds_of_a_world_hold_every_lane_once():
    rounds, state = run_rounds(GOOD["map"], 2, 3)
    assert [sorted(round_) for round_ in rounds] == [[0, 1, 2, 3]] * 3
    assert [state[f"lane_{lane}"][2] for lane in range(4)] == [3] * 4


def test_a_pipelines_own_options_hold_unless_the_check_says_otherwise():
    graph = rows().map(functools.partial(_bad, at=50)).options(on_error="skip").batch(5)
    assert_any_schedule(lambda: graph, schedules=1)
    with pytest.raises(Exception, match="row 50"):
        assert_any_schedule(lambda: graph, schedules=1, on_error="raise")


def _bad(payload, at):
    if payload["v"] == at:
        raise ValueError("bad")
    return payload


def test_digests_see_the_payloads_and_where_they_come_from():
    first, other = itertools.islice(rows(shuffled := 100).batch(5), 2)
    assert shuffled and digest(first) != digest(other)
    again = next(iter(rows(100).batch(5)))
    assert digest(again) == digest(first)
    again.pointers = again.pointers[::-1]
    assert digest(again) != digest(first)
