"""accelerate, Hugging Face's Trainer and Lightning on gloo ranks: python trainer_ranks.py FOLDER WHICH. Not a test.

Two ranks train 8 steps and save after 4; then one rank goes on from there.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import torch
from forked_ranks import run_ranks
from recipe_for_trainers import ROWS, sha
from torch import nn
from trainer_recipes import hf_trainer, lightning_data, train_with_accelerate

from zephon_nodes import Pipeline

STEPS, SAVE_AT = 8, 4


class Model(nn.Module):
    """A small model that gives its loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(512, 16), nn.Linear(16, 512))

    def forward(self, input_ids, labels, position_ids):
        return nn.functional.cross_entropy(self.layers(input_ids).flatten(0, 1), labels.flatten(), ignore_index=-100)


def loader_of(folder, rank, world):
    return Pipeline.from_toml(folder / "recipe.toml", rank=rank, world_size=world).batch(ROWS).loader


class Seen:
    """SHA-256 of every batch that was trained on."""

    def __init__(self):
        self.hashes = []

    def __call__(self, batch):
        tensors = batch.to_training()
        self.hashes.append(sha(*(tensors[name] for name in ("input_ids", "position_ids", "labels"))))


def as_launched(rank, world, port):
    """The environment that torchrun gives a rank."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip


def accelerate(rank, world, folder, port, resume):
    as_launched(rank, world, port)
    torch.manual_seed(0)
    model, seen = Model(), Seen()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = loader_of(folder, rank, world)
    saved = folder / "accelerate"
    if resume:
        train_with_accelerate(model, optimizer, loader, folder, SAVE_AT * 2, resume=saved, see=seen)
    else:
        train_with_accelerate(model, optimizer, loader, folder, STEPS, save_at=SAVE_AT, see=seen)
    loader.close()
    return seen.hashes


def transformers(rank, world, folder, port, resume):
    from transformers import LlamaConfig, LlamaForCausalLM

    as_launched(rank, world, port)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, max_position_embeddings=64, **shape))
    seen, loader = Seen(), loader_of(folder, rank, world)
    steps = SAVE_AT + 2 * (STEPS - SAVE_AT) if resume else STEPS
    trainer = hf_trainer(model, loader, folder / "hf", steps, 100 if resume else SAVE_AT, seen)
    trainer.train(resume_from_checkpoint=str(folder / "hf" / f"checkpoint-{SAVE_AT}") if resume else None)
    loader.close()
    return seen.hashes


def lightning(rank, world, folder, port, resume):
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    as_launched(rank, world, port)
    torch.manual_seed(0)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, index):
            return self.model(**batch)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    seen, loader = Seen(), loader_of(folder, rank, world)
    save = ModelCheckpoint(folder / "lightning", "{step}", every_n_train_steps=SAVE_AT, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_steps=12 if resume else STEPS,
        callbacks=[save], logger=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    data = lightning_data(loader, seen)
    trainer.fit(
        Module(), data, ckpt_path=folder / "lightning" / f"step={SAVE_AT}.ckpt" if resume else None, weights_only=False
    )
    loader.close()
    return seen.hashes


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def main(folder, which):
    run = {"accelerate": accelerate, "transformers": transformers, "lightning": lightning}[which]
    said = {
        "saved": run_ranks(folder, 2, run, folder, free_port(), False),
        "resumed": run_ranks(folder, 1, run, folder, free_port(), True),
    }
    (folder / f"{which}.json").write_text(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
