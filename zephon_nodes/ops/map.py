"""A function of each record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.function_node import FunctionNode
from zephon_nodes.node import Setup, each_record
from zephon_nodes.stream import Record


class Map(FunctionNode):
    """``function(payload) -> payload`` for each record.

    Payloads may be changed in place. None is a payload; to leave records out use ``Filter``. See ``FunctionNode`` for
    ``rng``, ``seed`` and ``version``.

    Raises ``RowError`` (or drops and counts, under on_error="skip") when the function raises.

    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).map(lambda row: row["text"].upper()))
    ['ONE', 'TWO WORDS', 'THREE OF THEM', 'AND THE LAST ONE']
    >>> def crop(row, rng):
    ...     return int(rng.integers(100))
    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).map(crop)) == list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).map(crop, parallelism=3))
    True
    """

    kind = "map"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        call = self.caller(setup)

        def mapped(record: Record) -> list[Record]:
            return [record.replaced(call(record.payload, record.identity))]

        return each_record(setup, mapped)

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"
