"""Reordering, so that every stretch of a lane has the mixture that was asked for."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.errors import ConfigError
from zephon_nodes.node import Node
from zephon_nodes.pack_node import token_count
from zephon_nodes.stream import Drop, Item, Record, component
from zephon_nodes.work.base import check_at_least
from zephon_nodes.work.mixture_spec import MixtureSpec


class EnsureMixture(Node):
    """Sends records on in an order in which every window of a lane tracks the target mixture.

    Filters, splits and packing disturb a mixture; this restores it, after packing too, where a packed record counts by its
    documents. Up to ``buffer_size`` records of a lane wait here for their turn: whenever the component that is owed most
    has one, it goes; when the buffer is full, the one that is owed most of those that are there. Nothing is dropped, and
    the buffer empties at a span's end.

    ``buffer_size`` (256): more corrects longer runs of one component, and holds more. ``weight_by`` ("auto"): what is
    counted: "tokens", "samples" (documents), or a field of unpacked records; "auto" is tokens with a source that has a
    ``token_estimation``, else samples. ``mixture``: weights by dataset; by default the source's, as it changes over the
    run. ``strict`` (False): True drops what is too much, counted in the drop report, rather than send it on out of turn;
    but in a span in which the source's own mixture changes (a phase, a dataset that has come to its end) nothing is dropped.

    Raises ``ConfigError`` if neither the source nor ``mixture`` says what is wanted.

    >>> ones = Dataset.from_rows("ones", [{"v": 1}] * 8)
    >>> twos = Dataset.from_rows("twos", [{"v": 2}] * 8)
    >>> half = {"ones": 1, "twos": 1}
    >>> graph = Pipeline(StaticMixtureWorkSource([ones, twos], half)).filter(lambda row: True).ensure_mixture(4)
    >>> [row["v"] for row in graph][:6]
    [1, 2, 1, 2, 1, 2]
    """

    kind = "ensure_mixture"
    holds = True
    reorders = True
    cheap = True
    ours = True

    def __init__(
        self,
        source: Node,
        buffer_size: int = 256,
        *,
        weight_by: str = "auto",
        mixture: Mapping[str, float] | None = None,
        strict: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(source, name=name)
        check_at_least("buffer_size", buffer_size, 1)
        work = self.work_source
        if mixture is None and not work.mixes:
            raise ConfigError(
                f"ensure_mixture needs mixture={{dataset: weight}}: {type(work).__name__} has no mixture of its own"
            )
        self.mixture = None if mixture is None else MixtureSpec(mixture)
        unknown = sorted(set(self.mixture or ()) - {dataset.name for dataset in work.datasets})
        if unknown and work.datasets:
            raise ConfigError(f"ensure_mixture: {unknown} are none of the datasets {[d.name for d in work.datasets]}")
        self.buffer_size, self.strict = buffer_size, strict
        self.weight_by = ("tokens" if work.token_estimation else "samples") if weight_by == "auto" else weight_by
        if source.gives == "packed" and self.weight_by not in ("tokens", "samples"):
            raise ConfigError(f"ensure_mixture: weight_by={weight_by!r} is a field, which packed records don't have")
        self._given: Counter[str] = Counter()

    def settings(self) -> dict[str, Any]:
        weights = None if self.mixture is None else {name: str(share) for name, share in sorted(self.mixture.items())}
        said = {"buffer_size": self.buffer_size, "weight_by": self.weight_by, "mixture": weights}
        return said | {"strict": self.strict}

    def accumulator(self, place: Place) -> Accumulator:
        strict = self.strict
        target: Mapping[str, Any] = self.mixture or {}
        if self.mixture is None:
            target = place.source.shares(place.epoch, place.span) or {}
            strict = strict and place.source.steady(place.epoch, place.span)
        return _Balance(self, place.node, {name: float(share) for name, share in target.items()}, strict)

    def stats(self) -> dict[str, float]:
        """Share of each component in what has gone through so far, over all lanes (replays after a resume included)."""
        total = sum(self._given.values()) or 1
        return {name: count / total for name, count in sorted(self._given.items())}

    def sizes(self, record: Record) -> dict[str, float]:
        """How much a record counts, by component."""
        if record.parts is None:
            return {component(record): self._size(record.payload)}
        sizes: dict[str, float] = {}
        for name, tokens in record.parts:
            sizes[name] = sizes.get(name, 0) + (tokens if self.weight_by == "tokens" else 1)
        return sizes or {component(record): 0}

    def _size(self, payload: Any) -> float:
        if self.weight_by == "samples":
            return 1
        return token_count(payload) if self.weight_by == "tokens" else float(payload[self.weight_by])


class _Balance(Accumulator):
    """Queues by component. Owed: target share of all that has gone, one more counted in, less what has gone."""

    def __init__(self, node: EnsureMixture, name: str, target: dict[str, float], strict: bool) -> None:
        self._node, self._name, self._target, self._strict = node, name, target, strict
        self._queues: dict[str, deque[tuple[Record, dict[str, float]]]] = {}
        self._gone: dict[str, float] = {}
        self._total = 0.0
        self._held = 0

    def push(self, record: Record) -> Iterable[Item]:
        sizes = self._node.sizes(record)
        main = max(sorted(sizes), key=lambda name: sizes[name])
        self._queues.setdefault(main, deque()).append((record, sizes))
        self._held += 1
        return self._due()

    def flush(self) -> Iterable[Item]:
        yield from self._due()
        while self._held:
            yield self._pass_over() if self._strict else self._send(self._best(self._filled()))

    def _due(self) -> Iterator[Item]:
        """What can go in turn, and what must go because the buffer is full."""
        while self._held:
            owed = self._best(self._target) if self._target else self._best(self._filled())
            if self._queues.get(owed):
                yield self._send(owed)
            elif self._held <= self._node.buffer_size:
                return
            else:
                yield self._pass_over() if self._strict else self._send(self._best(self._filled()))

    def _filled(self) -> list[str]:
        return [name for name, queue in self._queues.items() if queue]

    def _owed(self, name: str) -> float:
        return self._target.get(name, 0.0) * (self._total + 1) - self._gone.get(name, 0.0)

    def _best(self, names: Iterable[str]) -> str:
        return max(sorted(names), key=self._owed)

    def _send(self, name: str) -> Record:
        record, sizes = self._queues[name].popleft()
        self._held -= 1
        for part, size in sizes.items():
            self._gone[part] = self._gone.get(part, 0.0) + size
            self._total += size
        self._node._given.update(sizes)
        return record

    def _pass_over(self) -> Drop:
        """Drops the oldest record of the component that has had most too much."""
        name = min(sorted(self._filled()), key=self._owed)
        self._held -= 1
        return Drop(self._name, "too much of its component (strict)", self._queues[name].popleft()[0].origins)
