"""Keeping some records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.function_node import FunctionNode
from zephon_nodes.node import Setup, each_record
from zephon_nodes.stream import Drop, Item, Record


class Filter(FunctionNode):
    """Keeps the records for which ``function(payload)`` is true; the others stand in the drop report as "filtered".

    See ``FunctionNode`` for ``rng``, ``seed`` and ``version``. Raises as ``Map`` does.

    >>> [row["text"] for row in Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).filter(lambda row: len(row["input_ids"]) > 2)]
    ['three of them', 'and the last one']
    """

    kind = "filter"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        call = self.caller(setup)

        def kept(record: Record) -> list[Item]:
            if call(record.payload, record.identity):
                return [record]
            return [Drop(setup.name, "filtered", record.origins)]

        return each_record(setup, kept)
