"""``concurrency.SharedCache`` under threads."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter

import pytest
from threads import in_thread

from zephon_nodes.concurrency import SharedCache
from zephon_nodes.work.base import Coming


class Panic(BaseException):
    """As of PyO3, whose panics aren't Exceptions."""


def fetch_in_threads(cache, wanted, make, threads=16):
    start = threading.Barrier(threads)

    def run():
        start.wait()
        return cache.fetch(wanted, make)

    runs = [in_thread(run) for _ in range(threads)]
    for thread, _ in runs:
        thread.join(30)
        assert not thread.is_alive()
    return [got[0] for _, got in runs]


def test_sixteen_threads_make_each_value_once():
    made, cache = Counter(), SharedCache(8)

    def make(key):
        made[key] += 1
        return [key], 1000

    got = fetch_in_threads(cache, {"a": 1, "b": 1, "c": 1}, make)
    assert made == {"a": 1, "b": 1, "c": 1} and cache.made == 3
    assert all(out == {key: [key] for key in "abc"} for out in got)
    assert len({id(out["a"]) for out in got}) == 1


@pytest.mark.parametrize("error", [OSError("disk"), Panic("decoder")])
def test_an_error_of_one_maker_is_its_own_and_the_others_try_again(error):
    calls = itertools.count()

    def make(key):
        if next(calls) < 3:
            raise error
        return key, 1000

    got = fetch_in_threads(SharedCache(4), {"a": 1}, make)
    assert sum(out is error for out in got) == 3
    assert sum(out == {"a": "a"} for out in got) == 13


def made_by(cache, *keys):
    """Which keys had to be made when they were fetched in this order, one unit of a thousand each."""
    made = []
    for key in keys:
        cache.fetch({key: 1}, lambda key: (made.append(key), 1000))
    return "".join(made)


def test_the_least_recently_used_is_forgotten_beyond_the_limit():
    assert made_by(SharedCache(2), *"abaab") == "ab"
    assert made_by(SharedCache(2), *"abaca") == "abc"
    assert made_by(SharedCache(2), *"abcba") == "abca"
    assert made_by(SharedCache(0), *"aab") == "ab"


def test_a_value_leaves_when_all_of_it_was_taken():
    cache, made = SharedCache(8), []

    def make(key):
        made.append(key)
        return key, 5

    for amount in (2, 2, 1, 4, 1, 7):
        cache.fetch({"a": amount}, make)
    assert made == ["a", "a", "a"]


def test_what_is_announced_stays_until_it_was_taken_too():
    """The last rows of a unit in one pass are often followed at once by its first rows in the next."""
    cache, made, coming = SharedCache(8), [], Coming()

    def make(key):
        made.append(key)
        return key, 5

    cache.fetch({"a": 4}, make)
    cache.warm({"a": 2, "b": 1}, make, coming)
    cache.fetch({"a": 1}, make)  # all of it, but for what was announced
    cache.fetch({"a": 2, "b": 1}, make, coming)
    assert (made, coming.announced, coming.begun) == (["a", "b"], True, True)
    cache.fetch({"a": 3}, make)  # used up a second time
    cache.fetch({"a": 1}, make)
    assert made == ["a", "b", "a"]


def test_nothing_is_announced_or_made_once_it_has_begun():
    cache, made, coming = SharedCache(8), [], Coming()
    coming.begun = True
    cache.warm({"a": 2}, lambda key: (made.append(key), 5), coming)
    assert made == [] and not coming.announced


def test_threads_that_crowd_a_small_cache_all_get_their_values():
    """Values are used up or forgotten by others while their maker is about to take its own share."""
    cache, was = SharedCache(1), sys.getswitchinterval()

    def run():
        for n in range(4000):
            keys = {str((n + i) // 4 % 5): 1 for i in range(2)}
            if cache.fetch(keys, lambda key: (key, 4)) != {key: key for key in keys}:
                return "wrong value"
        return "done"

    sys.setswitchinterval(1e-6)
    try:
        runs = [in_thread(run) for _ in range(16)]
        for thread, _ in runs:
            thread.join(60)
    finally:
        sys.setswitchinterval(was)
    assert [got for _, got in runs] == [["done"]] * 16
