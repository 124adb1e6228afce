"""What was left out, and why: counted when a delivered output passes it, so a replay doesn't count it again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from zephon_nodes.errors import RowError
from zephon_nodes.stream import Drop, Pointer

KEPT = 1000


class DroppedRow(NamedTuple):
    """``where``: dataset, file and row of each part."""

    node: str
    reason: str
    where: str


class DropReport:
    """``counts``: records by (node, reason's first line). ``rows``: the first 1,000 in full. ``total``, ``failed``: sums,
    the latter of those left out by an error. ``skips``: what was skipped on purpose, a line each.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).filter(lambda row: len(row["text"]) > 3)
    >>> len(list(graph)), graph.drops.total, graph.drops.rows[0]
    (3, 1, DroppedRow(node='filter', reason='filtered', where="row 0 of rows (dataset 'demo')"))
    """

    def __init__(self) -> None:
        self.skips: list[str] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.rows: list[DroppedRow] = []
        self.failed = 0

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, drops: Iterable[Drop], locate: Callable[[tuple[Pointer, ...]], str]) -> None:
        for drop in drops:
            self.counts[drop.node, drop.head] += drop.count
            self.failed += drop.count * drop.failed
            if len(self.rows) < KEPT and drop.count == 1:
                self.rows.append(DroppedRow(drop.node, drop.reason, locate(drop.origins)))

    def skipped(self, lane: int, skip: list[int]) -> None:
        """A stretch of a lane that was skipped."""
        span, taken, to_span, to_taken = skip
        self.skips.append(
            f"lane {lane}: skipped from record {taken} of span {span} to record {to_taken} of span {to_span}"
        )

    def __len__(self) -> int:
        return self.total

    def __str__(self) -> str:
        if not self.counts and not self.skips:
            return "nothing was left out"
        lines = [f"{self.total} records left out, {self.failed} of them by errors"] if self.counts else []
        lines += self.skips
        lines += [f"  {count:8d}  {node}: {reason}" for (node, reason), count in self.counts.most_common()]
        lines += [f"  {row.node}: {row.reason}  ({row.where})" for row in self.rows[:5]]
        return "\n".join(lines)

    __repr__ = __str__


def too_many(drop: Drop, limit: int, locate: Callable[[tuple[Pointer, ...]], str]) -> RowError:
    """The error for one bad record more than ``limit``."""
    where = locate(drop.origins)
    return RowError(
        f"on_error='skip' was to bear {limit} bad records, here is one more: {drop.node} failed on {where}: {drop.reason}; "
        "see the drop report, or raise max_errors",
        node=drop.node,
        origins=drop.origins,
        where=where,
    )
