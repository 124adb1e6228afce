"""megatron-core (0.16.1) itself: its parallel_state on gloo, RerunDataIterator and PackedSeqParams; get_batch and the loop
by ``megatron_standin``.

Skipped where megatron-core isn't installed, as in the project's own test environment. To run: pip install megatron-core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from forked_ranks import in_order
from recipe_for_trainers import LANES, LENGTH, ROWS, sha, write_recipe

from zephon_nodes import ConfigError, Pipeline
from zephon_nodes.integrations.megatron import MegatronDataLoader, megatron_batch, packed_seq_params

pytest.importorskip("megatron.core", reason="megatron-core isn't installed")
from megatron.core.packed_seq_params import PackedSeqParams
from megatron.core.rerun_state_machine import RerunDataIterator

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parent.parent
ITERATIONS, SAVED_AT, MICROBATCHES = 5, 2, 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("megatron")
    write_recipe(folder)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent, TESTS, TESTS / "integrations"]))}
    program = [sys.executable, TESTS / "integrations" / "megatron_ranks.py", folder]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture(scope="module")
def said(folder):
    return json.loads((folder / "megatron.json").read_text())


@pytest.fixture(scope="module")
def iterations(folder):
    """SHA-256 of every microbatch of every iteration, from one plain pipeline."""
    out = []
    with Pipeline.from_toml(folder / "recipe.toml", runner="inline").batch(ROWS) as pipeline:
        for batch in pipeline:
            made = megatron_batch(batch)
            out.append(sha(*(made[n] for n in ("tokens", "position_ids", "labels", "loss_mask", "cu_seqlens"))))
            if len(out) == ITERATIONS * MICROBATCHES:
                return [out[i : i + MICROBATCHES] for i in range(0, len(out), MICROBATCHES)]
    raise AssertionError("an endless recipe has ended")


def by_iteration(ranks):
    """The microbatches of all data-parallel ranks, by iteration."""
    first = sorted((r for r in ranks if r["tp"] == 0), key=lambda r: r["dp"])
    flat = in_order([r["hashes"] for r in first], LANES // len(first))
    return [flat[i : i + MICROBATCHES] for i in range(0, len(flat), MICROBATCHES)]


def test_the_data_are_those_of_the_recipe_and_peers_get_identical_bytes(said, iterations):
    """D2, X6."""
    ranks = said["saved"]
    assert sorted((r["dp"], r["tp"]) for r in ranks) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert by_iteration(ranks) == iterations
    for dp in (0, 1):
        peers = [r["hashes"] for r in ranks if r["dp"] == dp]
        assert peers[0] == peers[1]


@pytest.mark.parametrize("world", ["on 4", "on 1"])
def test_a_run_goes_on_over_another_number_of_data_parallel_ranks(said, iterations, world):
    """X1: saved on 2 data-parallel ranks of 2 peers each."""
    assert by_iteration(said[world]) == iterations[SAVED_AT:]
    assert said[world][0]["losses"] == pytest.approx(said["saved"][0]["losses"][SAVED_AT:], rel=1e-5)


def test_samples_are_counted_as_megatron_counts_them(said):
    want = ITERATIONS * MICROBATCHES * ROWS
    assert {r["samples"] for r in said["saved"] if r["tp"] == 0} == {want}
    assert {r["samples"] for r in (*said["on 4"], *said["on 1"])} == {want}


def test_megatrons_own_dataloader_save_works_and_another_iterations_state_is_refused(said, iterations):
    assert by_iteration(said["native"]) == iterations[SAVED_AT:]
    refusals = [r["refused"] for r in said["native"] if r["tp"] == 0]
    assert all("has consumed 32 samples at iteration 5" in text and "given [80]" in text for text in refusals)


def test_one_file_of_state_for_each_data_parallel_rank(folder, said):
    names = sorted(path.name for path in (folder / "iter_0000002").iterdir())
    assert names == ["model.pt", "zephon_data_00000_of_00002.pt", "zephon_data_00001_of_00002.pt"]


def test_packed_seq_params_are_megatrons(folder):
    loader = MegatronDataLoader(
        folder / "recipe.toml", micro_batch_size=ROWS, seq_length=LENGTH, rank=0, world_size=1, runner="inline"
    )
    batch = next(RerunDataIterator(loader))
    params = packed_seq_params(batch)
    assert isinstance(params, PackedSeqParams) and params.qkv_format == "thd"
    edges = params.cu_seqlens_q
    assert edges.dtype == torch.int32 and edges[0] == 0 and edges[-1] == ROWS * LENGTH
    assert params.max_seqlen_q == int(edges.diff().max()) and torch.equal(edges, params.cu_seqlens_kv)
    loader.close()


def test_without_parallel_state_the_ranks_must_be_given(folder):
    with pytest.raises(ConfigError, match="initialize_model_parallel first, or give rank and world_size"):
        MegatronDataLoader(folder / "recipe.toml", micro_batch_size=ROWS, seq_length=LENGTH)
