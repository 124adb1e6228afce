"""A mixture that changes over the run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.work.base import check_at_least
from zephon_nodes.work.mixture_spec import exact_shares

Weights: TypeAlias = "Mapping[str, Any]"
Shares: TypeAlias = dict[str, Fraction]
RAMP_STEPS = 64


class Phase(NamedTuple):
    """Shares that sum to 1, from ``start`` on: chunks of lane time, or what ``Phases.unit`` says."""

    start: int
    shares: Shares


class Phases:
    """Weights of each dataset from given times on.

    ``phases``: (start, weights) pairs, starts ascending from 0, weights as in ``MixtureSpec``. A dataset that a phase doesn't name, or gives weight 0,
    rests in it. ``ramp`` ("step"): "linear" goes from each phase's shares at its start to the next one's, in 64 steps.
    ``unit`` ("chunks"): of the starts. "tokens" counts those that all lanes together deliver, "steps" is
    ``tokens_per_step`` of them; both need a ``TokenEstimation``, by which they are turned into chunks, once, for the run.

    All lanes change at the same lane time. In a run of several epochs each epoch goes through the phases.
    Raises ``ConfigError`` for starts out of order and weights that aren't numbers of at least 0, one of them positive.

    >>> Phases([(0, {"web": 1}), (20_000, {"web": 0.5, "code": 0.5})])
    Phases(0: web 1; 20000: web 1/2, code 1/2)
    """

    def __init__(
        self,
        phases: Sequence[tuple[int, Weights]],
        *,
        ramp: Literal["step", "linear"] = "step",
        unit: Literal["chunks", "tokens", "steps"] = "chunks",
        tokens_per_step: int | None = None,
    ) -> None:
        if ramp not in ("step", "linear"):
            raise ConfigError(f"ramp must be 'step' or 'linear', got {ramp!r}")
        if unit not in ("chunks", "tokens", "steps"):
            raise ConfigError(f"unit must be 'chunks', 'tokens' or 'steps', got {unit!r}")
        if (unit == "steps") != (tokens_per_step is not None):
            raise ConfigError(
                f"tokens_per_step goes with unit='steps', and only there; got unit={unit!r}, {tokens_per_step=}"
            )
        if tokens_per_step is not None:
            check_at_least("tokens_per_step", tokens_per_step, 1)
        self.ramp, self.unit, self.tokens_per_step = ramp, unit, tokens_per_step
        self.phases = [Phase(start, exact_shares(weights, zero=True)) for start, weights in _checked(phases)]

    @property
    def names(self) -> set[str]:
        return {name for phase in self.phases for name in phase.shares}

    def steps(self, starts: Sequence[int]) -> list[Phase]:
        """The phases at these starts in chunks, with a ramp's steps in between."""
        ends = [*starts[1:], starts[-1] + 1]
        return [
            step for i, (start, end) in enumerate(zip(starts, ends, strict=True)) for step in self.inside(i, start, end)
        ]

    def inside(self, i: int, start: int, end: int) -> list[Phase]:
        """The steps of phase ``i`` if it lasts from chunk ``start`` to chunk ``end``; one without a ramp."""
        here = self.phases[i].shares
        if self.ramp == "step" or i + 1 == len(self.phases):
            return [Phase(start, here)]
        there, count = self.phases[i + 1].shares, min(RAMP_STEPS, end - start)
        middles = [Fraction(2 * n + 1, 2 * count) for n in range(count)]
        return [Phase(start + (end - start) * n // count, _between(here, there, at)) for n, at in enumerate(middles)]

    def recipe(self) -> dict[str, Any]:
        """The shares, if they never change; else all that decides about their changes."""
        shares = [{name: str(share) for name, share in sorted(phase.shares.items())} for phase in self.phases]
        if len(shares) == 1:
            return dict(shares[0])
        listed = [[phase.start, said] for phase, said in zip(self.phases, shares, strict=True)]
        return {"phases": listed, "ramp": self.ramp, "unit": self.unit, "tokens_per_step": self.tokens_per_step}

    def __repr__(self) -> str:
        def shown(phase: Phase) -> str:
            return f"{phase.start}: " + ", ".join(f"{name} {share}" for name, share in phase.shares.items())

        return f"Phases({'; '.join(map(shown, self.phases))})"


class Stretch:
    """How long phase ``i`` lasts in chunks until it has given so many tokens, ramps included."""

    def __init__(self, phases: Phases, i: int, rate: Callable[[Shares], Fraction]) -> None:
        self._phases, self._i, self._rate = phases, i, rate
        self._rates: dict[int, list[Fraction]] = {}

    def tokens(self, chunks: int) -> Fraction:
        """Tokens of the phase if it lasts for ``chunks``."""
        steps = self._phases.inside(self._i, 0, chunks)
        rates = self._rates.get(len(steps))
        if rates is None:
            rates = self._rates[len(steps)] = [self._rate(step.shares) for step in steps]
        ends = [*(step.start for step in steps[1:]), chunks]
        return sum((rate * (end - step.start) for rate, step, end in zip(rates, steps, ends, strict=True)), Fraction(0))

    def chunks(self, tokens: Fraction) -> int:
        """The length, of at least 1, that comes nearest to giving ``tokens``."""
        high = 1
        while self.tokens(high) < tokens:
            high *= 2
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.tokens(middle) < tokens else (low, middle)
        near = [count for count in (low, high) if count >= 1]
        return min(near, key=lambda count: abs(self.tokens(count) - tokens))


def _between(here: Shares, there: Shares, at: Fraction) -> Shares:
    none = Fraction(0)
    return {n: here.get(n, none) * (1 - at) + there.get(n, none) * at for n in sorted(here.keys() | there.keys())}


def _checked(phases: Any) -> list[tuple[int, Weights]]:
    try:
        listed = [(int(start) if isinstance(start, np.integer) else start, weights) for start, weights in phases]
        if isinstance(phases, Mapping):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(f"phases must be a list of (start, weights) pairs, got {phases!r}") from None
    starts = [start for start, _ in listed]
    if not listed or not all(type(start) is int for start in starts):
        raise ConfigError(f"phases need whole numbers as starts, got {starts}")
    if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise ConfigError(f"starts of phases must begin with 0 and ascend, got {starts}; sort them")
    return listed
