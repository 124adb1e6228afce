"""Mixtures of datasets of any size that cost nothing until they are read, and that count what is read of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from zephon_nodes import Dataset, Pointer, StaticMixtureWorkSource, WorkSource
from zephon_nodes.formats.base import Shard, Unit
from zephon_nodes.storage import StoredFile


class _Unit(Unit):
    def __init__(self, first: int, rows: int) -> None:
        self._first, self.rows, self.nbytes = first, rows, rows * 100

    def take(self, rows: Sequence[int]) -> list[Any]:
        return [{"v": self._first + row} for row in rows]


class _Shard(Shard):
    def __init__(self, file: StoredFile, units: Sequence[int], reads: Counter[tuple[str, int]]) -> None:
        self.file, self._reads = file, reads
        self.unit_rows = np.array(units, np.int64)
        self.unit_bytes = self.unit_rows * 100
        self._firsts = np.cumsum(self.unit_rows) - self.unit_rows

    def read(self, unit: int) -> Unit:
        self._reads[self.file.name, unit] += 1
        return _Unit(int(self._firsts[unit]), int(self.unit_rows[unit]))


class _Format:
    name = "counted"
    suffixes: tuple[str, ...] = ()

    def __init__(self, files: Sequence[Sequence[int]]) -> None:
        self.files, self.reads = files, Counter[tuple[str, int]]()

    def open(self, file: StoredFile, columns: Sequence[str] | None) -> Shard:
        return _Shard(file, self.files[int(file.name)], self.reads)


def counted(name: str, files: Sequence[Sequence[int]]) -> tuple[Dataset, Counter[tuple[str, int]]]:
    """A dataset whose file f has units of ``files[f]`` rows, 100 bytes each, and the times that each unit was read.

    Row i of a file is {"v": i}.
    """
    fmt = _Format(files)
    return Dataset(name, [StoredFile(str(n), str(n)) for n in range(len(files))], fmt), fmt.reads


def mixture(
    rows: Sequence[int],
    weights: Sequence[Any] | None = None,
    lanes: int = 1,
    chunk_size: int = 16,
    unit: int = 8,
    **settings: Any,
) -> Any:
    """Datasets "d0", "d1" ... of so many rows, in units of ``unit``. ``given_shares`` of it: the weights, to a sum of 1."""
    units = {f"d{k}": [unit] * (n // unit) + [n % unit] * (n % unit > 0) for k, n in enumerate(rows)}
    datasets = [counted(name, [each])[0] for name, each in units.items()]
    weights = rows if weights is None else weights
    source: Any = StaticMixtureWorkSource(
        datasets, dict(zip(units, weights, strict=True)), lanes, chunk_size, **settings
    )
    exact = [Fraction(str(weight)) for weight in weights]
    source.given_shares = [weight / sum(exact) for weight in exact]
    return source


def pieces(source: Any, dataset: Dataset) -> int:
    """How many pieces a pass is cut into: a lane takes one in each round, of four windows at most."""
    four_windows = 4 * max(1, source.window_units * dataset.rows // len(dataset.unit_rows))
    return int(source.num_lanes * max(1, -(-dataset.rows // (source.num_lanes * four_windows))))


def chunks(source: WorkSource, lane: int, epoch: int = 0) -> list[Sequence[Pointer]]:
    found = (source.chunk(lane, index, epoch) for index in itertools.count())
    return list(itertools.takewhile(lambda chunk: chunk is not None, found))


def lane_rows(source: WorkSource, lane: int, epoch: int = 0) -> list[Pointer]:
    return [at for chunk in chunks(source, lane, epoch) for at in chunk]
