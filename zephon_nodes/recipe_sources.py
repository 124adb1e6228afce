"""Datasets and work sources as tables of a recipe file, and back."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError
from zephon_nodes.import_path import imported
from zephon_nodes.recipe_values import check_known, decoded, encoded, same
from zephon_nodes.remote import Options
from zephon_nodes.work.base import Source, WorkSource
from zephon_nodes.work.combined import Concat, Mix
from zephon_nodes.work.mixture_spec import MixtureSpec
from zephon_nodes.work.phases import Phases
from zephon_nodes.work.static_mixture import Era, StaticMixtureWorkSource
from zephon_nodes.work.token_estimation import TokenEstimation

_PHASES = ("phases", "ramp", "unit", "tokens_per_step")
_PLAIN = ("num_lanes", "chunk_size", "flush_every", "seed", "shuffle", "passes", "stop", "window_bytes")
_STATIC = ("op", "datasets", "mixture", *_PHASES, *_PLAIN, "token_estimation", "amendments")
_SECRET = re.compile(r"key|secret|token|passw|credential|connection_string|auth|sas", re.IGNORECASE)
_OPS = ("static_mixture", "concat", "mix")

Datasets = Mapping[str, Dataset]


# from the file


def dataset_from(table: Any, where: str, folder: Path | None, secrets: Options | None = None) -> Dataset:
    """The dataset of a table; ``secrets``: further storage options of it, or a function that gives all of them. Raises
    ``ConfigError``."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: a dataset is a table with name and path, got {table!r}")
    known = [name for name in inspect.signature(Dataset.from_path).parameters if name != "fmt"]
    check_known(where, table, [*known, "format"])
    missing = [name for name in ("name", "path") if name not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]!r} is missing; a dataset has a name and a path")
    settings = {name: decoded(value, f"{where}: {name}") for name, value in table.items()}
    settings["fmt"] = settings.pop("format", None)
    settings["path"] = _located(settings["path"], folder)
    if callable(secrets):
        settings["storage_options"] = secrets
    elif secrets:
        settings["storage_options"] = {**(settings.get("storage_options") or {}), **secrets}
    try:
        return Dataset.from_path(**settings)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _located(path: Any, folder: Path | None) -> Any:
    if isinstance(path, list):
        return [_located(part, folder) for part in path]
    if folder is None or not isinstance(path, str) or "://" in path or path.startswith("~"):
        return path
    return str(folder / path)


