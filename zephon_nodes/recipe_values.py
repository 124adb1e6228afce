"""Settings of nodes as values of a recipe file, and back.

Strings, numbers, booleans, lists and dicts stand for themselves, and a string is an import path where a node wants a
function. What TOML has no value for is a small table:

    { import = "package.module:name" }                     the thing of that name
    { call = "package.module:Class", size = 32 }           what it gives for these keywords
    { partial = "package.module:function", n = 3 }         functools.partial(function, n=3); "arguments": positional ones
    { none = true }                                        None, where that isn't the default
"""

from __future__ import annotations

import collections.abc
import difflib
import functools
import inspect
import os
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.import_path import import_path, imported

_SPECIAL = ("import", "call", "partial", "none")
_PATHS = ("tokenizer", "tokenizer_id", "chat_template")


def check_known(where: str, given: Iterable[str], known: Iterable[str], what: str = "key") -> None:
    """Raises ``ConfigError`` for the first name that isn't known, with the nearest one and all that there are."""
    there = list(dict.fromkeys(known))
    for name in given:
        if name not in there:
            close = difflib.get_close_matches(name, there, 1, 0.4)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            raise ConfigError(f"{where}: unknown {what} {name!r}{hint} There are {', '.join(there) or 'none'}")


def parameters(made_by: type) -> dict[str, inspect.Parameter]:
    """The parameters of a node class behind its source, those that it hands on to its bases by ``**settings`` included."""
    found: dict[str, inspect.Parameter] = {}
    first = True
    for base in made_by.__mro__:
        if "__init__" not in base.__dict__:
            continue
        own = list(inspect.signature(base.__dict__["__init__"]).parameters.values())[2 if first else 1 :]
        named = {p.name: p for p in own if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        found |= {name: p for name, p in named.items() if name not in found}
        first = False
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    found.pop("source", None)
    return found


def wants_function(made_by: type) -> set[str]:
    """The parameters of a class that are functions, by their annotations."""
    found: set[str] = set()
    for base in made_by.__mro__:
        made = base.__dict__.get("__init__")
        for name, annotation in getattr(made, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            try:
                hint = typing.get_type_hints(alone, getattr(made, "__globals__", {}))[name]
            except (NameError, TypeError):  # a name for type checkers only: then { import = ... } says it
                continue
            if _is_callable(hint):
                found.add(name)
    return found


def _is_callable(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return True
    return origin is not collections.abc.Mapping and any(map(_is_callable, typing.get_args(hint)))


# from the file


def decoded(value: Any, where: str, function: bool = False) -> Any:
    """What a value of the file stands for. ``function``: where a string is an import path. Raises ``ConfigError``."""
    if isinstance(value, str):
        return imported(value, where) if function else value
    if isinstance(value, list):
        return [decoded(part, f"{where}[{i}]", function) for i, part in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    special = [name for name in _SPECIAL if name in value]
    if not special:
        return {key: decoded(part, f"{where}.{key}") for key, part in value.items()}
    return _special(special[0], value, where)


def _special(how: str, value: Mapping[str, Any], where: str) -> Any:
    rest = {key: decoded(part, f"{where}.{key}") for key, part in value.items() if key not in (how, "arguments")}
    if how in ("import", "none"):
        check_known(where, value, [how])
        return imported(value[how], where) if how == "import" else None
    target = imported(value[how], where)
    arguments = decoded(value.get("arguments", []), f"{where}.arguments")
    if how == "partial":
        return functools.partial(target, *arguments, **rest)
    try:
        return target(*arguments, **rest)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {value[how]!r} doesn't take these settings: {error}") from error


def located(name: str, value: Any, folder: Path | None) -> Any:
    """A setting that may be a relative path, as one that begins in the folder of the file if there is something there."""
    if name in _PATHS and isinstance(value, str) and folder is not None and os.path.exists(folder / value):
        return str(folder / value)
    return value


# to the file


def encoded(value: Any, function: bool = False) -> Any:
    """A setting as a value of the file. Raises ``ValueError``, saying why, if it can't be written."""
    if value is None:
        return {"none": True}
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, functools.partial):
        return _partial(value)
    if inspect.isroutine(value) or isinstance(value, type):
        path = import_path(value)
        return path if function else {"import": path}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [encoded(part) for part in value]
    if isinstance(value, Mapping):
        return _mapping(value)
    return _number_or_path(value) if isinstance(value, (np.generic, np.dtype, os.PathLike)) else _object(value)


def _number_or_path(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return str(value.str)
    return encoded(value.item()) if isinstance(value, np.generic) else os.path.abspath(value)


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = [key for key in value if not isinstance(key, str) or key in _SPECIAL]
    if wrong:
        raise ValueError(f"a dict with the key {wrong[0]!r} has no form in a recipe file")
    return {key: encoded(part) for key, part in value.items()}


def _partial(value: functools.partial[Any]) -> dict[str, Any]:
    clash = sorted({*_SPECIAL, "arguments"} & set(value.keywords))
    if clash:
        raise ValueError(f"a partial with the keyword {clash[0]!r} has no form in a recipe file")
    arguments = {"arguments": [encoded(part) for part in value.args]} if value.args else {}
    return {"partial": import_path(value.func), **arguments, **{k: encoded(v) for k, v in value.keywords.items()}}


def _object(value: Any) -> dict[str, Any]:
    """An object by its class and those of its attributes that have the names of the constructor's parameters."""
    kind = type(value)
    try:
        names = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"a {kind.__name__} has no form in a recipe file") from error
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) or not hasattr(value, p.name) for p in names):
        raise ValueError(
            f"a {kind.__name__} can't be made anew from its attributes, so it has no form in a recipe file"
        )
    said = {p.name: getattr(value, p.name) for p in names}
    said = {p.name: said[p.name] for p in names if not same(said[p.name], p.default)}
    return {"call": import_path(kind), **{name: encoded(part) for name, part in said.items()}}


def same(value: Any, default: Any) -> bool:
    """Whether a setting is what it would be if nothing were said."""
    if value is default:
        return True
    return type(value) is type(default) and isinstance(value, (str, int, float, tuple, list, dict)) and value == default
