"""A STAND-IN for what Megatron-LM does with an external dataloader, on gloo; its own ``megatron.training`` needs CUDA and isn't
in the PyPI package. Made from its description alone:

    iterators     the provider is called on the first tensor-parallel rank of each group; what it gives is wrapped in
                  ``RerunDataIterator`` (the real one of megatron-core)
    get_batch     the first tensor-parallel rank takes the next microbatch and broadcasts its fields to its peers; fields of
                  a packed microbatch must be (1, K) int32
    iterations    global_batch_size / (micro_batch_size * data-parallel ranks) microbatches each; ``consumed_samples`` grows by
                  the global batch
    checkpoint    a file for each iteration, in iter_0000000, written by rank 0; with ``dataloader_save``, what the
                  dataloader's ``save_state`` gives, of the first tensor-parallel ranks
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.rerun_state_machine import RerunDataIterator

FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "attention_mask", "cu_seqlens", "max_seqlen")


def data_iterator(provider):
    if mpu.get_tensor_model_parallel_rank() != 0:
        return None
    train, _, _ = provider([0, 0, 0])
    return RerunDataIterator(train)


def get_batch(iterator):
    """One microbatch, on all ranks of a tensor-parallel group."""
    group, first = mpu.get_tensor_model_parallel_group(), mpu.get_tensor_model_parallel_src_rank()
    batch = next(iterator) if iterator is not None else {}
    shapes = [{name: (tuple(value.shape), value.dtype) for name, value in batch.items()}]
    dist.broadcast_object_list(shapes, src=first, group=group)
    assert set(shapes[0]) <= set(FIELDS)
    assert {"tokens", "labels", "loss_mask", "position_ids"} <= set(shapes[0])
    for name, (shape, dtype) in shapes[0].items():
        tensor = batch[name].contiguous() if iterator is not None else torch.empty(shape, dtype=dtype)
        dist.broadcast(tensor, src=first, group=group)
        batch[name] = tensor
    if "cu_seqlens" in batch:
        assert batch["cu_seqlens"].dtype == torch.int32 and batch["cu_seqlens"].shape[0] == 1
    return batch


def train(iterator, model, args, until, each):
    """Runs iterations up to ``until``; ``each(batch)`` sees every microbatch; ``args`` counts as Megatron's does."""
    losses = []
    while args.iteration < until:
        microbatches = args.global_batch_size // (args.micro_batch_size * mpu.get_data_parallel_world_size())
        total, count = torch.zeros(()), torch.zeros(())
        for _ in range(microbatches):
            batch = get_batch(iterator)
            each(batch)
            logits = model(batch["tokens"])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
            total = total + (loss * batch["loss_mask"].flatten()).sum()
            count += batch["loss_mask"].sum()
        group = mpu.get_data_parallel_group()
        dist.all_reduce(count, group=group)
        (total / count).backward()
        shown = (total / count).detach()
        dist.all_reduce(shown, group=group)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
            parameter.data -= 0.5 * parameter.grad
            parameter.grad = None
        losses.append(float(shown))
        args.iteration += 1
        args.consumed_train_samples += args.global_batch_size
    return losses


def save_checkpoint(folder, model, args):
    place = Path(folder) / f"iter_{args.iteration:07d}"
    if dist.get_rank() == 0:
        place.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "consumed": args.consumed_train_samples}, place / "model.pt")
    dist.barrier()


def load_checkpoint(folder, model, args, iteration):
    saved = torch.load(Path(folder) / f"iter_{iteration:07d}" / "model.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    args.iteration, args.consumed_train_samples = iteration, saved["consumed"]


def maybe_save_dataloader_state(iterator, args, folder):
    """What --dataloader-save does."""
    if iterator is None or not mpu.is_pipeline_first_stage():
        return None
    path = Path(folder) / f"train_dataloader_dprank{mpu.get_data_parallel_rank():03d}_{args.iteration}.pt"
    torch.save({"dataloader_state_dict": iterator.iterable.save_state()}, path)
    return path
