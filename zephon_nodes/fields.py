"""Fields of a payload."""

from __future__ import annotations

from typing import Any


def require_field(payload: Any, field: str) -> Any:
    """A field of a payload. Raises ``KeyError`` or ``ValueError`` saying what there is instead."""
    if not isinstance(payload, dict):
        raise TypeError(f"the payload must be a dict with a field {field!r}, got {type(payload).__name__}")
    if field not in payload:
        raise ValueError(f"field {field!r} is missing; the record has {sorted(map(str, payload))}")
    value = payload[field]
    if value is None:
        raise ValueError(f"field {field!r} is null")
    return value
