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

    def took(self, hop: int, records: int, seconds: float) -> None:
        """A task of a hop is done. The quantum changes with those of hop 0, to at most twice what it was."""
        self._busy[hop] += seconds
        if hop:
            return
        self._fed += records
        slowest = max(self._busy) / self._fed
        self.quantum = max(1, min(2 * self.quantum, LARGEST, round(TASK_SECONDS / max(slowest, 1e-9))))
        self._fed *= _KEPT
        self._busy = [busy * _KEPT for busy in self._busy]
