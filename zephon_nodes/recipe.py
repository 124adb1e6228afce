"""The recipe: everything that decides which data comes, as plain JSON. What can't change the data isn't in it.

Compared as a whole at every restore. Not in it: roots and URLs, times of files, credentials, runner, parallelism, world
and microbatch size. What it can't see: edited code of a function of yours (give ``version=`` and raise it), and a file
rewritten with the same number of rows and bytes.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

ALGORITHM = 1
"""Raised when the same settings begin to give other data."""

_ABSENT = "(absent)"
_PLAIN = (str, int, float, bool, type(None))


def canonical(recipe: Mapping[str, Any]) -> str:
    """One text for one recipe. Raises ``TypeError`` for values that are neither JSON nor numbers of numpy."""
    return json.dumps(recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_number)


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r:.80} of type {type(value).__name__} can't be written as JSON")


def recipe_hash(recipe: str) -> str:
    """SHA-256 of a canonical recipe, hexadecimal."""
    return hashlib.sha256(recipe.encode("utf-8", "surrogatepass")).hexdigest()


def differences(saved: Any, current: Any) -> list[str]:
    """A line for every setting that differs: its path, the saved value and the current one."""
    return [f"{path}: {before} -> {after}" for path, before, after in changes(saved, current)]


def changes(saved: Any, current: Any) -> list[tuple[str, str, str]]:
    """(path, saved value, current value) of every setting that differs, values as JSON or "(absent)"."""
    old, new = dict(_flat("", saved)), dict(_flat("", current))
    both = [(path, old.get(path, _ABSENT), new.get(path, _ABSENT)) for path in sorted(old.keys() | new.keys())]
    differ = [(path, before, after) for path, before, after in both if before != after]
    inside = {path[:dot] for path, _, _ in differ for dot in range(len(path)) if path[dot] == "."}
    # Of a dict that is empty in one of them, the settings in the other say enough.
    return [each for each in differ if not (each[0] in inside and "{}" in each)]


def _flat(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        named = [(json.dumps(key) if "." in key else key, part) for key, part in value.items()]
        return [leaf for key, part in named for leaf in _flat(f"{path}.{key}" if path else key, part)]
    if isinstance(value, list) and any(isinstance(part, (Mapping, list)) for part in value):
        return [leaf for i, part in enumerate(value) for leaf in _flat(f"{path}[{i}]", part)]
    return [(path, json.dumps(value, ensure_ascii=False))]


def describe_function(function: Callable[..., Any], version: Any = None) -> dict[str, Any]:
    """A function by module and name, with the plain constants that are bound to it.

    Those are arguments of a ``functools.partial``, and strings, numbers, booleans, None and tuples of them among its
    defaults, the variables of its closure that it doesn't set, and the public attributes of an object that is called.
    Lists and dicts are left out there: they may well be changed while the run goes on.
    """
    bound: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        bound.update({f"arg{i}": value for i, value in enumerate(function.args)})
        bound.update(function.keywords)
        function = function.func
    said = {name: _as_json(value) for name, value in bound.items() if _is_json(value)}
    own = {name: value for name, value in _constants(function).items() if name not in bound}
    said.update({name: _as_json(value) for name, value in own.items() if _is_constant(value)})
    target = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(target, "__module__", None) or "builtins"
    name = (
        function.__name__ if isinstance(function, np.ufunc) else target.__qualname__
    )  # numpy 1 gives them no other name
    out: dict[str, Any] = {"function": f"{module}.{name}"}
    return out | ({"bound": said} if said else {}) | ({"version": version} if version is not None else {})


def _constants(function: Any) -> dict[str, Any]:
    """Defaults, closure and attributes of a function, a method or an object that is called."""
    code = getattr(function, "__code__", None)
    owner = getattr(function, "__self__", None) if code or isinstance(function, type) else function
    found = {} if owner is None or isinstance(owner, type) else plain_attributes(owner)
    if code is None:
        made = repr(function)  # such as operator.itemgetter('text'), which has no attributes
        return found if found or " at 0x" in made or isinstance(function, type) else {"repr": made}
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    found.update(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found.update(function.__kwdefaults__ or {})
    set_inside = set(_set_inside(code))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if name not in set_inside:
            found.update(_cell(name, cell))
    return found


def plain_attributes(owner: Any) -> dict[str, Any]:
    """The public attributes of an object that are plain constants, those in slots included."""
    slots = [name for kind in type(owner).__mro__ for name in _names(getattr(kind, "__slots__", ()))]
    attributes = {name: getattr(owner, name) for name in slots if hasattr(owner, name)} | getattr(owner, "__dict__", {})
    plain = {name: _as_json(value) for name, value in attributes.items() if _is_constant(value)}
    return {name: value for name, value in plain.items() if not name.startswith("_")}


def _names(slots: Any) -> list[str]:
    return [slots] if isinstance(slots, str) else list(slots)


def _set_inside(code: Any) -> Iterator[str]:
    """The variables of its closure that a function, or one inside it, sets."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname == "STORE_DEREF")
    for constant in code.co_consts:
        if hasattr(constant, "co_code"):
            yield from _set_inside(constant)


def _cell(name: str, cell: Any) -> dict[str, Any]:
    try:
        return {name: cell.cell_contents}
    except ValueError:  # a variable that isn't set yet
        return {}


def _is_constant(value: Any) -> bool:
    return all(map(_is_constant, value)) if isinstance(value, tuple) else isinstance(value, (*_PLAIN, np.generic))


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(part) for key, part in value.items())
    return all(map(_is_json, value)) if isinstance(value, (list, tuple)) else _is_constant(value)


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_json(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_json(part) for part in value]
    return value.item() if isinstance(value, np.generic) else value
