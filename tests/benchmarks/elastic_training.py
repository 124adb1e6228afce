"""The same run on 1, 2 and 4 ranks: python tests/benchmarks/elastic_training.py FOLDER [--steps N] [--worlds 2 1 4].

A small transformer is trained with DistributedDataParallel under torchrun on a packed, filtered, shuffled mixture of three
datasets (sources of Python's standard library). The first world saves a checkpoint half way; every world trains from the
start, and goes on from that checkpoint. Beside it the same with a loader of torchdata nodes that gives each rank its share
of the rows, as is usual; its state fits the same world only, so after a checkpoint of another one it begins anew.

Writes FOLDER/elastic_training.json: losses and the SHA-256 of the global batch of every step of every run, and a summary.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchdata import nodes

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

PACKAGES = {"asyncio": 0.5, "email": 0.3, "json": 0.2}
LANES, ROUNDS, MICROBATCH, LENGTH, VOCABULARY = 4, 2, 2, 128, 512
GLOBAL_BATCH = LANES * ROUNDS * MICROBATCH


# data


def write_data(folder: Path) -> None:
    """FOLDER/<package>.jsonl of pieces of source code, and a tokenizer trained on them."""
    texts = []
    for package in PACKAGES:
        root = Path(importlib.util.find_spec(package).origin).parent
        whole = [path.read_text(encoding="utf-8") for path in sorted(root.glob("*.py"))]
        pieces = [text[i : i + 500] for text in whole for i in range(0, len(text), 500)]
        (folder / f"{package}.jsonl").write_text("\n".join(json.dumps({"text": piece}) for piece in pieces))
        texts += pieces
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
        ),
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def is_code(row: dict[str, Any]) -> bool:
    """Leaves out about a third of the rows."""
    return "self" in row["text"] or "return" in row["text"]


class Elastic:
    """The loader of this project."""

    name = "zephon_nodes"

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        datasets = [Dataset.from_path(name, folder / f"{name}.jsonl") for name in PACKAGES]
        source = StaticMixtureWorkSource(datasets, PACKAGES, LANES, chunk_size=32, flush_every=4, passes=None)
        pipeline = Pipeline(source, rank=rank, world_size=world).filter(is_code).shuffle(64)
        self.loader = pipeline.tokenize(folder / "tokenizer.json").pack_flat(LENGTH).batch(MICROBATCH).loader

    def __iter__(self):
        for batch in self.loader:
            yield batch.to_training(["document_ids"])

    def save(self, folder: Path) -> None:
        dcp.save({"data": self.loader}, checkpoint_id=folder / "data")

    def load(self, folder: Path) -> None:
        dcp.load({"data": self.loader}, checkpoint_id=folder / "data")

    def close(self) -> None:
        self.loader.close()


class EpochOrder:
    """Another permutation in each pass, as DistributedSampler has it."""

    def __init__(self, rows: int, seed: int) -> None:
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return iter(torch.randperm(self.rows, generator=generator).tolist())


class Sharded:
    """A loader of torchdata nodes over this rank's share of the rows: same data, same packing, same batch size.

    Its state, the started rows of the packing included, is that of one rank of one world; another world begins anew.
    """

    name = "torchdata, sharded by rank"

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        shares = {}
        for name in PACKAGES:
            rows = [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()][rank::world]
            kept = [np.array(tokenizer.encode(row["text"]).ids + [0]) for row in rows if is_code(row)]
            shares[name] = nodes.Mapper(nodes.SamplerWrapper(EpochOrder(len(kept), rank)), kept.__getitem__)
        mixed = nodes.MultiNodeWeightedSampler(
            shares, PACKAGES, nodes.StopCriteria.CYCLE_FOREVER, rank=rank, world_size=world, seed=0
        )
        self._documents = nodes.Loader(mixed)
        self._held, self._number, self._number_of = np.zeros(0, np.int64), 0, np.zeros(0, np.int64)
        self._file = f"rank_{rank}_of_{world}.pt"

    def __iter__(self):
        rows = []
        for ids in self._documents:
            self._held = np.append(self._held, ids)
            self._number_of = np.append(self._number_of, np.full(len(ids), self._number))
            self._number += 1
            while len(self._held) > LENGTH:
                rows.append((self._held[: LENGTH + 1], self._number_of[: LENGTH + 1]))
                self._held, self._number_of = self._held[LENGTH:], self._number_of[LENGTH:]
                if len(rows) == MICROBATCH:
                    yield self._tensors(rows)
                    rows = []

    def _tensors(self, rows):
        ids, documents = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        same = documents[:, 1:] == documents[:, :-1]
        starts = torch.cat([torch.ones(len(rows), 1, dtype=torch.bool), ~same[:, :-1]], 1)
        at = torch.arange(LENGTH).expand(len(rows), -1)
        positions = at - torch.where(starts, at, 0).cummax(1).values
        labels = torch.where(same, ids[:, 1:], -100)
        return {
            "input_ids": ids[:, :-1],
            "labels": labels,
            "position_ids": positions,
            "document_ids": documents[:, :-1],
        }

    def save(self, folder: Path) -> None:
        held = [self._held.tolist(), self._number_of.tolist(), self._number]
        torch.save({"loader": self._documents.state_dict(), "held": held}, folder / self._file)

    def load(self, folder: Path) -> None:
        if (folder / self._file).exists():
            state = torch.load(folder / self._file, weights_only=False)
            self._documents.load_state_dict(state["loader"])
            self._held, self._number_of = (np.array(part, np.int64) for part in state["held"][:2])
            self._number = state["held"][2]

    def close(self) -> None:
        pass


# training


class Block(nn.Module):
    """Attention inside documents, and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


