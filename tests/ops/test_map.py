"""Map, and what happens when a user's function fails."""

import json
import traceback

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import expected, resumed, run, source, take

from zephon_nodes import ConfigError, Loader, Map, Pipeline, Read, RowError
from zephon_nodes.testing import assert_any_schedule

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


class NeedsTwo(Exception):
    def __init__(self, code, text):
        super().__init__(f"code {code}: {text}")
        self.code = code


class Unpicklable(Exception):
    def __init__(self, text):
        super().__init__(text)
        self.lock = open  # a function is fine, the lambda isn't
        self.bad = lambda: None


def fail_two(payload):
    raise NeedsTwo(17, "too long")


def fail_unpicklable(payload):
    raise Unpicklable("holds a lambda")


def fail_caused(payload):
    try:
        return payload["nothing"]
    except KeyError as error:
        raise ValueError("no such field") from error


def fail_stop(payload):
    return next(iter(()))


FAILS = {
    fail_two: (NeedsTwo, "code 17: too long"),
    fail_unpicklable: (Unpicklable, "holds a lambda"),
    fail_caused: (ValueError, "no such field"),
    fail_stop: (StopIteration, ""),
}


def at_five(function):
    return lambda payload: function(payload) if payload["v"] == 5 else payload


@given(st.integers(0, 30), st.sampled_from([1, 2, 3]), st.booleans())
def test_a_map_is_pythons_map_over_each_lane(rows, lanes, threads):
    work = source(rows + 1, lanes)
    got = run(Pipeline(work, **RUNNERS[threads]).map(lambda p: {"w": p["v"] ** 2}))
    assert got == (expected(work, lambda span: [{"w": p["v"] ** 2} for p in span]), None)


def test_payloads_may_be_changed_in_place_and_the_users_rows_stay():
    rows = [{"v": i, "list": [i], "array": np.full(3, i)} for i in range(9)]

    def spoil(payload):
        payload["list"].append(payload["v"])
        payload["array"] += 1
        payload["v"] = -1
        return payload

    pipeline = Pipeline(source(rows)).map(spoil)
    first = [str(output) for output in pipeline]
    assert first == [str({"v": -1, "list": [i, i], "array": np.full(3, i + 1)}) for i in range(9)]
    assert [str(output) for output in pipeline] == first
    assert str(rows) == str([{"v": i, "list": [i], "array": np.full(3, i)} for i in range(9)])


@pytest.mark.parametrize("options", RUNNERS)
@pytest.mark.parametrize("fail", FAILS)
def test_the_error_names_node_dataset_and_row_and_keeps_the_cause_with_its_traceback(fail, options):
    kind, text = FAILS[fail]
    out, error = run(Pipeline(source(9), **options).map(at_five(fail), name="clean"))
    assert out == [{"v": i} for i in range(5)]
    assert type(error) is RowError and type(error.__cause__) is kind
    assert error.node == "clean" and error.lane == 0 and [at.row for at in error.origins] == [5]
    for word in ("clean", "row 5", "'d'", kind.__name__, text):
        assert word in str(error)
    assert fail.__name__ in "".join(traceback.format_exception(error))


def test_a_cause_of_the_cause_is_kept():
    error = run(Pipeline(source(9)).map(at_five(fail_caused)))[1]
    assert isinstance(error.__cause__.__cause__, KeyError)


def test_an_exception_whose_own_text_fails_is_still_named():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def fail(payload):
        raise Mute

    out, error = run(Pipeline(source(9)).map(at_five(fail)))
    assert len(out) == 5 and isinstance(error, RowError) and "Mute" in str(error) and "row 5" in str(error)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_function_that_wants_to_exit_python_ends_the_run_and_does_not_hang_it(kind):
    def fail(payload):
        raise kind("enough")

    out, error = run(Pipeline(source(9), runner="thread", parallelism=2).map(at_five(fail)))
    assert len(out) <= 5 and error is not None and "enough" in str(error)


