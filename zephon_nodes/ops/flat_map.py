"""Any number of records out of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.function_node import FunctionNode, listed
from zephon_nodes.node import Setup, each_record
from zephon_nodes.stream import Drop, Item, Record


class FlatMap(FunctionNode):
    """``function(payload) -> iterable of payloads`` for each record: parts of a document, several samples of a row.

    A record that gives none stands in the drop report as "gave nothing". Parts keep the record's origins. See
    ``FunctionNode`` for ``rng``, ``seed`` and ``version``. Raises as ``Map`` does.

    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).flat_map(lambda row: row["text"].split()))[:3]
    ['one', 'two', 'words']
    """

    kind = "flat_map"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        call = self.caller(setup)

        def parts(record: Record) -> list[Item]:
            children = [
                record.child(part, i)
                for i, part in enumerate(listed(setup.name, call(record.payload, record.identity)))
            ]
            return [*children] or [Drop(setup.name, "gave nothing", record.origins)]

        return each_record(setup, parts)
