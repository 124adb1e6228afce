"""A function of each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.function_node import FunctionNode
from zephon_nodes.node import Setup, each_record
from zephon_nodes.stream import Drop, Item, Record


class MapBatch(FunctionNode):
    """``function(batch) -> anything`` for each batch, after ``Batch``: to tensors, to a trainer's own type.

    None leaves the batch out; its rows stand in the drop report as "left out". Blank batches at the end of data
    (at_end="pad", the default on several ranks) go through the function as well; it is tried on one when the run is made,
    and a ``ConfigError`` says so if it can't. In a graph with ``runner="process"`` it works in threads all the same, for a
    batch is large to send; ``runner="process"`` here sends it. See ``FunctionNode`` for ``rng``, ``seed`` and ``version``.
    Raises as ``Map`` does.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows])).batch(2).map_batch(lambda batch: batch.to_training())
    >>> sorted(next(iter(graph)))
    ['input_ids', 'labels', 'position_ids']
    """

    kind = "map_batch"
    takes = ("batches",)

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        call = self.caller(setup)

        def mapped(record: Record) -> list[Item]:
            batch = call(record.payload, record.identity)
            return [Drop(setup.name, "left out", record.origins) if batch is None else record.replaced(batch)]

        return each_record(setup, mapped)

    def blank(self) -> Any:
        blank = self.source.blank() if self.source else None
        if blank is None:
            return None
        name = self.given_name or self.kind
        try:
            return self.caller(Setup(name, "raise", self.work_source))(blank, 0)
        except Exception as error:
            raise ConfigError(
                f"at_end='pad' needs blank batches, but {name} failed on one with {type(error).__name__}: {error}; have "
                "its function take rows that have no fields but input_ids, or use at_end='drop'"
            ) from error
