"""Work sources made of work sources: one after the other, or mixed. Pure, as their parts are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import draw, key
from zephon_nodes.stream import Pointer
from zephon_nodes.work.base import WorkSource, source_name
from zephon_nodes.work.mixture_spec import exact_weight

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset


class _Combined(WorkSource):
    """What ``Concat`` and ``Mix`` have in common: parts with the same lanes and spans, and datasets that are the union."""

    def __init__(self, parts: Sequence[WorkSource]) -> None:
        name = type(self).__name__
        wrong = [type(part).__name__ for part in parts if not isinstance(part, WorkSource)]
        if wrong or not parts:
            raise ConfigError(f"{name} needs work sources, got {wrong or 'none'}")
        for setting in ("num_lanes", "flush_every"):
            values = sorted({getattr(part, setting) for part in parts})
            if len(values) > 1:
                raise ConfigError(f"{name}: the parts must have the same {setting}, they have {values}")
        self.parts = list(parts)
        super().__init__(_union(parts), parts[0].num_lanes, parts[0].flush_every)
        self.random_access = any(part.random_access for part in parts)
        estimations = [part.token_estimation for part in parts if part.token_estimation]
        self.token_estimation = estimations[0] if estimations else None

    def with_parts(self, parts: Sequence[WorkSource]) -> WorkSource:
        raise NotImplementedError

    def unmeasured(self) -> list[str]:
        return sorted({name for part in self.parts for name in part.unmeasured()})

    def measured(self, tokens_per_row: Mapping[str, Any]) -> WorkSource:
        def known(part: WorkSource) -> dict[str, Any]:
            return {name: tokens_per_row[name] for name in part.unmeasured() if name in tokens_per_row}

        return self.with_parts([part.measured(known(part)) if known(part) else part for part in self.parts])  # type: ignore[misc]

    def adopted(self, recipe: Mapping[str, Any]) -> WorkSource:
        saved = recipe.get("parts", ())
        if len(saved) != len(self.parts):
            return self
        return self.with_parts([part.adopted(said) for part, said in zip(self.parts, saved, strict=True)])  # type: ignore[misc]

    def units_in_use(self, lanes: int) -> int:
        return sum(part.units_in_use(lanes) for part in self.parts)

    def recipe(self) -> dict[str, Any]:
        return {"source": source_name(self), "num_lanes": self.num_lanes, "parts": [p.recipe() for p in self.parts]}


class Concat(_Combined):
    """Work sources one after the other, in each lane: all chunks of the first, then all of the second, and so on.

    ``parts``: two or more with the same ``num_lanes`` and ``flush_every``; all but the last must end and know after how
    many chunks (``WorkSource.chunks``), as a ``StaticMixtureWorkSource`` does. Each part begins a span of its own.

    Raises ``ConfigError`` for parts that don't fit together or don't end.

    >>> first, second = (StaticMixtureWorkSource([rows], shuffle="none", passes=n) for n in (1, 2))
    >>> len(list(Pipeline(Concat([first, second]))))
    12
    """

    def __init__(self, parts: Sequence[WorkSource]) -> None:
        super().__init__(parts)
        self.endless = self.parts[-1].endless
        endless = [i for i, part in enumerate(self.parts[:-1]) if part.endless]
        if endless:
            raise ConfigError(
                f"Concat: parts {endless} never end, so what follows would never come; give them passes=..."
            )

    def with_parts(self, parts: Sequence[WorkSource]) -> Concat:
        return Concat(parts)

    def chunk(self, lane: int, index: int, epoch: int = 0) -> Sequence[Pointer] | None:
        part, begin = self._at(index, epoch)
        found = part.chunk(lane, index - begin, epoch)
        return () if found is None and part is not self.parts[-1] else found

    def chunks(self, epoch: int = 0) -> int | None:
        last = self.parts[-1].chunks(epoch)
        return None if last is None else self._begins(epoch)[-1] + last

    def shares(self, epoch: int, span: int) -> dict[str, float] | None:
        part, begin = self._at(span * self.flush_every, epoch)
        return part.shares(epoch, span - begin // self.flush_every)

    def steady(self, epoch: int, span: int) -> bool:
        part, begin = self._at(span * self.flush_every, epoch)
        return part.steady(epoch, span - begin // self.flush_every)

    @property
    def mixes(self) -> bool:  # type: ignore[override]
        return all(part.mixes for part in self.parts)

    def _at(self, index: int, epoch: int) -> tuple[WorkSource, int]:
        """The part that chunk ``index`` belongs to, and where that begins."""
        begins = self._begins(epoch)
        i = max(i for i, begin in enumerate(begins) if begin <= index)
        return self.parts[i], begins[i]

    def _begins(self, epoch: int) -> list[int]:
        begins = [0]
        for i, part in enumerate(self.parts[:-1]):
            chunks = part.chunks(epoch)
            if chunks is None:
                raise ConfigError(
                    f"Concat: part {i}, {type(part).__name__}, doesn't know its chunks; override chunks(epoch)"
                )
            spans = -(-chunks // self.flush_every)
            begins.append(begins[-1] + max(1, spans) * self.flush_every)
        return begins


class Mix(_Combined):
    """Work sources side by side, in given proportions of their chunks: a mixture of mixtures.

    ``parts``: (source, weight) pairs. In each unit of lane time a lane takes ``weight`` chunks of each part, weights
    scaled to sum to 1: with parts of one ``chunk_size``, the weights are shares of rows. Rows of a part keep their order; they
    are spread evenly. An epoch ends when the first part has ended in the lane.

    Raises ``ConfigError`` for parts that don't fit together and weights that aren't positive. For datasets in nested
    proportions a ``StaticMixtureWorkSource`` with a nested mixture does without: {"web": (0.7, {"wiki": 1, "blogs": 2})}.

    >>> one, other = (StaticMixtureWorkSource([rows], shuffle="none") for _ in range(2))
    >>> [row["text"] for row in Pipeline(Mix([(one, 1), (other, 1)]))][:4]
    ['one', 'one', 'two words', 'two words']
    """

    def __init__(self, parts: Sequence[tuple[WorkSource, float | str | Fraction]]) -> None:
        try:
            pairs = [(part, weight) for part, weight in parts]
        except (TypeError, ValueError):
            raise ConfigError(f"Mix needs (source, weight) pairs, got {parts!r:.80}") from None
        super().__init__([part for part, _ in pairs])
        exact = [exact_weight(f"part {i}", weight) for i, (_, weight) in enumerate(pairs)]
        self.weights = [weight / sum(exact) for weight in exact]
        self.endless = all(part.endless for part in self.parts)

    def with_parts(self, parts: Sequence[WorkSource]) -> Mix:
        return Mix(list(zip(parts, self.weights, strict=True)))

    def chunk(self, lane: int, index: int, epoch: int = 0) -> Sequence[Pointer] | None:
        due: list[tuple[float, int, Pointer]] = []
        for i, (part, weight) in enumerate(zip(self.parts, self.weights, strict=True)):
            found = self._stretch(part, lane, epoch, weight * index, weight * (index + 1))
            if found is None:
                return None
            shift = draw(key("mix", i), index) / 2.0**64
            due += [((n + shift) / len(found), i, at) for n, at in enumerate(found)]
        return [at for _, _, at in sorted(due, key=lambda entry: entry[:2])]

    def chunks(self, epoch: int = 0) -> int | None:
        ends = [part.chunks(epoch) for part in self.parts]
        if any(end is None and not part.endless for part, end in zip(self.parts, ends, strict=True)):
            return None
        pairs = zip(ends, self.weights, strict=True)
        return min((math.ceil(end / weight) for end, weight in pairs if end is not None), default=None)

    def _stretch(self, part: WorkSource, lane: int, epoch: int, begin: Fraction, end: Fraction) -> list[Pointer] | None:
        """A part's pointers between two places in its stream of chunks; None if it has ended before the first."""
        out: list[Pointer] = []
        index = int(begin)
        while index < end:
            chunk = part.chunk(lane, index, epoch)
            if chunk is None:
                return None if index == int(begin) else out
            low, high = max(begin - index, Fraction(0)), min(end - index, Fraction(1))
            out += chunk[int(low * len(chunk)) : int(high * len(chunk))]
            index += 1
        return out

    def recipe(self) -> dict[str, Any]:
        return {**super().recipe(), "weights": [str(weight) for weight in self.weights]}


def _union(parts: Sequence[WorkSource]) -> list[Dataset]:
    found: dict[str, Dataset] = {}
    for part in parts:
        for dataset in part.datasets:
            if found.setdefault(dataset.name, dataset) is not dataset:
                raise ConfigError(
                    f"two different datasets are called {dataset.name!r}; rename one, or share one Dataset"
                )
    return list(found.values())
