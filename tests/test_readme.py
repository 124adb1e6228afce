"""What the README says runs, as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers_for_tests import TEXTS, save_folder, train_tokenizer

import zephon_nodes

README = Path(__file__).parent.parent / "README.md"
CI = Path(__file__).parent.parent / ".ci" / "run"


@pytest.fixture
def data(tmp_path, monkeypatch):
    """The files that the README's programs name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/wiki").mkdir(parents=True)
    (tmp_path / "data/news").mkdir()
    texts = [f"{text} {i} " * 20 for i in range(90) for text in TEXTS]
    pq.write_table(pa.table({"text": texts}), "data/wiki/a.parquet", row_group_size=50)
    Path("data/news/a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    save_folder(tmp_path, train_tokenizer())
    return tmp_path


def programs() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_programs_run_as_written(data):
    """One namespace, in order; only the two places that can't exist here are other ones."""
    names = {}
    seen = []
    for program in programs():
        program = program.replace("s3://bucket/news/*.jsonl.zst", "data/news/*.jsonl")
        program = program.replace("path/to/tokenizer.json", "tokenizer.json").replace("    ...\n", "    count(batch)\n")
        names["count"] = seen.append
        names["make_pipeline"] = lambda: names["pipeline"].take(1)
        exec(compile(program, "README.md", "exec"), names)
    assert len(seen) > 3
    assert seen[0].to_training()["input_ids"].shape == (8, 2048)
    batch = next(iter(names["loader"]))
    assert batch.to_training()["labels"].shape == (8, 2048)
    names["loader"].close()
    names["pipeline"].close()


def test_every_public_name_that_the_readme_uses_exists():
    used = set(re.findall(r"from zephon_nodes import ([\w, ]+)", README.read_text(encoding="utf-8")))
    for names in used:
        for name in names.split(", "):
            assert hasattr(zephon_nodes, name), name


def test_ci_runs_the_readmes_test_command():
    assert "python -m pytest" in README.read_text(encoding="utf-8")
    assert ".venv/bin/python -m pytest" in CI.read_text(encoding="utf-8")
