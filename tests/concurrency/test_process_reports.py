"""What users of other loaders have reported of processes (hangs after fork, leaks, full /dev/shm), as programs of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent


def run(program, *before, timeout=100):
    """What a program prints. It must end well and say nothing on stderr."""
    path = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [*before, sys.executable, "-W", "always::ResourceWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=path)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


HEAD = """
import itertools, os, sys
import numpy as np
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

def source(rows=200, payload=lambda i: {"v": i, "text": f"row {i} of some"}):
    return StaticMixtureWorkSource([Dataset.from_rows("d", [payload(i) for i in range(rows)])], shuffle="none")
"""

USED_BEFORE = """
import pyarrow as pa, pyarrow.parquet as pq, fsspec, tempfile, torch
from tokenizers_for_tests import train_tokenizer
tokenizer = train_tokenizer()
tokenizer.encode_batch(["some words"] * 1000)
(torch.ones(500, 500) @ torch.ones(500, 500)).sum()
folder = tempfile.TemporaryDirectory()
pq.write_table(pa.table({"text": [f"row {i}" for i in range(100)]}), f"{folder.name}/a.parquet", row_group_size=10)
pq.read_table(f"{folder.name}/a.parquet")
fs = fsspec.filesystem("memory")
fs.pipe("/x/y", b"z")
work = StaticMixtureWorkSource([Dataset.from_path("d", folder.name)])
before = os.environ.get("TOKENIZERS_PARALLELISM")

def function(payload):
    import pyarrow.parquet, fsspec
    assert fsspec.filesystem("memory") and pyarrow.parquet.read_table(f"{folder_name}/a.parquet").num_rows == 100
    return payload

folder_name = folder.name
graph = Pipeline(work, parallelism=2).map(function, runner="process").tokenize(tokenizer, runner="process")
assert len(list(graph)) == 100
assert len(list(graph.options(runner="process"))) == 100
assert os.environ.get("TOKENIZERS_PARALLELISM") == before
folder.cleanup()
"""


def test_threads_of_libraries_that_the_trainer_has_used_before_harm_no_worker():
    run(HEAD + USED_BEFORE)


EPOCHS = """
class Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, payload):
        return {"v": payload["v"] * self.by, "x": np.full(9000, payload["v"])}

print("once")
graph = Pipeline(source(), runner="process", parallelism=1).map(Scale(3))
for epoch in range(2):
    assert [p["v"] for p in graph] == list(range(0, 600, 3))
    for payload in graph:
        kept = payload
        break
"""


def test_a_script_needs_no_guard_and_runs_once_and_its_epochs_and_breaks_end_without_a_word():
    assert run(HEAD + EPOCHS) == "once\n"


FULL_SHM = """
assert os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize <= 16 << 20
graph = Pipeline(source(), runner="process", parallelism=2).map(lambda p: {"x": np.full(1 << 20, p["v"], np.uint8)})
kept = [p["x"] for p in graph]
assert all((x == i % 256).all() for i, x in enumerate(kept))
assert os.listdir("/dev/shm") == []
"""


def test_a_dev_shm_of_16_megabytes_is_enough():
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True).returncode:
        pytest.skip("may not mount a /dev/shm of its own here")
    run(HEAD + FULL_SHM, *mount)


FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
from zephon_nodes import WorkerError
try:
    list(Pipeline(source(), runner="process", parallelism=8).map(lambda p: {"x": np.full(1 << 20, p["v"], np.uint8)}))
except (WorkerError, OSError) as error:
    assert "many" in str(error), error
else:
    raise AssertionError("24 descriptors can't have been enough")
"""


def test_too_few_descriptors_are_an_error_that_says_so_and_no_hang():
    run(HEAD + FEW_DESCRIPTORS)


SOAK = """
import gc, time
from pathlib import Path
graph = Pipeline(source(2000), runner="process", parallelism=2).map(
    lambda p: {"x": np.full(50_000 + 1000 * (p["v"] % 50), p["v"] % 250, np.uint8), "t": "text" * 100}
).shuffle(200).batch(4)

def seen():
    gc.collect()
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in [os.getpid(), *children()]]
    return sum(pages) * 4096, len(os.listdir("/proc/self/fd"))

def children():
    out = []
    for task in os.listdir("/proc/self/task"):
        out += Path(f"/proc/self/task/{task}/children").read_text().split()
    return out

until, figures = time.monotonic() + SECONDS, []
while time.monotonic() < until:
    for number, batch in enumerate(graph):
        assert all((p["x"] == p["x"][0]).all() for p in batch.payloads)
        if number == 300:
            figures.append(seen())
quarter = len(figures) // 4
early, late = figures[quarter : 2 * quarter], figures[-quarter:]
print(max(r for r, _ in early), max(r for r, _ in late), *(fds for _, fds in early + late))
"""


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_ten_minutes_with_processes_take_no_more_memory_and_descriptors_than_one():
    early, late, *descriptors = map(int, run(HEAD + SOAK.replace("SECONDS", "600"), timeout=800).split())
    assert late < 1.1 * early + (32 << 20), f"memory of the tree went from {early} to {late}"
    assert max(descriptors) - min(descriptors) <= 16, descriptors  # blocks are made as they are needed