def source_from(table: Any, datasets: Datasets, where: str) -> WorkSource:
    """The work source of a table. Raises ``ConfigError``."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table, got {table!r}")
    op = table.get("op", "static_mixture")
    try:
        if op == "static_mixture":
            return _static(table, datasets, where)
        if op in ("concat", "mix"):
            return _combined(op, table, datasets, where)
        return _own(op, table, datasets, where)
    except ConfigError as error:
        raise error if str(error).startswith(where) else ConfigError(f"{where}: {error}") from error


def _static(table: Mapping[str, Any], datasets: Datasets, where: str) -> StaticMixtureWorkSource:
    check_known(where, table, _STATIC)
    amendments = table.get("amendments", [])
    later = [name for amendment in amendments for name in amendment.get("datasets", ())]
    first = table.get("datasets", [name for name in datasets if name not in later])
    plain = {name: decoded(table[name], f"{where}: {name}") for name in _PLAIN if name in table}
    if "token_estimation" in table:
        plain["token_estimation"] = _estimation(table["token_estimation"], f"{where}: token_estimation")
    source = StaticMixtureWorkSource(_named(first, datasets, where), _mixture(table), **plain)
    for i, amendment in enumerate(amendments):
        source = _amended(source, amendment, datasets, f"{where}: amendments[{i}]")
    return source


def _amended(
    source: StaticMixtureWorkSource, table: Mapping[str, Any], datasets: Datasets, where: str
) -> StaticMixtureWorkSource:
    check_known(where, table, ["at", "epoch", "datasets", "mixture", *_PHASES])
    mixture = _mixture(table)
    if mixture is None or "at" not in table:
        raise ConfigError(
            f"{where}: an amendment needs at = ..., the span that it begins with, and a mixture or phases"
        )
    add = _named(table.get("datasets", []), datasets, where)
    return source.amended(table["at"], mixture, add, epoch=table.get("epoch", 0))


def _mixture(table: Mapping[str, Any]) -> Any:
    if "phases" not in table:
        said = [name for name in _PHASES if name in table]
        if said:
            raise ConfigError(f"{said[0]} goes with phases; there are none")
        return table.get("mixture")
    if "mixture" in table:
        raise ConfigError("mixture and phases are both given; give one")
    phases = table["phases"]
    for i, phase in enumerate(phases):
        check_known(f"phases[{i}]", phase, ["start", "weights"])
    settings = {name: table[name] for name in _PHASES[1:] if name in table}
    return Phases([(phase.get("start", 0), phase.get("weights", {})) for phase in phases], **settings)


def _estimation(table: Mapping[str, Any], where: str) -> TokenEstimation:
    check_known(where, table, ["given", "tolerance", "most_rows"])
    settings = dict(table)
    if isinstance(settings.get("given"), Mapping):
        settings["given"] = {
            name: Fraction(number) if isinstance(number, str) else number for name, number in settings["given"].items()
        }
    return TokenEstimation(settings.pop("given", None), **settings)


def _combined(op: str, table: Mapping[str, Any], datasets: Datasets, where: str) -> WorkSource:
    check_known(where, table, ["op", "parts", *(["weights"] if op == "mix" else [])])
    tables = table.get("parts", [])
    parts = [source_from(part, datasets, f"{where}: parts[{i}]") for i, part in enumerate(tables)]
    if op == "concat":
        return Concat(parts)
    weights = table.get("weights", [1] * len(parts))
    if len(weights) != len(parts):
        raise ConfigError(f"{len(parts)} parts, but {len(weights)} weights")
    return Mix(list(zip(parts, weights, strict=True)))


def _own(op: Any, table: Mapping[str, Any], datasets: Datasets, where: str) -> WorkSource:
    """A user's own work source, by import path; ``datasets``, if there are any, are given as a list of ``Dataset``."""
    if not isinstance(op, str) or ":" not in op:
        check_known(where, [str(op)], _OPS, "source")
    kind = imported(op, where)
    settings = {name: decoded(value, f"{where}: {name}") for name, value in table.items() if name != "op"}
    if "datasets" in table:
        settings["datasets"] = _named(table["datasets"], datasets, where)
    try:
        made = kind(**settings)
    except TypeError as error:
        raise ConfigError(f"{op!r} doesn't take these settings: {error}") from error
    if not isinstance(made, WorkSource):
        raise ConfigError(f"{op!r} made a {type(made).__name__}, and no WorkSource")
    return made


def _named(names: Any, datasets: Datasets, where: str) -> list[Dataset]:
    if not isinstance(names, list):
        raise ConfigError(f"{where}: datasets must be a list of names, got {names!r}")
    check_known(where, names, datasets, "dataset")
    return [datasets[name] for name in names]


# to the file


def dataset_table(dataset: Dataset) -> dict[str, Any]:
    """A dataset as a table, without its cache, and storage options without secrets and functions.

    Raises ``ConfigError`` for one that isn't made of files, and for a format whose settings can't be told."""
    who = f"dataset {dataset.name!r} can't be written to a recipe file"
    if dataset.given is None:
        raise ConfigError(f"{who}: it isn't made of files; write its rows to a file and use Dataset.from_path")
    defaults = inspect.signature(Dataset.from_path).parameters
    said = {name: v for name, v in dataset.given.items() if not same(v, defaults[name].default)}
    table: dict[str, Any] = {"name": dataset.name, "path": _path(said.pop("path"), who)}
    if "fmt" in said:
        said = {"format": said.pop("fmt"), **said}
    if "index_dir" in said:
        where = os.fspath(said.pop("index_dir"))
        table["index_dir"] = where if where == "beside" else os.path.abspath(where)
    if "storage_options" in said:
        said["storage_options"] = public(said["storage_options"])
    try:
        return table | {name: encoded(value) for name, value in said.items()}
    except ValueError as error:
        raise ConfigError(f"{who}: {error}") from error


