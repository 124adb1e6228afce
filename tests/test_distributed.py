"""Ranks in real gloo processes (``ranks.py``, one launch): the end of data, nobody waiting, plain DCP over worlds."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import ranks

from zephon_nodes import Pipeline
from zephon_nodes.testing import digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    program = [sys.executable, Path(__file__).with_name("ranks.py"), folder]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    (folder / "said").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    return folder


def results(folder, what, world):
    """What each rank wrote. A rank that is missing has failed, or hung until it was killed."""
    files = [folder / f"{what}_{rank}_of_{world}.json" for rank in range(world)]
    assert all(file.exists() for file in files), (folder / "said").read_text()[-3000:]
    return [json.loads(file.read_text()) for file in files]


def by_lane(pipeline):
    """What every lane gives, one rank, nothing padded."""
    out = {lane: [] for lane in range(ranks.LANES)}
    with pipeline.options(runner="inline", at_end="ragged") as running:
        for batch in running:
            out[running.loader.lane].append(ranks.said(batch))
    return out


def test_padded_ranks_give_the_same_number_of_batches_in_every_epoch(folder):
    want = by_lane(ranks.uneven().pack_flat(10).batch(2))
    longest = max(map(len, want.values()))
    assert not want[6] and not want[7] and len(want[1]) < longest
    for rank, epochs in enumerate(results(folder, "pad", 4)):
        assert [len(epoch) for epoch in epochs] == [2 * longest] * 3
        for epoch in epochs:
            for lane in (2 * rank, 2 * rank + 1):
                given = [batch for batch in epoch if batch["turn"] == lane]
                real, blank = given[: len(want[lane])], given[len(want[lane]) :]
                assert [batch["rows"] for batch in real] == [batch["rows"] for batch in want[lane]]
                assert all(batch["blank"] and not batch["rows"] for batch in blank)
                assert len({tuple(batch["shape"]) for batch in given}) == 1


def test_dropping_ranks_stop_together_and_report_every_row_that_they_leave_out(folder):
    want = by_lane(ranks.uneven(empty=()).batch(7))
    rounds = min(map(len, want.values()))
    ranks_ = results(folder, "drop", 4)
    assert [len(rank["given"]) for rank in ranks_] == [2 * rounds] * 4
    given = [row for rank in ranks_ for batch in rank["given"] for row in batch["rows"]]
    assert len(set(given)) == len(given)
    left = " ".join(where for rank in ranks_ for where in rank["left"])
    unnamed = [row for row in set(range(ranks.ROWS)) - set(given) if f"row {row} of" not in left]
    assert not unnamed, "rows that neither came nor are named in a drop report"
    assert sum(rank["count"] for rank in ranks_) == ranks.ROWS - len(given)


def test_dropping_ranks_of_which_one_has_nothing_give_nothing_and_do_not_wait(folder):
    assert results(folder, "drop_with_empty_lanes", 4) == [[0, 0]] * 4


def test_ranks_whose_graph_has_no_blanks_still_give_the_same_number_of_outputs(folder):
    counts = results(folder, "rows_without_batch", 4)
    assert len(set(counts)) == 1 and counts[0] > 0


def test_an_endless_source_needs_no_word_with_the_other_ranks(folder):
    assert results(folder, "endless", 4) == [40] * 4


def test_epochs_that_are_broken_off_together_go_on_together(folder):
    want = []
    with ranks.shuffled(runner="inline") as pipeline:
        for _ in range(5):
            lanes = {lane: [] for lane in range(ranks.LANES)}
            for batch in pipeline:
                lanes[batch.lane].append(digest(batch))
            want.append(lanes)
    for rank, epochs in enumerate(results(folder, "five_epochs_with_breaks", 2)):
        for got, lanes, stop in zip(epochs, want, (None, 4, None, 2, None), strict=True):
            mine = [lanes[lane] for lane in range(4 * rank, 4 * rank + 4)]
            turns = [d for round_ in itertools.zip_longest(*mine) for d in round_ if d is not None][:stop]
            assert got[: len(turns)] == turns
            assert stop is None or len(got) == stop
    lengths = [[len(epoch) for epoch in epochs] for epochs in results(folder, "five_epochs_with_breaks", 2)]
    assert lengths[0] == lengths[1]


def test_a_failing_rank_raises_its_error_and_leaves_nobody_hanging(folder):
    first, *others = results(folder, "one_rank_fails", 4)
    assert str(first).startswith("RowError") and "bad row" in first
    assert len(others) == 3


def test_tokens_are_measured_by_one_rank_for_all(folder):
    """Once, and not at a resume; every rank then has the same recipe, and the batches are those of one rank."""
    (alone,) = results(folder, "measured", 1)
    world = results(folder, "measured", 2)
    assert [rank["calls"] for rank in (alone, *world)] == [2, 2, 0], "one of them is the call that fails"
    for rank in world:
        assert rank["known"] == {"short": "20", "long": "200"} and rank["recipe"] == alone["recipe"]
        assert rank["failed"].startswith("ConfigError") and "of dataset 'long' gave no token" in rank["failed"]
    lanes = [
        {lane: [d for number, d in given if number == lane] for lane in range(ranks.LANES)}
        for given in (alone["given"], [turn for rank in world for turn in rank["given"]])
    ]
    for lane, want in lanes[0].items():
        assert lanes[1][lane][: len(want) - 1] == want[:-1] and len(want) > 5  # the last one is filled up in a world


@pytest.mark.parametrize("world", [1, 2, 8])
def test_plain_dcp_moves_a_run_to_another_world(folder, world):
    together = [item for rank in results(folder, "save", 4) for item in rank]
    lanes = {lane: [d for number, d in together if number == lane] for lane in range(ranks.LANES)}
    for rank, got in enumerate(results(folder, "load", world)):
        mine = range(rank * ranks.LANES // world, (rank + 1) * ranks.LANES // world)
        assert got["lanes"] == sorted(f"lane_{lane}" for lane in mine)
        for lane in mine:
            rest = [d for number, d in got["rest"] if number == lane]
            assert len(lanes[lane]) > 4
            assert rest[: len(lanes[lane]) - 3] == lanes[lane][3:]
            if world > 1:
                assert len(rest) == len(lanes[lane]) - 3


def test_without_torch_distributed_there_is_one_rank():
    pipeline = Pipeline(ranks.source())
    assert pipeline.state_dict()["world_size"] == 1
    assert sum(key.startswith("lane_") for key in pipeline.state_dict()) == ranks.LANES
