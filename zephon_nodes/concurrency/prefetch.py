"""Shards fetched into their cache before anybody needs them."""

from __future__ import annotations

import heapq
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_log = logging.getLogger(__name__)


class Prefetcher(Generic[K]):
    """Fetches what is needed soon on background threads, the nearest need first.

    ``fetch(key, cancelled)``: fetches one; False if it didn't, which is nobody's fault. What it raises is logged: whoever
    needs the bytes tries again, and raises it. ``limit``: most bytes that are fetched, or being fetched, and not used
    yet; a single thing may be larger. ``threads``: that fetch at once. They exist only while there is something to
    fetch, so nothing has to be closed.
    """

    def __init__(self, fetch: Callable[[K, Callable[[], bool]], bool], limit: int, threads: int = 2) -> None:
        self._state = _State(fetch, limit, threads)
        self._end = weakref.finalize(self, self._state.stop)

    def want(self, soon: Iterable[tuple[int, K, int]]) -> None:
        """Things to be fetched: (when, smaller is sooner; the thing; its bytes). Those that are under way stay so."""
        self._state.want(soon)

    def used(self, keys: Iterable[K]) -> None:
        """Somebody reads these now: what was fetched for them no longer counts as ahead."""
        self._state.used(keys)

    def close(self) -> None:
        """Fetches nothing more, and gives up what is under way."""
        self._end()


class _State(Generic[K]):
    """What the threads share. They don't hold the ``Prefetcher``, so that it can be collected."""

    def __init__(self, fetch: Callable[[K, Callable[[], bool]], bool], limit: int, threads: int) -> None:
        self._fetch, self._limit, self._threads = fetch, limit, threads
        self._lock = threading.Lock()
        self._queue: list[tuple[int, int, K]] = []
        self._waiting: dict[K, int] = {}
        self._ahead: dict[K, int] = {}
        self._running = self._serial = 0
        self._stopped = threading.Event()

    def want(self, soon: Iterable[tuple[int, K, int]]) -> None:
        with self._lock:
            for when, key, nbytes in soon:
                if key not in self._waiting and key not in self._ahead:
                    self._serial += 1
                    self._waiting[key] = nbytes
                    heapq.heappush(self._queue, (when, self._serial, key))
            self._begin()

    def used(self, keys: Iterable[K]) -> None:
        with self._lock:
            for key in keys:
                self._waiting.pop(key, None)
                self._ahead.pop(key, None)
            self._begin()

    def stop(self) -> None:
        self._stopped.set()

    def _begin(self) -> None:
        while self._running < self._threads and (key := self._take()) is not None:
            self._running += 1
            threading.Thread(target=self._run, args=(key,), name="zephon prefetch", daemon=True).start()

    def _take(self) -> K | None:
        """The next thing to fetch, counted as ahead from now on; None if there is none, or no room for it."""
        while self._queue:
            key = self._queue[0][2]
            nbytes = self._waiting.get(key)
            if nbytes is not None:
                if self._stopped.is_set() or (self._ahead and sum(self._ahead.values()) + nbytes > self._limit):
                    return None
                self._ahead[key] = self._waiting.pop(key)
            heapq.heappop(self._queue)
            if nbytes is not None:
                return key
        return None

    def _run(self, key: K | None) -> None:
        while key is not None:
            fetched = False
            try:
                fetched = self._fetch(key, self._stopped.is_set)
            except Exception as error:  # noqa: BLE001 - whoever needs the bytes meets it again, and raises it
                _log.info("fetching ahead failed, the bytes are fetched when they are needed: %s", error)
            with self._lock:
                if not fetched:
                    self._ahead.pop(key, None)
                key = self._take()
                if key is None:
                    self._running -= 1
