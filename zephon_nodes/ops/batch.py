"""Records to microbatches. Here a run is counted: what has gone into delivered batches is what a checkpoint says."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from zephon_nodes.accumulator import Accumulator, Before, Place
from zephon_nodes.collate import BlankRow
from zephon_nodes.errors import ConfigError
from zephon_nodes.laid_rows import Unlaid
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.node import Gives, Node, Runner, Setup
from zephon_nodes.pack_node import token_count
from zephon_nodes.stream import Drop, Record, Together, merged
from zephon_nodes.training import check_token_id
from zephon_nodes.work.base import check_at_least


class Batch(Node):
    """Records of one lane as a ``Microbatch``, whose ``to_training()`` gives tensors.

    ``microbatch_size``: records a batch. ``max_tokens``: tokens a batch, padding included: rows times the longest of them;
    a batch closes before the record that would pass it. One of the two, or both as limits. A record longer than
    ``max_tokens`` makes a batch of its own. Put ``GroupByLength`` before it to pad less.

    Batches run on over the ends of spans, so only a lane's last one can be short. ``drop_last`` (False): leave that one
    out, its rows in the drop report. ``pad_token_id``: what ``to_training`` fills up unpacked rows with; by default the
    tokenizer's. The microbatch size may change at a resume.

    >>> batch = next(iter(Loader(Batch(Read(StaticMixtureWorkSource([rows], shuffle="none")), 2))))
    >>> batch.to_training()["input_ids"]
    tensor([[1, 0],
            [1, 2]])
    """

    kind = "batch"
    holds = True
    counts = True
    cheap = True
    ours = True
    lays = True
    takes_together = True

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        microbatch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        drop_last: bool = False,
        pad_token_id: int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner)
        if microbatch_size is None and max_tokens is None:
            raise ConfigError("batch needs microbatch_size=..., max_tokens=..., or both as limits")
        for setting, value in (("microbatch_size", microbatch_size), ("max_tokens", max_tokens)):
            if value is not None:
                check_at_least(setting, value, 1)
        check_token_id("pad_token_id", pad_token_id)
        self.microbatch_size = microbatch_size
        self.fixed_size = microbatch_size if max_tokens is None else None
        self.max_tokens, self.drop_last = max_tokens, drop_last
        self._pad = pad_token_id

    @property
    def gives(self) -> Gives:
        return "batches"

    @property
    def pad_token_id(self) -> int:
        return super().pad_token_id if self._pad is None else self._pad

    def settings(self) -> dict[str, Any]:
        return {"drop_last": self.drop_last, "pad_token_id": self.pad_token_id, "max_tokens": self.max_tokens}

    def accumulator(self, place: Place) -> Accumulator:
        return _Batching(self, place)

    def blank(self) -> Any:
        blank = BlankRow(self.blank_record())
        size = self.microbatch_size or 1
        if self.max_tokens is not None:
            size = max(1, min(size, self.max_tokens // _length(blank)))
        rows = [Record(blank, 0, ())] * size
        return self._microbatch(rows, -1, self._files())

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        files = self._files()

        def batched(call: tuple[int, list[Record | Together]]) -> list[Record]:
            lane, held = call
            if type(held[0]) is Together and all(type(each) is Together for each in held):
                return [self._of_rows(held, lane, files)]  # type: ignore[arg-type]
            records = _records(held)
            return [merged(self._microbatch(records, lane, files), records)]

        return batched

    def _of_rows(self, held: list[Together], lane: int, files: dict[str, tuple[str, ...]]) -> Record:
        runs = [rows.run for rows in held]
        payloads = [payload for rows in held for payload in rows.payloads]
        return Record(Microbatch(payloads, runs, lane, files, self.pad_token_id), [*runs], [*runs])

    def _files(self) -> dict[str, tuple[str, ...]]:
        return {dataset.name: dataset.files for dataset in self.work_source.datasets}

    def _microbatch(self, records: list[Record], lane: int, files: dict[str, tuple[str, ...]]) -> Microbatch:
        made_of = [record.made_of for record in records]
        return Microbatch([record.payload for record in records], made_of, lane, files, self.pad_token_id)


class _Batching(Accumulator):
    """Groups of records with their lane. ``_count``: how many are held."""

    def __init__(self, node: Batch, place: Place) -> None:
        self._node, self._place = node, place
        self._held: list[Record | Together] = []
        self._count = self._longest = 0

    def push(self, record: Record) -> Iterable[Any]:
        node, before = self._node, None
        if node.max_tokens is not None:
            length = _length(record.payload)
            if self._held and max(self._longest, length) * (self._count + 1) > node.max_tokens:
                before = Before(self._close())
            self._longest = max(self._longest, length)
        self._held.append(record)
        self._count += 1
        if self._count == node.microbatch_size:
            return [self._close()] if before is None else [before, self._close()]
        return () if before is None else [before]

    def push_together(self, rows: Together) -> list[tuple[int, Any]] | None:
        size, at, out = self._node.microbatch_size, 0, []
        if size is None or self._node.max_tokens is not None:
            return None
        while (missing := size - self._count) <= len(rows.payloads) - at:
            self._held.append(rows.part(at, at + missing))
            at += missing
            out.append((at, self._close()))
        if at < len(rows.payloads):
            self._held.append(rows.part(at, len(rows.payloads)))
            self._count += len(rows.payloads) - at
        return out

    def _close(self) -> tuple[int, list[Record | Together]]:
        held, self._held, self._count, self._longest = self._held, [], 0, 0
        return self._place.lane, held

    def flush(self) -> Iterable[Any]:
        if not self._held:
            return
        lane, held = self._close()
        records = _records(held)
        missing = (self._node.microbatch_size or 0) - len(records)
        if self._node.drop_last:
            yield from (Drop(self._place.node, "drop_last", record.origins) for record in records)
        elif self._place.fill_last and self._node.max_tokens is None:
            yield lane, records + [Record(BlankRow(self._node.blank_record()), 0, ())] * missing
        else:
            yield lane, records


def _records(held: list[Record | Together]) -> list[Record]:
    return [record for each in held for record in (each.records() if isinstance(each, Together) else [each])]


def _length(payload: Any) -> int:
    """The places that a row needs: at least one, as ``to_training`` gives it."""
    if type(payload) is Unlaid:
        return payload.length
    packed = isinstance(payload, dict) and "target_length" in payload
    return max(1, int(payload["target_length"]) if packed else token_count(payload))