def _path(path: Any, who: str) -> Any:
    if not isinstance(path, (str, os.PathLike)):
        return [_path(part, who) for part in path]
    text = os.fspath(path)
    if "://" not in text:
        return text if text.startswith("~") else os.path.abspath(text)
    if "@" in text.split("://")[1].split("/")[0] and text.split("://")[0] in ("http", "https", "ftp", "sftp", "ssh"):
        raise ConfigError(f"{who}: its URL holds a user name or a password; give those as storage_options")
    return text


def public(options: Mapping[str, Any]) -> dict[str, Any]:
    """Storage options without those whose names sound like secrets, at any depth."""
    kept = {name: value for name, value in options.items() if not _SECRET.search(name)}
    return {name: public(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def source_table(source: Source) -> dict[str, Any]:
    """A work source as a table. Raises ``ConfigError`` for one of another kind."""
    if type(source) is StaticMixtureWorkSource:
        return _static_table(source)
    if type(source) is Concat:
        return {"op": "concat", "parts": [source_table(part) for part in source.parts]}
    if type(source) is Mix:
        weights = [str(weight) for weight in source.weights]
        return {"op": "mix", "weights": weights, "parts": [source_table(part) for part in source.parts]}
    raise ConfigError(
        f"a source of type {type(source).__name__} can't be written to a recipe file; only StaticMixtureWorkSource, "
        "Concat and Mix can. A file may name a source class of yours: op = 'package.module:Class'"
    )


def _static_table(source: StaticMixtureWorkSource) -> dict[str, Any]:
    defaults = inspect.signature(StaticMixtureWorkSource).parameters
    first, *rest = source.eras
    table: dict[str, Any] = {"datasets": list(first.datasets)}
    plain = {name: getattr(source, name) for name in _PLAIN}
    table |= {name: encoded(v) for name, v in plain.items() if not same(v, defaults[name].default)}
    by_rows = MixtureSpec.of(None, {name: source.dataset(name).rows for name in first.datasets})
    by_size = Phases([(0, by_rows)]).recipe() == first.phases.recipe()
    table |= {} if by_size else _mixture_table(first.phases)
    if source.token_estimation:
        table["token_estimation"] = _estimation_table(source)
    return table | ({"amendments": [_amendment_table(era) for era in rest]} if rest else {})


def _estimation_table(source: StaticMixtureWorkSource) -> dict[str, Any]:
    estimation = source.token_estimation
    said: dict[str, Any] = {"given": {name: str(number) for name, number in source.tokens_per_row.items()}}
    said |= {"tolerance": estimation.tolerance, "most_rows": estimation.most_rows} if estimation else {}
    return said


def _mixture_table(phases: Phases) -> dict[str, Any]:
    weights: Sequence[Any] = [{name: str(w) for name, w in phase.shares.items()} for phase in phases.phases]
    if len(weights) == 1:
        return {"mixture": weights[0]}
    listed = [{"start": phase.start, "weights": w} for phase, w in zip(phases.phases, weights, strict=True)]
    said = {name: getattr(phases, name) for name in _PHASES[1:]}
    return {"phases": listed, **{name: value for name, value in said.items() if value not in ("step", "chunks", None)}}


def _amendment_table(era: Era) -> dict[str, Any]:
    said: dict[str, Any] = {"at": era.span, "epoch": era.epoch}
    return said | ({"datasets": list(era.datasets)} if era.datasets else {}) | _mixture_table(era.phases)
