"""Weights of a mixture, as exact fractions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from zephon_nodes.errors import ConfigError


class MixtureSpec(Mapping[str, Fraction]):
    """Weight of each dataset by name; weights are scaled to sum to 1.

    A weight is a positive number: an int, a float (0.1 means one tenth, exactly), a string such as "1/3", or a
    ``Fraction``; or a pair (weight, weights of a mixture), whose datasets share the weight. Raises ``ConfigError``
    otherwise, and when there are none.

    >>> MixtureSpec({"wiki": 3, "news": 1})["wiki"]
    Fraction(3, 4)
    >>> MixtureSpec({"web": (0.7, {"wiki": 1, "blogs": 2}), "code": 0.3})["blogs"]
    Fraction(7, 15)
    """

    def __init__(self, weights: Mapping[str, Any]) -> None:
        if not weights:
            raise ConfigError("a mixture needs at least one dataset with its weight, got none")
        self._weights = exact_shares(weights)

    @classmethod
    def of(cls, mixture: Mapping[str, Any] | None, rows: Mapping[str, int]) -> MixtureSpec:
        """The mixture of datasets with these ``rows``; None weights them by rows. Names must be the same."""
        if mixture is None:
            return cls(dict(rows))
        if not isinstance(mixture, Mapping):
            raise ConfigError(f"mixture must be a dict of weights by dataset name or a MixtureSpec, got {mixture!r}")
        spec = mixture if isinstance(mixture, cls) else cls(mixture)
        unknown, missing = sorted(set(spec) - set(rows), key=str), sorted(set(rows) - set(spec))
        if unknown or missing:
            raise ConfigError(
                f"the mixture and the datasets name different things: weights without a dataset {unknown}, "
                f"datasets without a weight {missing}; every dataset needs exactly one weight"
            )
        return spec

    def __getitem__(self, name: str) -> Fraction:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def __repr__(self) -> str:
        return f"MixtureSpec({ {name: str(weight) for name, weight in self._weights.items()} })"


def exact_weight(name: str, weight: float | str | Fraction, zero: bool = False) -> Fraction:
    """A weight as a fraction. Raises ``ConfigError`` unless it is a positive number (with ``zero``: at least 0)."""
    try:
        exact = Fraction(str(weight))
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"weight of {name!r} must be a positive number, got {weight!r}") from None
    if exact < 0 or not (exact or zero):
        raise ConfigError(f"weight of {name!r} must be positive, got {weight!r}; leave the dataset out instead")
    return exact


def exact_shares(weights: Mapping[str, Any], zero: bool = False) -> dict[str, Fraction]:
    """Weights, nested ones included, as shares that sum to 1. With ``zero``, weights may be 0 and are left out."""
    if not isinstance(weights, Mapping):
        raise ConfigError(f"a mixture is a dict of weights by dataset name, got {weights!r}")
    numbers, inner = {}, {}
    for name, weight in weights.items():
        if isinstance(weight, (tuple, list)):
            if len(weight) != 2 or not isinstance(weight[1], Mapping):
                raise ConfigError(f"weight of {name!r} must be a number or (number, dict of weights), got {weight!r}")
            weight, inner[name] = weight
        numbers[name] = exact_weight(name, weight, zero)
    total = sum(numbers.values())
    if not total:
        raise ConfigError(f"a mixture needs at least one dataset with a positive weight, got {dict(weights)}")
    out: dict[str, Fraction] = {}
    for name, number in numbers.items():
        parts = exact_shares(inner[name], zero) if name in inner else {name: Fraction(1)}
        twice = sorted(out.keys() & parts.keys(), key=str)
        if twice:
            raise ConfigError(f"the mixture names {twice} twice; give each dataset one weight")
        if number:
            out |= {part: number / total * share for part, share in parts.items()}
    return out
