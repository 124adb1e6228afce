"""The world as torch.distributed knows it, if it is initialised."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from zephon_nodes.lanes import Agree


def _initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_default() -> tuple[int, int]:
    """(rank, world size) of torch.distributed, (0, 1) without it."""
    return (dist.get_rank(), dist.get_world_size()) if _initialised() else (0, 1)


@functools.cache
def _gloo_group() -> dist.ProcessGroup:
    return dist.new_group(backend="gloo")  # type: ignore[no-any-return]


def world_agreement(world_size: int) -> Agree | None:
    """How all ranks agree on a number, or None if torch.distributed doesn't span a world of this size.

    Every rank must call this, since a gloo group is made where the default group can't reduce numbers on the CPU.
    """
    if not _initialised() or dist.get_world_size() != world_size:
        return None
    on_cpu = (
        "gloo" in dist.get_backend_config() if hasattr(dist, "get_backend_config") else dist.get_backend() == "gloo"
    )
    group = None if on_cpu else _gloo_group()

    def agree(rounds: int, largest: bool) -> int:
        number = torch.tensor([rounds], dtype=torch.int64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN, group=group)
        return int(number.item())

    return agree
