"""Tokenize in a graph: fields, bad rows, splitting over stops, many threads."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, run, source, take
from tokenizers_for_tests import TEXTS, add_template, save_folder, train_tokenizer

from zephon_nodes import ConfigError, Pipeline, Read, RowError, Tokenize
from zephon_nodes.testing import assert_any_schedule

END, BOS, EOS = range(3)
texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(TEXTS), min_size=1, max_size=12)


def plain_ids(text):
    return train_tokenizer().encode(text, add_special_tokens=False).ids


def tokenized(rows, on_error="raise", **settings):
    settings = {"tokenizer": train_tokenizer(), "bos": "<s>", "eos": "</s>", **settings}
    return Pipeline(source(rows, chunk=64), on_error=on_error).tokenize(**settings)


@given(texts, st.booleans())
def test_each_text_becomes_its_ids_between_bos_and_eos_and_the_other_fields_stay(group, keep):
    rows = [{"text": text, "id": i, "list": [i]} for i, text in enumerate(group)]
    out, error = run(tokenized(rows, keep_fields=keep))
    assert error is None and len(out) == len(rows)
    for row, payload in zip(rows, out, strict=True):
        ids = payload.pop("input_ids")
        assert ids.dtype == np.int32 and ids.flags.writeable
        assert ids.tolist() == [BOS, *plain_ids(row["text"]), EOS]
        assert payload == (row if keep else {})


def test_field_and_output_may_have_other_names():
    out = run(tokenized([{"body": "a b", "text": 5}], field="body", output="ids"))[0]
    assert out[0].keys() == {"body", "text", "ids"} and out[0]["ids"].tolist() == [BOS, *plain_ids("a b"), EOS]


def test_bos_and_eos_come_once_each_whatever_the_tokenizer_adds_itself():
    twice = add_template(train_tokenizer(), "<s> $A </s>")
    for bos, eos in (("<s>", "</s>"), ("auto", "auto")):
        (out,) = run(tokenized([{"text": "a b"}], tokenizer=twice, bos=bos, eos=eos))[0]
        assert out["input_ids"].tolist() == [BOS, *plain_ids("a b"), EOS]


def test_all_forms_of_a_tokenizer_give_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = save_folder(tmp_path / "t", train_tokenizer())
    fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    forms = [train_tokenizer(), folder, str(folder), folder / "tokenizer.json", fast]
    got = [run(tokenized([{"text": TEXTS[0]}], tokenizer=form))[0][0]["input_ids"].tolist() for form in forms]
    assert got == [[BOS, *plain_ids(TEXTS[0]), EOS]] * len(forms)
    by_id = Pipeline(source([{"text": TEXTS[0]}])).tokenize(tokenizer_id=str(folder), bos="<s>", eos="</s>")
    assert run(by_id)[0][0]["input_ids"].tolist() == got[0]


BAD = {
    "missing": ({"txt": "a"}, ["'text' is missing", "txt"]),
    "null": ({"text": None}, ["'text' is null"]),
    "bytes": ({"text": b"a"}, ["must be a str, got bytes", "decode_text"]),
    "number": ({"text": 5}, ["must be a str, got int"]),
    "list": ({"text": ["a"]}, ["must be a str, got list"]),
    "no dict": ("a", ["must be a dict with a field 'text', got str"]),
    "half a surrogate pair": ({"text": "a\ud800"}, ["surrogates"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_is_an_error_that_names_the_row_behind_all_that_came_before(name):
    bad, words = BAD[name]
    out, error = run(tokenized([{"text": "a"}, bad, {"text": "b"}]))
    assert len(out) == 1 and isinstance(error, RowError) and error.__cause__ is not None
    for word in ("tokenize failed on row 1 of rows (dataset 'd')", *words):
        assert word in str(error)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_field_is_skipped_and_counted_without_harm_to_its_group(name):
    bad, words = BAD[name]
    pipeline = tokenized([{"text": "a"}, bad, {"text": "b"}, bad, {"text": "c"}], on_error="skip")
    out, error = run(pipeline)
    assert error is None
    assert [p["input_ids"].tolist() for p in out] == [[BOS, *plain_ids(t), EOS] for t in "abc"]
    assert pipeline.drops.failed == 2 and all(word in pipeline.drops.rows[0].reason for word in words)


@given(st.integers(3, 9), st.lists(st.integers(0, 7), max_size=5), st.sampled_from([None, 3]))
def test_split_documents_lose_nothing_over_any_chain_of_resumes(max_length, cuts, batch):
    rows = [{"text": TEXTS[i % 4][: 11 * i], "id": i} for i in range(8)]

    def make():
        pipeline = tokenized(rows, max_length=max_length, long="split").options(runner="inline")
        return pipeline if batch is None else pipeline.batch(batch)

    out = chained(make, cuts)[0]
    pieces = out if batch is None else [piece for one in out for piece in one]
    joined = {row["id"]: [] for row in rows}
    for piece in pieces:
        assert len(piece["input_ids"]) <= max_length
        joined[piece["id"]] += piece["input_ids"].tolist()
    assert joined == {row["id"]: [BOS, *plain_ids(row["text"]), EOS] for row in rows}


def test_max_length_alone_cuts_off_and_keeps_bos_and_eos():
    (out,) = run(tokenized([{"text": TEXTS[0]}], max_length=6))[0]
    assert out["input_ids"].tolist() == [BOS, *plain_ids(TEXTS[0])[:4], EOS]


def test_sixteen_threads_share_one_tokenizer_that_pads_and_truncates_for_others():
    """Report P7: "Already borrowed" comes from changing a tokenizer that another thread is using."""
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(), pad_token="<|endoftext|>")
    rows = [{"text": f"{TEXTS[i % 4][: i % 50]} {i}"} for i in range(4000)]
    work = source(rows, 4, chunk=64)
    pipeline = Pipeline(work, parallelism=16, prefetch=64).tokenize(fast, bos=None, eos=None)
    count = 0
    for payload in pipeline:
        if count % 8 == 0:
            fast(["a", "b c d"], padding=True, truncation=True, max_length=3)
        if count % 40 == 0:
            assert payload["input_ids"].tolist() == plain_ids(payload["text"])
        count += 1
    assert count == 4000


def test_a_document_of_a_megabyte_has_the_ids_of_its_parts():
    """Report P5: no other ids because a text is long. Words are the tokenizer's own borders."""
    part = " ".join(TEXTS[:3]) + "\n"
    (out,) = run(tokenized([{"text": part * 3000}], bos=None, eos=None))[0]
    assert out["input_ids"].tolist() == plain_ids(part) * 3000


