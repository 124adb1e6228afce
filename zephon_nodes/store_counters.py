"""What this process has asked of stores, and how long it has waited for them."""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

_FOLD = 256


class StoreReport(NamedTuple):
    """Sums of this process since it began.

    ``waiting``: seconds that threads which needed bytes spent waiting for a store, or for another process that was
    fetching the same shard; of several threads at once, each counts. ``requests``: of ranges, pieces of shards and
    facts of files, without repeats. ``nbytes``: that came from stores. ``retried``: attempts that failed and were
    followed by another. ``downloads``, ``ahead``: shards fetched into a cache, and those of them that were fetched before anybody
    needed them. ``hits``: reads that found their shard in the cache. ``evicted``: shards that made room.

    >>> StoreReport(waiting=1.5).nbytes
    0
    """

    waiting: float = 0.0
    requests: float = 0
    nbytes: float = 0
    retried: float = 0
    downloads: float = 0
    ahead: float = 0
    hits: float = 0
    evicted: float = 0


class StoreCounters:
    """Sums that many threads add to without a lock: a deque of amounts, folded together now and then.

    Appending to a deque and popping from it are atomic, also without a GIL, so nothing is lost; who reads meanwhile may miss
    what is being folded.
    """

    def __init__(self) -> None:
        self._amounts: deque[Counter[str]] = deque()

    def add(self, **amounts: float) -> None:
        """Adds to some of the sums."""
        self._amounts.append(Counter(amounts))
        if len(self._amounts) > _FOLD:
            self._fold()

    def report(self) -> StoreReport:
        """The sums."""
        return StoreReport(**self._fold())

    def _fold(self) -> Counter[str]:
        total: Counter[str] = Counter()
        while self._amounts:
            try:
                total.update(self._amounts.popleft())
            except IndexError:  # another thread folds too
                break
        self._amounts.append(total)
        return total.copy()


COUNTERS = StoreCounters()


def store_report() -> StoreReport:
    """What this process has asked of stores so far. The difference of two reports is what lay between them.

    >>> store_report().waiting >= 0
    True
    """
    return COUNTERS.report()
