"""Where tokenizers come from: objects, files, folders, the hub's cache."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tokenizers import ByteLevelBPETokenizer, NormalizedString, PreTokenizedString, Tokenizer, models, pre_tokenizers
from tokenizers_for_tests import save_folder, train_tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.tokenizer import load_tokenizer
from zephon_nodes.tokenizer_source import choose_chat_template, find_chat_templates, find_tokenizer

END, BOS, EOS = range(3)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|endoftext|>"}


# --- objects


def test_a_tokenizer_declares_nothing():
    source = find_tokenizer(train_tokenizer())
    assert source.text == train_tokenizer().to_str()
    assert source.declared == {} and not source.encode_special_tokens


def test_a_ready_made_kind_of_tokenizer_is_the_tokenizer_in_it():
    kind = ByteLevelBPETokenizer()
    kind.train_from_iterator(["a few words"], special_tokens=["<|endoftext|>"], show_progress=False)
    bare = Tokenizer.from_str(kind.to_str())
    assert find_tokenizer(kind).text == find_tokenizer(bare).text
    assert load_tokenizer(kind).recipe() == load_tokenizer(bare).recipe()


def test_a_fast_tokenizer_declares_its_tokens():
    transformers = pytest.importorskip("transformers")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(), bos_token="<s>", eos_token="</s>", split_special_tokens=True
    )
    source = find_tokenizer(fast)
    assert source.declared == {"bos_token": "<s>", "eos_token": "</s>"} and source.encode_special_tokens
    assert EOS not in load_tokenizer(fast, eos=None).encode(["a</s>b"])[0][0]


def test_a_slow_tokenizer_is_refused_with_a_way_out():
    transformers = pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match=r"ByT5Tokenizer, a slow tokenizer.*convert_slow_tokenizer"):
        load_tokenizer(transformers.ByT5Tokenizer())


@pytest.mark.parametrize(("nothing", "came"), [(None, "no tokenizer"), ("", "no tokenizer"), (3, "a int")])
def test_no_tokenizer_is_refused(nothing: object, came: str):
    with pytest.raises(ConfigError, match=f"was given {came}; pass a tokenizers.Tokenizer"):
        load_tokenizer(nothing)


def test_parts_written_in_python_are_refused():
    class Whole:
        def pre_tokenize(self, text: PreTokenizedString) -> None:
            text.split(lambda _, part: [part])

    def whole(_: int, part: NormalizedString) -> list[NormalizedString]:
        return [part]

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Whole())
    with pytest.raises(ConfigError, match=r"the given Tokenizer can't be written as JSON.*Cause: "):
        load_tokenizer(tokenizer)


# --- files and folders


def test_folder_and_file_in_it_read_the_configs(tmp_path):
    folder = save_folder(tmp_path, train_tokenizer(), TOKENS)
    for form in (folder, str(folder), folder / "tokenizer.json", str(folder / "tokenizer.json")):
        assert find_tokenizer(form).declared == TOKENS
        loaded = load_tokenizer(form)
        assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (BOS, EOS, END)


def test_a_file_with_another_name_stands_alone(tmp_path):
    folder = save_folder(tmp_path, train_tokenizer(), TOKENS)
    (folder / "tokenizer.json").rename(folder / "mine.json")
    assert find_tokenizer(folder / "mine.json").declared == {}
    assert load_tokenizer(folder / "mine.json").eos_token_id == END


def test_home_and_relative_paths(tmp_path, monkeypatch):
    save_folder(tmp_path / "tok", train_tokenizer())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert load_tokenizer("~/tok").recipe() == load_tokenizer("tok").recipe() == load_tokenizer("./tok").recipe()


def test_tokens_may_be_declared_as_objects(tmp_path):
    config = {"eos_token": {"content": "</s>", "special": True}, "bos_token": None, "pad_token": {"id": 3}}
    assert find_tokenizer(save_folder(tmp_path, train_tokenizer(), config)).declared == {"eos_token": "</s>"}


def test_special_tokens_map_declares_too(tmp_path):
    only_map = save_folder(tmp_path / "a", train_tokenizer(), None, {"eos_token": {"content": "</s>"}})
    assert find_tokenizer(only_map).declared == {"eos_token": "</s>"}
    older = save_folder(
        tmp_path / "b", train_tokenizer(), {"bos_token": "<s>", "eos_token": "x"}, {"eos_token": "</s>"}
    )
    assert find_tokenizer(older).declared == {"bos_token": "<s>", "eos_token": "</s>"}
    newer = {"eos_token": "</s>", "added_tokens_decoder": {}}
    assert find_tokenizer(save_folder(tmp_path / "c", train_tokenizer(), newer, {"eos_token": "x"})).declared == {
        "eos_token": "</s>"
    }


def test_every_token_that_is_named_is_declared(tmp_path):
    named = {**TOKENS, "unk_token": "<s>", "image_token": {"content": "<|image|>"}}
    config = {
        **named,
        "add_bos_token": True,
        "mask_token": None,
        "token": "x",
        "extra_special_tokens": {"a_token": "y"},
    }
    assert find_tokenizer(save_folder(tmp_path, train_tokenizer(), config)).declared == {
        **named,
        "image_token": "<|image|>",
    }


# --- chat templates


def test_a_chat_template_is_found_where_transformers_puts_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    by_name = {"default": "D", "rag": "R"}
    for template, found in ((None, {}), ("é{{ 1 }}", {"default": "é{{ 1 }}"}), (by_name, by_name)):
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(), chat_template=template)
        assert find_chat_templates(fast) == found
        for jinja_files in (True, False):
            folder = tmp_path / f"{len(found)}{jinja_files}{template is None}"
            fast.save_pretrained(folder, save_jinja_files=jinja_files)
            for form in (folder, str(folder), folder / "tokenizer.json"):
                assert find_chat_templates(form) == found
    assert find_chat_templates(train_tokenizer()) == {}


def test_a_jinja_file_goes_before_the_config_and_a_file_with_another_name_stands_alone(tmp_path):
    folder = save_folder(tmp_path, train_tokenizer(), {"chat_template": "config"})
    assert find_chat_templates(folder) == {"default": "config"}
    (folder / "chat_template.jinja").write_text("file")
    assert find_chat_templates(folder) == {"default": "file"}
    train_tokenizer().save(str(folder / "mine.json"))
    assert find_chat_templates(folder / "mine.json") == {}


def with_templates(folder, **templates):
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    return save_folder(folder, train_tokenizer(), {"chat_template": listed})


def test_a_chat_template_is_chosen_by_name_by_source_and_by_path(tmp_path):
    (tmp_path / "c.jinja").write_text("é{{ 1 }}", encoding="utf-8")
    one, two = with_templates(tmp_path / "1", only="O"), with_templates(tmp_path / "2", default="D", tool_use="T")
    assert choose_chat_template(None, one) == "O"
    assert choose_chat_template("tool_use", two) == "T"
    assert choose_chat_template("{{ a }}", two) == "{{ a }}"
    assert choose_chat_template("{% set a = 1 %}", train_tokenizer()) == "{% set a = 1 %}"
    for path in (tmp_path / "c.jinja", str(tmp_path / "c.jinja")):
        assert choose_chat_template(path, two) == "é{{ 1 }}"


@pytest.mark.parametrize(
    ("given", "templates", "words"),
    [
        (None, {}, "no chat template; pass chat_template="),
        (None, {"default": "D", "rag": "R"}, r"several chat templates; .*\['default', 'rag'\]"),
        ("toolz", {"default": "D", "rag": "R"}, r"'toolz' is no Jinja source, no path.*\['default', 'rag'\]"),
        ("nope.jinja", {}, "'nope.jinja' is no Jinja source"),
        (5, {}, "chat_template=5 is no"),
    ],
)
def test_a_choice_that_leads_nowhere_says_what_there_is(tmp_path, given, templates, words):
    with pytest.raises(ConfigError, match=words):
        choose_chat_template(given, with_templates(tmp_path, **templates))


def test_an_unreadable_template_is_named(tmp_path):
    (tmp_path / "c.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"c\.jinja can't be read: .*utf-8"):
        choose_chat_template(tmp_path / "c.jinja", train_tokenizer())


@pytest.mark.parametrize("declared", [5, [5], [{"name": "a"}]])
def test_a_template_declared_in_another_form_is_refused(tmp_path, declared):
    with pytest.raises(ConfigError, match="declares a chat_template that is no str, dict or list"):
        find_chat_templates(save_folder(tmp_path, train_tokenizer(), {"chat_template": declared}))


@pytest.mark.parametrize("name", ["/no/such/tokenizer.json", "./nope", "nope.json", "~/nope_nope", "a/b/c", "s3://b/t"])
def test_a_path_that_does_not_exist_is_named(name: str):
    with pytest.raises(ConfigError, match=r"doesn't exist: \S*(nope|no/such|a/b/c|b/t)"):
        load_tokenizer(name)
    with pytest.raises(ConfigError, match="doesn't exist"):
        load_tokenizer(Path("gpt2_as_a_path"))


def test_a_folder_without_tokenizer_json_says_what_it_holds(tmp_path):
    with pytest.raises(ConfigError, match="it holds nothing"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"it holds vocab\.json.*save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "not json", '{"model": {}}'])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path, text: str):
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ConfigError, match=r"tokenizer\.json isn't a tokenizer.*Cause: "):
        load_tokenizer(tmp_path)


def test_an_unreadable_file_is_named(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"tokenizer\.json can't be read: .*utf-8"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(("text", "message"), [("{", "isn't JSON"), ("[]", "holds a list")])
def test_a_broken_config_is_named(tmp_path, text: str, message: str):
    folder = save_folder(tmp_path, train_tokenizer())
    (folder / "tokenizer_config.json").write_text(text)
    with pytest.raises(ConfigError, match=rf"tokenizer_config\.json {message}"):
        load_tokenizer(folder)


# --- the hub, from a cache on disk and without a network


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)

    def store(name: str, tokenizer: Tokenizer, config: dict[str, object] | None) -> None:
        repo = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        save_folder(repo / "snapshots" / ("0" * 40), tokenizer, config)
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("0" * 40)

    return store


def test_a_hub_id_is_loaded_with_its_config(hub_cache, caplog):
    hub_cache("org/name", train_tokenizer(), TOKENS)
    loaded = load_tokenizer("org/name")
    assert (loaded.bos_token_id, loaded.eos_token_id) == (BOS, EOS)
    assert not caplog.records
    bare = load_tokenizer(train_tokenizer(), bos="<s>", eos="</s>")
    assert loaded.recipe() == bare.recipe()


def test_a_hub_id_without_a_config_is_warned_about(hub_cache, caplog):
    hub_cache("name", train_tokenizer(), None)
    with caplog.at_level(logging.WARNING):
        assert load_tokenizer("name").eos_token_id == END
    assert "not its tokenizer_config.json" in caplog.text and "Pass bos= and eos=" in caplog.text


@pytest.mark.parametrize("name", ["gpt2", "org/unknown", "not an id"])
def test_a_hub_id_that_cannot_be_loaded_says_so(hub_cache, name: str):
    with pytest.raises(
        ConfigError, match=rf"'{name}' is no local file.*local tokenizer\.json\. Cause: \w+: "
    ) as caught:
        load_tokenizer(name)
    assert caught.value.__cause__ is not None


def test_a_chat_template_of_the_hub_is_a_file_or_in_the_config(hub_cache, tmp_path):
    hub_cache("org/old", train_tokenizer(), {"chat_template": "config"})
    hub_cache("org/new", train_tokenizer(), {"chat_template": "config"})
    hub_cache("none", train_tokenizer(), None)
    (tmp_path / "hub" / "models--org--new" / "snapshots" / ("0" * 40) / "chat_template.jinja").write_text("file")
    assert find_chat_templates("org/old") == {"default": "config"}
    assert find_chat_templates("org/new") == {"default": "file"}
    assert find_chat_templates("none") == {}


def test_a_local_folder_goes_before_the_hub(hub_cache, tmp_path):
    save_folder(tmp_path / "gpt2", train_tokenizer(), json.loads(json.dumps(TOKENS)))
    assert load_tokenizer("gpt2").eos_token_id == EOS
