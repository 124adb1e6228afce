"""All randomness of the package: a counter-based hash, and nothing else.

Rules. A draw is a pure function of (key, counter); keys are made of names and seeds, never of positions in a list.
No generator is kept, so the order of calls can't matter and there is nothing to save. The values are frozen by golden
tests: a change of this file is a change of ``ALGORITHM`` in ``recipe``.

``mix`` is the finaliser of splitmix64 (Steele, Lea, Flood 2014; Stafford's variant 13). ``permute`` is a keyed
bijection on [0, n): a Feistel network whose halves are residues modulo a and b with a * b >= n (Black and Rogaway 2002),
walking along the cycle while the value is outside. a * b exceeds n by less than a, so it hardly ever walks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

U64: TypeAlias = "npt.NDArray[np.uint64]"
I64: TypeAlias = "npt.NDArray[np.int64]"

MASK = (1 << 64) - 1
_GOLDEN, _A, _B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
# For short arrays numpy takes longer to make arrays of numbers than to compute.
_GOLDEN_0D, _A_0D, _B_0D, _30, _27, _31 = (np.array(n, np.uint64) for n in (_GOLDEN, _A, _B, 30, 27, 31))
_ROUNDS = 6


def key(*parts: str | int) -> int:
    """A 64-bit key made of names and numbers. ``key("a", 1)``, ``key("a1")`` and ``key("a", "1")`` differ."""
    text = "\x00".join(f"{type(part).__name__[0]}{len(str(part))}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def mix(x: int) -> int:
    """One 64-bit int to another."""
    x = (x + _GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * _A) & MASK
    x = ((x ^ (x >> 27)) * _B) & MASK
    return x ^ (x >> 31)


def mix_array(x: U64) -> U64:
    """``mix`` of each element of a uint64 array."""
    x = x + _GOLDEN_0D
    x ^= x >> _30
    x *= _A_0D
    x ^= x >> _27
    x *= _B_0D
    x ^= x >> _31
    return x


def draw(key_: int, counter: int) -> int:
    """Draw number ``counter`` of a key: 64 bits."""
    return mix(key_ ^ mix(counter & MASK))


def draw_array(key_: int, counters: U64) -> U64:
    """``draw`` of each counter."""
    return mix_array(np.uint64(key_) ^ mix_array(counters))


def child_identity(parent: int, index: int) -> int:
    """Identity of part ``index`` of a record."""
    return mix(parent ^ mix(index + 1))


def group_identity(members: Sequence[int]) -> int:
    """Identity of a record made of others, in order."""
    value = len(members)
    for member in members:  # value = mix(value ^ member), without the call: packing does this for every document
        x = ((value ^ member) + _GOLDEN) & MASK
        x = ((x ^ (x >> 30)) * _A) & MASK
        x = ((x ^ (x >> 27)) * _B) & MASK
        value = x ^ (x >> 31)
    return value


def _halves(n: int) -> tuple[int, int]:
    a = math.isqrt(n - 1) + 1 if n > 1 else 1
    return a, -(-n // a)


def _round_keys(key_: int) -> list[int]:
    return [mix(key_ ^ i) for i in range(2 * _ROUNDS)]


def permute(key_: int, n: int, x: int) -> int:
    """Where position ``x`` of [0, n) goes in the permutation that ``key_`` names."""
    if n == 1:
        return x
    a, b = _halves(n)
    keys = _round_keys(key_)
    while True:
        left, right = divmod(x, b)
        for i in range(0, 2 * _ROUNDS, 2):
            left = (left + mix(right ^ keys[i]) % a) % a
            right = (right + mix(left ^ keys[i + 1]) % b) % b
        x = left * b + right
        if x < n:
            return x


def permute_array(key_: int, n: int, x: I64) -> I64:
    """``permute`` of each element of an int64 array. Memory: a few arrays of the size of ``x``, whatever ``n`` is."""
    a, b, end = (np.array(side, np.uint64) for side in (*_halves(n), n))
    keys = np.array(_round_keys(key_), np.uint64)
    out = x.astype(np.uint64)
    todo = np.arange(len(out))
    while len(todo):
        left, right = out[todo] // b, out[todo] % b
        for i in range(0, 2 * _ROUNDS, 2):
            left = (left + mix_array(right ^ keys[i]) % a) % a
            right = (right + mix_array(left ^ keys[i + 1]) % b) % b
        value = left * b + right
        out[todo] = value
        todo = todo[value >= end]
    return out.astype(np.int64)


def order_of(key_: int, n: int) -> I64:
    """A whole permutation of [0, n) as an array, by sorting hashes: O(n) memory, for small n."""
    return np.argsort(draw_array(key_, np.arange(n, dtype=np.uint64)), kind="stable")
