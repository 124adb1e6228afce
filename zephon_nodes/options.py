"""How a graph is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from zephon_nodes.concurrency import DRIVERS, Driver, MakeEngine, default_parallelism
from zephon_nodes.distributed import world_default
from zephon_nodes.errors import ConfigError
from zephon_nodes.lanes import Agree, AtEnd
from zephon_nodes.node import OnError
from zephon_nodes.plan import Plan, Workers
from zephon_nodes.work.base import check_at_least


@dataclass(frozen=True)
class Options:
    """How a graph is run. None of it changes the data, but ``at_end`` what comes after the last full round, and
    ``on_error`` whether bad rows raise.

    ``rank``, ``world_size``: by default those of torch.distributed if it is initialised, else 0 of 1.
    ``runner``: what runs the worker functions of nodes that weren't given one: "thread" (default; right where they release
    the GIL, as NumPy, Pillow, PyArrow and tokenizers do), "process" (right for Python-bound functions; rows are still read
    in threads, and what holds records stays with the driver), or "inline" (everything in the caller's thread, whatever the
    nodes say: for debugging). ``parallelism``: workers of a hop that wasn't given any.
    ``prefetch``: finished outputs held ready, over all owned lanes (at least one a lane).
    ``at_end``: see ``lanes``; by default "pad" where ranks can agree through torch.distributed ("drop" if the graph has no
    blank batch to give), else "ragged".
    ``on_error``, ``max_errors``: the policy of nodes that weren't given one, and after how many bad records to stop anyway.
    ``agree``: how ranks agree on the end, in place of torch.distributed.

    >>> Options(runner="inline", prefetch=8).prefetch
    8
    """

    rank: int | None = None
    world_size: int | None = None
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
        for name in ("parallelism", "world_size"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("rank", "max_errors"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(f"give rank and world_size together, got rank={self.rank}, world_size={self.world_size}")

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

    def in_world(self) -> tuple[int, int, Options]:
        """(rank, world size, these options with both)."""
        rank, world_size = self.rank, self.world_size
        if rank is None or world_size is None:
            rank, world_size = world_default()
        return rank, world_size, replace(self, rank=rank, world_size=world_size)


def options_of(given: dict[str, Any]) -> Options:
    """Options by name. Raises ``ConfigError`` for an unknown one, with those that there are."""
    known = [field.name for field in fields(Options)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"unknown options {unknown}{hint} There are {', '.join(known)}")
    return Options(**given)
