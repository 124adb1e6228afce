"""Where a worker process begins: run as a script, with the number of its socket. Imports as little as it can.

Python's own way to start a process runs the main module again, which needs a guard in every script and can't work in a
notebook. Here the child gets nothing but ``sys.path``; functions come by cloudpickle, and import what they need.

Two detours keep torch (seconds of start-up, hundreds of megabytes) out of workers whose functions don't use it: the
package is there without its ``__init__``, which runs once something in it is asked for; and nodes, which are torchdata's,
stand here on an empty class, because all that a worker needs of a node are its methods.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import types
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        _die_with(int(sys.argv[2]))
        size = int.from_bytes(_read(sock, 4), "big")
        sys.path[:] = json.loads(_read(sock, size))
        _without_init("zephon_nodes")
        _nodes_without_torchdata()
        from zephon_nodes.concurrency.child import serve

        serve(sock)


def _die_with(parent: int) -> None:
    """The kernel kills this process when the thread that started it ends. Elsewhere the end of the socket must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        got = sock.recv(size - len(data))
        if not got:
            os._exit(0)  # the parent was closed, or is gone, before anything began
        data += got
    return data


def _without_init(name: str) -> None:
    """Puts a package in place whose ``__init__`` runs when it is first asked for one of its own names."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no {name} on sys.path: {sys.path}")
    loader, module = spec.loader, importlib.util.module_from_spec(spec)
    lock, ran = threading.RLock(), list[bool]()

    def missing(attribute: str) -> Any:
        if importlib.util.find_spec(f"{name}.{attribute}"):
            return importlib.import_module(f"{name}.{attribute}")
        with lock:
            if not ran and not attribute.startswith("__"):
                ran.append(True)
                loader.exec_module(module)
        if attribute in vars(module):
            return vars(module)[attribute]
        raise AttributeError(f"module {name!r} has no attribute {attribute!r}")

    module.__getattr__ = missing  # type: ignore[method-assign]
    sys.modules[name] = module


def _nodes_without_torchdata() -> None:
    class BaseNode:
        def __class_getitem__(cls, item: Any) -> type:
            return cls

    package, nodes = types.ModuleType("torchdata"), types.ModuleType("torchdata.nodes")
    nodes.BaseNode = BaseNode  # type: ignore[attr-defined]
    sys.modules.update({"torchdata": package, "torchdata.nodes": nodes})
    try:
        import zephon_nodes.node  # noqa: F401
    finally:
        del sys.modules["torchdata"], sys.modules["torchdata.nodes"]


if __name__ == "__main__":
    main()
