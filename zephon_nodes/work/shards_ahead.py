"""Which shards a lane comes to, told long before their turn, so that they can be fetched into a cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from zephon_nodes.hashing import I64

_CHUNKS_A_LOOK = 16
_FARTHEST = 4096
_REMEMBERED = 4096


class Pointers(Protocol):
    """What is looked at of a chunk: which datasets and shards it points to. ``names``: of the datasets."""

    names: Sequence[str]
    dataset: I64
    shard: I64


class ShardsAhead:
    """Walks the chunks of a lane ahead of its turn, until the shards between are ``limit`` bytes.

    ``chunk``: gives the chunk of an index, None at the end. ``nbytes``: of each dataset, for each shard the bytes that
    fetching it brings; 0 for one that isn't fetched. Each chunk is made once more for this, at most 16 of them a step.
    """

    def __init__(
        self, chunk: Callable[[int], Pointers | None], nbytes: Mapping[str, I64], limit: int, index: int
    ) -> None:
        self._chunk, self._nbytes, self._limit, self._next = chunk, nbytes, limit, index
        self._last: dict[tuple[str, int], int] = {}
        self._between: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self._ended = False

    def look(self, index: int) -> list[tuple[int, str, int, int]]:
        """Shards that weren't told before: (index of the chunk that needs it first, dataset, shard, bytes)."""
        while self._between and self._between[0][0] <= index:
            self._bytes -= self._between.popleft()[1]
        out: list[tuple[int, str, int, int]] = []
        for _ in range(_CHUNKS_A_LOOK):
            if self._ended or self._bytes >= self._limit or self._next > index + _FARTHEST:
                break
            out += self._new(index)
            self._next += 1
        if len(self._last) > _REMEMBERED:
            self._last = {key: last for key, last in self._last.items() if last >= index}
        return out

    def _new(self, index: int) -> list[tuple[int, str, int, int]]:
        try:
            chunk = self._chunk(self._next)
        except Exception:  # noqa: BLE001 - raised again, in its turn, by whoever reads the chunk
            chunk = None
        self._ended = chunk is None
        if chunk is None:
            return []
        out = []
        for number, shard in np.unique(np.stack([chunk.dataset, chunk.shard], 1), axis=0).tolist():
            dataset = chunk.names[number]
            nbytes = int(self._nbytes[dataset][shard])
            # A shard that was told is fetched, or being read; one not seen since the lane passed it may be gone.
            if nbytes and self._last.get((dataset, shard), -1) < index:
                out.append((self._next, dataset, shard, nbytes))
                self._between.append((self._next, nbytes))
                self._bytes += nbytes
            self._last[dataset, shard] = self._next
        return out
