"""FillInTheMiddle: rearranged so that the document can be put back together."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run, source

from zephon_nodes import ConfigError, FillInTheMiddle, Pipeline, Read, RowError, StateError
from zephon_nodes.ops.fill_in_the_middle import rearranged
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

PREFIX, MIDDLE, SUFFIX = 1001, 1002, 1003


def graph(work, **settings):
    return Pipeline(work, runner="inline").fill_in_the_middle(PREFIX, MIDDLE, SUFFIX, **settings)


def rows(lengths, dtype=np.int32, **fields):
    return [{"v": i, "input_ids": np.arange(n).astype(dtype), **fields} for i, n in enumerate(lengths)]


def put_back(ids, keep):
    """The document of a rearranged one, and the lengths of its three pieces; None if it isn't rearranged."""
    front, back = keep
    ids = list(map(int, ids))
    if PREFIX not in ids:
        return ids, None
    free = ids[front : len(ids) - back]
    end = ids[len(ids) - back :]
    assert sorted(free)[-3:] == [PREFIX, MIDDLE, SUFFIX] and free[0] == PREFIX
    at = free.index(MIDDLE)
    if free[1] == SUFFIX:
        suffix, rest = free[2:at], free[at + 1 :]
        return ids[:front] + rest + suffix + end, (None, None, len(suffix))
    cut = free.index(SUFFIX)
    prefix, suffix, middle = free[1:cut], free[cut + 1 : at], free[at + 1 :]
    return ids[:front] + prefix + middle + suffix + end, (len(prefix), len(middle), len(suffix))


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=30),
    st.sampled_from([0, 0.5, 1]),
    st.sampled_from([0, 0.5, 1]),
    st.sampled_from([(0, 0), (0, 1), (1, 1), (2, 3)]),
    st.sampled_from([np.int32, np.int64, np.uint16]),
)
def test_every_document_can_be_put_back_together(lengths, rate, suffix_first, keep, dtype):
    out = run(graph(source(rows(lengths, dtype)), rate=rate, suffix_first=suffix_first, keep=keep))[0]
    for n, row in zip(lengths, out, strict=True):
        whole, pieces = put_back(row["input_ids"], keep)
        assert whole == list(range(n)) and row["input_ids"].dtype == dtype
        free = n - sum(keep)
        assert pieces is None or (rate > 0 and free >= 3 and all(piece != 0 for piece in pieces))
        assert pieces is not None or rate < 1 or free < 3
        if pieces is not None and suffix_first in (0, 1):
            assert (pieces[0] is None) == (suffix_first == 1)


def test_the_two_forms_are_those_of_the_paper():
    ids, marks = np.arange(10), (PREFIX, MIDDLE, SUFFIX)
    psm = rearranged(ids, (1, 3, 6, 9), marks, False)
    assert psm.tolist() == [0, PREFIX, 1, 2, SUFFIX, 6, 7, 8, MIDDLE, 3, 4, 5, 9]
    spm = rearranged(ids, (1, 3, 6, 9), marks, True)
    assert spm.tolist() == [0, PREFIX, SUFFIX, 6, 7, 8, MIDDLE, 1, 2, 3, 4, 5, 9]


@given(st.lists(st.integers(3, 20), min_size=1, max_size=20), st.booleans(), st.sampled_from([bool, np.int64, None]))
def test_a_loss_mask_goes_along_with_its_tokens_and_marks_are_learned(lengths, suffix_first, kind):
    """A mask that can be told from the token, before and after."""
    masked = []
    for row in rows(lengths):
        mask = row["input_ids"] % 3 > 0
        masked.append({**row, "loss_mask": mask.tolist() if kind is None else mask.astype(kind)})
    out = run(graph(source(masked), rate=1, suffix_first=float(suffix_first), keep=(0, 0)))[0]
    for row in out:
        ids, mask = row["input_ids"], row["loss_mask"]
        assert len(ids) == len(mask) and PREFIX in ids
        assert [bool(x) for x in mask] == [bool(token > 1000 or token % 3) for token in ids]
        assert kind is None or np.asarray(mask).dtype == kind


def test_bos_and_eos_stay_at_the_ends_and_other_fields_stay_with_the_record():
    out = run(graph(source(rows([9] * 30)), rate=1, keep=(1, 1)))[0]
    assert all(row["input_ids"][0] == 0 and row["input_ids"][-1] == 8 and len(row["input_ids"]) == 12 for row in out)
    assert [row["v"] for row in out] == list(range(30))


def test_documents_as_lists_may_come_too():
    out = run(graph(source([{"input_ids": [5, 6, 7, 8]}]), rate=1, suffix_first=0, keep=(0, 1)))[0]
    assert list(map(int, out[0]["input_ids"])) == [PREFIX, 5, SUFFIX, 7, MIDDLE, 6, 8]


def test_the_rows_of_the_dataset_are_not_changed():
    made = rows([8] * 6)
    run(graph(source(made), rate=1))
    assert all(row["input_ids"].tolist() == list(range(8)) for row in made)


