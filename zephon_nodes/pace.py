"""How many records to feed at a time. Pure arithmetic on times that the drivers measure."""

from __future__ import annotations

from zephon_nodes.work.base import QUANTUM

FIRST, LARGEST = 8, QUANTUM
TASK_SECONDS = 0.03
_KEPT = 0.95


class Pace:
    """Sets ``quantum`` so that the longest task that a feed gives rise to takes about ``TASK_SECONDS``.

    Longer ones keep the first batch, and the end, waiting, and hold more; shorter ones cost more in crossing threads than
    they do. A hop's time is counted per record that was *fed*, so hops that filter, split or pack count alike. Older
    times fade, by a twentieth a task. ``hops``: how many there are; number 0 is fed.
    """

    def __init__(self, hops: int) -> None:
        self.quantum = FIRST
        self._fed = 0.0
        self._busy = [0.0] * hops
        self._known: set[int] = set()
        self._unknown: set[int] = set()

    def sent(self, hop: int) -> None:
        """A task of a hop is under way. Until the first one of the hop is done nobody knows how long it takes: the quantum
        doesn't grow meanwhile, for a worker process may take a second to start."""
        if hop not in self._known:
            self._unknown.add(hop)

    def took(self, hop: int, records: int, seconds: float) -> None:
        """A task of a hop is done. The quantum changes with those of hop 0, to at most twice what it was."""
        self._known.add(hop)
        self._unknown.discard(hop)
        self._busy[hop] += seconds
        if hop:
            return
        self._fed += records
        slowest = max(self._busy) / self._fed
        most = self.quantum if self._unknown else 2 * self.quantum
        self.quantum = max(1, min(most, LARGEST, round(TASK_SECONDS / max(slowest, 1e-9))))
        self._fed *= _KEPT
        self._busy = [busy * _KEPT for busy in self._busy]
