"""The world as torch.distributed knows it, if it is initialised, or the data-parallel part of it that a DeviceMesh names."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist

from zephon_nodes.errors import ConfigError
from zephon_nodes.state import merge_states

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from zephon_nodes.lanes import Agree

T = TypeVar("T")


class World(NamedTuple):
    """The ranks over which lanes are dealt. ``mesh``: the dimensions of a DeviceMesh that they are laid out on, or None."""

    rank: int
    size: int
    mesh: DeviceMesh | None = None


def world_of(rank: int | None, world_size: int | None, mesh: DeviceMesh | None) -> World:
    """As given; by default that of torch.distributed, and one rank without it.

    All dimensions of ``mesh`` count as data-parallel ones, in row-major order: so a rank is what flattening the mesh
    would make it, and ranks that differ in other dimensions only (tensor, pipeline, context) own the same lanes.
    Raises ``ConfigError`` if this process isn't part of the mesh.
    """
    if mesh is not None:
        place = mesh.get_coordinate()
        if place is None:
            raise ConfigError(f"this process, rank {dist.get_rank()}, isn't part of {mesh}")
        flat = functools.reduce(lambda at, dim: at * mesh.size(dim) + place[dim], range(mesh.ndim), 0)
        return World(flat, mesh.size(), mesh)
    if rank is None or world_size is None:
        return World(dist.get_rank(), dist.get_world_size()) if initialised() else World(0, 1)
    return World(rank, world_size)


def world_agreement(world: World) -> Agree | None:
    """How all ranks agree on a number, or None if torch.distributed doesn't span such a world.

    Every rank must call this, since a gloo group is made.
    """
    groups = _groups(world)
    if groups is None:
        return None

    def agree(rounds: int, largest: bool) -> int:
        number = torch.tensor([rounds], dtype=torch.int64)
        for group in groups:  # the largest along each dimension in turn is the largest of all
            number = number.to(_device(group, world.mesh))
            dist.all_reduce(number, op=dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN, group=group)
        return int(number.item())

    return agree


def from_rank_0(make: Callable[[], T], world: World) -> T:
    """What ``make`` gives on rank 0, on every rank; made on each where torch.distributed doesn't span the world.

    An error on rank 0 is raised on all of them.
    """
    groups = _groups(world)
    if groups is None:
        return make()
    box: list[Any] = [None, None]
    if (dist.get_rank() if world.mesh is None else world.rank) == 0:
        try:
            box[0] = make()
        except Exception as error:  # noqa: BLE001 - raised below, on every rank
            box[1] = f"{type(error).__name__}: {error}"
    for group in groups:  # what others pass on before rank 0's has come to them is overwritten along the next dimension
        dist.broadcast_object_list(box, src=dist.get_global_rank(group, 0), group=group)
    if box[1] is not None:
        raise ConfigError(f"rank 0 failed for all ranks: {box[1]}")
    return box[0]  # type: ignore[no-any-return]


class HasState(Protocol):
    """A ``Loader``, a ``Pipeline`` or anything else with such a state."""

    def state_dict(self) -> dict[str, Any]: ...


def gather_state(of: HasState | Mapping[str, Any], mesh: DeviceMesh | None = None) -> dict[str, Any]:
    """The states of all ranks as one, on every rank: what rank 0 may write with a plain ``torch.save``.

    ``of``: this rank's loader or its state. ``mesh``: gathers over its dimensions only; by default over all of
    torch.distributed, in which ranks with the same lanes may appear. All ranks must call this after the same number of
    outputs. Without torch.distributed it is the state itself.

        state = gather_state(loader)
        if rank == 0:
            torch.save({"data": state}, "step.pt")
        ...
        loader.load_state_dict(torch.load("step.pt", weights_only=True)["data"])    # on any legal number of ranks

    Raises ``StateError`` as ``merge_states`` does.

    >>> loader = Loader(Batch(Read(StaticMixtureWorkSource([rows], num_lanes=2)), 2))
    >>> gather_state(loader) == loader.state_dict()
    True
    """
    states: list[Any] = [of if isinstance(of, Mapping) else of.state_dict()]
    if initialised():
        for group in (_cpu_group(dist.group.WORLD),) if mesh is None else tuple(mesh.get_all_groups()):
            boxes: list[Any] = [None] * dist.get_world_size(group)
            dist.all_gather_object(boxes, states, group=group)
            states = [state for box in boxes for state in box]
    return merge_states(states)


def initialised() -> bool:
    return bool(dist.is_available() and dist.is_initialized())


def spans(world: World) -> bool:
    """Whether the ranks of the world can speak through torch.distributed."""
    return _groups(world) is not None


def _groups(world: World) -> tuple[dist.ProcessGroup, ...] | None:
    """The groups over which, one after the other, the world speaks; None if torch.distributed doesn't span it."""
    if world.mesh is not None:
        return tuple(world.mesh.get_all_groups())
    if initialised() and dist.get_world_size() == world.size:
        return (_cpu_group(dist.group.WORLD),)
    return None


def _device(group: dist.ProcessGroup, mesh: DeviceMesh | None) -> torch.device:
    """Where a number must be for a group to reduce it."""
    return torch.device("cpu" if mesh is None or "gloo" in _backend(group) else mesh.device_type)


def _backend(group: dist.ProcessGroup) -> str:
    return str(dist.get_backend_config(group)) if hasattr(dist, "get_backend_config") else dist.get_backend(group)


@functools.lru_cache(maxsize=4)
def _cpu_group(world: object) -> dist.ProcessGroup:
    """A gloo group of our own, made once for a world: dcp.async_save may use the default one in another thread meanwhile."""
    group: dist.ProcessGroup = dist.new_group(backend="gloo")
    return group
