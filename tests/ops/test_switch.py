"""Switch: each record through the branch of its key, and everything back in order."""

import functools
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import resumed, run, source, spans, take
from tokenizers_for_tests import train_tokenizer

from zephon_nodes import (
    ConfigError,
    Dataset,
    Emit,
    Filter,
    FlatMap,
    Map,
    Pipeline,
    Read,
    RowError,
    Shuffle,
    StateError,
    StaticMixtureWorkSource,
    Switch,
    Tokenize,
)
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, scheduled

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}, {"runner": scheduled(5)}]
TOKENIZER = train_tokenizer()


def same(node):
    return node


def add(payload):
    return {**payload, "v": payload["v"] + 100}


def odd(payload):
    return payload["v"] % 2


def times(payload):
    return [{**payload, "part": i} for i in range(payload["v"] % 4)]


def ids(payload):
    return {**payload, "input_ids": TOKENIZER.encode(payload["text"]).ids}


KINDS = {
    "map": (lambda node: Map(node, add), lambda row: [add(row)]),
    "filter": (lambda node: Filter(node, odd), lambda row: [row] if odd(row) else []),
    "flat_map": (lambda node: FlatMap(node, times), times),
    "tokenize": (lambda node: Tokenize(node, TOKENIZER, bos=None, eos=None), lambda row: [ids(row)]),
}


def branch(kinds):
    return lambda node: functools.reduce(lambda below, kind: KINDS[kind][0](below), kinds, node)


def through(kinds, row):
    """What becomes of a row in a branch, and how many records it loses there."""
    rows, lost = [row], 0
    for kind in kinds:
        parts = [KINDS[kind][1](row) for row in rows]
        rows, lost = [part for some in parts for part in some], lost + parts.count([])
    return rows, lost


def mixture(rows=(40, 30, 9), lanes=1, **settings):
    names = "abc"[: len(rows)]
    datasets = [
        Dataset.from_rows(d, [{"d": d, "v": i, "text": "x y" * (i % 4)} for i in range(n)])
        for d, n in zip(names, rows, strict=True)
    ]
    return StaticMixtureWorkSource(datasets, None, lanes, 16, 2, seed=3, **settings)


def listed(output):
    return {k: list(map(int, v)) if k == "input_ids" else v for k, v in output.items()}


BRANCH = st.lists(st.sampled_from(list(KINDS)), max_size=3)


@given(BRANCH, BRANCH, BRANCH, st.booleans(), st.sampled_from(RUNNERS))
def test_branches_keep_the_order_of_the_records(one, two, other, by_function, options):
    work = mixture()
    key = (lambda row: row["v"] % 3) if by_function else None
    names = (0, 1) if by_function else ("a", "b")
    pipeline = Pipeline(work, **options).switch(
        {names[0]: branch(one), names[1]: branch(two)}, by=key, default=branch(other)
    )
    want, lost = [], 0
    for row in (row for span in spans(work, 0) for row in span):
        kinds = {names[0]: one, names[1]: two}.get(key(row) if key else row["d"], other)
        parts, fewer = through(kinds, row)
        want, lost = want + parts, lost + fewer
    got, error = run(pipeline)
    assert error is None and list(map(listed, got)) == want and pipeline.drops.total == lost


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 39])
@pytest.mark.parametrize("count", [4, 16, 64])
def test_what_a_branch_leaves_out_is_counted_in_its_place_whatever_is_worked_on_together(step, count):
    """At every stop the report names exactly the rows that were left out before the last output."""

    def make():
        work = source(64, chunk=count, flush=2)
        return Pipeline(work, runner="inline").switch(
            {0: same, 1: lambda node: Filter(node, lambda row: row["v"] % 5)}, by=lambda row: row["v"] % 2
        )

    pipeline = make()
    out, state = take(pipeline, step)
    last = out[-1]["v"]
    assert [int(row.where.split()[1]) for row in pipeline.drops.rows] == [v for v in range(last) if v % 10 == 5]
    assert state["lane_0"][5] == pipeline.drops.total
    assert out + resumed(make(), state) == run(make())[0]


def siblings(payload):
    return [{"v": payload["v"], "c": c} for c in range(4)]


def parity(payload):
    return payload["c"] % 2


@pytest.mark.parametrize("options", RUNNERS)
def test_parts_of_one_record_that_take_different_branches_stay_in_order(options):
    pipeline = Pipeline(source(12, chunk=16), **options).flat_map(siblings).switch({0: same, 1: same}, by=parity)
    assert run(pipeline)[0] == [{"v": v, "c": c} for v in range(12) for c in range(4)]


def test_parts_of_records_that_were_shuffled_come_in_the_same_order_with_any_runner():
    """What is worked on together is no data: threads begin with few records at a time, inline with many."""
    assert_any_schedule(
        lambda: (
            Pipeline(source(48, chunk=64)).flat_map(siblings).shuffle(9).switch({0: same, 1: same}, by=parity).batch(3)
        )
    )


def test_records_that_name_no_parents_stay_in_order():
    class Forget:
        def push(self, payload):
            yield Emit(dict(payload))

    pipeline = Pipeline(source(12, chunk=16)).stateful_transform(Forget).switch({0: same, 1: same}, by=odd)
    assert run(pipeline)[0] == [{"v": v} for v in range(12)]


