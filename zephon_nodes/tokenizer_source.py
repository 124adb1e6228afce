"""Finding a tokenizer: in an object, a file, a folder or on the hub, with the special tokens that are declared beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer
from tokenizers.implementations.base_tokenizer import BaseTokenizer

from zephon_nodes.errors import ConfigError

_log = logging.getLogger(__name__)

_FORMS = "pass a tokenizers.Tokenizer, a path to a tokenizer.json or its folder, a fast tokenizer of transformers, or a hub id"


class TokenizerSource(NamedTuple):
    """A tokenizer as it was found. ``name``: for messages. ``text``: its JSON, as in tokenizer.json.

    ``declared``: bos_token, eos_token, pad_token and others whose name ends in _token, those that a config names.
    ``encode_special_tokens``: True if the name of a special token inside a text is ordinary text.
    """

    name: str
    text: str
    declared: dict[str, str]
    encode_special_tokens: bool = False


def find_tokenizer(tokenizer: Any) -> TokenizerSource:
    """The source of what ``load_tokenizer`` takes. Reads the object, changes nothing. Raises ``ConfigError``."""
    if isinstance(tokenizer, BaseTokenizer):
        return _of_object(f"the given {type(tokenizer).__name__}", tokenizer, {}, False)
    if isinstance(tokenizer, Tokenizer):
        return _of_object("the given Tokenizer", tokenizer, {}, tokenizer.encode_special_tokens)
    if isinstance(tokenizer, Path):
        return _of_path(tokenizer)
    if isinstance(tokenizer, str) and tokenizer:
        path = Path(tokenizer).expanduser()
        return _of_path(path) if path.exists() or _looks_like_path(tokenizer) else _of_hub(tokenizer)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if isinstance(backend, Tokenizer):
        declared = _declared(tokenizer.special_tokens_map)
        return _of_object(f"the given {type(tokenizer).__name__}", backend, declared, tokenizer.split_special_tokens)
    if hasattr(tokenizer, "convert_tokens_to_ids"):
        raise ConfigError(
            f"tokenizer= was given a {type(tokenizer).__name__}, a slow tokenizer of transformers. Those hold Python's "
            "lock while they work and have no JSON to tell them apart by. Load the fast one, with AutoTokenizer, or pass "
            "transformers.convert_slow_tokenizer.convert_slow_tokenizer(tokenizer)."
        )
    came = "no tokenizer" if tokenizer is None or tokenizer == "" else f"a {type(tokenizer).__name__}"
    raise ConfigError(f"tokenizer= was given {came}; {_FORMS}.")


def find_chat_templates(tokenizer: Any) -> dict[str, str]:
    """The chat templates that come with what ``find_tokenizer`` takes, by name: Jinja sources. Mostly one, "default".

    From a ``transformers`` tokenizer its ``chat_template``; from a folder chat_template.jinja and
    additional_chat_templates/NAME.jinja, else the chat_template in tokenizer_config.json; from the hub the same but the
    additional ones. A bare ``Tokenizer`` has none. Raises ``ConfigError`` for a file that can't be read.
    """
    if not isinstance(tokenizer, (str, Path)):
        return _templates(getattr(tokenizer, "chat_template", None))
    path = Path(tokenizer).expanduser()
    if not path.exists():
        return _templates_on_hub(str(tokenizer))
    if path.is_file() and path.name != "tokenizer.json":
        return {}
    folder = path if path.is_dir() else path.parent
    files = {file.stem: file for file in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return {name: _read(file) for name, file in files.items()}
    return _templates(_read_settings(folder / "tokenizer_config.json").get("chat_template"))


def choose_chat_template(given: str | Path | None, tokenizer: Any) -> str:
    """The Jinja source of a chat template. ``tokenizer``: as of ``find_tokenizer``.

    ``given``: Jinja source (a str with "{{" or "{%" in it), a path to a file of it, the name of one of the tokenizer's
    templates, or None for its only one. Raises ``ConfigError`` if there is none, or several to choose from.
    """
    if isinstance(given, str) and ("{{" in given or "{%" in given):
        return given
    found = {} if isinstance(given, Path) else find_chat_templates(tokenizer)
    if given is None and len(found) == 1:
        return next(iter(found.values()))
    if given is None:
        choice = f"several chat templates; pass chat_template= one of {sorted(found)}"
        none = "no chat template; pass chat_template= as Jinja source or as a path to a file"
        raise ConfigError(f"the tokenizer has {choice if found else none}")
    if isinstance(given, str) and given in found:
        return found[given]
    if not isinstance(given, (str, Path)) or not Path(given).expanduser().is_file():
        names = f", none of the tokenizer's templates {sorted(found)}" if found else ""
        raise ConfigError(f"chat_template={given!r} is no Jinja source, no path to a file{names}")
    return _read(Path(given).expanduser())


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns an exception of ``tokenizers`` into a ``ConfigError`` that starts with ``what`` and ends with the cause."""
    try:
        yield
    except Exception as error:  # tokenizers raises Exception itself, so nothing narrower catches it; re-raised at once
        raise ConfigError(f"{what} Cause: {type(error).__name__}: {error}") from error


