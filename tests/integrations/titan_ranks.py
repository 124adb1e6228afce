"""The released TorchTitan on gloo ranks: python titan_ranks.py FOLDER. Not a test: ``test_torchtitan`` launches it once.

4 ranks train a small model in a plain loop (TorchTitan's attention has no backward pass on a CPU) on batches of
``RowDataLoader``, and TorchTitan's own ``CheckpointManager`` saves, once in each mode, while the loop goes on. Then 2 ranks
load each of the checkpoints and go on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from forked_ranks import in_order, run_ranks
from recipe_for_trainers import LANES, LENGTH, ROWS, sha
from torch import nn
from torchtitan.components.checkpoint import CheckpointManager

from zephon_nodes.integrations.torchtitan import RowDataLoader

STEPS, SAVED_AT, ROUNDS = 6, 3, 2
GLOBAL_BATCH = LANES * ROUNDS * ROWS
MODES = ("disabled", "async")


class TrainState:
    """What a trainer keeps beside its model."""

    def __init__(self):
        self.step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


class Nothing:
    """In place of optimizers and schedulers without state."""

    def state_dict(self):
        return {"none": torch.zeros(1)}

    def load_state_dict(self, state):
        pass


class Run:
    """Model, data and checkpoints of one rank, built as the trainer builds them."""

    def __init__(self, folder, recipe, mode, rank, world):
        torch.manual_seed(0)
        self.world = world
        self.model = nn.Sequential(nn.Embedding(512, 16), nn.Linear(16, 512))
        self.state = TrainState()
        self.accumulate = GLOBAL_BATCH // (ROWS * world)
        config = RowDataLoader.Config(recipe=str(recipe), global_batch_size=GLOBAL_BATCH)
        self.data = config.build(
            dp_world_size=world,
            dp_rank=rank,
            tokenizer=None,
            seq_len=LENGTH,
            local_batch_size=ROWS,
            snapshot_every_n_steps=SAVED_AT * self.accumulate,
        )
        checkpoints = CheckpointManager.Config(enable=True, folder=mode, interval=SAVED_AT, async_mode=mode)
        self.checkpoints = checkpoints.build(
            dataloader=self.data,
            model_parts=[self.model],
            optimizers=Nothing(),
            lr_schedulers=Nothing(),
            states={"train_state": self.state},
            sd_adapter=None,
            base_folder=str(folder),
        )

    def train(self, until, save=False):
        """Losses and the SHA-256 of every microbatch of the steps up to ``until``, by step."""
        out = []
        batches = iter(self.data)
        while self.state.step < until:
            total, count, hashes = torch.zeros(()), torch.zeros(()), []
            for _ in range(self.accumulate):
                inputs, labels = next(batches)
                hashes.append(sha(inputs["input"], inputs["positions"], labels))
                logits = self.model(inputs["input"])
                total = total + nn.functional.cross_entropy(
                    logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
                )
                count += (labels != -100).sum()
            dist.all_reduce(count)
            (total / count).backward()
            loss = (total / count).detach()
            dist.all_reduce(loss)
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.data -= 0.5 * parameter.grad
                parameter.grad = None
            self.state.step += 1
            out.append({"step": self.state.step, "loss": float(loss), "hashes": hashes})
            if save:
                self.checkpoints.save(self.state.step)
        return out

    def close(self):
        self.checkpoints.maybe_wait_for_saving()
        self.checkpoints.close()
        self.data.close()


def saving(rank, world, folder, recipe):
    out = {}
    for mode in MODES:
        run = Run(folder, recipe, mode, rank, world)
        out[mode] = run.train(STEPS - 1, save=True)
        run.close()
    return out


def loading(rank, world, folder, recipe):
    out = {}
    for mode in MODES:
        run = Run(folder, recipe, mode, rank, world)
        before = json.dumps(run.data.state_dict())
        assert run.checkpoints.load(step=SAVED_AT)
        assert run.state.step == SAVED_AT and json.dumps(run.data.state_dict()) != before
        out[mode] = run.train(STEPS)
        run.close()
    return out


def by_step(ranks, mode):
    """Of all ranks: loss and the microbatches of each step."""
    return [
        {
            "step": steps[0]["step"],
            "loss": steps[0]["loss"],
            "hashes": in_order([s["hashes"] for s in steps], LANES // len(ranks)),
        }
        for steps in zip(*(rank[mode] for rank in ranks), strict=True)
    ]


def main(folder):
    saved = run_ranks(folder, 4, saving, folder, folder / "recipe.toml")
    loaded = run_ranks(folder, 2, loading, folder, folder / "recipe.toml")
    said = {mode: {"saved": by_step(saved, mode), "loaded": by_step(loaded, mode)} for mode in MODES}
    (folder / "titan.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
