"""What was left out: every row once, with node, file, row and reason, over any stops, and never more than allowed."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, resumed, run, source, take

from zephon_nodes import Dataset, DropReport, Pipeline, RowError, StaticMixtureWorkSource
from zephon_nodes.drops import KEPT
from zephon_nodes.stream import Drop, Pointer

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


def odd(payload):
    if payload["v"] % 2:
        raise ValueError(f"{payload['v']} is odd")
    return payload


def below(payload, n):
    return payload["v"] % 1000 < n


def rows_reported(pipeline):
    return sorted(int(row.where.split()[1]) for row in pipeline.drops.rows)


GRAPHS = {
    "filter": lambda p: p.filter(functools.partial(below, n=11)),
    "failing map": lambda p: p.map(odd),
    "both with a shuffle": lambda p: p.map(odd).shuffle(3).filter(functools.partial(below, n=9)),
    "flat_map": lambda p: p.flat_map(lambda q: [q] * (q["v"] % 3)),
    "a group that fails": lambda p: p.map_group(lambda ps: [odd(q) for q in ps], 1),
}


@given(
    graph=st.sampled_from(list(GRAPHS)),
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    batch=st.sampled_from([None, 1, 3]),
    cuts=st.lists(st.integers(0, 9), max_size=6),
)
def test_the_counts_in_the_state_are_those_of_a_run_that_was_never_stopped(graph, lengths, batch, cuts):
    def make():
        pipeline = GRAPHS[graph](Pipeline(Lanes(lengths), runner="inline", on_error="skip"))
        return pipeline if batch is None else pipeline.batch(batch)

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out
    assert state == whole.state_dict()
    assert sum(leaf[5] for key, leaf in state.items() if key.startswith("lane_")) == whole.drops.total


def test_rows_left_out_behind_a_lanes_last_short_batch_are_counted_once():
    """The lane's last batch goes out when its end is known, so behind the drops; a state taken then has them already."""

    def make():
        return Pipeline(Lanes([6, 12], size=9), runner="inline").filter(lambda p: p["v"] not in (3, 4, 5)).batch(2)

    whole = make()
    run(whole)
    assert whole.drops.total == 3
    for stop in range(1, 8):
        rest = make()
        seen, state = take(make(), stop)
        rest.load_state_dict(state)
        assert len(seen) + len(run(rest)[0]) == 8
        assert sum(rest.state_dict()[f"lane_{lane}"][5] for lane in range(2)) == 3


@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    n=st.integers(0, 20),
    size=st.integers(1, 4),
    at_end=st.sampled_from(["ragged", "pad", "drop"]),
    threads=st.booleans(),
)
def test_every_row_arrives_or_stands_in_the_report_whatever_happens_at_the_end(lengths, n, size, at_end, threads):
    pipeline = Pipeline(Lanes(lengths), at_end=at_end, **RUNNERS[threads])
    pipeline = pipeline.filter(functools.partial(below, n=n)).batch(size)
    arrived = [at.row for batch in pipeline for row in batch.origins for at in row]
    left_out = {place for row in pipeline.drops.rows for place in _places(row.where)}
    assert sorted([*arrived, *left_out]) == list(range(sum(lengths)))
    assert {row.reason for row in pipeline.drops.rows} <= {"filtered", "at_end='drop': no full round"}


def _places(where):
    return [int(part.split()[1]) for part in where.split("; ")]


@pytest.mark.parametrize("options", RUNNERS)
def test_rows_that_no_full_round_had_room_for_are_counted_one_by_one(options):
    pipeline = Pipeline(Lanes([8, 20]), at_end="drop", **options).batch(4)
    assert len(run(pipeline)[0]) == 4
    assert pipeline.drops.total == 12
    pipeline = Pipeline(Lanes([8, 20]), at_end="drop", **options)
    assert len(run(pipeline)[0]) == 16
    assert pipeline.drops.total == 12 and rows_reported(pipeline) == list(range(16, 28))


@pytest.mark.parametrize("options", RUNNERS)
@pytest.mark.parametrize("limit", [0, 1, 5])
def test_one_bad_row_more_than_allowed_ends_the_run_and_says_so(limit, options):
    pipeline = Pipeline(source(40), on_error="skip", max_errors=limit, **options).map(odd, name="clean")
    out, error = run(pipeline)
    assert out == [{"v": 2 * i} for i in range(limit + 1)]
    assert isinstance(error, RowError) and error.node == "clean"
    for word in (f"to bear {limit} bad records", f"row {2 * limit + 1} of rows", "is odd", "max_errors", "drop report"):
        assert word in str(error)
    assert pipeline.drops.failed == limit