class Transformer(nn.Module):
    """Two blocks, width 64: the summed cross entropy of a microbatch."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, VOCABULARY))

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        documents = batch["document_ids"]
        mask = (documents[:, :, None] == documents[:, None, :]).tril().unsqueeze(1)
        x = self.tokens(batch["input_ids"]) + self.positions(batch["position_ids"])
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x).flatten(0, 1)
        return nn.functional.cross_entropy(logits, batch["labels"].flatten(), ignore_index=-100, reduction="sum")


def train(loader: Any, folder: Path, until: int, save_at: int | None, resume: bool) -> dict[str, Any]:
    """Losses and SHA-256 of the global batches of steps up to ``until``."""
    torch.manual_seed(0)
    world = dist.get_world_size()
    model = DistributedDataParallel(Transformer())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step, accumulate = 0, GLOBAL_BATCH // (MICROBATCH * world)
    checkpoint = folder / loader.name
    if resume:
        saved = torch.load(checkpoint / "model.pt", weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        loader.load(checkpoint)
    out: dict[str, Any] = {"first_step": step + 1, "loss": [], "sha256": []}
    batches = iter(loader)
    while step < until:
        taken = [next(batches) for _ in range(accumulate)]
        learned = torch.stack([(batch["labels"] != -100).sum() for batch in taken]).sum()
        dist.all_reduce(learned)
        total = torch.zeros(())
        for number, batch in enumerate(taken):
            model.require_backward_grad_sync = number == accumulate - 1
            loss = model(batch) / learned
            (loss * world).backward()  # DDP takes the mean over ranks, and the sum is wanted
            total += loss.detach()
        dist.all_reduce(total)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        out["loss"].append(float(total))
        out["sha256"].append(global_sha(taken))
        if step == save_at:
            checkpoint.mkdir(parents=True, exist_ok=True)
            loader.save(checkpoint)
            if dist.get_rank() == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, checkpoint / "model.pt")
    dist.barrier()
    loader.close()
    return out


def global_sha(taken: list[dict[str, torch.Tensor]]) -> str:
    """SHA-256 of the global batch: the microbatches of all ranks in the order of rounds and lanes."""
    own = [
        hashlib.sha256(
            b"".join(batch[name].numpy().tobytes() for name in ("input_ids", "labels", "position_ids"))
        ).digest()
        for batch in taken
    ]
    ranks: list[list[bytes]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, own)
    lanes = LANES // len(ranks)
    ordered = [rank[r * lanes + lane] for r in range(ROUNDS) for rank in ranks for lane in range(lanes)]
    return hashlib.sha256(b"".join(ordered)).hexdigest()


def be_rank(folder: Path, steps: int, saves: bool) -> None:
    """All runs of one world, in one launch."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    runs = {}
    for kind in (Elastic, Sharded):
        for resume in (False, True):
            save_at = steps // 2 if saves and not resume else None
            loader = kind(folder, rank, world)
            runs[f"{kind.name}, {'resumed' if resume else 'from the start'}"] = train(
                loader, folder, steps, save_at, resume
            )
    if rank == 0:
        (folder / f"world_{world}.json").write_text(json.dumps(runs))
    dist.destroy_process_group()


