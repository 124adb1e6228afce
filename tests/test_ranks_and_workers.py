"""Ranks in real gloo processes (``ranks_and_workers.py``, one launch): meshes, workers, and states however they are saved."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import ranks
import torch
from test_distributed import by_lane, results

from zephon_nodes import Pipeline
from zephon_nodes.testing import digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    program = [sys.executable, Path(__file__).with_name("ranks_and_workers.py"), folder]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    (folder / "said").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_mesh_deals_lanes_over_its_dimensions_and_peers_get_the_same(folder):
    """Reports D2 and X6."""
    given = results(folder, "on_a_mesh", 4)
    for case, (world, place) in enumerate([(2, lambda r: r // 2), (4, lambda r: r), (2, lambda r: r % 2)]):
        each = ranks.LANES // world
        for one, other in itertools.combinations(range(4), 2):
            assert (given[one][case]["given"] == given[other][case]["given"]) == (place(one) == place(other))
        for rank in range(4):
            mine = given[rank][case]
            lanes = {batch["lane"] for batch in mine["given"] if not batch["blank"]}
            assert lanes <= set(range(place(rank) * each, (place(rank) + 1) * each))
            assert mine["same"] and mine["state"] == given[0][case]["state"]
            assert sum(key.startswith("lane_") for key in mine["state"]) == ranks.LANES
        assert len({len(one[case]["given"]) for one in given}) == 1


def test_ranks_with_workers_give_the_batches_of_ranks_without_and_end_together(folder):
    """Reports X2, X7 and T13."""
    given = results(folder, "with_workers", 4)
    assert len({len(one["given"]) for one in given}) == 1
    rows = sorted(row for one in given for batch in one["given"] for row in batch["rows"])
    lanes = by_lane(ranks.uneven().batch(2))
    assert rows == sorted(row for lane in lanes.values() for batch in lane for row in batch["rows"])
    for one in given:
        assert one["given"] == one["plain"] and one["second"] == len(one["given"])
    assert [given[0]["state"][f"lane_{lane}"][2] for lane in range(ranks.LANES)] == [2, 1] * 4


def test_what_is_written_while_the_loader_goes_on_is_the_state_of_the_moment(folder):
    """Reports R17, X1 and the trap of copies: dcp.async_save, and a plain torch.save of gathered states."""
    saved, loaded = results(folder, "save_async", 4), results(folder, "load_async", 2)
    for rank, (from_dcp, from_file, refused) in enumerate(loaded):
        assert from_dcp == from_file
        for lane in range(4 * rank, 4 * rank + 4):
            rest = [d for one in saved for number, d in one["rest"] if number == lane]
            assert rest and [d for number, d in from_dcp if number == lane] == rest
        assert f"misses [{4 * rank}]" in refused


def test_a_state_that_a_signal_handler_saves_goes_on_exactly(folder):
    want = {}
    with ranks.shuffled(runner="inline") as pipeline:
        for epoch in range(6):
            for batch in pipeline:
                want.setdefault((epoch, batch.lane), []).append(digest(batch))
    for rank in range(2):
        last = torch.load(folder / f"last_words_{rank}.pt", weights_only=True)
        state, given = last["state"], last["given"]
        assert len(given) == 100 + 7 * rank
        with ranks.shuffled(runner="inline", rank=rank, world_size=2, at_end="ragged") as pipeline:
            pipeline.load_state_dict(state)
            rest = [[pipeline.epoch, batch.lane, digest(batch)] for batch in pipeline]
        epoch = state["epoch"]
        assert rest and epoch > 0
        for lane in range(4 * rank, 4 * rank + 4):
            assert [d for e, n, d in given + rest if (e, n) == (epoch, lane)] == want[epoch, lane]


def test_ranks_that_are_left_hear_of_a_dead_one_through_the_process_group(folder):
    for rank in range(3):
        (said,) = [results_of(folder, rank)]
        assert said.startswith(("RuntimeError", "DistBackendError", "DistNetworkError")), said
    assert not (folder / "one_rank_dies_3_of_4.json").exists()


def results_of(folder, rank):
    return (folder / f"one_rank_dies_{rank}_of_4.json").read_text().strip('"')


@pytest.mark.parametrize("steps", [0, 1, 50, 5000])
def test_a_state_has_the_same_keys_after_any_number_of_steps(steps):
    """Report R18: DCP reads only the keys that a fresh loader has."""
    with Pipeline(ranks.source(passes=None), runner="inline").batch(2) as pipeline:
        fresh = set(pipeline.state_dict())
        for _ in itertools.islice(pipeline, steps):
            pass
        assert set(pipeline.state_dict()) == fresh
