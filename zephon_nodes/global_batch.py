"""Which settings give the same global batch on which number of ranks. Pure arithmetic.

A round is one microbatch of each lane, and an optimizer step is a whole number of rounds. So with L lanes, microbatches
of m sequences and n rounds a step, the global batch is L * n * m sequences, whatever the number of ranks is: a rank of W
owns L / W lanes and takes grad_accum = n * L / W microbatches a step. A lane gives n * m sequences to a step, so any m
that divides this number gives the same global batches as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zephon_nodes.errors import ConfigError
from zephon_nodes.lanes import legal_worlds
from zephon_nodes.work.base import check_at_least


class GlobalBatchSetting(NamedTuple):
    """One way to run: the options of a rank that give the global batch of the plan.

    ``grad_accum``: microbatches that a rank takes an optimizer step. ``rounds_per_step``: how many of each lane.

    >>> global_batch_plan(num_lanes=8, global_batch_size=32, microbatch_size=2, world_sizes=[4]).settings[0]
    GlobalBatchSetting(world_size=4, lanes_per_rank=2, microbatch_size=2, grad_accum=4, rounds_per_step=2)
    """

    world_size: int
    lanes_per_rank: int
    microbatch_size: int
    grad_accum: int
    rounds_per_step: int


@dataclass(frozen=True)
class GlobalBatchPlan:
    """What ``global_batch_plan`` gives; prints as a table.

    ``settings``: every setting that gives the global batch, by world size and microbatch size. ``refused``: world size ->
    why it can't give it.

    >>> plan = global_batch_plan(num_lanes=8, global_batch_size=32, world_sizes=[2, 3])
    >>> [setting.microbatch_size for setting in plan.settings]
    [1, 2, 4]
    >>> list(plan.refused)
    [3]
    """

    num_lanes: int
    global_batch_size: int
    settings: tuple[GlobalBatchSetting, ...]
    refused: dict[int, str]

    def __str__(self) -> str:
        head = f"{self.global_batch_size} sequences an optimizer step, {self.num_lanes} lanes"
        names = [name.replace("_", " ") for name in GlobalBatchSetting._fields]
        rows = [names, *([str(value) for value in setting] for setting in self.settings)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(names))]
        table = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([head, *table, *(f"{world} ranks: {why}" for world, why in self.refused.items())])


def global_batch_plan(
    num_lanes: int,
    global_batch_size: int,
    *,
    microbatch_size: int | None = None,
    world_sizes: Iterable[int] | None = None,
) -> GlobalBatchPlan:
    """Which microbatch size and ``grad_accum`` give the same global batches on each number of ranks.

    ``global_batch_size``: sequences an optimizer step. ``microbatch_size``: sequences a microbatch; by default every size
    that fits. ``world_sizes``: numbers of data-parallel ranks; by default all that divide the lanes.

    Raises ``ConfigError`` if the global batch isn't the same whole number of microbatches for each lane.

    >>> print(global_batch_plan(num_lanes=32, global_batch_size=256, microbatch_size=4, world_sizes=[8, 16, 32, 64]))
    256 sequences an optimizer step, 32 lanes
    world size  lanes per rank  microbatch size  grad accum  rounds per step
             8               4                4           8                2
            16               2                4           4                2
            32               1                4           2                2
    64 ranks: 32 lanes can't be divided evenly over 64 ranks; legal world sizes are [1, 2, 4, 8, 16, 32]
    """
    check_at_least("num_lanes", num_lanes, 1)
    check_at_least("global_batch_size", global_batch_size, 1)
    share = global_batch_size // num_lanes
    if global_batch_size % num_lanes:
        near = [share * num_lanes] * (share > 0) + [(share + 1) * num_lanes]
        raise ConfigError(
            f"global_batch_size={global_batch_size} isn't a multiple of num_lanes={num_lanes}, but a step takes as many "
            f"sequences of each lane; use {' or '.join(map(str, near))}, or start the run with another num_lanes"
        )
    sizes = [size for size in range(1, share + 1) if share % size == 0]
    if microbatch_size is not None:
        check_at_least("microbatch_size", microbatch_size, 1)
        if microbatch_size not in sizes:
            raise ConfigError(
                f"microbatch_size={microbatch_size} doesn't divide the {share} sequences that each of {num_lanes} lanes "
                f"gives to a global batch of {global_batch_size}; sizes that do are {sizes}"
            )
        sizes = [microbatch_size]
    legal = legal_worlds(num_lanes)
    worlds = legal if world_sizes is None else list(world_sizes)
    for world in worlds:
        check_at_least("world_sizes", world, 1)
    why = f"{num_lanes} lanes can't be divided evenly over {{}} ranks; legal world sizes are {legal}"
    return GlobalBatchPlan(
        num_lanes,
        global_batch_size,
        tuple(_settings(num_lanes, share, sizes, [world for world in worlds if world in legal])),
        {world: why.format(world) for world in worlds if world not in legal},
    )


def _settings(lanes: int, share: int, sizes: Sequence[int], worlds: Sequence[int]) -> Iterable[GlobalBatchSetting]:
    for world in worlds:
        for size in sizes:
            rounds = share // size
            yield GlobalBatchSetting(world, lanes // world, size, rounds * lanes // world, rounds)
