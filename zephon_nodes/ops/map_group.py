"""A function of several records at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zephon_nodes.accumulator import Accumulator, Grouping, Place
from zephon_nodes.function_node import FunctionNode, listed
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.stream import Drop, Item, Record, merged
from zephon_nodes.work.base import check_at_least


class MapGroup(FunctionNode):
    """``function(list of payloads) -> list of payloads`` over ``size`` records of one lane at a time.

    Groups are cut from the span's start, so their members are the same in every run; ``size`` is a data setting, and the
    last group of a span may be smaller. As many payloads out as in keep their records' places; any other number is taken
    to be made of all members of the group. If the function raises, the whole group is the bad record.
    See ``FunctionNode`` for ``rng``, ``seed`` and ``version``.

    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).map_group(lambda group: [len(group)], size=3))
    [3, 1]
    """

    kind = "map_group"
    holds = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        function: Callable[..., Any],
        size: int,
        *,
        seed: int = 0,
        version: str | int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(
            source,
            function,
            seed=seed,
            version=version,
            name=name,
            parallelism=parallelism,
            runner=runner,
            on_error=on_error,
        )
        check_at_least("size", size, 1)
        self.size = size

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"size": self.size}

    def accumulator(self, place: Place) -> Accumulator:
        return Grouping(self.size)

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        call = self.caller(setup)

        def mapped(records: list[Record]) -> list[Item]:
            try:
                whole = merged(None, records)
                payloads = listed(setup.name, call([record.payload for record in records], whole.identity))
            except Exception as error:  # noqa: BLE001 - user code: raised with its place, or dropped and counted
                return [setup.failed(tuple(origin for record in records for origin in record.origins), error)]
            if len(payloads) == len(records):
                return [record.replaced(payload) for record, payload in zip(records, payloads, strict=True)]
            out: list[Item] = [whole.child(payload, i) for i, payload in enumerate(payloads)]
            return out or [Drop(setup.name, "gave nothing", whole.origins)]

        return mapped
