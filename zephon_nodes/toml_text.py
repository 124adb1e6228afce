"""TOML texts to dicts and back. Reading is the standard library's; writing is the little that recipe files need."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from zephon_nodes.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def parse(text: str, where: str) -> dict[str, Any]:
    """A TOML document as a dict. Raises ``ConfigError`` naming ``where`` for a text that isn't TOML."""
    tomllib = _tomllib()
    try:
        out: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} isn't TOML: {error}") from error
    return out


def dumps(document: Mapping[str, Any]) -> str:
    """A dict of strings, whole and floating numbers, booleans, lists and dicts with string keys, as TOML.

    Dicts at the top become tables and lists of dicts arrays of tables; deeper ones stand in line. Raises ``TypeError``
    for other values.
    """
    plain = {key: value for key, value in document.items() if not _is_table(value) and not _is_tables(value)}
    parts = [_lines(plain)] if plain else []
    for key, value in document.items():
        if _is_table(value):
            parts.append(f"[{_key(key)}]\n" + _lines(value))
        elif _is_tables(value):
            parts += [f"[[{_key(key)}]]\n" + _lines(table) for table in value]
    return "\n".join(parts)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_table, value))


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no value for {value!r}")


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _tomllib() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        import tomli
    except ImportError as error:
        raise ConfigError(
            "recipe files need a reader of TOML, which Python has from 3.11 on: pip install 'zephon_nodes[toml]' (tomli)"
        ) from error
    return tomli
