"""What the nodes that apply a user's function have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from zephon_nodes.errors import ConfigError
from zephon_nodes.hashing import draw, key
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.recipe import describe_function
from zephon_nodes.work.base import check_seed


class FunctionNode(Node):
    """Base of the nodes that apply a user's function: what they ask of it, and what of it is in the recipe.

    ``function``: pure, called from any thread. If it has a parameter named ``rng`` it gets a ``numpy.random.Generator``
    that depends on (node name, ``seed``, identity of the record) alone: the same draws after a resume and with any number
    of workers, others in the next pass. ``version``: raise it when you edit the function, since edits can't be seen.
    """

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        function: Callable[..., Any],
        *,
        seed: int = 0,
        version: str | int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if not callable(function):
            raise ConfigError(f"{self.kind} needs a function of a payload, got {function!r}")
        check_seed(seed)
        self.function, self.seed, self.version = function, seed, version
        self.wants_rng = wants_rng(function)

    def settings(self) -> dict[str, Any]:
        return describe_function(self.function, self.version) | ({"seed": self.seed} if self.wants_rng else {})

    def caller(self, setup: Setup) -> Callable[[Any, int], Any]:
        """The function as one of (payload, identity)."""
        function = self.function
        if not self.wants_rng:
            return lambda payload, identity: function(payload)
        base = key("rng", setup.name, self.seed)
        return lambda payload, identity: function(payload, rng=generator(base, identity))


def listed(kind: str, given: Any) -> list[Any]:
    """What a function has given in place of a list. Raises ``TypeError`` for what can't be listed, and for one payload,
    which would be taken apart."""
    if not isinstance(given, (dict, str, bytes)):
        try:
            items = iter(given)
        except TypeError:
            pass  # it is refused below
        else:
            return list(items)
    raise TypeError(
        f"the function of {kind} must return a list of payloads or a generator, got a {type(given).__name__}"
    )


def wants_rng(function: Callable[..., Any]) -> bool:
    """Whether a function has a parameter named ``rng``."""
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def generator(base: int, identity: int) -> np.random.Generator:
    """A generator of its own for one record."""
    return np.random.Generator(np.random.Philox(key=[base, draw(base, identity)]))
