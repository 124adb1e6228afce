"""Datasets of the Hugging Face hub by name: ``hf://org/name[@revision][/config]/split`` to the files that it means.

In this order: the files that the dataset's card names for the config and the split; without such a card, the files that have
the split's name as a word of their path, as the hub's own viewer finds them; else the hub's Parquet conversion, if it is
complete. The answer is pinned to the commit that was seen, so a push during a run changes nothing. Reading is done by
huggingface_hub's fsspec file system, ``hf://datasets/...``; whole paths of that kind pass through unchanged.

Reader options and feature types of the card aren't applied: rows are what the files hold.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from zephon_nodes.errors import ConfigError
from zephon_nodes.formats import known_suffixes, wanted_suffixes
from zephon_nodes.formats.base import Format
from zephon_nodes.remote import Options, Remote
from zephon_nodes.retries import GaveUpError

_NAME = re.compile(r"hf://(?P<repo>[^/@]+/[^/@]+)(@(?P<revision>[^/]+))?/((?P<config>[^/]+)/)?(?P<split>[^/]+)/?")
_OWN_SPACES = ("datasets", "buckets", "spaces", "models")
_CONVERSION = "refs/convert/parquet"

Patterns: TypeAlias = "dict[str, dict[str, list[str]]]"  # config -> split -> patterns of files


def hub_paths(path: Any, fmt: Format | None, storage_options: Options | None) -> Any:
    """``path`` with each ``hf://org/name/...`` in it replaced by the URLs of its files.

    Raises ``ConfigError`` if there is no such dataset, config or split, with those that there are; ``ReadError`` if the hub
    can't be asked.
    """
    if isinstance(path, (str, os.PathLike)):
        return _resolved(path, fmt, storage_options) if _is_name(path) else path
    if isinstance(path, Sequence) and any(map(_is_name, path)):
        found = [_resolved(item, fmt, storage_options) if _is_name(item) else [item] for item in path]
        return [item for items in found for item in items]
    return path


def _is_name(path: Any) -> bool:
    text = str(path)
    return text.startswith("hf://") and text[5:].partition("/")[0] not in _OWN_SPACES


def _resolved(path: Any, fmt: Format | None, storage_options: Options | None) -> list[str]:
    found = _NAME.fullmatch(str(path))
    if found is None:
        raise ConfigError(f"{str(path)!r}: a dataset of the hub is hf://org/name[@revision][/config]/split")
    repo, config, split = found["repo"], found["config"], found["split"]
    hub = _Hub(repo, storage_options or {})
    info = hub.info(found["revision"])
    suffixes = wanted_suffixes(fmt)
    files = [name for name in info["files"] if name.lower().endswith(suffixes)]
    chosen = _by_card(info["card"], config, split, files)
    if chosen is None:
        chosen = _by_name(config, split, files, fmt)
    if chosen:
        return [f"hf://datasets/{repo}@{info['sha']}/{name}" for name in chosen]
    if fmt is None or fmt.name == "parquet":
        return hub.conversion(config, split, str(path))
    raise ConfigError(f"{str(path)!r}: no file of format {fmt.name!r} is of this split; the files are: {_some(files)}")


class _Hub:
    """What the hub says of one dataset."""

    def __init__(self, repo: str, options: Options) -> None:
        self._repo, self._options = repo, options

    def info(self, revision: str | None) -> dict[str, Any]:
        """``sha`` of the commit, names of all ``files``, and the ``card``. Raises ``ConfigError`` if it isn't there."""

        def ask(fs: Any, _: str) -> dict[str, Any]:
            from huggingface_hub import HfApi

            api = HfApi(endpoint=fs.endpoint, token=fs.token)
            found = api.repo_info(self._repo, repo_type="dataset", revision=revision)
            card = found.card_data.to_dict() if found.card_data else {}
            return {"sha": found.sha, "files": sorted(file.rfilename for file in found.siblings or ()), "card": card}

        remote = Remote(f"hf://datasets/{self._repo}", self._options)
        try:
            return remote.call("find", ask)
        except GaveUpError as error:
            if type(error.__cause__).__name__ in (
                "RepositoryNotFoundError",
                "RevisionNotFoundError",
                "FileNotFoundError",
            ):
                at = f" at revision {revision!r}" if revision else ""
                text = (
                    f"the hub has no dataset {self._repo!r}{at}, or it needs a token (storage_options={{'token': ...}})"
                )
                raise ConfigError(text) from error.__cause__
            failure = remote.read_error("find", error)
            raise failure from failure.__cause__

    def conversion(self, config: str | None, split: str, asked: str) -> list[str]:
        """The files of the Parquet conversion. Raises ``ConfigError`` if it isn't there or isn't complete."""
        try:
            info = self.info(_CONVERSION)
        except ConfigError as error:
            text = f"{asked!r}: neither a card nor the files' names say what this split is, and there is no Parquet conversion"
            raise ConfigError(f"{text}; name the files: hf://datasets/{self._repo}/...") from error
        there: dict[tuple[str, str], list[str]] = {}
        for name in info["files"]:
            parts = name.split("/")
            if len(parts) == 3 and name.endswith(".parquet"):
                there.setdefault((parts[0], parts[1]), []).append(name)
        keys = [key for key in there if key[1].removeprefix("partial-") == split and config in (None, key[0])]
        default = [key for key in keys if key[0] == "default"]
        keys = default if default and config is None else keys
        if len(keys) != 1:
            known = ", ".join(f"{one}/{two}" for one, two in there)
            what = "several configs have this split" if keys else "there is no such split"
            raise ConfigError(f"{asked!r}: {what}; the Parquet conversion has {known or 'nothing'}")
        if keys[0][1] != split:
            text = f"{asked!r}: the hub's Parquet conversion holds only a part of this split"
            raise ConfigError(f"{text}; name the files: hf://datasets/{self._repo}/...")
        return [f"hf://datasets/{self._repo}@{info['sha']}/{name}" for name in there[keys[0]]]


