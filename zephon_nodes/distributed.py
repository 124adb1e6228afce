"""The world as torch.distributed knows it, if it is initialised."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from zephon_nodes.errors import ConfigError

if TYPE_CHECKING:
    from zephon_nodes.lanes import Agree

T = TypeVar("T")


def world_default() -> tuple[int, int]:
    """(rank, world size) of torch.distributed, (0, 1) without it."""
    return (dist.get_rank(), dist.get_world_size()) if initialised() else (0, 1)


def world_agreement(world_size: int) -> Agree | None:
    """How all ranks agree on a number, or None if torch.distributed doesn't span a world of this size.

    Every rank must call this, since a gloo group is made where the default group can't reduce numbers on the CPU.
    """
    if not _spans(world_size):
        return None
    group = _cpu_group(dist.group.WORLD)

    def agree(rounds: int, largest: bool) -> int:
        number = torch.tensor([rounds], dtype=torch.int64)
        dist.all_reduce(number, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN, group=group)
        return int(number.item())

    return agree


def from_rank_0(make: Callable[[], T], world_size: int) -> T:
    """What ``make`` gives on rank 0, on every rank; made on each where torch.distributed doesn't span the world.

    An error on rank 0 is raised on all of them.
    """
    if not _spans(world_size):
        return make()
    box: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            box[0] = make()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            box[1] = f"{type(error).__name__}: {error}"
    dist.broadcast_object_list(box, src=0, group=_cpu_group(dist.group.WORLD))
    if box[1] is not None:
        raise ConfigError(f"rank 0 failed for all ranks: {box[1]}")
    return box[0]  # type: ignore[no-any-return]


def initialised() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def _spans(world_size: int) -> bool:
    return initialised() and dist.get_world_size() == world_size


@functools.lru_cache(maxsize=4)
def _cpu_group(world: object) -> dist.ProcessGroup | None:
    """A group that works on the CPU: the default one if it does, else one of gloo, made once for a world."""
    backend = str(dist.get_backend_config()) if hasattr(dist, "get_backend_config") else dist.get_backend()
    return None if "gloo" in backend else dist.new_group(backend="gloo")
