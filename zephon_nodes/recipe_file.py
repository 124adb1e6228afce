"""A whole graph as a TOML file: what a notebook, TorchTitan and Megatron read alike.

    [[datasets]]
    name = "wiki"
    path = "data/wiki/*.parquet"            # relative paths begin in the folder of the file

    [source]                                # settings of StaticMixtureWorkSource
    num_lanes = 8
    mixture = { wiki = 0.7, news = 0.3 }    # or phases = [{ start = 0, weights = { wiki = 1 } }, ...]

    [[nodes]]
    op = "filter"
    function = "my_project.text:is_long"

    [[nodes]]
    op = "tokenize"
    tokenizer = "tokenizer.json"

    [[nodes]]
    op = "pack_flat"
    max_length = 2048

A file imports and calls what it names, so treat one as you treat code.

``[read]`` has settings of the ``Read`` node, ``[options]`` run options that don't depend on the rank. The file's text may
change in ways that the data don't: what counts is the recipe of the graph and its hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from zephon_nodes.dataset import Dataset
from zephon_nodes.errors import ConfigError
from zephon_nodes.graph import Graph
from zephon_nodes.node import Node
from zephon_nodes.ops.read import Read
from zephon_nodes.options import Options
from zephon_nodes.plan import chain
from zephon_nodes.recipe import differences
from zephon_nodes.recipe_nodes import node_from, node_table, settings_table
from zephon_nodes.recipe_sources import dataset_from, dataset_table, source_from, source_table
from zephon_nodes.recipe_values import check_known, encoded, same
from zephon_nodes.remote import Options as StoreOptions
from zephon_nodes.toml_text import dumps, parse

VERSION = 1
_TABLES = ("version", "datasets", "source", "read", "nodes", "options")
_READ = ("name", "parallelism", "on_error")
_NOT_WRITTEN = ("rank", "world_size", "mesh", "grad_accum", "agree")


class RecipeFile(NamedTuple):
    """What a file says: the last node of the graph, and run options."""

    node: Node
    options: dict[str, Any]


def read_recipe_file(
    path_or_text: str | os.PathLike[str], storage_options: Mapping[str, StoreOptions] | None = None
) -> RecipeFile:
    """The graph of a recipe file; see ``Pipeline.from_toml``."""
    text, where, folder = _text(path_or_text)
    document = parse(text, where)
    check_known(where, document, _TABLES)
    if document.get("version", VERSION) != VERSION:
        raise ConfigError(f"{where}: version {document['version']!r}, but this zephon_nodes reads version {VERSION}")
    datasets = _datasets(document, where, folder, storage_options or {})
    source = source_from(document.get("source", {}), datasets, f"{where}: source")
    unused = sorted(set(datasets) - {dataset.name for dataset in source.datasets})
    if unused:
        raise ConfigError(f"{where}: datasets {unused} are in no source; give them a weight or leave them out")
    check_known(f"{where}: read", document.get("read", {}), _READ, "setting")
    node: Node = Read(source, **document.get("read", {}))
    for i, table in enumerate(_list(document, "nodes", where)):
        node = node_from(table, node, f"{where}: nodes[{i}]", folder)
    known = [field.name for field in fields(Options) if field.name not in _NOT_WRITTEN]
    check_known(f"{where}: options", document.get("options", {}), known, "option")
    return RecipeFile(node, dict(document.get("options", {})))


def write_recipe(node: Node, options: Mapping[str, Any]) -> str:
    """A graph as the text of a recipe file; see ``Pipeline.to_toml``."""
    read, *nodes = chain(node)
    if not isinstance(read, Read):
        raise ConfigError(f"a recipe file begins with a work source that is read, not with {read.kind}")
    source, tables = read.work_source, [node_table(node) for node in nodes]
    document = {
        "version": VERSION,
        "datasets": [dataset_table(dataset) for dataset in source.datasets],
        "source": source_table(source),
        "read": {name: value for name, value in settings_table(read, "node 'read'").items() if name in _READ},
        "nodes": tables,
        "options": _options_table(options),
    }
    _check_faithful(node, read, tables)
    return dumps({name: part for name, part in document.items() if part})


def _options_table(options: Mapping[str, Any]) -> dict[str, Any]:
    default = Options()
    said = {name: value for name, value in options.items() if name not in _NOT_WRITTEN}
    said = {name: value for name, value in said.items() if not same(value, getattr(default, name))}
    if callable(said.get("runner")):
        raise ConfigError("runner= is a function, which a recipe file has no form for; give it to from_toml instead")
    return {name: encoded(value) for name, value in said.items()}


def _check_faithful(node: Node, read: Node, tables: list[dict[str, Any]]) -> None:
    """Reads the nodes back, and refuses a text that would give another recipe."""
    again = read
    for i, table in enumerate(tables):
        again = node_from(table, again, f"the written recipe: nodes[{i}]", None)
    differing = differences(*(json.loads(Graph(last).recipe({})) for last in (node, again)))
    if differing:
        raise ConfigError("this graph can't be written to a recipe file; read back it would differ: " + differing[0])


def _text(given: str | os.PathLike[str]) -> tuple[str, str, Path | None]:
    """(text, how to call it, its folder)."""
    if isinstance(given, str) and ("\n" in given or ("=" in given and not os.path.exists(given))):
        return given, "the recipe", None
    if not isinstance(given, (str, os.PathLike)):
        raise ConfigError(f"a recipe file is given by its path or as TOML text, got {type(given).__name__}")
    path = Path(given).expanduser()
    try:
        return path.read_text(encoding="utf-8"), str(path), path.absolute().parent
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe file {path} can't be read: {error}") from error


def _datasets(
    document: Mapping[str, Any], where: str, folder: Path | None, secrets: Mapping[str, StoreOptions]
) -> dict[str, Dataset]:
    found: dict[str, Dataset] = {}
    for i, table in enumerate(_list(document, "datasets", where)):
        name = table.get("name") if isinstance(table, Mapping) else None
        label = f"{where}: datasets[{i}]" + (f" ({name})" if name else "")
        dataset = dataset_from(table, label, folder, secrets.get(str(name)))
        if dataset.name in found:
            raise ConfigError(f"{label}: a dataset of this name stands before; names must be unique")
        found[dataset.name] = dataset
    check_known("storage_options", secrets, found, "dataset")
    return found


def _list(document: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = document.get(key, [])
    if not isinstance(value, list):
        raise ConfigError(f"{where}: {key} must be a list of tables, [[{key}]], got {value!r:.80}")
    return value
