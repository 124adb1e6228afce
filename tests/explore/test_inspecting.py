"""python -m zephon_nodes inspect: states in any wrapping, and datasets."""

from __future__ import annotations

import itertools
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from runs import source

from zephon_nodes import ConfigError, Pipeline
from zephon_nodes.__main__ import main
from zephon_nodes.explore.inspecting import inspect


@pytest.fixture
def state():
    with Pipeline(source(60, lanes=2), runner="inline").batch(3) as pipeline:
        for _ in itertools.islice(pipeline, 4):
            pass
        return pipeline.state_dict()


def test_a_state_as_json_and_by_torch_bare_or_wrapped(state, tmp_path):
    (tmp_path / "state.json").write_text(json.dumps(state))
    torch.save(state, tmp_path / "bare.pt")
    torch.save(
        {"model": {"w": torch.zeros(2)}, "step": 3, "loaders": {"train": state, "eval": state}}, tmp_path / "all.ckpt"
    )
    for name in ("state.json", "bare.pt"):
        assert "epoch 0, saved on 1 rank, 2 lanes" in inspect(str(tmp_path / name))
    both = inspect(str(tmp_path / "all.ckpt"))
    assert "loaders.train:" in both and "loaders.eval:" in both and both.count("epoch 0") == 2


def test_a_checkpoint_without_a_state_says_what_it_holds(tmp_path):
    torch.save({"model": 1, "optimizer": 2}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="its keys are model, optimizer"):
        inspect(str(tmp_path / "a.pt"))
    (tmp_path / "b.pt").write_bytes(b"no checkpoint")
    with pytest.raises(ConfigError, match="weights_only=True"):
        inspect(str(tmp_path / "b.pt"))


def test_a_dataset(tmp_path):
    for i in range(3):
        table = pa.table({"text": [f"text {i} {j}" for j in range(10)], "n": [None, *range(9)]})
        pq.write_table(table, tmp_path / f"part-{i}.parquet", row_group_size=4)
    found = inspect(str(tmp_path))
    assert "parquet: 3 files, 30 rows, 9 units (2 to 4 rows, median 4)" in found
    lines = [line.split() for line in found.splitlines()]
    assert ["part-1.parquet", "10", "3"] in lines
    assert ["n", "NoneType", "or", "int", "None"] in lines and ["text", "str", "text", "0", "0"] in lines
    assert found.splitlines()[-1].split()[-1] == "part-0.parquet:4"


def test_many_files_are_counted(tmp_path):
    for i in range(25):
        (tmp_path / f"{i:02d}.jsonl").write_text('{"v": 1}\n')
    found = inspect(str(tmp_path / "*.jsonl"))
    assert "and 5 more files" in found and "19.jsonl" in found and "20.jsonl" not in found
    assert [line.split()[-1] for line in found.splitlines()[-5:]] == [f"{i:02d}.jsonl:0" for i in range(5)]


def test_the_command_prints_and_says_what_is_wrong(state, tmp_path, capsys):
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert main(["inspect", str(tmp_path / "state.json")]) == 0
    assert "lane  span  taken" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "nothing.parquet")]) == 2
    assert "does not exist" in capsys.readouterr().err
