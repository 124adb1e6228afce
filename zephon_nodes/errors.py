"""Errors, one class per party at fault. Every message says what was asked, what came, where, and what to do.

ConfigError   the settings or the order of nodes are wrong (raised at construction)
ReadError     a file can't be found, opened or decoded, or isn't what it was (never skipped)
RowError      one row or record can't be used: broken JSON, a missing field, a function of the user's that raised
WorkerError   a worker process died, or something can't cross to it or back
StateError    a state doesn't fit this graph, this recipe or this number of ranks
ClosedError   something was asked of a loader that has been closed
"""

from __future__ import annotations

import pickle
from typing import Any


class ZephonError(Exception):
    """Base of all errors of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__, _portable(self.__cause__))


class ConfigError(ZephonError, ValueError):
    """Settings, or the order of nodes, that can't work."""


class ReadError(ZephonError, OSError):
    """A file that can't be found, opened or decoded, or that has changed since it was indexed.

    Attributes: ``path`` (str), the file.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class RowError(ZephonError):
    """One record that can't be used. The original exception, if any, is its ``__cause__``.

    Attributes: ``node`` (str), ``lane`` (int or None), ``origins`` (the pointers of the rows it is made of),
    ``where`` (str: dataset, file and row).
    """

    def __init__(
        self, message: str, *, node: str = "", lane: int | None = None, origins: tuple[Any, ...] = (), where: str = ""
    ) -> None:
        super().__init__(message)
        self.node, self.lane, self.origins, self.where = node, lane, origins, where


class WorkerError(ZephonError, RuntimeError):
    """A worker process that was killed, crashed or couldn't be started, or something that can't be sent to it or back.

    Attributes: ``node`` (str), ``origins`` (the pointers of the rows that it was working on).
    """

    def __init__(self, message: str, *, node: str = "", origins: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.node, self.origins = node, origins


class StateError(ZephonError, ValueError):
    """A state that doesn't fit: another recipe, missing lanes, a world that doesn't divide the lanes."""


class ClosedError(ZephonError, RuntimeError):
    """Asked of a loader, an iterator or a pool that has been closed."""


def named(error: BaseException, node: str, what: str = "failed") -> ZephonError:
    """An error of this package as it is; any other as a ``RowError`` that says which node it came from."""
    if isinstance(error, ZephonError):
        return error
    out = RowError(f"{node} {what}: {type(error).__name__}: {error}", node=node)
    out.__cause__ = error
    return out


def _portable(cause: BaseException | None) -> BaseException | None:
    """A cause that can be pickled: itself, or its type and text."""
    if cause is None:
        return None
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:  # noqa: BLE001 - whatever it is that a foreign exception can't do
        return RuntimeError(f"{type(cause).__name__}: {cause}")
    return cause


def _rebuild(
    kind: type[ZephonError], args: tuple[Any, ...], facts: dict[str, Any], cause: BaseException | None
) -> ZephonError:
    error = kind.__new__(kind)
    Exception.__init__(error, *args)
    error.__dict__.update(facts)
    error.__cause__ = cause
    return error
