"""A small transformer under torchrun on several numbers of ranks: the benchmark ``elastic_training``, in short."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "benchmarks" / "elastic_training.py"


def run(folder, worlds, steps):
    spec = importlib.util.spec_from_file_location("elastic_training", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program.run(folder, worlds, steps)


def check(result, steps):
    ours, sharded = result["summary"].values()
    for said in ours.values():
        count = said["equal_global_batches"].split(" of ")
        assert count[0] == count[1] and int(count[1]) in (steps, steps // 2)
        assert said["largest_relative_difference_of_loss"] < 1e-5
    first, *others = (world for world in result["worlds"])
    for world in others:
        for how in ("from the start", "resumed"):
            said = sharded[f"{world} ranks, {how}"]
            assert said["equal_global_batches"].startswith("0 of ")
            assert said["largest_relative_difference_of_loss"] > 1e-3
    assert sharded[f"{first} ranks, resumed"]["largest_relative_difference_of_loss"] == 0


@pytest.mark.timeout(300)
def test_global_batches_and_losses_of_a_run_that_moves_from_2_ranks_to_1(tmp_path):
    """X1, X7."""
    check(run(tmp_path, [2, 1], 6), 6)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_global_batches_and_losses_of_a_run_that_moves_from_2_ranks_to_1_and_4(tmp_path):
    check(run(tmp_path, [2, 1, 4], 20), 20)
