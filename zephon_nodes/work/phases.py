"""A mixture that changes over the run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias

from zephon_nodes.errors import ConfigError
from zephon_nodes.work.mixture_spec import exact_weight

Weights: TypeAlias = "Mapping[str, float | str | Fraction]"
Shares: TypeAlias = dict[str, Fraction]
RAMP_STEPS = 64


class Phase(NamedTuple):
    """Shares that sum to 1, from ``start`` on: chunks of lane time, or what ``Phases.unit`` says."""

    start: int
    shares: Shares


class Phases:
    """Weights of each dataset from given times on.

    ``phases``: (start, weights) pairs, starts ascending from 0. A dataset that a phase doesn't name, or gives weight 0,
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
        self.ramp, self.unit, self.tokens_per_step = ramp, unit, tokens_per_step
        self.phases = [Phase(start, shares(weights)) for start, weights in _checked(phases)]

    @property
    def names(self) -> set[str]:
        return {name for phase in self.phases for name in phase.shares}

    def steps(self, starts: Sequence[int]) -> list[Phase]:
        """The phases at these starts in chunks, with a ramp's steps in between."""
        placed = [Phase(start, phase.shares) for start, phase in zip(starts, self.phases, strict=True)]
        if self.ramp == "step":
            return placed
        out = []
        for here, there in itertools.pairwise(placed):
            count = min(RAMP_STEPS, there.start - here.start)
            for i in range(count):
                at = here.start + (there.start - here.start) * i // count
                out.append(Phase(at, _between(here.shares, there.shares, Fraction(2 * i + 1, 2 * count))))
        return [*out, placed[-1]]

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


def shares(weights: Weights) -> Shares:
    """Weights of at least 0 as shares that sum to 1; those of 0 left out."""
    if not isinstance(weights, Mapping):
        raise ConfigError(f"a phase needs a dict of weights by dataset name, got {weights!r}")
    exact = {name: exact_weight(name, weight, zero=True) for name, weight in weights.items()}
    total = sum(exact.values())
    if not total:
        raise ConfigError(f"a phase needs at least one dataset with a positive weight, got {dict(weights)}")
    return {name: weight / total for name, weight in exact.items() if weight}


def _between(here: Shares, there: Shares, at: Fraction) -> Shares:
    none = Fraction(0)
    return {n: here.get(n, none) * (1 - at) + there.get(n, none) * at for n in sorted(here.keys() | there.keys())}


def _checked(phases: Any) -> list[tuple[int, Weights]]:
    try:
        listed = [(start, weights) for start, weights in phases]
    except (TypeError, ValueError):
        raise ConfigError(f"phases must be a list of (start, weights) pairs, got {phases!r}") from None
    starts = [start for start, _ in listed]
    if not listed or not all(type(start) is int for start in starts):
        raise ConfigError(f"phases need whole numbers as starts, got {starts}")
    if starts[0] != 0 or any(a >= b for a, b in itertools.pairwise(starts)):
        raise ConfigError(f"starts of phases must begin with 0 and ascend, got {starts}; sort them")
    return listed
