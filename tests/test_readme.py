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
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

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


def test_the_operator_of_the_readme_is_short_and_passes_the_kit():
    """As every operator of a user's should: any stop, any runner, any world."""
    (program,) = [program for program in programs() if "class Dedup" in program]
    written = program[: program.index("\n\n\n")]
    assert len([line for line in written.splitlines() if line.strip()]) <= 15
    exec(compile(written, "README.md", "exec"), names := {})
    rows = [{"text": f"text {i * i % 17}", "v": i} for i in range(200)]

    def make():
        source = zephon_nodes.StaticMixtureWorkSource(
            [zephon_nodes.Dataset.from_rows("d", rows)], num_lanes=4, chunk_size=8, flush_every=2
        )
        return zephon_nodes.Pipeline(source).stateful_transform(names["Dedup"]).batch(2)

    assert_resumes_everywhere(make, 12)
    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    with make() as pipeline:
        left = sum(len(batch) for batch in pipeline)
        assert left < 200 and left + pipeline.drops.total == 200


def test_every_public_name_that_the_readme_uses_exists():
    used = set(re.findall(r"from zephon_nodes import ([\w, ]+)", README.read_text(encoding="utf-8")))
    for names in used:
        for name in names.split(", "):
            assert hasattr(zephon_nodes, name), name


def test_ci_runs_the_readmes_test_command():
    assert "python -m pytest" in README.read_text(encoding="utf-8")
    assert ".venv/bin/python -m pytest" in CI.read_text(encoding="utf-8")
