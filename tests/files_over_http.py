"""A local HTTP server that gives out a few files, as well or as badly as a test wants."""

from __future__ import annotations

import hashlib
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Site:
    url: str
    files: dict[str, bytes]
    ranges: bool = True
    sizes: bool = True
    tags: bool = True
    failing: bool = False
    sent: list[int] = field(default_factory=list)


@contextmanager
def serve(files, **kind):
    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self._answer(body=False)

        def do_GET(self):
            self._answer(body=True)

        def _answer(self, body):
            content = site.files.get(self.path.partition("?")[0].lstrip("/"))
            if content is None or site.failing:
                self.send_error(500 if site.failing else 404)
                return
            tag = hashlib.sha256(content).hexdigest()
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if asked and site.ranges:
                start, stop = int(asked[1]), min(int(asked[2] or len(content)) + 1, len(content))
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
                content = content[start:stop]
            else:
                self.send_response(200)
            if site.ranges:
                self.send_header("Accept-Ranges", "bytes")
            if site.sizes:
                self.send_header("Content-Length", str(len(content)))
            if site.tags:
                self.send_header("ETag", tag)
            self.end_headers()
            if body:
                site.sent.append(len(content))
                self.wfile.write(content)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site = Site(f"http://127.0.0.1:{server.server_port}", files, **kind)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
