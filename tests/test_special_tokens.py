"""Which tokens "auto" finds, and what is said when a token can't be found."""

from __future__ import annotations

import logging

import pytest
from tokenizers import Tokenizer, processors
from tokenizers_for_tests import add_template, save_folder, train_tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.special_tokens import PROBE
from zephon_nodes.tokenizer import load_tokenizer

END, BOS, EOS = range(3)


def found(tokenizer: object, **settings: object) -> tuple[int | None, int | None]:
    loaded = load_tokenizer(tokenizer, **settings)
    return loaded.bos_token_id, loaded.eos_token_id


def declared(tmp_path, tokenizer: Tokenizer | None = None, **tokens: object) -> tuple[int | None, int | None]:
    return found(save_folder(tmp_path, tokenizer or train_tokenizer(), tokens))


def test_declared_tokens_go_first(tmp_path):
    template = add_template(train_tokenizer(), "<|endoftext|> $A <|endoftext|>")
    assert declared(tmp_path, template, bos_token="<s>", eos_token="</s>") == (BOS, EOS)


def test_declared_bos_that_is_the_eos_as_well_is_not_taken(tmp_path):
    assert declared(tmp_path, bos_token="</s>", eos_token="</s>") == (None, EOS)
    template = add_template(train_tokenizer(), "<s> $A")
    assert declared(tmp_path, template, bos_token="</s>", eos_token="</s>") == (BOS, EOS)
    folder = save_folder(tmp_path, train_tokenizer(), {"bos_token": "</s>", "eos_token": "</s>"})
    assert found(folder, eos=None) == (None, None)
    folder = save_folder(tmp_path, train_tokenizer(), {"bos_token": "<s>", "eos_token": "</s>"})
    assert found(folder, eos="<s>") == (None, BOS)


def test_post_processor_goes_before_well_known_names():
    assert found(add_template(train_tokenizer(), "<s> $A </s>")) == (BOS, EOS)
    assert found(add_template(train_tokenizer(), "$A </s>")) == (None, EOS)
    assert found(add_template(train_tokenizer(), "<s> $A")) == (BOS, END)
    sequence = train_tokenizer()
    roberta = processors.RobertaProcessing(("</s>", EOS), ("<s>", BOS))
    sequence.post_processor = processors.Sequence([processors.ByteLevel(), roberta])
    assert found(sequence) == (BOS, EOS)


def test_several_tokens_of_a_post_processor_are_not_chosen_from():
    tokenizer = add_template(train_tokenizer(), "<s> <|endoftext|> $A </s>")
    with pytest.raises(ConfigError, match=r"bos=\"auto\" .* adds \['<s>', '<\|endoftext\|>'\].*Pass bos="):
        load_tokenizer(tokenizer)
    assert found(tokenizer, bos="<s>") == (BOS, EOS)


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>"])
def test_well_known_names_must_be_special_tokens(name: str, caplog):
    assert found(train_tokenizer(("<x>", name))) == (None, 1)
    assert not caplog.records
    ordinary = train_tokenizer(("<x>",))
    ordinary.add_tokens([name])
    assert ordinary.token_to_id(name) is not None
    assert found(ordinary) == (None, None)


def test_no_eos_at_all_is_warned_about_once(caplog):
    with caplog.at_level(logging.WARNING):
        loaded = load_tokenizer(train_tokenizer(()))
        loaded.encode(["a"])
    (record,) = caplog.records
    assert "nothing will separate documents" in record.getMessage() and "Pass eos=" in record.getMessage()
    assert loaded.eos_token_id is None
    caplog.clear()
    assert found(train_tokenizer(()), eos=None) == (None, None)
    assert not caplog.records


def test_explicit_ids_and_tokens():
    assert found(train_tokenizer(), bos="<s>", eos="</s>") == (BOS, EOS)
    assert found(train_tokenizer(), bos=END, eos=70) == (END, 70)
    assert found(add_template(train_tokenizer()), bos=None, eos=None) == (None, None)


@pytest.mark.parametrize("token", ["<nope>", "", -1, 10_000, 1 << 40, True, 1.0])
def test_unknown_token_or_id_is_refused_with_the_choices(token: object):
    with pytest.raises(ConfigError, match=r"bos=.* isn't in the vocabulary of the given Tokenizer.*'<s>', '</s>'"):
        load_tokenizer(train_tokenizer(), bos=token)


@pytest.mark.parametrize("setting", ["bos", "eos"])
def test_declared_token_that_does_not_exist_is_refused_unless_another_is_given(tmp_path, setting: str):
    tokens = {"bos_token": "<s>", "eos_token": "</s>", f"{setting}_token": "<nope>"}
    folder = save_folder(tmp_path, train_tokenizer(), tokens)
    with pytest.raises(ConfigError, match=rf"{setting}=\"auto\" .*'<nope>'.*{tmp_path.name}.*Pass {setting}="):
        load_tokenizer(folder)
    assert found(folder, **{setting: None})[setting == "eos"] is None


def test_a_tokenizer_that_knows_nothing_of_the_probe_has_no_post_processed_tokens():
    from tokenizers import models

    tokenizer = Tokenizer(models.WordLevel({"lane": 0}, unk_token="?"))
    assert tokenizer.encode("lane").ids == [0]
    empty = Tokenizer(models.BPE({"<s>": 0}, []))
    empty.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    assert empty.encode(PROBE).ids == [0]
    assert found(empty, eos=None) == (None, None)
