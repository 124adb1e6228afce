"""A local stand-in for the hub's HTTP API: datasets with revisions, listings, and files by ranges."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """``repos``: "org/name" -> revision -> file -> bytes. ``token``: what all requests must bring, if any."""

    url: str
    repos: dict[str, dict[str, dict[str, bytes]]]
    cards: dict[str, dict] = field(default_factory=dict)
    token: str = ""
    failing: int = 0
    asked: list[str] = field(default_factory=list)

    def files(self, repo, revision):
        for name, files in self.repos.get(repo, {}).items():
            if revision in (name, self.sha(repo, name)):
                return self.sha(repo, name), files
        return None

    def sha(self, repo, name):
        content = sorted((path, hashlib.sha1(data).hexdigest()) for path, data in self.repos[repo][name].items())
        return hashlib.sha1(json.dumps([repo, name, content]).encode()).hexdigest()


def entries(files, folder):
    """The files and folders directly inside of a folder."""
    found = {}
    for path, data in files.items():
        if not folder or path.startswith(f"{folder}/"):
            first, slash, _ = path[len(folder) + 1 if folder else 0 :].partition("/")
            full = f"{folder}/{first}" if folder else first
            oid = hashlib.sha1(data).hexdigest()
            found[full] = (
                {"type": "directory", "path": full, "oid": oid}
                if slash
                else {"type": "file", "path": full, "oid": oid, "size": len(data)}
            )
    return list(found.values())


@contextmanager
def serve_hub(repos, **options):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            from urllib.parse import unquote

            path = unquote(self.path.partition("?")[0])
            hub.asked.append(path)
            if hub.failing:
                hub.failing -= 1
                return self._send(503, b"busy")
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
            found = re.fullmatch(
                r"(/api)?/datasets/([^/]+/[^/]+)(/(revision|tree|resolve)/(refs/convert/parquet|[^/]+)(/(.*))?)?", path
            )
            known = hub.files(found[2], found[5] or "main") if found else None
            if known is None:
                code = "RevisionNotFound" if found and found[2] in hub.repos else "RepoNotFound"
                return self._send(404, b"", {"X-Error-Code": code})
            sha, files = known
            if found[4] == "tree":
                return self._send(200, json.dumps(entries(files, found[7] or "")).encode())
            if found[4] == "resolve":
                return self._file(sha, files.get(found[7]))
            facts = {
                "id": found[2],
                "sha": sha,
                "siblings": [{"rfilename": name} for name in files],
                "cardData": hub.cards.get(found[2], {}),
            }
            return self._send(200, json.dumps(facts).encode())

        do_HEAD = do_GET

        def _file(self, sha, data):
            if data is None:
                return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": sha}
            if not asked:
                return self._send(200, data, headers)
            part = data[int(asked[1]) : int(asked[2]) + 1]
            return self._send(206, part, headers | {"Content-Range": f"bytes {asked[1]}-{asked[2]}/{len(data)}"})

        def _send(self, status, body, headers=()):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}", repos, **options)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
