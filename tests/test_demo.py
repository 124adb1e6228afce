"""The demo, on a part of its texts: it shows what the README promises, and leaves nothing behind."""

from __future__ import annotations

import itertools
import re
import tempfile

import pytest

from zephon_nodes import demo
from zephon_nodes.testing import digest
from zephon_nodes.verify import verify


@pytest.fixture
def few_texts(monkeypatch):
    """Less of everything, the proof included."""
    for name, value in {"_SOURCES": 100, "_LARGEST": 9000, "LENGTH": 128, "MICROBATCH": 2}.items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(demo, "verify", lambda make, worlds, steps: verify(make, worlds[:2], min(steps, 4)))


def test_the_demo_shows_a_batch_throughput_and_the_proof(few_texts, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert demo.demo(seconds=0.5)
    out = capsys.readouterr().out
    assert "100 source files as Parquet" in out
    assert re.search(r"input_ids +\(2, 128\)", out) and "labels" in out
    assert re.search(r"row 0: .* documents, the last from row \d+ of \S+\.(parquet|jsonl)", out)
    assert re.search(r"[1-9][\d,]* trained tokens/s", out)
    assert re.search(r"A checkpoint of 4 lanes: [1-9]\d\d bytes", out)
    assert "4 global batches are equal everywhere" in out
    assert not list(tmp_path.iterdir())


def test_the_main_job_mixes_its_files_and_goes_on_where_it_was(few_texts, tmp_path):
    demo.make_data(tmp_path)
    with demo.pipeline(tmp_path) as graph:
        batches = iter(graph)
        datasets = {at.dataset for batch in itertools.islice(batches, 60) for row in batch.origins for at in row}
        state = graph.state_dict()
        rest = list(map(digest, itertools.islice(batches, 8)))
    assert datasets == {"code", "prose"}
    with demo.pipeline(tmp_path) as graph:
        graph.load_state_dict(state)
        assert list(map(digest, itertools.islice(graph, 8))) == rest