def fails_at_4(payload):
    if payload["v"] == 4:
        raise ValueError("four")
    return payload


@pytest.mark.parametrize("options", RUNNERS)
def test_an_error_in_a_branch_comes_behind_all_earlier_records(options):
    """Record 3 goes another way and stands before record 4."""
    pipeline = Pipeline(source(8, chunk=16), **options).switch(
        {0: lambda node: Map(node, fails_at_4), 1: same}, by=lambda row: row["v"] % 2
    )
    out, error = run(pipeline)
    assert out == [{"v": v} for v in range(4)]
    assert isinstance(error, RowError) and "row 4" in str(error) and "four" in str(error)


def test_a_key_without_a_branch_is_a_bad_record_that_says_which_keys_there_are():
    error = run(Pipeline(source(8)).switch({0: same, 1: same}, by=lambda row: row["v"] % 3, name="route"))[1]
    assert isinstance(error, RowError) and "route failed on row 2 of rows" in str(error)
    assert "no branch for 2" in str(error) and "'0', '1'" in str(error)


def test_rows_without_a_branch_that_are_skipped_do_not_come_twice_after_a_resume():
    """Reading may be told to raise while the rest of the graph skips."""

    def make():
        pipeline = Pipeline(Read(source(24), on_error="raise"), on_error="skip", runner="inline")
        return pipeline.switch({0: same, 1: same}, by=lambda row: row["v"] % 3)

    assert_resumes_everywhere(make)


def draws(payload, rng):
    return {**payload, "drawn": [*payload.get("drawn", []), int(rng.integers(1 << 60))]}


def test_two_random_functions_of_a_branch_draw_differently():
    pipeline = Pipeline(source(8)).switch({"d": lambda node: Map(Map(node, draws), draws)})
    assert all(len(set(row["drawn"])) == 2 for row in run(pipeline)[0])


def drawing(name=None, on_error=None):
    def build(node):
        return Map(node, draws, name=name, on_error=on_error)

    return Pipeline(source(12), runner="inline").switch({"d": build})


def test_a_name_in_a_branch_that_changes_what_is_drawn_changes_the_recipe():
    one, other = drawing("one"), drawing("other")
    assert run(one)[0] != run(other)[0]
    assert one.state_dict()["recipe"] != other.state_dict()["recipe"]


def test_a_branch_that_no_longer_skips_bad_rows_is_refused_as_it_is_outside_of_branches():
    state = take(drawing(on_error="skip"), 3)[1]
    with pytest.raises(StateError, match="on_error"):
        drawing(on_error="raise").load_state_dict(state)


def test_every_branch_is_in_the_recipe_under_its_key():
    def graph(one=str, other=repr):
        return Pipeline(source(4)).switch({1: lambda n: Map(n, one), "1": lambda n: Map(n, other)}, by=len)

    recipes = {graph(*functions).state_dict()["recipe"] for functions in ((str, repr), (repr, repr), (str, str))}
    assert len(recipes) == 3


def test_another_key_function_or_branch_is_refused_and_named():
    state = Pipeline(source(8)).switch({0: same, 1: same}, by=odd).state_dict()
    for changed in ({"by": len}, {"branches": {0: same, 1: branch(["map"])}}):
        with pytest.raises(StateError, match=r"nodes\.switch\.(by|branches)"):
            settings = {"branches": {0: same, 1: same}, "by": odd, **changed}
            Pipeline(source(8)).switch(**settings).load_state_dict(state)


WRONG = [
    ({}, {}, "needs branches"),
    ({"a": same}, {}, r"without a branch \['b', 'c'\].*default"),
    ({"a": same, "bb": same}, {"default": same}, "bb"),
    ({"a": 3}, {"default": same}, "must be a function of a node"),
    ({"a": lambda node: None}, {"default": same}, "build on the node that it is given"),
    ({"a": lambda node: Pipeline(node).map(add)}, {"default": same}, "build on the node that it is given"),
    ({"a": lambda node: Map(Read(source(3)), add)}, {"default": same}, "build on the node that it is given"),
    ({"a": lambda node: Shuffle(node, 3)}, {"default": same}, r"'a' has \['shuffle'\], which hold.*before or after"),
    ({"a": same}, {"default": same, "by": "v"}, r"by.*function"),
]


@pytest.mark.parametrize(("branches", "settings", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_branches_that_cannot_work_are_refused_at_construction_with_the_fix(branches, settings, words):
    with pytest.raises(ConfigError, match=words):
        Switch(Read(mixture()), branches, **settings)


def test_neither_schedule_nor_world_nor_a_stop_changes_anything():
    def make():
        pipeline = Pipeline(mixture((90, 60), 4)).switch({"a": branch(["filter", "flat_map"]), "b": branch(["map"])})
        return pipeline.map(json.dumps).batch(3)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, steps=12)


def test_every_row_arrives_or_is_reported():
    pipeline = Pipeline(mixture(lanes=2)).switch({"a": branch(["filter"])}, default=branch(["flat_map"])).batch(1)
    arrived = {(at.dataset, at.row) for batch in pipeline for row in batch.origins for at in row}
    reasons = Counter(row.reason for row in pipeline.drops.rows)
    assert len(arrived) + pipeline.drops.total == 79 and set(reasons) == {"filtered", "gave nothing"}
