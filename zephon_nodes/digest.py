"""A digest of any value's content, the same in every process and on every machine."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import hashlib
import struct
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_nodes.microbatch import Microbatch

_BY_REPR = (complex, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, range)


def content_digest(value: Any) -> str:
    """SHA-256 in hex of a value's content, the same in every process and on every machine.

    Covers dict (in any order of keys), list, tuple, set, str, bytes, numbers, None, numpy arrays and what turns into
    one (tensors, images), dates, times and decimals. Of other objects the type's name and the attributes count.
    """
    digest = hashlib.sha256()
    for part in _canonical(value):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.hexdigest()


def _canonical(value: Any) -> Iterator[bytes]:
    """The parts that a value is hashed as: its kind, its size where it has parts, its content."""
    kind = type(value).__name__.encode()
    if value is None or isinstance(value, (bool, int, str, bytes, bytearray, float)):
        yield from (kind, _scalar(value))
    elif isinstance(value, Mapping):
        yield from (b"dict", b"%d" % len(value))
        for key in sorted(value, key=lambda key: (type(key).__name__, str(key))):
            yield from _canonical(key)
            yield from _canonical(value[key])
    elif isinstance(value, Microbatch):
        yield from (kind, *_canonical([value.payloads, value.pointers, value.lane]))
    elif isinstance(value, (set, frozenset)):
        yield from (b"set", b"%d" % len(value), *sorted(content_digest(member).encode() for member in value))
    elif isinstance(value, (list, tuple)):
        yield from (kind, b"%d" % len(value))
        for member in value:
            yield from _canonical(member)
    elif isinstance(value, _BY_REPR):
        yield from (kind, repr(value).encode())
    else:
        yield from _array(value)


def _scalar(value: Any) -> bytes:
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, int):
        return b"%d" % value
    return str.encode(value, "utf-8", "surrogatepass") if isinstance(value, str) else bytes(value or b"")


def _array(value: Any) -> Iterator[bytes]:
    value = _as_bytes(value)
    array = _as_array(value)
    if array is None:
        yield from (b"object", f"{type(value).__module__}.{type(value).__qualname__}".encode())
        yield from _canonical(_attributes(value))
    elif array.dtype == object:
        yield from (b"array", str(array.shape).encode())
        yield from _canonical(array.ravel().tolist())
    else:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        yield from (b"array", little.dtype.str.encode(), str(array.shape).encode(), little.tobytes())
    palette = getattr(value, "getpalette", None)
    if palette is not None:
        yield from _canonical([getattr(value, "mode", None), palette()])


def _attributes(value: Any) -> dict[str, Any] | None:
    """What an object holds, in its ``__dict__`` and in slots; None if it has neither."""
    found = dict(getattr(value, "__dict__", {}))
    slots = [vars(kind) for kind in type(value).__mro__ if "__slots__" in vars(kind)]
    members = [(name, m) for names in slots for name, m in names.items() if isinstance(m, types.MemberDescriptorType)]
    for name, member in members:
        with contextlib.suppress(AttributeError):  # never set
            found[name] = member.__get__(value)
    return found if found or members or hasattr(value, "__dict__") else None


def _as_bytes(value: Any) -> Any:
    """A tensor without its gradient, and as bytes if numpy lacks its type; anything else as it is."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return value
    value = value.detach().cpu()
    if value.dtype in (torch.bfloat16, *(getattr(torch, name) for name in dir(torch) if name.startswith("float8"))):
        head = np.frombuffer(f"{value.dtype}{tuple(value.shape)}".encode(), np.uint8)
        return np.concatenate([head, value.reshape(-1).clone().view(torch.uint8).numpy()])
    return value


def _as_array(value: Any) -> npt.NDArray[Any] | None:
    if not (hasattr(value, "__array__") or hasattr(value, "__array_interface__")):
        return None
    try:
        return np.asarray(value)
    except (TypeError, RuntimeError):  # a kind of tensor that numpy can't hold
        return None
