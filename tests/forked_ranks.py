"""Gloo ranks as forks of one process, which has imported torch once. For scripts that tests launch; not a test."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 200


def run_ranks(folder: Path, world: int, what, *args) -> list:
    """What ``what(rank, world, *args)`` gives on each rank of a gloo world, through JSON. Raises if a rank fails."""
    name = what.__name__
    meeting = folder / f"meeting_{name}_{world}"
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os._exit(_be_rank(folder, rank, world, meeting, what, args))
        pids.append(pid)
    _wait_for(pids, name)
    return [json.loads((folder / f"{name}_{rank}_of_{world}.json").read_text()) for rank in range(world)]


def _wait_for(pids: list[int], name: str) -> None:
    """Waits for all; if one fails, or time is over, ends the others."""
    left = set(pids)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    try:
        while left:
            pid, status = os.wait()
            left.discard(pid)
            if status:
                raise SystemExit(f"{name}: rank {pids.index(pid)} of {len(pids)} failed; see above")
    finally:
        signal.alarm(0)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _late(number, frame):
    raise SystemExit(f"ranks are still running after {SECONDS} s")


def _be_rank(folder: Path, rank: int, world: int, meeting: Path, what, args) -> int:
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
        result = what(rank, world, *args)
        (folder / f"{what.__name__}_{rank}_of_{world}.json").write_text(json.dumps(result))
        if dist.is_initialized():  # a trainer may have ended it
            dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    sys.stdout.flush()
    return 0


def in_order(by_rank: list[list], lanes_owned: int) -> list:
    """One list of the microbatches of all ranks, in the order of rounds and lanes, which doesn't depend on the world."""
    rounds = len(by_rank[0]) // lanes_owned
    return [
        microbatch
        for round_ in range(rounds)
        for rank in by_rank
        for microbatch in rank[round_ * lanes_owned : (round_ + 1) * lanes_owned]
    ]
