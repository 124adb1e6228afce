"""The fast twin gives the ids of `tokenizers` or is not used at all."""

from __future__ import annotations

import logging
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers_for_tests import TEXTS, add_template, train_tokenizer

from zephon_nodes import fast_tokenizer as module
from zephon_nodes.fast_tokenizer import fast_tokenizer, probe_texts
from zephon_nodes.tokenizer import load_tokenizer

LLAMA = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@pytest.fixture(autouse=True)
def clean():
    fast_tokenizer.cache_clear()
    yield
    fast_tokenizer.cache_clear()


def bpe(pre, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made = trainers.BpeTrainer(vocab_size=450, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 2, made)
    return tokenizer


KINDS = {
    "gpt2": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "prefix space": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "llama3": lambda: bpe(
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "nfc": lambda: bpe(pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()),
    "nfkc lower": lambda: bpe(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    ),
    "digits": lambda: bpe(
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    ),
    "words": lambda: Tokenizer(models.WordLevel({"the": 0, "?": 1}, unk_token="?")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_the_same_with_and_without_it(kind):
    tokenizer = KINDS[kind]()
    texts = [*TEXTS, *probe_texts(["<eos>"])]
    exact = load_tokenizer(tokenizer, bos=None, eos=None, fast=False).encode(texts)
    found = load_tokenizer(tokenizer, bos=None, eos=None).encode(texts)
    assert [[p.tolist() for p in one] for one in found] == [[p.tolist() for p in one] for one in exact]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=4))
def test_any_text_has_the_same_ids(texts):
    pytest.importorskip("gigatoken")
    fast = fast_tokenizer(train_tokenizer().to_str())
    right = train_tokenizer().encode_batch_fast(texts, add_special_tokens=False)
    assert [ids.tolist() for ids in fast.encode(texts)] == [encoding.ids for encoding in right]


def test_pieces_are_writable_int32_between_bos_and_eos():
    encoder = load_tokenizer(add_template(train_tokenizer()), max_length=8, long="split")
    for pieces in encoder.encode(TEXTS):
        assert all(p.dtype == np.int32 and p.flags.writeable and len(p) <= 8 for p in pieces)
        assert pieces[0][0] == encoder.bos_token_id and pieces[-1][-1] == encoder.eos_token_id


def test_it_is_used_where_it_is_installed_and_a_setting_turns_it_off(monkeypatch):
    pytest.importorskip("gigatoken")
    used = []
    monkeypatch.setattr(module.FastTokenizer, "encode", lambda self, texts: used.append(len(texts)) or [])
    monkeypatch.setattr(module, "_first_difference", lambda fast, exact: None)
    load_tokenizer(train_tokenizer()).encode(["a", "b"])
    load_tokenizer(train_tokenizer(), fast=False).encode(["a"])
    assert used == [2]


def test_one_that_gives_another_id_is_not_used_and_the_text_is_named(monkeypatch, caplog):
    pytest.importorskip("gigatoken")
    real = module.FastTokenizer.encode
    monkeypatch.setattr(module.FastTokenizer, "encode", lambda self, texts: [ids[:1] for ids in real(self, texts)])
    with caplog.at_level(logging.WARNING):
        assert fast_tokenizer(train_tokenizer().to_str()) is None
    assert "other ids than tokenizers" in caplog.text and "Über 3 na" in caplog.text
    encoded = load_tokenizer(train_tokenizer(), bos=None, eos=None).encode(TEXTS)
    assert encoded[0][0].tolist() == train_tokenizer().encode(TEXTS[0]).ids


def test_a_kind_that_it_does_not_know_falls_back_with_a_message(caplog):
    pytest.importorskip("gigatoken")
    with caplog.at_level(logging.WARNING):
        assert fast_tokenizer(KINDS["words"]().to_str()) is None
    assert "gigatoken can't take this tokenizer" in caplog.text


def test_it_is_made_anew_before_its_memory_of_words_grows(monkeypatch):
    pytest.importorskip("gigatoken")
    monkeypatch.setattr(module, "_RENEWED_AFTER", 100)
    fast, texts = fast_tokenizer(train_tokenizer().to_str()), [TEXTS[0]]
    first, made = fast.encode(texts)[0].tolist(), {id(fast._made): fast._made}
    for _ in range(5):
        assert fast.encode(texts)[0].tolist() == first
        made[id(fast._made)] = fast._made
    assert len(made) > 1


def test_threads_share_it_and_copies_make_their_own():
    encoder = load_tokenizer(train_tokenizer(), bos=None, eos=None)
    right = [train_tokenizer().encode(text).ids for text in TEXTS]
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(encoder.encode, [TEXTS] * 40):
            assert [pieces[0].tolist() for pieces in found] == right
    copy = pickle.loads(pickle.dumps(encoder))
    assert [pieces[0].tolist() for pieces in copy.encode(TEXTS)] == right
    assert (
        copy.recipe() == encoder.recipe() == load_tokenizer(train_tokenizer(), bos=None, eos=None, fast=False).recipe()
    )


def test_special_tokens_in_a_text_are_read_as_the_tokenizer_says():
    tokenizer = train_tokenizer()
    for flag in (False, True):
        tokenizer.encode_special_tokens = flag
        ids = load_tokenizer(tokenizer, bos=None, eos=None).encode(["a <s>b<|endoftext|>"])[0][0].tolist()
        assert ids == tokenizer.encode("a <s>b<|endoftext|>").ids
