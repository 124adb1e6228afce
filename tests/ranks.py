"""Real gloo processes. Not a test: ``test_distributed`` runs ``python ranks.py FOLDER`` once, which imports torch once and
forks the ranks of every world; each writes what it saw to FOLDER/<what>_<rank>_of_<world>.json.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, session
from zephon_nodes.testing import digest

LANES, ROWS, SECONDS = 8, 240, 60
SHORT, EMPTY = 1, (6, 7)
"""A lane that ends early, and the lanes of the last of four ranks, which filter everything out."""


def source(**settings):
    rows = [{"v": i, "input_ids": np.full(5, i, np.int32)} for i in range(ROWS)]
    return StaticMixtureWorkSource([Dataset.from_rows("d", rows)], None, LANES, 6, 2, **settings)


def lane_rows(lane):
    """The rows of a lane in file order."""
    made = source(shuffle="none")
    chunks = itertools.takewhile(lambda c: c is not None, (made.chunk(lane, i) for i in itertools.count()))
    return [pointer.row for chunk in chunks for pointer in chunk]


def uneven(empty=EMPTY):
    """Lanes of different lengths, some with nothing."""
    gone = {row for lane in empty for row in lane_rows(lane)} | set(lane_rows(SHORT)[7:])
    return Pipeline(source(shuffle="none")).filter(lambda payload: payload["v"] not in gone)


def shuffled(**options):
    return Pipeline(source(seed=3), **options).shuffle(4).batch(3)


def said(batch):
    """A batch in JSON."""
    step = batch.to_training()
    return {
        "lane": batch.lane,
        "rows": [at.row for row in batch.origins for at in row],
        "blank": bool((step["labels"] == -100).all()),
        "shape": list(step["input_ids"].shape),
    }


def pad():
    with uneven().pack_flat(10).batch(2) as pipeline:
        return [[{**said(batch), "turn": pipeline.loader.lane} for batch in pipeline] for _ in range(3)]


def drop():
    with uneven(empty=()).batch(7).options(at_end="drop") as pipeline:
        given = [said(batch) for batch in pipeline]
        return {"given": given, "left": [row.where for row in pipeline.drops.rows], "count": pipeline.drops.total}


def drop_with_empty_lanes():
    with uneven().batch(2).options(at_end="drop") as pipeline:
        return [len(list(pipeline)) for _ in range(2)]


def rows_without_batch():
    with uneven(empty=()) as pipeline:
        return len(list(pipeline))


def endless():
    def forbidden(*args, **kwargs):
        raise AssertionError("a collective of an endless source")

    dist.all_reduce = dist.broadcast_object_list = dist.barrier = forbidden
    with Pipeline(source(passes=None)).batch(4) as pipeline:
        return len(list(itertools.islice(pipeline, 40)))


def five_epochs_with_breaks():
    with shuffled() as pipeline:
        return [[digest(b) for b in itertools.islice(pipeline, stop)] for stop in (None, 4, None, 2, None)]


def one_rank_fails():
    def fail(payload):
        if payload["v"] == last:
            raise ValueError("bad row")
        return payload

    last = lane_rows(0)[-1]
    try:
        with Pipeline(source(shuffle="none")).map(fail).batch(3) as pipeline:
            return len(list(pipeline))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def in_tokens(long=200, **options):
    """Two datasets of 20 and ``long`` tokens a row, half of the tokens each."""
    datasets = [Dataset.from_rows(name, [{"n": n}] * 90) for name, n in (("short", 20), ("long", long))]
    mixture, estimation = {"short": 1, "long": 1}, TokenEstimation()
    source = StaticMixtureWorkSource(datasets, mixture, LANES, 6, 2, token_estimation=estimation)
    return Pipeline(source, **options).map(lambda row: {"input_ids": [row["n"]] * row["n"]}).batch(2)


def measured():
    """Who measured, what all then know, and what it gives; and an error of the rank that measures."""
    calls, real = [], session.measure
    session.measure = lambda *args: calls.append(1) or real(*args)
    with in_tokens() as pipeline:
        given = [[pipeline.loader.lane, digest(batch)] for batch in pipeline]
        state = pipeline.state_dict()
        known = {name: str(found.tokens_per_row) for name, found in pipeline.estimates.items()}
    with in_tokens() as resumed:
        resumed.load_state_dict(json.loads(json.dumps(state)))
        next(iter(resumed))
    try:
        next(iter(in_tokens(long=0)))
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"
    return {"calls": len(calls), "known": known, "given": given, "recipe": state["recipe"], "failed": failed}


def save(folder):
    loader = shuffled().loader
    batches = iter(loader)
    given = [[loader.lane, digest(b)] for b in itertools.islice(batches, 3 * LANES // dist.get_world_size())]
    dcp.save({"data": loader}, checkpoint_id=folder / "checkpoint")
    return given + [[loader.lane, digest(batch)] for batch in batches]


def load(folder, as_stateful):
    """A plain dcp.load: it asks state_dict() of the fresh loader, reads those keys, and calls load_state_dict()."""
    loader = shuffled().loader
    if as_stateful:
        dcp.load({"data": loader}, checkpoint_id=folder / "checkpoint")
    else:
        state = {"data": loader.state_dict()}
        dcp.load(state, checkpoint_id=folder / "checkpoint")
        loader.load_state_dict(state["data"])
    lanes = sorted(key for key in loader.state_dict() if key.startswith("lane_"))
    return {"lanes": lanes, "rest": [[loader.lane, digest(batch)] for batch in loader]}


def launch(folder, world, what, *args):
    """Forks a world, and waits until all ranks are done or time is over."""
    pids = []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os._exit(be_rank(folder, rank, world, what, args))
        pids.append(pid)
    end = time.monotonic() + SECONDS
    while pids and time.monotonic() < end:
        pids = [pid for pid in pids if not os.waitpid(pid, os.WNOHANG)[0]]
        time.sleep(0.01)
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def be_rank(folder, rank, world, what, args):
    if world > 1:
        rendezvous = f"file://{folder}/{what.__name__}_{world}_{len(args)}_{args[-1:] == (True,)}"
        dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world)
    result = what(*args)
    (folder / f"{what.__name__}_{rank}_of_{world}.json").write_text(json.dumps(result))
    if world > 1 and what is not one_rank_fails:
        dist.destroy_process_group()
    return 0


def main(folder):
    torch.set_num_threads(1)
    for what in (pad, drop, drop_with_empty_lanes, rows_without_batch, endless, one_rank_fails):
        launch(folder, 4, what)
    for world in (1, 2):
        launch(folder, world, measured)
    launch(folder, 2, five_epochs_with_breaks)
    launch(folder, 4, save, folder)
    for world, as_stateful in ((1, True), (2, False), (8, True)):
        launch(folder, world, load, folder, as_stateful)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
