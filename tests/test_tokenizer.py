"""Encoder: ids against plain ``Tokenizer.encode`` and plain lists, identity, threads, copies."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers_for_tests import SPECIAL, TEXTS, add_template, save_folder, train_tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.tokenizer import Encoder, load_tokenizer

END, BOS, EOS = range(3)  # ids of SPECIAL
texts = st.text(st.characters(codec="utf-8"), max_size=40) | st.sampled_from(TEXTS)
specials = st.sampled_from([(None, None), (BOS, None), (None, EOS), (BOS, EOS)])


def plain_ids(text: str, tokenizer: Tokenizer | None = None) -> list[int]:
    return (tokenizer or train_tokenizer()).encode(text, add_special_tokens=False).ids


@functools.cache
def encoder(bos: int | None, eos: int | None, max_length: int | None = None, long: str | None = None) -> Encoder:
    return load_tokenizer(train_tokenizer(), bos=bos, eos=eos, max_length=max_length, long=long)


def as_lists(pieces: list[np.ndarray]) -> list[list[int]]:
    return [piece.tolist() for piece in pieces]


def joined(pieces: list[list[int]]) -> list[int]:
    return [token for piece in pieces for token in piece]


# --- ids


@settings(deadline=None)
@given(st.lists(texts, max_size=5), specials)
def test_ids_are_those_of_the_tokenizer_between_bos_and_eos(group: list[str], special: tuple[int | None, int | None]):
    bos, eos = ([] if token is None else [token] for token in special)
    encoded = encoder(*special).encode(group)
    assert [as_lists(pieces) for pieces in encoded] == [[[*bos, *plain_ids(text), *eos]] for text in group]
    assert all(p.dtype == np.int32 and p.ndim == 1 and p.flags.writeable for pieces in encoded for p in pieces)


@settings(deadline=None)
@given(st.lists(texts, max_size=5), specials)
def test_offsets_are_the_characters_of_each_token_whatever_is_added_or_cut(group, special):
    encoded = encoder(*special, 4, "truncate").encode_with_offsets(group)
    assert len(encoded) == len(group)
    for text, (ids, offsets) in zip(group, encoded, strict=True):
        assert ids.dtype == np.int32 and ids.tolist() == plain_ids(text)
        assert offsets.dtype == np.int64 and offsets.shape == (len(ids), 2)
        seen = sorted({(start, stop) for start, stop in offsets.tolist()})
        assert "".join(text[start:stop] for start, stop in seen) == text or any(ord(c) > 127 for c in text)
        for token, (start, stop) in zip(ids.tolist(), offsets.tolist(), strict=True):
            written = train_tokenizer().decode([token], skip_special_tokens=False)
            assert written == text[start:stop] or "\ufffd" in written
    assert encoder(*special).encode_with_offsets([]) == []


@settings(deadline=None)
@given(texts, specials, st.integers(0, 20))
def test_truncation_keeps_bos_and_eos(text: str, special: tuple[int | None, int | None], extra: int):
    bos, eos = ([] if token is None else [token] for token in special)
    max_length = len(bos) + len(eos) + 1 + extra
    (piece,) = encoder(*special, max_length, "truncate").encode([text])[0]
    assert piece.tolist() == [*bos, *plain_ids(text)[: extra + 1], *eos]


@settings(deadline=None)
@given(texts, specials, st.integers(0, 20))
def test_split_pieces_join_to_the_unsplit_ids_and_all_hold_content(text, special, extra: int):
    max_length = sum(token is not None for token in special) + 1 + extra
    pieces = as_lists(encoder(*special, max_length, "split").encode([text])[0])
    assert joined(pieces) == encoder(*special).encode([text])[0][0].tolist()
    assert all(len(piece) <= max_length for piece in pieces)
    if text:
        held = [piece[bool(i == 0 and special[0] is not None) :] for i, piece in enumerate(pieces)]
        held[-1] = held[-1][: len(held[-1]) - (special[1] is not None)]
        assert all(held) and joined(held) == plain_ids(text)
    assert len(pieces) == max(1, -(-sum(map(len, pieces)) // max_length))


def test_eos_is_never_a_piece_of_its_own():
    assert len(plain_ids("aaaa")) == 4
    pieces = as_lists(encoder(None, EOS, 4, "split").encode(["aaaa"])[0])
    assert pieces == [plain_ids("aaa"), [*plain_ids("a"), EOS]]
    assert as_lists(encoder(None, None, 3, "split").encode(["aaaa"])[0]) == [plain_ids("aaa"), plain_ids("a")]


def test_an_empty_text_gives_the_specials_only():
    assert as_lists(encoder(BOS, EOS).encode([""])[0]) == [[BOS, EOS]]
    assert as_lists(encoder(None, None, 4, "split").encode([""])[0]) == [[]]
    assert encoder(BOS, EOS).encode([]) == []


def test_post_processor_adds_nothing_of_its_own():
    loaded = load_tokenizer(add_template(train_tokenizer(), "<s> $A </s>"))
    assert as_lists(loaded.encode(["lane"])[0]) == [[BOS, *plain_ids("lane"), EOS]]
    without = load_tokenizer(add_template(train_tokenizer(), "<s> $A </s>"), bos=None, eos=None)
    assert as_lists(without.encode(["lane"])[0]) == [plain_ids("lane")]


def test_truncation_and_padding_of_the_given_tokenizer_are_ignored_and_left_alone():
    tokenizer = add_template(train_tokenizer())
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=64, pad_id=END, pad_token=SPECIAL[END])
    before = tokenizer.to_str()
    encoded = load_tokenizer(tokenizer, max_length=20, long="split").encode([TEXTS[0], "a"])
    assert joined(as_lists(encoded[0])) == [BOS, *plain_ids(TEXTS[0]), EOS]
    assert as_lists(encoded[1]) == [[BOS, *plain_ids("a"), EOS]]
    assert tokenizer.to_str() == before


def test_special_tokens_inside_a_text_follow_encode_special_tokens():
    tokenizer = train_tokenizer()
    text = "a</s>b"
    assert EOS in load_tokenizer(tokenizer, eos=None).encode([text])[0][0]
    tokenizer.encode_special_tokens = True
    literal = load_tokenizer(tokenizer, eos=None)
    assert EOS not in literal.encode([text])[0][0]
    assert literal.decode(literal.encode([text])[0][0]) == text
    assert tokenizer.encode_special_tokens
    for other in (pickle.loads(pickle.dumps(literal)), copy.deepcopy(literal)):
        assert as_lists(other.encode([text])[0]) == as_lists(literal.encode([text])[0])


def test_a_long_document_has_the_ids_of_its_parts():
    line = "The loader reads each document once.\n"  # "\n" always ends a word of this tokenizer
    (piece,) = encoder(BOS, EOS).encode([line * 2000])[0]
    assert piece.tolist() == [BOS, *plain_ids(line) * 2000, EOS]


# --- what can't be encoded


@pytest.mark.parametrize(("bad", "kind"), [(None, "NoneType"), (b"x", "bytes"), (3, "int"), (["a", "b"], "list")])
def test_what_is_not_a_str_is_named(bad: object, kind: str):
    with pytest.raises(TypeError, match=f"text 1 of 2 is a {kind}"):
        encoder(BOS, EOS).encode(["a", bad])


def test_one_str_instead_of_a_list_is_refused():
    with pytest.raises(TypeError, match=r"one str; pass \[text\]"):
        encoder(BOS, EOS).encode("abc")


def test_half_a_surrogate_pair_is_named():
    with pytest.raises(ValueError, match="text 1 of 2 isn't valid Unicode: half of a surrogate pair at character 2"):
        encoder(BOS, EOS).encode(["a", json.loads('"ab\\ud800c"')])


# --- settings


def test_defaults():
    loaded = load_tokenizer(train_tokenizer())
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.max_length, loaded.long) == (None, END, None, None)
    assert load_tokenizer(train_tokenizer(), max_length=8).long == "truncate"
    assert loaded.vocab_size == len(train_tokenizer().get_vocab()) == loaded.recipe()["vocab_size"]


@pytest.mark.parametrize("max_length", [2, 0, -1, True, 8.0])
def test_too_small_or_odd_max_length_is_refused(max_length: object):
    with pytest.raises(ConfigError, match=r"max_length=.* must be an int of at least 3"):
        load_tokenizer(train_tokenizer(), bos=BOS, eos=EOS, max_length=max_length)


def test_long_needs_max_length_and_a_known_value():
    with pytest.raises(ConfigError, match="long='split' needs max_length="):
        load_tokenizer(train_tokenizer(), long="split")
    with pytest.raises(ConfigError, match="long='drop' is unknown"):
        load_tokenizer(train_tokenizer(), max_length=8, long="drop")


def test_dropout_is_refused_because_it_draws_ids():
    tokenizer = Tokenizer(models.BPE({"a": 0}, [], dropout=0.5))
    with pytest.raises(ConfigError, match=r"dropout=0\.5"):
        load_tokenizer(tokenizer, eos=None)


# --- recipe


def test_recipe_is_plain_and_tells_settings_apart():
    def recipe(tokenizer: Tokenizer | None = None, **changed: object) -> str:
        return json.dumps(load_tokenizer(tokenizer or train_tokenizer(), **changed).recipe(), sort_keys=True)

    literal = train_tokenizer()
    literal.encode_special_tokens = True
    split = train_tokenizer()
    split.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), split.pre_tokenizer])
    different = [
        recipe(),
        recipe(train_tokenizer(vocab_size=400)),
        recipe(split),
        recipe(literal),
        recipe(eos=EOS),
        recipe(bos=BOS),
        recipe(max_length=8),
        recipe(max_length=9),
        recipe(max_length=8, long="split"),
    ]
    assert len(set(different)) == len(different)


def test_recipe_sees_a_change_that_the_vocabulary_hides():
    parts = json.loads(train_tokenizer().to_str())
    parts["model"]["merges"][0], parts["model"]["merges"][1] = parts["model"]["merges"][1], parts["model"]["merges"][0]
    other = Tokenizer.from_str(json.dumps(parts))
    assert other.get_vocab() == train_tokenizer().get_vocab()
    assert load_tokenizer(other).recipe()["tokenizer"] != load_tokenizer(train_tokenizer()).recipe()["tokenizer"]


def test_recipe_is_the_same_in_every_form(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer()
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    folder = save_folder(tmp_path / "tok", tokenizer, names)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(), **names)
    fast("some text", truncation=True, max_length=2)  # leaves truncation on in the backend
    fast.save_pretrained(tmp_path / "saved")
    forms = {
        "folder": folder,
        "folder as str": str(folder),
        "file": folder / "tokenizer.json",
        "fast": fast,
        "saved by transformers": tmp_path / "saved",
        "auto": transformers.AutoTokenizer.from_pretrained(folder),
        "gpt2": transformers.GPT2TokenizerFast.from_pretrained(folder),
    }
    recipes = {name: load_tokenizer(form).recipe() for name, form in forms.items()}
    recipes["bare"] = load_tokenizer(tokenizer, bos="<s>", eos="</s>").recipe()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding()
    tokenizer.decoder = decoders.Fuse()
    recipes["bare, other settings"] = load_tokenizer(add_template(tokenizer), bos="<s>", eos="</s>").recipe()
    assert recipes == dict.fromkeys(recipes, recipes["folder"])
    assert (recipes["folder"]["bos_token_id"], recipes["folder"]["eos_token_id"]) == (BOS, EOS)


def test_recipe_is_the_same_for_scores_that_reading_changes_in_the_last_bit(tmp_path):
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -7.7047512165113545)], 0))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_str(tokenizer.to_str()).to_str() != tokenizer.to_str()
    assert load_tokenizer(tokenizer, eos=None).recipe() == load_tokenizer(tmp_path, eos=None).recipe()


# --- decode, pad


def test_decode_shows_special_tokens():
    loaded = encoder(BOS, EOS)
    (ids,) = loaded.encode(["héllo 東京"])[0]
    assert loaded.decode(ids) == loaded.decode(ids.tolist()) == "<s>héllo 東京</s>"
    assert loaded.decode([]) == ""


def test_pad_is_the_declared_one_else_eos_else_0(tmp_path):
    tokenizer = train_tokenizer()
    declared = save_folder(tmp_path, tokenizer, {"pad_token": "<s>", "eos_token": "</s>"})
    assert load_tokenizer(declared).pad_token_id == BOS
    assert load_tokenizer(tokenizer, eos=EOS).pad_token_id == EOS
    assert load_tokenizer(tokenizer, eos=None).pad_token_id == 0
    unknown = save_folder(tmp_path, tokenizer, {"pad_token": "[PAD]", "eos_token": "</s>"})
    assert load_tokenizer(unknown).pad_token_id == EOS


# --- copies, threads, surroundings


def test_pickle_and_deepcopy_give_an_equal_encoder():
    loaded = encoder(BOS, EOS, 10, "split")
    for other in (pickle.loads(pickle.dumps(loaded)), copy.deepcopy(loaded)):
        assert other.recipe() == loaded.recipe() and other.pad_token_id == loaded.pad_token_id
        assert [as_lists(p) for p in other.encode(TEXTS)] == [as_lists(p) for p in loaded.encode(TEXTS)]
        assert other.decode([BOS, 70]) == loaded.decode([BOS, 70])


def test_sixteen_threads_share_one_encoder_while_its_origin_is_used():
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(), eos_token="</s>", pad_token="<|endoftext|>"
    )
    loaded = load_tokenizer(fast)
    groups = [[f"{text} {i}" for text in TEXTS] for i in range(4000)]
    expected = [[[*plain_ids(text), EOS] for text in group] for group in groups[:100]]

    def call(i: int) -> list[list[int]]:
        return [pieces[0].tolist() for pieces in loaded.encode(groups[i % 100])]

    with ThreadPoolExecutor(17) as pool:
        toggling = pool.submit(
            lambda: [
                fast(TEXTS[0], truncation=i % 2 == 0, padding="max_length", max_length=4 + i % 3) for i in range(500)
            ]
        )
        results = list(pool.map(call, range(4000)))
        assert len(toggling.result()) == 500
    assert results == [expected[i % 100] for i in range(4000)]


def test_the_environment_is_left_alone():
    before = dict(os.environ)
    load_tokenizer(train_tokenizer()).encode(["a", "b"])
    assert dict(os.environ) == before
