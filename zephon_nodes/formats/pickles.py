"""Pickles inside of data files. Plain values can always be read; anything that names a class or function needs leave."""

from __future__ import annotations

import io
import pickle
from typing import Any


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(
            f"the pickle names {module}.{name}, and what it names can run any code; leave the column out, or read files that "
            "you trust with allow_pickle=True of their format"
        )


def unpickled(piece: memoryview, allow: bool) -> Any:
    """The value of a pickle: None, numbers, text, bytes, lists, tuples, dicts, sets; with ``allow``, anything.

    Raises ValueError if it is broken, or if it needs more than it is allowed to.
    """
    try:
        return pickle.loads(piece) if allow else _Plain(io.BytesIO(piece)).load()
    except Exception as error:
        raise ValueError(f"it can't be unpickled: {error or type(error).__name__}") from error
