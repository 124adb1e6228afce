"""Where the worker processes of DataLoaders meet, since they can't use the process group of their trainers.

A ``torch.distributed.TCPStore`` is kept by one process; the others reach it by its address. Two things are agreed there.
Which epoch an iteration of a DataLoader reads: its workers start at different moments, some perhaps when the next
iteration has begun. And how many rounds finite data has: key "<name>/<round>" is "1" if the round exists, else "0".

    pad    a round exists if one lane has something for it: who has, says so and goes on; who has nothing left waits
    drop   a round exists if all lanes have something for it: all say so and wait for each other
"""

from __future__ import annotations

import os
import socket
import weakref
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, TCPStore  # type: ignore[attr-defined]

_PATIENCE = timedelta(days=1)
"""Others may wait for as long as trainers pause. Dead ones show in the process group, or their store's connection ends."""
_LAST_WORDS = timedelta(seconds=5)
_KEPT_ROUNDS = 4096


class Meeting:
    """A meeting place. ``host``: a name of this machine by which all who come can reach it. A copy is a guest of it."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=_PATIENCE)
        self._address, self._pid = (host, self._store.port), os.getpid()
        self._end = weakref.finalize(self, _wait_for_readers, self._store, self._pid)

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address, "_store": None, "_pid": 0}

    @property
    def store(self) -> TCPStore:
        if self._pid != os.getpid():
            self._store = TCPStore(*self._address, is_master=False, wait_for_workers=False, timeout=_PATIENCE)
            self._pid = os.getpid()
        return self._store

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration will read."""
        self.store.set("epoch", str(epoch))

    def iteration(self, workers: int, worker: int, seed: int, epoch: int | None) -> tuple[int, int]:
        """(number, epoch) of the iteration that a worker begins: the same for all ``workers`` of it.

        ``seed``: DataLoader's base seed, which its workers have in common. ``epoch``: if the worker knows it.
        """
        store, me = self.store, f"{worker} in {os.getpid()}"
        nth = store.add(f"{workers}/{seed}/{worker}", 1)
        key = f"iteration {workers}/{seed}/{nth}"
        if store.compare_set(f"{key} by", "", me).decode() == me:
            number = store.add("iterations", 1)
            epoch = store.add("epoch", 0) if epoch is None else epoch
            self.set_epoch(epoch + 1)
            store.set(key, f"{number} {epoch}")
        found, decided = store.get(key).decode().split()
        return int(found), int(decided)


class Rounds:
    """How those who meet agree on the end, as ``lanes.Agree``. ``lanes``: how many of them are run here, of ``total``."""

    def __init__(self, meeting: Meeting, lanes: int, total: int) -> None:
        self._meeting, self._lanes, self._total = meeting, lanes, total
        self.start("", 0)

    def start(self, name: str, known: int) -> None:
        """A new iteration, in which ``known`` rounds have been given, or begun, already."""
        self._name, self._known, self._claimed, self._ended = name, known, known, False
        if known:
            self._say(known - 1, True)  # to those who stand in the middle of it

    def __call__(self, rounds: int, largest: bool) -> int:
        self._known = self._pad(rounds) if largest else self._drop(rounds)
        return self._known

    def _pad(self, rounds: int) -> int:
        if rounds > self._known:
            for round_ in range(self._known, rounds):
                self._say(round_, True)
            return rounds
        if not self._ended:
            self._ended = True
            self._store.append(f"{self._name}/ends", f"{self._known} ")  # type: ignore[attr-defined]
            if self._store.add(f"{self._name}/ended", self._lanes) == self._total:
                self._say(max(map(int, self._store.get(f"{self._name}/ends").split())), False)
        return self._known + self._exists()

    def _drop(self, rounds: int) -> int:
        if rounds <= self._known:
            self._say(self._known, False)
            return self._known + self._exists()
        for round_ in range(self._claimed, rounds):
            if self._store.add(f"{self._name}/{round_}/claims", self._lanes) == self._total:
                self._say(round_, True)
        self._claimed = max(self._claimed, rounds)
        return self._known + self._exists()

    @property
    def _store(self) -> TCPStore:
        return self._meeting.store

    def _say(self, round_: int, exists: bool) -> None:
        self._store.set(f"{self._name}/{round_}", str(int(exists)))
        if not exists:
            self._store.set("last", self._name)
        elif round_ >= _KEPT_ROUNDS:
            self._store.delete_key(f"{self._name}/{round_ - _KEPT_ROUNDS}")
            self._store.delete_key(f"{self._name}/{round_ - _KEPT_ROUNDS}/claims")

    def _exists(self) -> bool:
        exists = self._store.get(f"{self._name}/{self._known}") == b"1"
        if not exists and self._store.add(f"{self._name}/heard", self._lanes) == self._total:
            self._store.set(f"{self._name}/all heard", "")
        return exists


def _wait_for_readers(store: TCPStore, owner: int) -> None:
    """The owner of a store outlives those who have yet to read there that the data has ended."""
    if os.getpid() != owner:  # a forked copy must not speak through its parent's connection
        return
    try:
        if store.check(["last"]):
            store.wait([f"{store.get('last').decode()}/all heard"], _LAST_WORDS)
    except DistStoreError:  # some have gone without reading, which is their good right
        return


def address_of_this_machine() -> str:
    """The address by which other machines reach this one: that of its way out, else the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
