"""Nodes as tables of a recipe file, and back: ``op`` and the settings of its constructor.

``op`` is the kind of a node of this package, or the import path of any other node class: "multimodal.nodes:LoadImages".
The branches of a ``Switch`` are lists of such tables.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.import_path import import_path, imported
from zephon_nodes.node import Node
from zephon_nodes.ops.switch import Switch
from zephon_nodes.recipe_values import check_known, decoded, encoded, located, parameters, same, wants_function

_BRANCHES = ("branches", "default")


@functools.cache
def node_classes() -> dict[str, type[Node]]:
    """The node classes of this package, by kind; a source isn't among them."""
    import zephon_nodes

    things = [getattr(zephon_nodes, name) for name in zephon_nodes.__all__]
    classes = [thing for thing in things if inspect.isclass(thing) and issubclass(thing, Node)]
    return {kind.kind: kind for kind in classes if kind.kind not in ("node", "read")}


def node_from(table: Any, source: Node, where: str, folder: Path | None) -> Node:
    """The node of a table on top of ``source``. Raises ``ConfigError`` naming place and key of what can't be used."""
    if not isinstance(table, Mapping) or not isinstance(table.get("op"), str):
        raise ConfigError(f"{where}: every node is a table with op = ..., got {table!r}")
    op = table["op"]
    where = f"{where} ({op})"
    kind = _class(op, where)
    known, functions = parameters(kind), wants_function(kind)
    given = {name: value for name, value in table.items() if name != "op"}
    check_known(where, given, known, "setting")
    settings = {
        name: _setting(kind, name, value, f"{where}: {name}", folder, name in functions)
        for name, value in given.items()
    }
    missing = [name for name, p in known.items() if p.default is p.empty and name not in settings]
    if missing:
        raise ConfigError(f"{where}: the setting {missing[0]!r} is missing; it has no default")
    try:
        return kind(source, **settings)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _class(op: str, where: str) -> type[Node]:
    if ":" not in op:
        check_known(where, [op], node_classes(), "node")
        return node_classes()[op]
    found = imported(op, where)
    if not (inspect.isclass(found) and issubclass(found, Node)):
        raise ConfigError(f"{where}: {op!r} is no node class but {found!r}; derive it from zephon_nodes.Node")
    return found


def _setting(kind: type[Node], name: str, value: Any, where: str, folder: Path | None, function: bool) -> Any:
    if not issubclass(kind, Switch) or name not in _BRANCHES:
        return located(name, decoded(value, where, function), folder)
    if name == "default":
        return functools.partial(_on, tables=value, where=where, folder=folder)
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table of lists of nodes, got {value!r}")
    return {k: functools.partial(_on, tables=v, where=f"{where}.{k}", folder=folder) for k, v in value.items()}


def _on(source: Node, tables: Any, where: str, folder: Path | None) -> Node:
    """A branch: the nodes of a list of tables on top of each other."""
    if not isinstance(tables, list):
        raise ConfigError(f"{where} must be a list of nodes, got {tables!r}")
    for i, table in enumerate(tables):
        source = node_from(table, source, f"{where}[{i}]", folder)
    return source


def node_table(node: Node) -> dict[str, Any]:
    """A node as a table. Raises ``ConfigError`` naming node and setting if something can't be written."""
    kind = type(node)
    who = f"node {node.given_name or node.kind!r}"
    try:
        op = kind.kind if node_classes().get(kind.kind) is kind else import_path(kind)
    except ValueError as error:
        raise ConfigError(f"{who} can't be written to a recipe file: {error}") from error
    return {"op": op, **settings_table(node, who)}


def settings_table(node: Node, who: str) -> dict[str, Any]:
    """What a node's constructor was given, but its source and what is the default anyway."""
    if node.given is None:
        raise ConfigError(f"{who} is a copy, which doesn't know what it was made with; write the original pipeline")
    known, functions = parameters(type(node)), wants_function(type(node))
    arguments, keywords = node.given
    said = {**dict(zip(known, arguments, strict=False)), **keywords}
    table: dict[str, Any] = {}
    for name, value in said.items():
        if name in known and same(value, known[name].default):
            continue
        try:
            table[name] = _written(node, name, value, name in functions)
        except ValueError as error:
            raise ConfigError(f"{who}: {name}={value!r:.80} can't be written to a recipe file: {error}") from error
    return table


def _written(node: Node, name: str, value: Any, function: bool) -> Any:
    if isinstance(node, Switch) and name in _BRANCHES:
        chains = node.chains()
        if name == "default":
            return [node_table(inner) for inner in chains[None]]
        if not all(isinstance(key, str) for key in value):
            raise ValueError("keys of branches must be strings there")
        return {key: [node_table(inner) for inner in chains[key]] for key in value}
    if name in ("tokenizer", "tokenizer_id"):
        if not isinstance(value, (str, os.PathLike)):
            raise ValueError("give the tokenizer by the path of its file or folder, or by its hub id")
        return os.path.abspath(value) if os.path.exists(value) else str(value)
    return encoded(value, function)
