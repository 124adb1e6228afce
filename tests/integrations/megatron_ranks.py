"""megatron-core on gloo ranks: python megatron_ranks.py FOLDER. Not a test: ``test_megatron_ranks`` launches it once.

4 ranks, two of them tensor-parallel peers of each other, train and save; then 4 data-parallel ranks and 1 rank go on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import megatron_standin as standin
import torch
from forked_ranks import run_ranks
from megatron.core import parallel_state as mpu
from recipe_for_trainers import LANES, LENGTH, ROWS, sha
from torch import nn

from zephon_nodes import StateError
from zephon_nodes.integrations.megatron import MegatronDataLoader

ITERATIONS, SAVED_AT, ROUNDS = 5, 2, 2
GLOBAL_BATCH = LANES * ROUNDS * ROWS


class Job:
    """One rank, set up as a script of Megatron's would do it."""

    def __init__(self, folder, tensor_parallel):
        mpu.initialize_model_parallel(tensor_model_parallel_size=tensor_parallel)
        torch.manual_seed(0)
        self.folder = folder
        self.model = nn.Sequential(nn.Embedding(512, 16), nn.Linear(16, 512))
        self.args = SimpleNamespace(
            iteration=0,
            consumed_train_samples=0,
            micro_batch_size=ROWS,
            global_batch_size=GLOBAL_BATCH,
            seq_length=LENGTH,
        )
        self.hashes = []

    def provider(self, num_samples):
        args = self.args
        self.data = MegatronDataLoader(
            self.folder / "recipe.toml",
            micro_batch_size=args.micro_batch_size,
            seq_length=args.seq_length,
            global_batch_size=args.global_batch_size,
        )
        if args.iteration > 0:
            self.data.load(self.folder, args.iteration, args.consumed_train_samples)
        return self.data, None, None

    def train(self, iterator, until):
        return standin.train(iterator, self.model, self.args, until, self.see)

    def see(self, batch):
        self.hashes.append(
            sha(*(batch[name] for name in ("tokens", "position_ids", "labels", "loss_mask", "cu_seqlens")))
        )

    def said(self, **more):
        place = {"dp": mpu.get_data_parallel_rank(), "tp": mpu.get_tensor_model_parallel_rank()}
        return {**place, "hashes": self.hashes, **more}


def saving(rank, world, folder):
    job = Job(folder, 2)
    iterator = standin.data_iterator(job.provider)
    losses = job.train(iterator, SAVED_AT)
    standin.save_checkpoint(folder, job.model, job.args)
    files = None
    if iterator is not None:
        job.data.save(folder, SAVED_AT)
        files = str(standin.maybe_save_dataloader_state(iterator, job.args, folder))
    losses += job.train(iterator, ITERATIONS)
    samples = None if iterator is None else job.data.consumed_samples
    if iterator is not None:
        job.data.save(folder, ITERATIONS)
        job.data.close()
    return job.said(losses=losses, samples=samples, file=files)


def loading(rank, world, folder):
    job = Job(folder, 1)
    standin.load_checkpoint(folder, job.model, job.args, SAVED_AT)
    iterator = standin.data_iterator(job.provider)
    losses = job.train(iterator, ITERATIONS)
    job.data.close()
    return job.said(losses=losses, samples=job.data.consumed_samples)


def native(rank, world, folder):
    """From what --dataloader-save wrote, on as many ranks as before; and a state of another iteration, refused."""
    job = Job(folder, 2)
    standin.load_checkpoint(folder, job.model, job.args, SAVED_AT)
    job.args.iteration = 0
    iterator = standin.data_iterator(job.provider)
    job.args.iteration, refused = SAVED_AT, None
    if iterator is not None:
        path = folder / f"train_dataloader_dprank{mpu.get_data_parallel_rank():03d}_{SAVED_AT}.pt"
        job.data.restore_state(torch.load(path, weights_only=True)["dataloader_state_dict"])
        try:
            job.data.load(folder, ITERATIONS, job.args.consumed_train_samples)
        except StateError as error:
            refused = str(error)
    job.train(iterator, ITERATIONS)
    if iterator is not None:
        job.data.close()
    return job.said(refused=refused)


def main(folder):
    said = {
        "saved": run_ranks(folder, 4, saving, folder),
        "on 4": run_ranks(folder, 4, loading, folder),
        "on 1": run_ranks(folder, 1, loading, folder),
        "native": run_ranks(folder, 4, native, folder),
    }
    (folder / "megatron.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