def test_rates_and_places_are_drawn_evenly():
    """5 standard errors of a binomial; draws are fixed by the seed, so this never flakes."""
    n = 4000
    out = [put_back(row["input_ids"], (0, 0)) for row in run(graph(source(rows([4] * n)), rate=0.3, keep=(0, 0)))[0]]
    forms = Counter(pieces if pieces is None else pieces[0] is None for _, pieces in out)
    assert abs(forms[None] / n - 0.7) < 5 * (0.21 / n) ** 0.5
    done = n - forms[None]
    assert abs(forms[True] / done - 0.5) < 5 * 0.5 / done**0.5
    out = [
        put_back(row["input_ids"], (0, 0))
        for row in run(graph(source(rows([4] * n)), rate=1, suffix_first=0, keep=(0, 0)))[0]
    ]
    places = Counter(pieces for _, pieces in out)
    assert set(places) == {(1, 1, 2), (1, 2, 1), (2, 1, 1)}
    assert all(abs(count / n - 1 / 3) < 5 * (2 / 9 / n) ** 0.5 for count in places.values())


def test_draws_depend_on_seed_name_and_record_alone():
    def cut(**settings):
        settings = {"rate": 1, "suffix_first": 0, **settings}
        return [str(row["input_ids"]) for row in run(graph(source(rows([400] * 20)), **settings))[0]]

    once = cut()
    assert once == cut(parallelism=2) and len(set(once)) == 20
    for changed in ({"seed": 1}, {"name": "fim"}):
        assert sum(a == b for a, b in zip(once, cut(**changed), strict=True)) <= 2
    pipeline = graph(source(rows([400] * 20)), rate=1, suffix_first=0)
    epochs = [[str(row["input_ids"]) for row in pipeline] for _ in range(2)]
    assert epochs[0] == once and sum(a == b for a, b in zip(*epochs, strict=True)) <= 2
    half = Pipeline(source(rows([400] * 20)), runner="inline").filter(lambda row: row["v"] % 2)
    half = half.fill_in_the_middle(PREFIX, MIDDLE, SUFFIX, rate=1, suffix_first=0)
    assert [str(row["input_ids"]) for row in half] == once[1::2]


def test_neither_schedule_nor_world_nor_a_stop_changes_anything():
    def make():
        return Pipeline(source(rows([9] * 60), 4)).fill_in_the_middle(PREFIX, MIDDLE, SUFFIX).pack_flat(16).batch(2)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)


def test_marks_that_the_type_of_the_tokens_cannot_hold_are_an_error_and_no_other_token():
    """Corpora of small vocabularies are stored as uint16, and 100257 would become 34721."""
    out, error = run(Pipeline(source(rows([8], np.uint16))).fill_in_the_middle(100257, 100258, 100259, rate=1))
    if error is None:
        assert {100257, 100258, 100259} < set(map(int, out[0]["input_ids"]))
    else:
        assert isinstance(error, RowError) and "100257" in str(error) and "uint16" in str(error)


@pytest.mark.parametrize("bad", [{"v": 1}, {"input_ids": None}, "text"])
def test_a_record_without_tokens_is_a_bad_record(bad):
    error = run(graph(source([bad]), name="fim"))[1]
    assert isinstance(error, RowError) and "fim failed on row 0 of rows" in str(error) and "input_ids" in str(error)
    pipeline = graph(source([bad, *rows([5])]), on_error="skip")
    assert len(run(pipeline)[0]) == 1 and pipeline.drops.failed == 1


WRONG = [
    ({"rate": 1.1}, "rate and suffix_first are probabilities.*1.1"),
    ({"suffix_first": -0.1}, "rate and suffix_first are probabilities.*-0.1"),
    ({"rate": "half"}, "rate and suffix_first are probabilities.*'half'"),
    ({"keep": (-1, 0)}, r"keep.*\(-1, 0\)"),
    ({"keep": (0, -1)}, r"keep.*\(0, -1\)"),
    ({"keep": 1}, "keep.*1"),
    ({"keep": (1,)}, r"keep.*\(1,\)"),
    ({"seed": None}, "seed must be an integer, got None"),
    ({"prefix_id": None}, "prefix_id.*None"),
    ({"middle_id": "<fim_middle>"}, "middle_id.*<fim_middle>"),
    ({"middle_id": PREFIX}, "differ"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=str)
def test_settings_that_cannot_work_are_refused_at_construction(settings, words):
    """A tokenizer without these tokens gives None, or the unknown token for all three."""
    marks = {"prefix_id": PREFIX, "middle_id": MIDDLE, "suffix_id": SUFFIX}
    with pytest.raises(ConfigError, match=words):
        FillInTheMiddle(Read(source()), **{**marks, **settings})


@pytest.mark.parametrize("changed", [{"rate": 0.4}, {"suffix_first": 1}, {"keep": (1, 1)}, {"seed": 1}])
def test_every_setting_is_in_the_recipe(changed):
    state = graph(source(rows([9]))).state_dict()
    with pytest.raises(StateError, match=rf"nodes\.fill_in_the_middle\.{next(iter(changed))}"):
        graph(source(rows([9])), **changed).load_state_dict(state)
