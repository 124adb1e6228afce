"""StatefulTransform: a user's push and flush, without bookkeeping of hers."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, expected, run, source

from zephon_nodes import ConfigError, Emit, Pipeline, Read, RowError, StatefulTransform
from zephon_nodes.testing import assert_any_schedule, assert_any_world

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


class Script:
    """Does with each record what its number says: lets it through, drops, holds back, splits, or merges all held."""

    def __init__(self, modulus):
        self.modulus, self.held = modulus, []

    def push(self, payload):
        what = payload["v"] * 7 % self.modulus % 5
        if what == 0:
            return [payload]
        if what == 1:
            return None
        if what == 2:
            return [{"v": payload["v"], "part": i} for i in range(3)]
        self.held.append(payload)
        if what == 4:
            held, self.held = self.held, []
            return ({"merged": [p["v"] for p in held]} for _ in range(1))
        return []

    def flush(self):
        yield from self.held


def scripted(span, modulus):
    """The same with a list in hand."""
    script = Script(modulus)
    out = [output for payload in span for output in script.push(payload) or []]
    return out + list(script.flush())


@given(st.integers(1, 80), st.sampled_from([5, 7, 11, 23]), st.sampled_from([1, 3]), st.booleans())
def test_every_span_of_every_lane_gets_a_fresh_object_that_sees_its_records_in_order(rows, modulus, lanes, threads):
    work = source(rows, lanes)
    pipeline = Pipeline(work, **RUNNERS[threads]).stateful_transform(functools.partial(Script, modulus))
    assert run(pipeline) == (expected(work, lambda span: scripted(span, modulus)), None)


@given(
    st.integers(2, 80), st.sampled_from([5, 7, 11]), st.lists(st.integers(0, 9), max_size=6), st.sampled_from([None, 3])
)
def test_any_chain_of_resumes_is_one_run_with_the_same_counts(rows, modulus, cuts, batch):
    def make():
        pipeline = Pipeline(source(rows, 2), runner="inline").stateful_transform(functools.partial(Script, modulus))
        return pipeline if batch is None else pipeline.batch(batch)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out and state == whole.state_dict()


@given(st.integers(1, 80), st.sampled_from([5, 7, 11, 23]), st.sampled_from([1, 3]))
def test_each_row_is_an_origin_of_some_output_or_reported_as_absorbed(rows, modulus, lanes):
    pipeline = Pipeline(source(rows, lanes)).stateful_transform(functools.partial(Script, modulus)).batch(1)
    arrived = {at.row for batch in pipeline for row in batch.origins for at in row}
    absorbed = {int(row.where.split()[1]) for row in pipeline.drops.rows}
    assert arrived | absorbed == set(range(rows)) and not arrived & absorbed
    assert {row.reason for row in pipeline.drops.rows} <= {"absorbed"}


def origins(factory, rows=6, before=None):
    pipeline = Pipeline(source(rows))
    pipeline = (pipeline if before is None else pipeline.map(before)).stateful_transform(factory)
    return [[at.row for at in row] for batch in pipeline.batch(1) for row in batch.origins]


class Delay:
    def __init__(self):
        self.held = []

    def push(self, payload):
        self.held.append(payload)
        return [self.held.pop(0)] if len(self.held) > 2 else []

    def flush(self):
        return self.held


def test_an_object_that_comes_out_later_keeps_its_own_origin():
    assert origins(Delay) == [[i] for i in range(6)]


def test_equal_values_that_python_keeps_once_have_each_their_own_origin():
    """Small ints, short texts and None are the same object for every record."""
    assert origins(Delay, before=lambda p: 1) == [[i] for i in range(6)]


class Sliding:
    """Overlapping pairs, each naming its parents."""

    def __init__(self):
        self.before = None

    def push(self, payload):
        if self.before is not None:
            yield Emit({"pair": (self.before["v"], payload["v"])}, (self.before, payload))
        self.before = payload


def test_parents_may_be_named_by_several_outputs():
    assert origins(Sliding) == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]


class CopyThenSelf:
    """A marked copy at once, the object itself at the end of the span."""

    def __init__(self):
        self.held = []

    def push(self, payload):
        self.held.append(payload)
        return [{**payload, "copy": True}]

    def flush(self):
        return self.held


def test_an_object_that_had_a_copy_sent_ahead_still_keeps_its_own_origin():
    assert origins(CopyThenSelf, rows=3) == [[0], [1], [2], [0], [1], [2]]


class FailsAt:
    """Raises at record 2 behind an output; counts what it was shown."""

    def push(self, payload):
        yield payload
        if payload["v"] == 2:
            raise ValueError("two")


@pytest.mark.parametrize("options", RUNNERS)
def test_push_that_raises_names_node_row_and_cause_after_all_that_came_before(options):
    out, error = run(Pipeline(source(6), **options).stateful_transform(FailsAt, name="join"))
    assert out[:2] == [{"v": 0}, {"v": 1}] and len(out) <= 3
    assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError)
    assert "join failed on row 2 of rows (dataset 'd')" in str(error) and "two" in str(error)


def test_a_record_that_failed_is_reported_once_under_skip():
    pipeline = Pipeline(source(6), on_error="skip").stateful_transform(FailsAt)
    arrived = len(run(pipeline)[0])
    assert arrived + pipeline.drops.total == 6
    assert pipeline.drops.failed == 1


class FailsAtFlush:
    def __init__(self):
        self.held = []

    def push(self, payload):
        self.held.append(payload)

    def flush(self):
        raise ValueError("nothing to give")


def test_flush_that_raises_says_which_rows_were_held():
    error = run(Pipeline(source(6, flush=9)).stateful_transform(FailsAtFlush, name="join"))[1]
    assert isinstance(error, RowError) and "join" in str(error) and "nothing to give" in str(error)
    assert "row 0 of rows" in str(error)


def test_records_held_by_a_flush_that_failed_are_all_reported_under_skip():
    pipeline = Pipeline(source(6, flush=9), on_error="skip").stateful_transform(FailsAtFlush)
    assert run(pipeline) == ([], None)
    reported = " ".join(row.where for row in pipeline.drops.rows)
    assert all(f"row {i} of" in reported for i in range(6))


def test_a_factory_that_needs_arguments_fails_with_the_name_of_the_node():
    error = run(Pipeline(source(6)).stateful_transform(Script, name="join"))[1]
    assert error is not None and "join" in str(error) and "modulus" in str(error)


@pytest.mark.parametrize("given", [{"v": 1}, "text", b"bytes"], ids=["dict", "str", "bytes"])
@pytest.mark.parametrize("where", ["push", "flush"])
def test_a_single_payload_in_place_of_a_list_is_refused(given, where):
    class Single:
        def push(self, payload):
            return given if where == "push" else None

        def flush(self):
            return given if where == "flush" else None

    out, error = run(Pipeline(source(3)).stateful_transform(Single))
    assert out == [] and "must return a list of payloads" in str(error) and type(given).__name__ in str(error)


def test_flush_may_be_left_out_and_give_nothing():
    class OnlyPush:
        def push(self, payload):
            return (payload,)

    class GivesNone(OnlyPush):
        def flush(self):
            return None

    for factory in (OnlyPush, GivesNone):
        assert run(Pipeline(source(5)).stateful_transform(factory)) == ([{"v": i} for i in range(5)], None)


def test_none_is_an_output_like_any_other():
    class Nones:
        def push(self, payload):
            return [None, payload]

    assert run(Pipeline(source(2)).stateful_transform(Nones).map(str))[0] == ["None", "{'v': 0}", "None", "{'v': 1}"]


@pytest.mark.parametrize("wrong", [Script(5), None, "Script", object, int])
def test_what_makes_no_transform_is_refused_at_construction(wrong):
    with pytest.raises(ConfigError, match=r"stateful_transform.*(needs a class or a function|has no method push)"):
        StatefulTransform(Read(source()), wrong)


def test_neither_schedule_nor_world_changes_what_it_does():
    def make():
        pipeline = Pipeline(source(90, 4)).map(dict, parallelism=2)
        return pipeline.stateful_transform(functools.partial(Script, 7)).map(dict).batch(2)

    assert_any_schedule(make)
    assert_any_world(make, [1, 2, 4])