@pytest.mark.parametrize("options", RUNNERS)
def test_skipped_rows_are_reported_with_node_file_row_and_cause(options):
    pipeline = Pipeline(source(9), on_error="skip", **options).map(at_five(fail_two), name="clean")
    assert run(pipeline)[0] == [{"v": i} for i in range(9) if i != 5]
    assert dict(pipeline.drops.counts) == {("clean", "NeedsTwo"): 1}
    assert pipeline.drops.failed == pipeline.drops.total == 1
    (row,) = pipeline.drops.rows
    assert row.node == "clean" and "code 17: too long" in row.reason and "row 5 of rows (dataset 'd')" in row.where


def test_a_nodes_own_policy_comes_before_the_graphs():
    pipeline = Pipeline(source(9), on_error="skip").map(at_five(fail_two), on_error="raise")
    assert isinstance(run(pipeline)[1], RowError)
    pipeline = Pipeline(source(9)).map(at_five(fail_two), on_error="skip")
    assert len(run(pipeline)[0]) == 8 and pipeline.drops.failed == 1


MENDED = []


def breaks_until_mended(payload):
    if payload["v"] == 13 and not MENDED:
        raise ValueError("not yet")
    return payload


@pytest.mark.parametrize("options", RUNNERS)
@pytest.mark.parametrize("lanes", [1, 2])
def test_after_an_error_the_state_resumes_with_exactly_the_rest_once_the_fault_is_mended(options, lanes):
    MENDED.clear()
    work = source(30, lanes)
    pipeline = Pipeline(work, **options).map(breaks_until_mended)
    out, error = run(pipeline)
    assert isinstance(error, RowError)
    state = json.loads(json.dumps(pipeline.state_dict()))
    MENDED.append(True)
    assert out + resumed(Pipeline(work, **options).map(breaks_until_mended), state) == expected(work)


def test_none_is_a_payload_inside_the_graph_and_refused_with_advice_at_its_end():
    pipeline = Pipeline(source(4)).map(lambda p: None if p["v"] % 2 else p)
    assert run(pipeline.map(lambda p: p is None))[0] == [False, True, False, True]
    assert run(pipeline.batch(4))[0] == [[{"v": 0}, None, {"v": 2}, None]]
    out, error = run(pipeline)
    assert out == [{"v": 0}] and isinstance(error, ConfigError)
    for word in ("map", "None", "filter"):
        assert word in str(error)


def test_a_resume_of_one_to_one_maps_does_not_call_them_for_delivered_rows():
    seen = []

    def note(payload):
        seen.append(payload["v"])
        return payload

    state = take(Pipeline(source(40), runner="inline").map(note), 6)[1]
    seen.clear()
    assert resumed(Pipeline(source(40), runner="inline").map(note), state, 1) == [{"v": 6}]
    assert min(seen) == 6


def test_results_keep_their_order_in_any_schedule():
    assert_any_schedule(lambda: Pipeline(source(60, 3)).map(lambda p: {"w": -p["v"]}).map(str, parallelism=2))


@pytest.mark.parametrize("function", [None, "text", 5, [len]])
def test_what_cannot_be_called_is_refused_at_construction(function):
    with pytest.raises(ConfigError, match="map needs a function of a payload, got"):
        Map(Read(source()), function)


@pytest.mark.parametrize(
    "wrong", [{"parallelism": -1}, {"parallelism": 1.5}, {"parallelism": True}, {"on_error": "ignore"}]
)
def test_wrong_settings_are_refused_at_construction_with_their_name_and_value(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigError, match=rf"{name} must be .*{value!r}"):
        Map(Read(source()), str, **wrong)


def test_a_source_that_is_no_node_is_refused_with_the_way_in():
    for wrong in (source(), [1, 2], Pipeline(source())):
        with pytest.raises(ConfigError, match=r"Read\(work_source\)"):
            Map(wrong, str)
    with pytest.raises(ConfigError, match="Loader needs a zephon_nodes node, got Pipeline"):
        Loader(Pipeline(source()))
