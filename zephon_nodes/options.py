"""How a graph is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from zephon_nodes.concurrency import DRIVERS, Driver, MakeEngine, default_parallelism
from zephon_nodes.distributed import World, world_of
from zephon_nodes.errors import ConfigError
from zephon_nodes.lanes import Agree, AtEnd
from zephon_nodes.node import OnError
from zephon_nodes.plan import Plan, Workers
from zephon_nodes.work.base import check_at_least

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Options:
    """How a graph is run. None of it changes the data, but ``at_end`` what comes after the last full round, and
    ``on_error`` whether bad rows raise.

    ``rank``, ``world_size``: by default those of torch.distributed if it is initialised, else 0 of 1.
    ``mesh``: in place of them, the data-parallel dimensions of a DeviceMesh, such as ``mesh["dp_replicate", "dp_shard"]``;
    ranks that differ in its other dimensions only (tensor, pipeline, context) get the same batches. Of a process group:
    ``DeviceMesh.from_group(group, "cuda")``.
    ``grad_accum``: microbatches that a rank takes an optimizer step, if the loader shall check that they are whole rounds.
    ``runner``: what runs the worker functions of nodes that weren't given one: "thread" (default; right where they release
    the GIL, as NumPy, Pillow, PyArrow and tokenizers do), "process" (right for Python-bound functions; rows are still read
    in threads, whole batches stay there unless a node says otherwise, and what holds records stays with the driver), or "inline" (everything in the caller's thread, whatever the
    nodes say: for debugging). ``parallelism``: workers of a hop that wasn't given any.
    ``prefetch``: finished outputs held ready, over all owned lanes (at least one a lane).
    ``at_end``: see ``lanes``; by default "pad" where ranks can agree through torch.distributed ("drop" if the graph has no
    blank batch to give), else "ragged".
    ``on_error``, ``max_errors``: the policy of nodes that weren't given one, and after how many bad records to stop anyway,
    counted in the epoch on each rank by itself: for so many over all ranks, divide by the world size.
    ``agree``: how ranks agree on the end, in place of torch.distributed.

    >>> Options(runner="inline", prefetch=8).prefetch
    8
    """

    rank: int | None = None
    world_size: int | None = None
    mesh: DeviceMesh | None = None
    grad_accum: int | None = None
    runner: str | Callable[[MakeEngine, Plan], Driver] = "thread"
    parallelism: int | None = None
    prefetch: int = 4
    at_end: AtEnd | None = None
    on_error: OnError = "raise"
    max_errors: int | None = None
    agree: Agree | None = None

    def __post_init__(self) -> None:
        if not (self.runner in DRIVERS if isinstance(self.runner, str) else callable(self.runner)):
            raise ConfigError(
                f"runner must be one of {sorted(DRIVERS)}, or a function that makes a driver, got {self.runner!r}"
            )
        if self.agree is not None and not callable(self.agree):
            raise ConfigError(f"agree must be a function of (rounds, largest), got {self.agree!r}")
        if self.at_end not in (None, "ragged", "pad", "drop"):
            raise ConfigError(f"at_end must be 'ragged', 'pad' or 'drop', got {self.at_end!r}")
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        check_at_least("prefetch", self.prefetch, 1)
        for name in ("parallelism", "world_size", "grad_accum"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("rank", "max_errors"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)
        self._check_world()

    def _check_world(self) -> None:
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(f"give rank and world_size together, got rank={self.rank}, world_size={self.world_size}")
        if self.mesh is not None and self.rank is not None:
            raise ConfigError(f"give either mesh or rank and world_size, got rank={self.rank} and {self.mesh!r}")
        if self.mesh is not None and not hasattr(self.mesh, "get_coordinate"):
            raise ConfigError(f"mesh must be a DeviceMesh of data-parallel dimensions, got {self.mesh!r}")

    @property
    def threads(self) -> int:
        """Workers of a hop that wasn't given any; 0 for the inline runner."""
        return 0 if self.runner == "inline" else self.parallelism or default_parallelism()

    @property
    def workers(self) -> Workers:
        """What the workers of a hop are whose node doesn't say."""
        return "process" if self.runner == "process" else "thread"

    def driver(self) -> Callable[[MakeEngine, Plan], Driver]:
        return DRIVERS[self.runner] if isinstance(self.runner, str) else self.runner

    def in_world(self) -> tuple[World, Options]:
        """The world, and these options with its numbers, which any process can use."""
        world = world_of(self.rank, self.world_size, self.mesh)
        return world, replace(self, rank=world.rank, world_size=world.size, mesh=None)


def options_of(given: dict[str, Any]) -> Options:
    """Options by name. Raises ``ConfigError`` for an unknown one, with those that there are."""
    known = [field.name for field in fields(Options)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown options {unknown}{hint} There are {', '.join(known)}")
    return Options(**given)