def test_rows_that_a_filter_leaves_out_do_not_count_as_bad():
    pipeline = Pipeline(source(40), on_error="skip", max_errors=0).filter(lambda p: p["v"] % 2)
    assert len(run(pipeline)[0]) == 20


def test_the_limit_holds_over_a_chain_of_resumes_and_a_higher_one_goes_on_with_the_rest():
    def make(limit):
        return Pipeline(source(40), on_error="skip", max_errors=limit, runner="inline").map(odd)

    seen, state = take(make(6), 5)
    some = make(6)
    some.load_state_dict(state)
    out, error = run(some)
    assert seen + out == [{"v": 2 * i} for i in range(7)] and isinstance(error, RowError)
    assert seen + out + resumed(make(100), some.state_dict()) == [{"v": 2 * i} for i in range(20)]


def test_a_limit_below_what_the_state_has_seen_already_ends_the_run_with_the_same_words():
    """Whoever lowers max_errors before a resume."""
    state = take(Pipeline(source(40), on_error="skip", max_errors=50).map(odd), 9)[1]
    lower = Pipeline(source(40), on_error="skip", max_errors=2).map(odd)
    lower.load_state_dict(state)
    error = run(lower)[1]
    assert isinstance(error, RowError) and "to bear 2 bad records" in str(error) and "is odd" in str(error)


def test_each_epoch_has_a_report_of_its_own_and_may_have_as_many_bad_rows():
    pipeline = Pipeline(source(10), on_error="skip", max_errors=5).map(odd)
    for _ in range(3):
        assert len(run(pipeline)[0]) == 5 and pipeline.drops.failed == pipeline.drops.total == 5


def test_a_report_begins_anew_when_a_state_is_loaded():
    """It tells what was left out since then; the state's leaves have the sum of the epoch."""
    pipeline = Pipeline(source(20), on_error="skip").map(odd)
    state = take(pipeline, 5)[1]
    run(pipeline)
    pipeline.load_state_dict(state)
    assert len(run(pipeline)[0]) == 5
    assert pipeline.drops.total == 6 and pipeline.state_dict()["lane_0"][5] == 10


def test_a_row_of_a_mixture_is_reported_with_its_own_dataset_and_file(tmp_path):
    for name in ("x", "y"):
        (tmp_path / f"{name}.jsonl").write_text('{"v": 1}\n{"v": 2}\n')
    datasets = [Dataset.from_path(name, tmp_path / f"{name}.jsonl", index_dir=tmp_path) for name in ("x", "y")]
    pipeline = Pipeline(StaticMixtureWorkSource(datasets), on_error="skip").map(odd, name="clean")
    assert len(run(pipeline)[0]) == 2
    want = {f"row 0 of {tmp_path / f'{name}.jsonl'} (dataset '{name}')" for name in ("x", "y")}
    assert {row.where for row in pipeline.drops.rows} == want


def located(origins):
    return "; ".join(str(at.row) for at in origins)


def drop(i, reason="filtered", failed=False):
    return Drop("keep", reason, (Pointer("d", 0, i),), failed)


def test_a_report_counts_all_rows_and_shows_the_first_thousand():
    report = DropReport()
    for i in range(KEPT + 500):
        report.add([drop(i), drop(i, "ValueError: bad\nmore", failed=True)], located)
    assert report.total == len(report) == 2 * KEPT + 1000 and report.failed == KEPT + 500
    assert len(report.rows) == KEPT and report.rows[1] == ("keep", "ValueError: bad\nmore", "0")
    assert dict(report.counts) == {("keep", "filtered"): KEPT + 500, ("keep", "ValueError"): KEPT + 500}


def test_a_report_reads_like_a_sentence():
    report = DropReport()
    assert str(report) == "nothing was left out"
    report.add([drop(7), drop(8, "ValueError: no text", failed=True)], located)
    for word in ("2 records left out, 1 of them by errors", "keep: filtered", "keep: ValueError: no text  (8)"):
        assert word in str(report) and word in repr(report)
