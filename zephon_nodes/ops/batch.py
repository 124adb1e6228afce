"""Records to microbatches. Here a run is counted: what has gone into delivered batches is what a checkpoint says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zephon_nodes.accumulator import Accumulator, Grouping, Place
from zephon_nodes.hashing import group_identity
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.node import Gives, Node, Setup
from zephon_nodes.stream import Drop, Record
from zephon_nodes.work.base import check_at_least


class Batch(Node):
    """``microbatch_size`` records of one lane as a ``Microbatch``, whose ``to_training()`` gives tensors.

    Batches run on over the ends of spans, so only a lane's last one can be short. ``drop_last`` (False): leave that one out,
    its rows in the drop report. ``pad_token_id``: what ``to_training`` fills up unpacked rows with; by default the
    tokenizer's. The microbatch size may change at a resume.
    """

    kind = "batch"
    holds = True
    counts = True
    cheap = True

    def __init__(
        self,
        source: Node,
        microbatch_size: int,
        *,
        drop_last: bool = False,
        pad_token_id: int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism)
        check_at_least("microbatch_size", microbatch_size, 1)
        self.microbatch_size, self.drop_last = microbatch_size, drop_last
        self._pad = pad_token_id

    @property
    def gives(self) -> Gives:
        return "batches"

    @property
    def pad_token_id(self) -> int:
        return super().pad_token_id if self._pad is None else self._pad

    def settings(self) -> dict[str, Any]:
        return {"drop_last": self.drop_last, "pad_token_id": self.pad_token_id}

    def accumulator(self, place: Place) -> Accumulator:
        return _Batching(self, place)

    def blank(self) -> Any:
        return self._microbatch([Record(self.blank_record(), 0, ())] * self.microbatch_size, -1)

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def batched(call: tuple[int, list[Record]]) -> list[Record]:
            lane, records = call
            origins = tuple(origin for record in records for origin in record.origins)
            return [Record(self._microbatch(records, lane), group_identity([r.identity for r in records]), origins)]

        return batched

    def _microbatch(self, records: list[Record], lane: int) -> Microbatch:
        files = {dataset.name: dataset.files for dataset in self.work_source.datasets}
        pointers = [record.origins for record in records]
        return Microbatch([record.payload for record in records], pointers, lane, files, self.pad_token_id)


class _Batching(Accumulator):
    """Groups of records with their lane."""

    def __init__(self, node: Batch, place: Place) -> None:
        self._node, self._place = node, place
        self._groups = Grouping(node.microbatch_size)

    def push(self, record: Record) -> Iterable[Any]:
        return [(self._place.lane, records) for records in self._groups.push(record)]

    def flush(self) -> Iterable[Any]:
        for records in self._groups.flush():
            missing = self._node.microbatch_size - len(records)
            if self._node.drop_last:
                yield from (Drop(self._place.node, "drop_last", record.origins) for record in records)
            elif self._place.fill_last:
                yield self._place.lane, records + [Record(self._node.blank_record(), 0, ())] * missing
            else:
                yield self._place.lane, records
