"""How a mixture in tokens is asked for. The measuring itself is in ``estimation``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.work.base import check_at_least

SCALE = 1 << 32


class TokenEstimation:
    """Makes the mixture's weights shares of tokens: each dataset's rows are drawn at weight / tokens per row.

    Tokens per row are measured once for a run, on rank 0, on a bounded sample that goes through the graph's own steps up
    to the tokenizer; other ranks receive them through torch.distributed. They are part of the recipe, so a resume takes
    them from the state and measures nothing.

    ``given``: known tokens per row, by dataset, as a dict or a JSON file, as numbers or as the recipe writes them ("5/2");
    only datasets that it lacks are measured. ``{name: found.tokens_per_row for name, found in loader.estimates.items()}``
    is what another run has measured. ``tolerance`` (0.01): the relative standard error that ends the sampling of
    a dataset. ``most_rows`` (8192): rows sampled of a dataset at most; a smaller dataset is measured whole, without error.

    Raises ``ConfigError`` for numbers that aren't positive and files that aren't such dicts.

    >>> source = StaticMixtureWorkSource([rows], {"demo": 1}, token_estimation=TokenEstimation({"demo": 2.5}))
    >>> source.tokens_per_row["demo"]
    Fraction(5, 2)
    """

    def __init__(
        self,
        given: Mapping[str, float] | str | os.PathLike[str] | None = None,
        *,
        tolerance: float = 0.01,
        most_rows: int = 8192,
    ) -> None:
        check_at_least("most_rows", most_rows, 64)
        if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
            raise ConfigError(f"tolerance must be a relative error between 0 and 1, got {tolerance!r}")
        self.given = {name: as_fraction(name, number) for name, number in _read(given).items()}
        self.tolerance, self.most_rows = tolerance, most_rows


def as_fraction(name: str, tokens: Any) -> Fraction:
    """Tokens per row, rounded to 2**-32, so that every rank and every resume computes with the same number."""
    try:
        exact = Fraction(tokens if isinstance(tokens, (int, float, str, Fraction)) else str(tokens))
        if isinstance(tokens, bool) or exact <= 0:
            raise ValueError
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ConfigError(f"tokens per row of {name!r} must be a positive number, got {tokens!r}") from None
    return max(Fraction(round(exact * SCALE), SCALE), Fraction(1, SCALE))


def _read(given: Any) -> Mapping[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        try:
            given = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"TokenEstimation: {given!r} is no JSON file of tokens per row: {error}") from error
    if not isinstance(given, Mapping):
        raise ConfigError(f"TokenEstimation needs a dict of tokens per row by dataset name, got {given!r}")
    return given
