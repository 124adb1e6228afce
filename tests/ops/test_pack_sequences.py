"""PackSequences: documents that share a sequence and stay apart."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run, source

from zephon_nodes import ConfigError, PackSequences, Pipeline, Read, RowError
from zephon_nodes.packing import ALGORITHMS
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

IGNORE = -100
algorithms = st.sampled_from(ALGORITHMS)


@st.composite
def documents(draw):
    at, rows = 1, []
    for length in draw(st.lists(st.integers(0, 21), min_size=1, max_size=25)):
        row = {"input_ids": np.arange(at, at + length, dtype=np.int32), "id": len(rows), "text": "x" * length}
        if draw(st.booleans()):
            row["loss_mask"] = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        rows.append(row)
        at += length
    return rows


def packed(rows, length=8, algorithm="first_fit", lanes=1, on_error="raise", **settings):
    pipeline = Pipeline(source(rows, lanes), runner="inline", on_error=on_error)
    return pipeline.pack_sequences(length, algorithm, **settings)


@given(documents(), algorithms, st.sampled_from([1, 5, 16]), st.sampled_from([None, 1, 3]), st.sampled_from([1, 2]))
def test_every_token_comes_once_in_sequences_that_are_not_too_long(rows, algorithm, length, cap, lanes):
    seen = Counter()
    for sequence in packed(rows, length, algorithm, lanes, max_documents=cap):
        assert sequence["target_length"] == length
        parts = sequence["sequences"]
        assert sum(len(part["input_ids"]) for part in parts) <= length
        assert cap is None or len(parts) <= cap
        for part in parts:
            row = rows[part["id"]]
            assert part["text"] == row["text"] and ("loss_mask" in part) == ("loss_mask" in row)
            if "loss_mask" in part:
                assert len(part["loss_mask"]) == len(part["input_ids"])
            seen.update(part["input_ids"].tolist())
    assert seen == Counter(token for row in rows for token in row["input_ids"].tolist())


@given(documents(), algorithms, st.sampled_from([1, 5, 16]), st.sampled_from([None, 3]))
def test_every_step_inside_a_document_is_trained_exactly_once(rows, algorithm, length, cap):
    want = Counter()
    for row in rows:
        ids, mask = row["input_ids"].tolist(), row.get("loss_mask", [1] * len(row["input_ids"]))
        want.update((ids[i], ids[i + 1]) for i in range(len(ids) - 1) if mask[i + 1])
    got = Counter()
    for batch in packed(rows, length, algorithm, max_documents=cap).batch(2):
        step = batch.to_training(backend="numpy")
        assert step["input_ids"].shape == (len(batch), length)
        trained = step["labels"] != IGNORE
        got.update(zip(step["input_ids"][trained].tolist(), step["labels"][trained].tolist(), strict=True))
    assert got == want


@given(documents(), algorithms, st.sampled_from([5, 16]))
def test_it_trains_the_same_as_pack_flat(rows, algorithm, length):
    pipeline = Pipeline(source(rows), runner="inline")
    flat = pipeline.pack_flat(length, algorithm).batch(3)
    apart = pipeline.pack_sequences(length, algorithm).batch(3)
    names = ["document_ids", "cu_seqlens", "loss_mask"]
    for one, other in zip(flat, apart, strict=True):
        assert one.origins == other.origins
        one, other = (batch.to_training(extra=names, backend="numpy") for batch in (one, other))
        assert {k: v.tolist() for k, v in one.items()} == {k: v.tolist() for k, v in other.items()}


def characters(payload):
    return len(payload["text"])


def test_any_length_may_be_packed_by_a_function():
    rows = [{"text": "x" * n} for n in (3, 4, 5, 2, 8, 1)]
    out = run(packed(rows, 8, length_fn=characters))[0]
    lengths = [[len(part["text"]) for part in sequence["sequences"]] for sequence in out]
    assert sorted(n for one in lengths for n in one) == [1, 2, 3, 4, 5, 8] and all(sum(one) <= 8 for one in lengths)
    assert lengths[0] == [8] or [3, 4, 1] in lengths


def test_what_is_too_long_for_a_function_of_the_users_is_an_error_that_names_the_row():
    out, error = run(packed([{"text": "x" * 9}], 8, length_fn=characters))
    assert out == [] and isinstance(error, RowError)
    for word in ("pack_sequences", "row 0", "9", "max_length is 8"):
        assert word in str(error)


def test_or_is_dropped_and_counted():
    pipeline = packed([{"text": "x" * n} for n in (9, 2, 10)], 8, length_fn=characters, overlong="drop")
    assert [s["sequences"] for s in run(pipeline)[0]] == [[{"text": "xx"}]]
    assert pipeline.drops.total == 2 and pipeline.drops.failed == 0
    assert "longer than max_length=8" in pipeline.drops.rows[0].reason


@pytest.mark.parametrize("wrong", [-1, None, "many", float("nan")])
def test_a_length_that_is_none_is_a_bad_record(wrong):
    rows = [{"n": 3}, {"n": 1, "odd": True}, {"n": 2}]

    def length_fn(payload):
        return wrong if "odd" in payload else payload["n"]

    error = run(packed(rows, 4, length_fn=length_fn))[1]
    assert isinstance(error, RowError) and "pack_sequences failed on row 1" in str(error)
    pipeline = packed(rows, 4, length_fn=length_fn, on_error="skip")
    assert [s["sequences"] for s in run(pipeline)[0]] == [[{"n": 3}], [{"n": 2}]]
    assert pipeline.drops.failed == 1


@pytest.mark.parametrize(
    "settings", [{"overlong": "split"}, {"algorithm": "wrap"}, {"algorithm": "best_fit_wrap", "overlong": "split"}]
)
def test_records_of_which_only_a_function_knows_the_length_cannot_be_cut(settings):
    with pytest.raises(ConfigError, match=r"length_fn.*first_fit or best_fit.*'drop' or 'raise'"):
        PackSequences(Read(source()), 8, length_fn=characters, **settings)


def test_the_users_rows_stay_whole_when_documents_are_cut():
    rows = [{"input_ids": list(range(1, 12)), "tag": ["a"]}]
    parts = [part for s in packed(rows, 4) for part in s["sequences"]]
    assert [part["input_ids"] for part in parts] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]]
    assert [part["tag"] for part in parts] == [["a"]] * 3 and len(rows[0]["input_ids"]) == 11


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_holds_the_promises_of_every_node(algorithm):
    rng = np.random.default_rng(1)
    rows = [{"input_ids": np.arange(n), "id": i} for i, n in enumerate(rng.integers(0, 20, 90).tolist())]

    def make():
        return Pipeline(source(rows, 2, chunk=8)).pack_sequences(16, algorithm, num_bins=3).shuffle(3).batch(2)

    assert_resumes_everywhere(make)
    assert_any_schedule(make, schedules=1)
    assert_any_world(make, [1, 2])