# all worlds


def launch(folder: Path, world: int, steps: int, saves: bool) -> dict[str, Any]:
    """A world under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(world)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--log-dir", str(folder / "logs")]
    command += [__file__, str(folder), "--steps", str(steps), "--rank", "saves" if saves else "loads"]
    here = Path(__file__).parent.parent.parent
    environment = {**os.environ, "PYTHONPATH": str(here), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"torchrun with {world} ranks failed:\n{done.stderr[-6000:]}")
    return json.loads((folder / f"world_{world}.json").read_text())


def relative(one: list[float], other: list[float]) -> float:
    """The largest relative difference of two curves."""
    return max(abs(a - b) / abs(a) for a, b in zip(one, other, strict=True))


def summary(worlds: dict[int, dict[str, Any]], steps: int) -> dict[str, Any]:
    """What the runs say, against the first world's run from the start."""
    first = next(iter(worlds))
    out: dict[str, Any] = {}
    for kind in (Elastic.name, Sharded.name):
        want = worlds[first][f"{kind}, from the start"]
        said: dict[str, Any] = {}
        for world, runs in worlds.items():
            for how in ("from the start", "resumed"):
                run = runs[f"{kind}, {how}"]
                begin = run["first_step"] - 1
                same = sum(a == b for a, b in zip(run["sha256"], want["sha256"][begin:], strict=True))
                said[f"{world} ranks, {how}"] = {
                    "equal_global_batches": f"{same} of {steps - begin}",
                    "largest_relative_difference_of_loss": relative(want["loss"][begin:], run["loss"]),
                    "last_loss": run["loss"][-1],
                }
        out[kind] = said
    return out


def run(folder: Path, worlds: list[int], steps: int) -> dict[str, Any]:
    """All worlds, the first of which saves; what they gave and what it says."""
    folder.mkdir(parents=True, exist_ok=True)
    write_data(folder)
    found = {world: launch(folder, world, steps, saves=world == worlds[0]) for world in worlds}
    settings = {
        "steps": steps,
        "saved_at": steps // 2,
        "saved_by": worlds[0],
        "lanes": LANES,
        "global_batch": GLOBAL_BATCH,
    }
    result = {"settings": settings, "worlds": found, "summary": summary(found, steps)}
    (folder / "elastic_training.json").write_text(json.dumps(result, indent=1))
    return result


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--steps", type=int, default=60)
    arguments.add_argument("--worlds", type=int, nargs="+", default=[2, 1, 4])
    arguments.add_argument("--rank", choices=["saves", "loads"])
    given = arguments.parse_args()
    if given.rank is not None:
        be_rank(given.folder, given.steps, given.rank == "saves")
        return
    print(json.dumps(run(given.folder, given.worlds, given.steps)["summary"], indent=2))


if __name__ == "__main__":
    main()
