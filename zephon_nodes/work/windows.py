"""How wide shuffle windows may be, and what they hold in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zephon_nodes.errors import ConfigError

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset

MOST_UNITS = 4


def fit_windows(datasets: Sequence[Dataset], lanes: int, window_bytes: int) -> int:
    """Units a window, at most 4, so that the windows of all lanes fit. Raises ``ConfigError`` if one unit each doesn't."""
    for units in range(MOST_UNITS, 0, -1):
        need = window_need(datasets, units, lanes)
        if need <= window_bytes:
            return units
    raise ConfigError(
        f"shuffle='windows' with num_lanes={lanes} holds at least {need:,} decoded bytes over all ranks, "
        f"window_bytes allows {window_bytes:,}; raise window_bytes, take fewer lanes, name fewer columns, "
        "rewrite the files with smaller row groups, or use shuffle='none'"
    )


def window_need(datasets: Sequence[Dataset], window_units: int, lanes: int) -> int:
    """Decoded bytes that ``lanes`` lanes hold: two windows a dataset each, and never more than the dataset."""
    need = 0
    for dataset in datasets:
        used = dataset.unit_rows > 0
        total = int(dataset.unit_bytes[used].sum())
        need += min(total, 2 * window_units * lanes * total // max(1, int(used.sum())))
    return need


def memory_plan(datasets: Sequence[Dataset], window_units: int, lanes: int) -> str:
    """What windows cost a rank, a line for each number of ranks that divides the lanes."""
    lines = [f"windows of {window_units} units; decoded bytes that they hold on a rank, at most:"]
    for world in range(1, lanes + 1):
        if lanes % world == 0:
            lines.append(f"  {world:5d} ranks: {window_need(datasets, window_units, lanes // world):,}")
    return "\n".join(lines)