def test_the_environment_is_left_alone(monkeypatch):
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    run(tokenized([{"text": "a"}] * 200))
    assert "TOKENIZERS_PARALLELISM" not in os.environ


def test_a_tokenizer_is_asked_for_in_words_when_there_is_none_or_two():
    for settings in ({}, {"tokenizer": train_tokenizer(), "tokenizer_id": "gpt2"}):
        with pytest.raises(ConfigError, match=r"tokenizer=.*tokenizer_id="):
            Tokenize(Read(source()), **settings)


@pytest.mark.parametrize(
    "wrong", [{"max_length": 0}, {"max_length": 2}, {"long": "split"}, {"eos": "<nope>"}, {"bos": 10**6}]
)
def test_settings_that_do_not_fit_the_tokenizer_are_refused_at_construction(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        tokenized([{"text": "a"}], **wrong)


@pytest.mark.parametrize(
    "changed",
    [{"field": "b"}, {"output": "b"}, {"keep_fields": False}, {"eos": None}, {"max_length": 9}, {"tokenizer": train_tokenizer(vocab_size=400)}],
    ids=lambda changed: next(iter(changed)),
)  # fmt: skip
def test_another_setting_or_tokenizer_is_refused_by_name_at_a_restore(changed):
    names = {"eos": "eos_token_id"}
    name = next(iter(changed))
    with pytest.raises(ValueError, match=rf"nodes\.tokenize\.{names.get(name, name)}: .* -> "):
        tokenized([{"text": "a"}], **changed).load_state_dict(tokenized([{"text": "a"}]).state_dict())


def test_the_state_does_not_hold_the_tokenizer_and_stays_small():
    state = take(tokenized([{"text": t} for t in TEXTS * 9]), 5)[1]
    assert len(state["recipe"]) < 2500


def test_no_schedule_changes_the_ids():
    rows = [{"text": f"{TEXTS[i % 4][: i * 3 % 50]}"} for i in range(150)]
    assert_any_schedule(lambda: tokenized(rows).tokenize(train_tokenizer(), output="again", parallelism=2))
