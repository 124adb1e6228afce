"""The first rounds of a run."""

from __future__ import annotations

from typing import Any

from zephon_nodes.node import Node
from zephon_nodes.work.base import check_at_least


class Take(Node):
    """Ends each epoch after ``rounds`` rounds: that many outputs of each lane, on any number of ranks.

    Must be the last node. What was taken before a checkpoint counts after it.

    >>> len(list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).batch(1).take(3)))
    3
    """

    kind = "take"
    takes = ("rows", "packed", "batches")

    def __init__(self, source: Node, rounds: int, *, name: str | None = None) -> None:
        super().__init__(source, name=name)
        check_at_least("rounds", rounds, 1)
        self.rounds = rounds

    def settings(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    def one_to_one(self, setup: Any) -> bool:
        return True

    def blank(self) -> Any:
        return self.source.blank() if self.source else None
