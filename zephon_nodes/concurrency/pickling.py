"""What crosses to a process and back, pickled.

Payloads by plain pickle, which is quick. What it can't take, and what it would look for in ``__main__``, which a worker
process doesn't have, by cloudpickle: classes of a notebook or a script go along whole. Functions always go by cloudpickle.
Buffers of ``APART`` bytes and more are kept out of the stream. Tensors on the CPU are sent as bytes, whatever their dtype;
others as torch does it.

The work source stays where it is: what worker functions want of it is the place of a bad row, which is filled in when
the error is back (``placed``).
"""

from __future__ import annotations

import copyreg
import io
import marshal
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any, ClassVar, TypeAlias

import cloudpickle

from zephon_nodes.errors import ConfigError, RowError
from zephon_nodes.stream import Failure, Pointer, Record
from zephon_nodes.work.base import Source

Part: TypeAlias = "bytes | memoryview"
Apart: TypeAlias = Callable[[pickle.PickleBuffer], bool]
APART = 4096
_NOWHERE = "(a row)"
_LINKS = 20


def dumps(message: Any) -> list[Part]:
    """The pickle stream of a message, and its large buffers."""
    buffers: list[Part] = []

    def apart(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes >= APART:
            buffers.append(raw)
        return raw.nbytes < APART

    stream = _plain(message, apart)
    if stream is None:
        buffers.clear()
        stream = _clouded(_Cloud, message, apart)
    return [stream, *buffers]


def _plain(message: Any, apart: Apart | None = None) -> bytes | None:
    """By plain pickle, if that can do it."""
    file = io.BytesIO()
    pickler = _Plain(file, 5, buffer_callback=apart)
    pickler.dispatch_table = {**copyreg.dispatch_table, **_reducers()}
    try:
        pickler.dump(message)
    except Exception:  # noqa: BLE001 - whatever it is that a foreign object does
        return None
    return file.getvalue()


class _Plain(pickle.Pickler):
    """Gives up at what is of ``__main__``: the other process has another one."""

    def reducer_override(self, thing: Any) -> Any:
        """Asked of everything but the simplest values, classes and functions included: before the class of any object."""
        if getattr(thing, "__module__", None) == "__main__":
            raise _OfMainError
        return NotImplemented


class _OfMainError(Exception):
    """Of ``_Plain``, seen by nobody."""


def _clouded(kind: type[_Cloud], message: Any, apart: Apart | None = None) -> bytes:
    file = io.BytesIO()
    kind(file, protocol=5, buffer_callback=apart).dump(message)
    return file.getvalue()


def loads(parts: Sequence[Any]) -> Any:
    """The message of a stream and its buffers."""
    return pickle.loads(parts[0], buffers=parts[1:])


class _Cloud(cloudpickle.Pickler):  # type: ignore[misc]
    own: ClassVar[dict[type, Callable[[Any], Any]]] = {}

    def __init__(self, *args: Any, **settings: Any) -> None:
        # Before the base's own __init__, which looks it up once.
        self.dispatch_table = {**cloudpickle.Pickler.dispatch_table, **_reducers(), **self.own}
        super().__init__(*args, **settings)


class _Functions(_Cloud):
    """Code goes as it is, with the name of its file: cloudpickle leaves that out, and tracebacks would be without it."""

    own: ClassVar[dict[type, Callable[[Any], Any]]] = {
        CodeType: lambda code: (marshal.loads, (marshal.dumps(code),)),
    }

    def reducer_override(self, thing: Any) -> Any:
        return (_Elsewhere, ()) if isinstance(thing, Source) else super().reducer_override(thing)


def dumps_functions(functions: Any) -> bytes:
    """Worker functions, with what they refer to, but for the work source."""
    return _clouded(_Functions, functions)


class _Elsewhere:
    """Stands for the work source in a worker process."""

    def locate(self, origins: tuple[Pointer, ...], most: int | None = None) -> str:
        return _NOWHERE

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigError(
            f"a worker function asked the work source for {name!r}, which stays in the main process; take what the function "
            'needs of it before, in the node\'s worker(), or pass runner="thread"'
        )


def placed(error: BaseException, locate: Callable[[tuple[Pointer, ...]], str]) -> None:
    """Fills in where the rows of an error lie that comes from a worker process."""
    if isinstance(error, RowError) and error.where == _NOWHERE:
        error.where = locate(error.origins)
        error.args = (str(error.args[0]).replace(_NOWHERE, error.where, 1), *error.args[1:])


def _reducers() -> dict[type, Callable[[Any], Any]]:
    """For types that pickle has no way, or a slow one, to send. Torch isn't imported for it."""
    found: dict[type, Callable[[Any], Any]] = {
        Record: _reduce_record,
        Pointer: _reduce_pointer,
        memoryview: _reduce_memoryview,
        Failure: _reduce_failure,
    }
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    return found if tensor is None else {**found, tensor: _reduce_tensor}


def _reduce_record(record: Record) -> Any:
    return Record, (record.payload, record.identity, record.origins, record.cut, record.parts)


def _reduce_pointer(pointer: Pointer) -> Any:
    return Pointer, tuple(pointer)


# memoryviews


def _reduce_memoryview(view: memoryview) -> Any:
    whole = view if view.c_contiguous else memoryview(view.tobytes() if view.readonly else bytearray(view.tobytes()))
    return _memoryview, (pickle.PickleBuffer(whole), view.format, view.shape)


def _memoryview(data: Any, kind: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(data).cast("B")
    return flat.cast(kind) if len(shape) == 1 or 0 in shape else flat.cast(kind, shape)  # type: ignore[call-overload,no-any-return]


# tensors


def _reduce_tensor(tensor: Any) -> Any:
    import torch

    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        return tensor.__reduce_ex__(5)
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    # One without elements may have a stride of 0, which ``view`` refuses.
    data = pickle.PickleBuffer(flat.view(torch.uint8).numpy() if flat.numel() else b"")
    return _tensor, (data, tensor.dtype, tuple(tensor.shape), tensor.requires_grad)


def _tensor(data: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    flat = torch.empty(0, dtype=dtype) if 0 in shape else torch.frombuffer(data, dtype=torch.uint8).view(dtype)
    return flat.reshape(shape).requires_grad_(requires_grad)


# errors


class WorkerTraceback(Exception):
    """The traceback of a worker process, as a cause, where Python has no notes (3.10)."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _reduce_failure(failure: Failure) -> Any:
    """A link for each exception of the chain: pickled, whether the next one is its cause or its context, its traceback."""
    links: list[tuple[bytes, bool, str]] = []
    error: BaseException | None = failure.error
    seen: set[int] = set()
    while error is not None and id(error) not in seen and len(links) < _LINKS:
        seen.add(id(error))
        frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
        text = f"Traceback in worker process {os.getpid()}:\n{frames}" if frames else ""
        links.append((_packed(error), error.__cause__ is not None, text))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _failure, (links,)


def _failure(links: list[tuple[bytes, bool, str]]) -> Failure:
    """A failure whose error has its type, message and causes, and, as notes, the tracebacks that it had."""
    below: BaseException | None = None
    for data, caused, text in reversed(links):
        error: BaseException = pickle.loads(data)
        if text and hasattr(error, "add_note"):
            error.add_note(text)
        elif text and below is None:
            below, caused = WorkerTraceback(text), True
        if caused:
            error.__cause__ = below
        else:
            error.__context__ = below
        below = error
    return Failure(below or RuntimeError("an error without content"))


def _packed(error: BaseException) -> bytes:
    """An exception that comes out with the same type and message; if it can't, one that tells both."""
    ways: list[Callable[[BaseException], Any]] = [_by_parts, lambda error: error]
    for way in ways if type(error).__module__ != "builtins" else reversed(ways):
        try:
            data = _plain(way(error)) or _clouded(_Cloud, way(error))
            again = pickle.loads(data)
            if type(again) is type(error) and str(again) == str(error):
                return data
        except Exception:  # noqa: BLE001, S112 - a foreign exception may fail in any way
            continue
    try:
        said = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - its own __str__ fails
        said = type(error).__name__
    return pickle.dumps(RuntimeError(f"{said} (an exception that can't be pickled)"))


class _Parts:
    """Pickles as the exception that it is made of, without calling its ``__init__``, which may want other arguments."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> Any:
        return _rebuilt, (type(self._error), self._error.args, self._error.__dict__)


def _by_parts(error: BaseException) -> _Parts:
    return _Parts(error)


def _rebuilt(kind: type[BaseException], args: tuple[Any, ...], facts: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error
