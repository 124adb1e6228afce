"""More real gloo processes, as ``ranks.py``: meshes, DataLoader workers, states that are gathered, written while the loader
goes on, and saved by a signal handler. Not a test: ``test_ranks_and_workers`` runs it once.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import warnings
from pathlib import Path

import ranks
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import LANES, launch, said, shuffled, uneven
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from zephon_nodes import StateError, gather_state, lane_state
from zephon_nodes.testing import digest


def on_a_mesh():
    """Data-parallel ranks as one dimension, or as two, beside ranks that get the same batches."""
    out = []
    for shape, names, ours in (((2, 2), "dt", "d"), ((1, 2, 2), "tfs", "fs"), ((2, 2), "td", "d")):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=tuple(names))
        mesh = mesh[tuple(ours)] if len(ours) > 1 else mesh[ours]
        with uneven().batch(2).options(mesh=mesh) as pipeline:
            given = [said(batch) for batch in pipeline]
            state = gather_state(pipeline, mesh)
            out.append({"given": given, "state": state, "same": state == gather_state(pipeline.state_dict())})
    return out


def with_workers():
    """Finite data of lanes of different lengths, two workers a rank, two epochs; the third state of the first one."""
    loader = StatefulDataLoader(uneven().batch(2).as_dataset(said), batch_size=None, num_workers=2)
    given, states = [], []
    for batch in loader:
        given.append(batch)
        states.append(loader.state_dict())
    second = list(loader)
    plain = list(DataLoader(uneven().batch(2).as_dataset(said), batch_size=None))
    return {"given": given, "second": len(second), "plain": plain, "state": gather_state(lane_state(states[2]))}


def save_async(folder):
    """The loader goes on while its state is written; a second copy goes through torch.save on rank 0."""
    loader = shuffled().loader
    batches = iter(loader)
    given = [[loader.lane, digest(batch)] for batch in itertools.islice(batches, 3 * LANES // dist.get_world_size())]
    state = gather_state(loader)
    if dist.get_rank() == 0:
        torch.save({"data": state}, folder / "gathered.pt")
    writing = dcp.async_save({"data": loader}, checkpoint_id=folder / "async")
    rest = [[loader.lane, digest(batch)] for batch in batches]
    writing.result()
    return {"given": given, "rest": rest}


def load_async(folder):
    """From DCP and from the file; then a checkpoint that lacks a lane, which must not pass in silence."""
    out = []
    for how in ("dcp", "file"):
        loader = shuffled().loader
        if how == "dcp":
            dcp.load({"data": loader}, checkpoint_id=folder / "async")
        else:
            loader.load_state_dict(torch.load(folder / "gathered.pt", weights_only=True)["data"])
        out.append([[loader.lane, digest(batch)] for batch in loader])
    state = torch.load(folder / "gathered.pt", weights_only=True)["data"]
    del state[f"lane_{LANES * dist.get_rank() // dist.get_world_size()}"]
    try:
        shuffled().loader.load_state_dict(state)
    except StateError as error:
        out.append(str(error))
    return out


def terminated(folder):
    """A trainer whose handler saves the state, wherever the signal finds it, and ends the process."""
    loader, given = shuffled(at_end="ragged").loader, []

    def handler(number, frame):
        torch.save({"state": loader.state_dict(), "given": given}, folder / f"last_words_{dist.get_rank()}.pt")
        os._exit(0)

    signal.signal(signal.SIGTERM, handler)
    if dist.get_rank() == 0:
        Path(folder / "ready").touch()
    dist.barrier()
    while True:
        for batch in loader:
            given.append([loader.epoch, loader.lane, digest(batch)])
            if len(given) == 100 + 7 * dist.get_rank():
                os.kill(os.getpid(), signal.SIGTERM)


def one_rank_dies():
    """The error of those who are left, by the process group alone."""
    with ranks.uneven().batch(2) as pipeline:
        for step, _ in enumerate(pipeline):
            if dist.get_rank() == 3 and step == 3:
                os._exit(0)
    return "went on to the end"


def reported(what):
    def run(*args):
        try:
            return what(*args)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    run.__name__ = what.__name__
    return run


def main(folder):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    launch(folder, 4, on_a_mesh)
    launch(folder, 4, with_workers)
    launch(folder, 4, save_async, folder)
    launch(folder, 2, load_async, folder)
    launch(folder, 2, terminated, folder)
    ranks.one_rank_fails = dies = reported(one_rank_dies)  # which leaves the group as it is
    launch(folder, 4, dies)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