def _of_object(
    name: str, tokenizer: Tokenizer | BaseTokenizer, declared: dict[str, str], encode_special: bool
) -> TokenizerSource:
    with explained(f"{name} can't be written as JSON, so it can't be copied; parts written in Python can't be used."):
        return TokenizerSource(name, tokenizer.to_str(), declared, encode_special)


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith((".json", "/")) or name.count("/") > 1 or "\\" in name


def _of_path(path: Path) -> TokenizerSource:
    if path.is_dir():
        path = _in_folder(path)
    elif not path.exists():
        raise ConfigError(
            f"tokenizer= names a file or folder that doesn't exist: {path}. {_FORMS[0].upper()}{_FORMS[1:]}."
        )
    declared = _declared_beside(path) if path.name == "tokenizer.json" else {}
    return TokenizerSource(str(path), _read(path), declared)


def _in_folder(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if not path.exists():
        there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
        raise ConfigError(
            f"tokenizer= names the folder {folder}, which has no tokenizer.json; it holds {there}. A folder of "
            "transformers gets one with AutoTokenizer.from_pretrained(folder).save_pretrained(folder)."
        )
    return path


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {path} can't be read: {error}.") from error


def _declared_beside(path: Path) -> dict[str, str]:
    """As in ``transformers``: special_tokens_map.json goes first, unless the config is of the newer kind that needs no map."""
    config = _read_settings(path.with_name("tokenizer_config.json"))
    if "added_tokens_decoder" in config:
        return _declared(config)
    return _declared({**config, **_read_settings(path.with_name("special_tokens_map.json"))})


def _read_settings(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        settings = json.loads(_read(path))
    except ValueError as error:
        raise ConfigError(f"{path} isn't JSON: {error}. Mend it, or remove it and pass bos= and eos=.") from error
    if not isinstance(settings, dict):
        raise ConfigError(f"{path} holds a {type(settings).__name__}, not an object. Mend or remove it.")
    return settings


def _declared(settings: Mapping[str, Any]) -> dict[str, str]:
    """The tokens that settings name, either as "</s>" or as {"content": "</s>", ...}."""
    tokens = {name: token for name, token in settings.items() if name.endswith("_token")}
    contents = {name: t.get("content") if isinstance(t, Mapping) else t for name, t in tokens.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}


def _of_hub(name: str) -> TokenizerSource:
    with explained(
        f"tokenizer={name!r} is no local file or folder, and its tokenizer.json couldn't be loaded from the Hugging Face "
        "hub. Without a network, pass a path to a local tokenizer.json."
    ):
        tokenizer = Tokenizer.from_pretrained(name)
    return _of_object(name, tokenizer, _declared_on_hub(name), False)


def _declared_on_hub(name: str) -> dict[str, str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return _declared(_read_settings(Path(hf_hub_download(name, "tokenizer_config.json"))))
    except OSError as error:
        if not isinstance(error, EntryNotFoundError) or isinstance(error, LocalEntryNotFoundError):
            _log.warning(
                "tokenizer %s was loaded, but not its tokenizer_config.json, which may declare bos and eos: %s. "
                "Pass bos= and eos=, so that every machine uses the same.", name, error,
            )  # fmt: skip
        return {}


def _templates(declared: Any) -> dict[str, str]:
    """Templates as a config declares them: a str, a dict by name, or a list of {"name": ..., "template": ...}."""
    if isinstance(declared, str):
        return {"default": declared}
    try:
        by_name = {one["name"]: one["template"] for one in declared} if isinstance(declared, list) else declared
        return dict(by_name or {})
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(
            f"the tokenizer declares a chat_template that is no str, dict or list of names and templates: {declared!r}. "
            "Mend it, or pass chat_template= as Jinja source or as a path to a file."
        ) from error


def _templates_on_hub(name: str) -> dict[str, str]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with explained(f"the chat template of {name!r} couldn't be loaded from the Hugging Face hub."):
        for file in ("chat_template.jinja", "tokenizer_config.json"):
            try:
                path = Path(hf_hub_download(name, file))
            except EntryNotFoundError:
                continue
            return _templates(_read(path) if path.suffix == ".jinja" else _read_settings(path).get("chat_template"))
    return {}
