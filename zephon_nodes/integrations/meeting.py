"""Where the worker processes of DataLoaders meet, since they can't use the process group of their trainers.

A ``torch.distributed.FileStore`` in a folder that all of them see. (A TCPStore needs a thread in the trainer, and workers
that are forked beside it were seen to hang.) Two things are agreed there. Which epoch an iteration of a DataLoader reads:
its workers start at different moments, some perhaps when the next iteration has begun. And how many rounds finite data
has: key "<name>/<round>" is "1" if the round exists, else "0".

    pad    a round exists if one lane has something for it: who has, says so and goes on; who has nothing left waits
    drop   a round exists if all lanes have something for it: all say so and wait for each other
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import DistStoreError, FileStore  # type: ignore[attr-defined]

from zephon_nodes.errors import ClosedError

_SLICE = timedelta(seconds=5)
"""How long it takes a waiting worker to see that its trainer is dead."""
_KEPT_ROUNDS = 4096


class Meeting:
    """A meeting place in a new folder inside ``folder``, a temporary one by default. A copy is a guest of it."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder, self._pid, self._store = tempfile.mkdtemp(prefix="zephon-", dir=folder), 0, None
        self._end = weakref.finalize(self, _end, self._folder, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {"_folder": self._folder, "_store": None, "_pid": 0}

    @property
    def store(self) -> Any:
        if self._pid != os.getpid():
            self._store = _store(self._folder)
            self._pid, self._parent = os.getpid(), os.getppid()
        return self._store

    def get(self, key: str) -> str:
        """The value of a key, once there is one."""
        store = self.store
        while True:
            try:
                store.wait([key], _SLICE)
                return str(store.get(key).decode())
            except DistStoreError:
                if os.getppid() != self._parent:
                    raise ClosedError("the trainer of this DataLoader worker is gone") from None

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
        found, decided = self.get(key).split()
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
            self._raise_longest()
            if self._store.add(f"{self._name}/ended", self._lanes) == self._total:
                self._say(int(self._meeting.get(f"{self._name}/longest")), False)
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

    def _raise_longest(self) -> None:
        """Makes the most rounds of those who have ended at least ours."""
        key, mine, other = f"{self._name}/longest", str(self._known), ""
        while (found := self._store.compare_set(key, other, mine).decode()) != mine and int(found) < self._known:
            other = found

    @property
    def _store(self) -> Any:
        return self._meeting.store

    def _say(self, round_: int, exists: bool) -> None:
        self._store.set(f"{self._name}/{round_}", str(int(exists)))
        if not exists:
            self._store.set("last", self._name)
        elif round_ >= _KEPT_ROUNDS:
            self._store.delete_key(f"{self._name}/{round_ - _KEPT_ROUNDS}")
            self._store.delete_key(f"{self._name}/{round_ - _KEPT_ROUNDS}/claims")

    def _exists(self) -> bool:
        exists = self._meeting.get(f"{self._name}/{self._known}") == "1"
        if not exists and self._store.add(f"{self._name}/heard", self._lanes) == self._total:
            self._store.set(f"{self._name}/all heard", "")
        return exists


def _store(folder: str) -> Any:
    return FileStore(str(Path(folder) / "store"), -1)


def _end(folder: str, owner: int) -> None:
    """The owner of a meeting place outlives those who have yet to read there that the data has ended."""
    if os.getpid() != owner:
        return
    try:
        store = _store(folder)
        if store.check(["last"]):
            store.wait([f"{store.get('last').decode()}/all heard"], _SLICE)
    except DistStoreError:  # some have gone without reading, which is their good right
        pass
    finally:
        shutil.rmtree(folder, ignore_errors=True)
