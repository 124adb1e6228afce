"""Functions and classes by import path: "package.module:name", or "package.module:Class.method"."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from zephon_nodes.errors import ConfigError


def imported(path: Any, where: str) -> Any:
    """What an import path names. ``where``: for messages. Raises ``ConfigError`` if there is no such thing."""
    if not isinstance(path, str) or path.count(":") != 1 or not all(path.split(":")):
        raise ConfigError(f"{where}: {path!r} is no import path; write 'package.module:function'")
    module, name = path.split(":")
    try:
        found: Any = importlib.import_module(module)
        return functools.reduce(getattr, name.split("."), found)
    except ImportError as error:
        raise ConfigError(f"{where}: {path!r} can't be imported: {error}; is its folder on Python's path?") from error
    except AttributeError as error:
        raise ConfigError(f"{where}: {path!r} isn't there: {error}") from error


def import_path(thing: Any) -> str:
    """The import path of a function or a class. Raises ``ValueError``, saying why, if it has none that leads back to it."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        raise ValueError(f"a {type(thing).__name__} has no import path")
    if "<" in name:
        what = "a lambda" if name.endswith("<lambda>") else f"{name.split('.')[-1]}, made inside a function,"
        raise ValueError(f"{what} has no import path; put it into a module as a function of its own")
    if module == "__main__":
        raise ValueError(f"{name} is defined in the program or notebook itself; put it into a module")
    path = f"{module}:{name}"
    try:
        found = imported(path, path)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    if found is not thing and not _same_method(found, thing):
        raise ValueError(f"{path} names another object now")
    return path


def _same_method(found: Any, thing: Any) -> bool:
    """A class method or the like is bound anew each time it is asked for."""
    return getattr(thing, "__self__", None) is not None and bool(found == thing)