def _by_card(card: Mapping[str, Any], config: str | None, split: str, files: Sequence[str]) -> list[str] | None:
    """The files that the card says; None if it says nothing. Raises ``ConfigError`` if it says something else."""
    configs = _patterns(card)
    if not configs:
        return None
    default = next((entry.get("config_name") for entry in card["configs"] if entry.get("default")), None)
    name = config or default or ("default" if "default" in configs else next(iter(configs)))
    if config is None and default is None and "default" not in configs and len(configs) > 1:
        raise ConfigError(f"name one of its configs, hf://org/name/CONFIG/{split}: {', '.join(configs)}")
    if split not in configs.get(name, {}):
        known = ", ".join(f"{one}/{two}" for one, splits in configs.items() for two in splits)
        raise ConfigError(f"the dataset has no split {name}/{split}; it has {known}")
    found = [file for file in files if any(_matches(file, pattern) for pattern in configs[name][split])]
    if not found:
        raise ConfigError(f"no file fits what the card says of {name}/{split}: {', '.join(configs[name][split])}")
    return found


def _patterns(card: Mapping[str, Any]) -> Patterns:
    configs: Patterns = {}
    for entry in card.get("configs") or ():
        said = entry.get("data_files")
        folder = str(entry.get("data_dir") or "").strip("/")
        splits = said if isinstance(said, list) and all(isinstance(part, Mapping) for part in said) else None
        if said is not None and splits is None:
            splits = [{"split": "train", "path": said}]  # without a split's name, all is "train"
        for part in splits or ():
            paths = [part["path"]] if isinstance(part["path"], str) else list(part["path"])
            full = [f"{folder}/{path}" if folder else path for path in paths]
            configs.setdefault(str(entry.get("config_name", "default")), {})[str(part["split"])] = full
    return configs


def _matches(file: str, pattern: str) -> bool:
    """Whether a pattern fits: ``*`` within a folder, ``**`` through any number of them."""
    text = re.escape(pattern)
    for mark, meaning in ((r"\*\*/", "(?:[^/]*/)*"), (r"\*\*", ".*"), (r"\*", "[^/]*"), (r"\?", "[^/]")):
        text = text.replace(mark, meaning.replace("*", "\0"))
    text = re.sub(r"\\\[(.*?)\\\]", lambda found: f"[{found[1]}]".replace("\\", ""), text)
    return re.fullmatch(text.replace("\0", "*"), file) is not None


def _by_name(config: str | None, split: str, files: Sequence[str], fmt: Format | None) -> list[str]:
    """The files that have the split as a word of their path, and the config as a folder; none if none of them is data."""
    word = re.compile(rf"(^|[^a-zA-Z0-9]){re.escape(split)}([^a-zA-Z0-9]|$)")
    inside = [file for file in files if config is None or f"{config}/" in f"{os.path.dirname(file)}/"]
    found = [file for file in inside if word.search(file)]
    data = fmt.suffixes if fmt else known_suffixes()
    return found if any(file.lower().endswith(data) for file in found) else []


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5) or "none"
