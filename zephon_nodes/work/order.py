"""The order of one dataset's rows in a pass, and which lane takes which of them.

A pass of N rows is an order: position -> row. It is cut into r rounds of nearly equal length, and a round into a piece
for each of the L lanes, r = max(1, ceil(N / (L * S))) with S the wished rows a piece. Round z (of pass z div r) seldom
divides evenly: some lanes get a row more. Those turns go round, in an order of the lanes that is drawn once an epoch, so that
however often a dataset is gone through, the lanes have had equally much of it, to the row. Which place in the round each
lane has is drawn anew every round. A lane's piece is a pure function of (lane, z).

    "windows"  units (row groups, runs of lines) are permuted, and rows are permuted inside windows of about w units.
               Windows divide a piece and never straddle two, so a unit is read by one lane, once a pass, but for the few
               at the edges of pieces. S is four windows.
    "global"   position -> row is one keyed bijection on [0, N): a perfect shuffle in no memory, at the price of a unit
               fetched for nearly every row
    "none"     file order, the same in every pass; with one lane exactly the order of the files
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from zephon_nodes.hashing import I64, draw, key, order_of, permute, permute_array

Shuffle: TypeAlias = Literal["windows", "global", "none"]
PIECE_WINDOWS = 4
_PASSES_KEPT = 2
_KEPT_ROWS, _WINDOWS_KEPT = 8192, 64


class Order:
    """Order of the rows of a dataset.

    ``unit_rows``: int64 (units,), rows of each unit, in file order. ``window_rows``: wished rows a window (data setting).
    Rows are numbered 0..N-1 through the dataset in file order.
    """

    def __init__(self, name: str, unit_rows: I64, lanes: int, shuffle: Shuffle, window_rows: int, seed: int) -> None:
        self.rows = int(unit_rows.sum())
        self.lanes, self.shuffle, self.window_rows = lanes, shuffle, window_rows
        self.rounds = max(1, -(-self.rows // (lanes * PIECE_WINDOWS * window_rows)))
        self._unit_rows = unit_rows[unit_rows > 0]
        self._unit_starts = np.cumsum(self._unit_rows) - self._unit_rows
        self._keys = {what: key(seed, what, name) for what in ("lanes", "phase", "units", "windows", "rows")}
        self._passes: dict[int, tuple[I64, I64]] = {}

    def piece(self, epoch: int, z: int, lane: int) -> tuple[int, int]:
        """The positions [start, stop) of its pass that a lane owns in round ``z`` of an epoch."""
        round_ = z % self.rounds
        low, high = round_ * self.rows // self.rounds, (round_ + 1) * self.rows // self.rounds
        share, more = divmod(high - low, self.lanes)
        shuffled = self.shuffle != "none"
        in_epoch = draw(self._keys["lanes"], epoch)
        seat = permute(in_epoch, self.lanes, lane) if shuffled else lane
        turn = (seat - self._turns_before(z)) % self.lanes
        here = draw(in_epoch, z)
        if turn < more:
            place = permute(draw(here, 0), more, turn) if shuffled else turn
            start = low + place * (share + 1)
            return start, start + share + 1
        place = permute(draw(here, 1), self.lanes - more, turn - more) if shuffled else turn - more
        start = low + more * (share + 1) + place * share
        return start, start + share

    def _turns_before(self, z: int) -> int:
        """How many times a lane has had a row more than another, in all rounds before ``z``."""
        passes, round_ = divmod(z, self.rounds)
        return passes * self._turns_in(self.rounds) + self._turns_in(round_)

    def _turns_in(self, rounds: int) -> int:
        """The same for the first ``rounds`` rounds of a pass, which have m or m + 1 rows each."""
        rows, m = rounds * self.rows // self.rounds, self.rows // self.rounds
        longer = rows - rounds * m
        return rows - self.lanes * ((rounds - longer) * (m // self.lanes) + longer * ((m + 1) // self.lanes))

    def phase(self, epoch: int, z: int, lane: int) -> int:
        """Where between two steps of the round's clock the lane draws its rows: 32 bits of a fraction in [0, 1)."""
        return draw(draw(draw(self._keys["phase"], epoch), z), lane) >> 32

    def take(self, pass_: int, piece: tuple[int, int], first: int, stop: int) -> I64:
        """Row numbers at places [first, stop) of a piece, int64."""
        if self.shuffle == "windows":
            return self._windowed(pass_, piece, first, stop)
        positions = np.arange(piece[0] + first, piece[0] + stop)
        if self.shuffle == "global":
            return permute_array(draw(self._keys["rows"], pass_), self.rows, positions)
        return positions

    def _windowed(self, pass_: int, piece: tuple[int, int], first: int, stop: int) -> I64:
        start, length = piece[0], piece[1] - piece[0]
        windows = max(1, (2 * length + self.window_rows) // (2 * self.window_rows))
        pieces_key = draw(draw(self._keys["windows"], pass_), start)
        out = []
        while first < stop:
            v = ((first + 1) * windows - 1) // length
            low, high = length * v // windows, length * (v + 1) // windows
            upto = min(stop, high)
            if high - low <= _KEPT_ROWS:
                places = _permuted(draw(pieces_key, v), high - low)[first - low : upto - low]
            else:
                places = permute_array(draw(pieces_key, v), high - low, np.arange(first - low, upto - low))
            out.append(places + (start + low))
            first = upto
        return self._rows_at(pass_, np.concatenate(out) if out else np.zeros(0, np.int64))

    def _rows_at(self, pass_: int, positions: I64) -> I64:
        units, starts = self._unit_order(pass_)
        at = np.searchsorted(starts, positions, side="right") - 1
        return self._unit_starts[units[at]] + (positions - starts[at])

    def _unit_order(self, pass_: int) -> tuple[I64, I64]:
        """Units in the order of a pass, and the position at which each begins."""
        found = self._passes.get(pass_)
        if found is None:
            units = order_of(draw(self._keys["units"], pass_), len(self._unit_rows))
            rows = self._unit_rows[units]
            found = units, np.cumsum(rows) - rows
            self._passes = {**dict(list(self._passes.items())[1 - _PASSES_KEPT :]), pass_: found}
        return found


@lru_cache(maxsize=_WINDOWS_KEPT)
def _permuted(key_: int, rows: int) -> I64:
    """A small window as a whole: it is asked for chunk by chunk, and costs little more than one of them."""
    return permute_array(key_, rows, np.arange(rows))
