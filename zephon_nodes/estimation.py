"""Tokens per row of a dataset, from a bounded, deterministic sample that goes through a graph's own first steps.

A mean over sampled rows is fooled by rare long documents. So the sample is drawn in two stages, each with probability
proportional to size: storage units by their bytes, which every format knows without reading, and rows of a unit by the
length of their text. A row's tokens over its size vary little, however long it is, and the sum of sizes is known, exactly
within a unit: draw i of a unit with probability p and total size B, from which m rows are drawn with tokens t and sizes b,
estimates all tokens of the dataset as y_i = B * mean(t / b) / p. The estimate is the mean of the y_i, and their scatter
gives its standard error, whatever the sizes are good for (Hansen and Hurwitz 1943). Sampling ends when that is below the
tolerance, or at the cap. A dataset no larger than the cap is measured whole.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from zephon_nodes.concurrency import ThreadDriver
from zephon_nodes.engine import Engine, LaneEnd, Limits, Output, Start, Submit
from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import I64, draw_array, key
from zephon_nodes.plan import Plan
from zephon_nodes.progress import bar
from zephon_nodes.stream import Cut, Pointer
from zephon_nodes.work.base import WorkSource, pointer
from zephon_nodes.work.token_estimation import TokenEstimation, as_fraction

if TYPE_CHECKING:
    from zephon_nodes.dataset import Dataset

log = logging.getLogger("zephon_nodes")
UNITS_A_ROUND, ROWS_A_UNIT = 16, 16
Count: TypeAlias = Callable[[Sequence[Pointer]], dict[Pointer, float]]
"""Tokens that come of each of some rows."""


class Estimate(NamedTuple):
    """``tokens_per_row``; ``error``: its relative standard error; ``rows``: that were looked at."""

    tokens_per_row: Fraction
    error: float
    rows: int


def measure(plan: Plan, names: Iterable[str], estimation: TokenEstimation) -> dict[str, Estimate]:
    """Tokens per row of the datasets of these names. ``plan``: the graph from the source to its tokenizer.

    Raises ``ConfigError`` for a dataset whose sample gives no token at all.
    """
    source = plan.source
    if not isinstance(source, WorkSource):
        raise ConfigError("tokens per row can only be measured of datasets; give them: TokenEstimation({name: tokens})")
    out = {}
    for name in names:
        found = estimate(source.dataset(name), lambda rows: count_tokens(plan, source, rows), estimation)
        log.info(
            "%s: %.2f tokens a row, standard error %.2g, %d rows",
            name,
            float(found.tokens_per_row),
            found.error,
            found.rows,
        )
        if found.error > estimation.tolerance:
            log.warning(
                "tokens per row of %r are known to %.1f%% only after %d rows, tolerance is %.1f%%; raise most_rows",
                *(name, 100 * found.error, found.rows, 100 * estimation.tolerance),
            )
        out[name] = found
    return out


def estimate(dataset: Dataset, count: Count, estimation: TokenEstimation) -> Estimate:
    """Tokens per row of one dataset."""
    if dataset.rows <= estimation.most_rows:
        tokens = sum(count([pointer(dataset, row) for row in range(dataset.rows)]).values())
        return _estimate(dataset, tokens / dataset.rows, 0.0, dataset.rows)
    sample = _Sample(dataset, count)
    rounds = estimation.most_rows // (UNITS_A_ROUND * ROWS_A_UNIT)
    with bar(f"tokens of {dataset.name}", max(2, rounds), "rounds") as advance:
        for _ in range(max(2, rounds)):
            sample.more()
            advance(1)
            mean, error = sample.mean()
            if sample.rounds > 1 and error < estimation.tolerance * mean:
                break
    return _estimate(dataset, mean / dataset.rows, error / mean if mean else 0.0, sample.rows)


def _estimate(dataset: Dataset, tokens: float, error: float, rows: int) -> Estimate:
    if tokens <= 0:
        raise ConfigError(
            f"{rows} sampled rows of dataset {dataset.name!r} gave no token; check the field that is tokenized and the "
            "filters before it, or give tokens per row: TokenEstimation({...})"
        )
    return Estimate(as_fraction(dataset.name, tokens), error, rows)


class _Sample:
    """Draws of units and rows, as the head of this file says."""

    def __init__(self, dataset: Dataset, count: Count) -> None:
        self._dataset, self._count = dataset, count
        self._bytes = np.where(dataset.unit_rows > 0, np.maximum(1, dataset.unit_bytes), 0).astype(np.float64)
        self._key = key("estimation", dataset.name)
        self._sizes: dict[int, I64] = {}
        self._found: list[float] = []
        self.rounds = self.rows = 0

    def more(self) -> None:
        """One more round of draws."""
        first = self.rounds * UNITS_A_ROUND
        units = _weighted(self._key, first, UNITS_A_ROUND, self._bytes)
        rows = [self._rows(int(unit), first + i) for i, unit in enumerate(units.tolist())]
        wanted = {at: pointer(self._dataset, at) for drawn in rows for at in drawn.tolist()}
        tokens = self._count(list(wanted.values()))
        for unit, drawn in zip(units.tolist(), rows, strict=True):
            sizes, begin = self._sizes[unit], int(self._dataset.unit_starts[unit])
            ratio = np.mean([tokens.get(wanted[at], 0.0) / sizes[at - begin] for at in drawn.tolist()])
            share = self._bytes[unit] / self._bytes.sum()
            self._found.append(float(ratio * sizes.sum() / share))
        self.rounds += 1
        self.rows += len(wanted)

    def _rows(self, unit: int, number: int) -> I64:
        """Rows of the dataset that draw ``number`` takes from a unit."""
        if unit not in self._sizes:
            shard = int(np.searchsorted(self._dataset.first_units, unit, side="right")) - 1
            inside = unit - int(self._dataset.first_units[shard])
            self._sizes[unit] = np.maximum(1, self._dataset.shard(shard).read(inside).sizes())
        drawn = _weighted(self._key ^ key("row", number), 0, ROWS_A_UNIT, self._sizes[unit].astype(np.float64))
        return drawn + int(self._dataset.unit_starts[unit])

    def mean(self) -> tuple[float, float]:
        """The estimate of all tokens, and its standard error."""
        return float(np.mean(self._found)), float(np.std(self._found, ddof=1) / math.sqrt(len(self._found)))


def _weighted(key_: int, first: int, count: int, weights: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> I64:
    """``count`` indices drawn with replacement, in proportion to ``weights``."""
    at = draw_array(key_, np.arange(first, first + count, dtype=np.uint64)) / 2.0**64 * weights.sum()
    found: I64 = np.minimum(np.searchsorted(np.cumsum(weights), at, side="right"), np.flatnonzero(weights)[-1])
    return found


class _Given(WorkSource):
    """One lane of given pointers."""

    def __init__(self, source: WorkSource, pointers: Sequence[Pointer]) -> None:
        super().__init__(source.datasets, 1, 1 << 40)
        self.pointers = pointers

    def chunk(self, lane: int, index: int, epoch: int = 0) -> Sequence[Pointer] | None:
        return self.pointers[index * 256 : (index + 1) * 256] or None


def count_tokens(plan: Plan, source: WorkSource, pointers: Sequence[Pointer]) -> dict[Pointer, float]:
    """Tokens that come of each row; those of an output made of several rows are shared evenly."""
    given = replace(plan, source=_Given(source, pointers))

    def engine(submit: Submit) -> Engine:
        return Engine(given, {0: Start(Cut(0, 0))}, 0, Limits(window=8, target=1024), submit)

    driver = ThreadDriver(engine, given)
    out: dict[Pointer, float] = {}
    try:
        while not isinstance(event := driver.get(), LaneEnd):
            if not isinstance(event, Output):
                raise event.error
            for at in event.origins:
                out[at] = out.get(at, 0.0) + _length(event.payload) / len(event.origins)
        return out
    finally:
        driver.close()


def _length(payload: object) -> int:
    if not isinstance(payload, dict) or "input_ids" not in payload:
        raise ConfigError(
            "a mixture in tokens needs records with 'input_ids' before packing; put tokenize into the graph"
        )
    return len(payload["input_ids"])
