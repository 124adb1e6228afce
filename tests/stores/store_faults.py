"""A local HTTP server that fails as it is told to, and a clock that doesn't wait."""

from __future__ import annotations

import hashlib
import re
import socket
import struct
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeClock:
    """Time that passes only while somebody sleeps. ``during``: called with the time after each sleep."""

    def __init__(self, during=None):
        self.time, self.sleeps, self.during = 0.0, [], during

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.time += seconds
        if self.during is not None:
            self.during(self.time)


@dataclass
class Store:
    """``faults``: what becomes of the next requests, in order, None for a good answer; afterwards ``always``. A fault is an
    HTTP status, "reset", "cut" (half of what was announced), "short" (half, announced as such), "stall", or a function
    of the store that is called before a good answer. ``log``: (method, path, range) of each request."""

    url: str
    files: dict[str, bytes]
    faults: list = field(default_factory=list)
    always: object = None
    ranges: bool = True
    headers: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    log: list = field(default_factory=list)
    stopping: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next_fault(self):
        with self.lock:
            return self.faults.pop(0) if self.faults else self.always

    def gets(self):
        return [(path, asked) for method, path, asked in self.log if method == "GET"]


def _handler(store):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._answer(body=False)

        def do_GET(self):
            self._answer(body=True)

        def _answer(self, body):
            path, asked = self.path.partition("?")[0].lstrip("/"), self.headers.get("Range", "")
            store.log.append((self.command, path, asked))
            fault = store.next_fault()
            if callable(fault):
                fault = fault(store)
            if fault == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()
                return
            if fault == "stall":
                store.stopping.wait()
                return
            if store.needs and self.headers.get("Authorization") != store.needs:
                fault = 403
            content = store.files.get(path)
            if isinstance(fault, int) or content is None:
                self._plain(fault if isinstance(fault, int) else 404)
                return
            self._content(content, asked, fault, body)

        def _plain(self, status):
            self.send_response(status)
            for name, value in store.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _content(self, content, asked, fault, body):
            tag = hashlib.sha256(content).hexdigest()
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked) if store.ranges else None
            if found:
                start, stop = int(found[1]), min(int(found[2] or len(content)) + 1, len(content))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
                content = content[start:stop]
            else:
                self.send_response(200)
            if fault == "short" and found:
                content = content[: len(content) // 2]
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", tag)
            self.end_headers()
            if fault == "cut":
                content = content[: len(content) // 2]
                self.close_connection = True
            if body:
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, request, client_address):
        """A client that goes away in mid-answer is no news."""


@contextmanager
def serving(files, **kind):
    """A ``Store`` that serves files, until the block ends."""
    store = Store("", files, **kind)
    server = _Server(("127.0.0.1", 0), _handler(store))
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        store.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join()
