"""Fill-in-the-middle: documents rearranged, so that a model learns to write what stands between two texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zephon_nodes.errors import ConfigError
from zephon_nodes.fields import require_field
from zephon_nodes.function_node import generator
from zephon_nodes.hashing import key
from zephon_nodes.node import Node, OnError, Runner, Setup, each_record
from zephon_nodes.stream import Record
from zephon_nodes.work.base import check_at_least, check_seed


class FillInTheMiddle(Node):
    """Cuts a part of the documents at two drawn places into prefix, middle and suffix, and puts the middle last.

    Takes records with ``input_ids``. With probability ``rate`` (0.5) a document becomes
    [prefix_id] prefix [suffix_id] suffix [middle_id] middle, or, with probability ``suffix_first`` (0.5) of those,
    [prefix_id] [suffix_id] suffix [middle_id] prefix middle (Bavarian et al. 2022, PSM and joint SPM). ``keep`` (0, 1):
    how many tokens at the front and at the end stay where they are, bos and eos. A ``loss_mask`` is rearranged alike, 1 at
    the three marks. Draws depend on (name, ``seed``, record) alone. Documents of less than 3 free tokens are left alone.

    Raises ``ConfigError`` for rates outside [0, 1], marks that aren't three different ids, and a ``keep`` that isn't two
    counts. A document whose dtype can't hold the marks is a bad record.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none"))
    >>> graph = graph.fill_in_the_middle(97, 98, 99, rate=1, suffix_first=0, keep=(0, 0))
    >>> [len(row["input_ids"]) for row in graph]
    [1, 2, 6, 7]
    """

    kind = "fill_in_the_middle"
    takes = ("rows",)

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        prefix_id: int,
        middle_id: int,
        suffix_id: int,
        *,
        rate: float = 0.5,
        suffix_first: float = 0.5,
        keep: tuple[int, int] = (0, 1),
        seed: int = 0,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if not all(isinstance(each, (int, float)) and 0 <= each <= 1 for each in (rate, suffix_first)):
            raise ConfigError(f"rate and suffix_first are probabilities, got {rate=}, {suffix_first=}")
        check_seed(seed)
        marks = {"prefix_id": prefix_id, "middle_id": middle_id, "suffix_id": suffix_id}
        for mark, token in marks.items():
            check_at_least(f"{mark} (the id of that special token in the tokenizer)", token, 0)
        self.marks = tuple(map(int, marks.values()))
        if len(set(self.marks)) < 3:
            raise ConfigError(f"the ids of the three marks must differ, got {self.marks}; are they in the vocabulary?")
        if not isinstance(keep, (tuple, list)) or len(keep) != 2:
            raise ConfigError(f"keep must be (tokens at the front, tokens at the end), got {keep!r}")
        for kept in keep:
            check_at_least(f"both numbers of keep={tuple(keep)!r}", kept, 0)
        self.rate, self.suffix_first, self.keep, self.seed = rate, suffix_first, tuple(keep), seed

    def settings(self) -> dict[str, Any]:
        rates = {"rate": self.rate, "suffix_first": self.suffix_first}
        return {"marks": list(self.marks), "keep": list(self.keep), "seed": self.seed, **rates}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        base = key("fill_in_the_middle", setup.name, self.seed)

        def filled(record: Record) -> list[Record]:
            return [record.replaced(self._rearranged(record.payload, generator(base, record.identity)))]

        return each_record(setup, filled)

    def _rearranged(self, payload: Any, rng: np.random.Generator) -> Any:
        ids = np.asarray(require_field(payload, "input_ids"))
        if ids.dtype.kind in "iu" and max(self.marks) > np.iinfo(ids.dtype).max:
            raise ValueError(
                f"input_ids are {ids.dtype}, which can't hold the marks {self.marks}; make them int32 before"
            )
        free = len(ids) - sum(self.keep)
        drawn = rng.random(2)
        if free < 3 or drawn[0] >= self.rate:
            return payload
        places = np.sort(rng.choice(free - 1, 2, replace=False)) + 1 + self.keep[0]
        cuts = (self.keep[0], int(places[0]), int(places[1]), len(ids) - self.keep[1])
        first = drawn[1] < self.suffix_first
        out = {**payload, "input_ids": rearranged(ids, cuts, self.marks, first)}
        if "loss_mask" in payload:
            out["loss_mask"] = rearranged(np.asarray(payload["loss_mask"]), cuts, (1, 1, 1), first)
        return out


def rearranged(
    ids: npt.NDArray[Any], cuts: tuple[int, int, int, int], marks: Sequence[int], suffix_first: bool
) -> npt.NDArray[Any]:
    """``ids`` with the pieces between ``cuts`` in the order of fill-in-the-middle; ``marks``: prefix, middle, suffix."""
    a, b, c, d = cuts
    prefix_mark, middle_mark, suffix_mark = ([mark] for mark in marks)
    prefix, middle, suffix = ids[a:b], ids[b:c], ids[c:d]
    if suffix_first:
        pieces = [prefix_mark, suffix_mark, suffix, middle_mark, prefix, middle]
    else:
        pieces = [prefix_mark, prefix, suffix_mark, suffix, middle_mark, middle]
    return np.concatenate([ids[:a], *pieces, ids[d:]]).astype(ids.dtype)
