"""From a graph to the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zephon_nodes.errors import ClosedError, ConfigError
from zephon_nodes.node import Node
from zephon_nodes.options import options_of
from zephon_nodes.recipe import recipe_hash
from zephon_nodes.session import Session
from zephon_nodes.work.base import check_at_least

if TYPE_CHECKING:
    from types import TracebackType

    from zephon_nodes.drops import DropReport
    from zephon_nodes.estimation import Estimate
    from zephon_nodes.plan import Plan


class Loader:
    """An iterable over a graph's outputs, with a state.

    ``root``: the last node. ``options``: keywords, see ``Options``; the most common are ``rank`` and ``world_size``
    (default: torch.distributed if initialised, else 0 of 1), ``runner``, ``prefetch``, ``at_end`` and ``on_error``.

    Each ``iter(loader)`` begins an epoch: the first one, the place of a loaded state, or the next epoch if anything was
    read since. One epoch runs at a time; an iterator that was overtaken raises ``ClosedError``. One
    thread calls ``next``; ``state_dict`` may be called from any.

        loader = Loader(Batch(PackFlat(Tokenize(Read(source), "gpt2"), 2048), 8), rank=0, world_size=1)
        loader.load_state_dict(torch.load("data.pt"))       # if there is one
        for batch in loader:
            train_step(batch.to_training())
            torch.save(loader.state_dict(), "data.pt")

    Raises ``ConfigError`` for settings that can't work, at construction.

    >>> loader = Loader(Batch(Read(StaticMixtureWorkSource([rows], shuffle="none")), 2))
    >>> first = next(iter(loader))
    >>> state = loader.state_dict()
    >>> state["lane_0"], loader.epoch
    ([0, 2, 1, 0, 1, 0, 0], 0)
    >>> loader.load_state_dict(state)
    >>> [len(batch) for batch in loader]
    [2]
    """

    def __init__(self, root: Node, **options: Any) -> None:
        if not isinstance(root, Node):
            raise ConfigError(f"Loader needs a zephon_nodes node, got {type(root).__name__}")
        self.root = root
        self._options = options
        self._session = Session(root, options_of(options))
        self._iterator: _Iterator | None = None

    def __iter__(self) -> _Iterator:
        self._session.restart()
        self._iterator = _Iterator(self)
        return self._iterator

    @property
    def epoch(self) -> int:
        """The epoch being read, from 0."""
        return self._session.epoch

    @property
    def lane(self) -> int:
        """The lane of the last output."""
        return self._session.lane

    @property
    def drops(self) -> DropReport:
        """What was left out in this epoch since the loader was made or restored."""
        return self._session.drops

    @property
    def recipe(self) -> str:
        """Everything that decides the data, as canonical JSON."""
        return self._session.recipe

    @property
    def recipe_hash(self) -> str:
        """SHA-256 of ``recipe``, hexadecimal: equal on two machines if they train on the same data in the same order.

        That of a mixture in tokens whose tokens per row aren't known yet changes when they are measured, at the first ``iter``.
        """
        return recipe_hash(self.recipe)

    @property
    def estimates(self) -> dict[str, Estimate]:
        """Tokens per row that this process has measured for a mixture in tokens, with their standard errors."""
        return self._session.estimates

    @property
    def session(self) -> Session:
        """The run behind this loader."""
        return self._session

    @property
    def plan(self) -> Plan | None:
        """How the current or last run goes through the graph, with its counters; None before the first."""
        return self._session.plan

    def metrics(self) -> dict[str, float]:
        """Numbers for TensorBoard, W&B or MLflow, of this rank: a flat dict of floats, cheap enough for every step.

        Since the loader was made or a state was loaded: ``batches``; ``samples``, their rows; ``tokens`` without padding;
        ``padding_share`` of all positions; ``data_wait_seconds`` that the trainer waited in ``next``, ``data_wait_share``
        of all its time; ``share/NAME`` of each dataset; and ``mixture_error``, the largest distance of such a share from
        the mixture's (in rows, or with a ``token_estimation`` in tokens, of every seventh batch). Of the epoch, as the state has it, so a resume
        goes on: ``dropped``, ``failed`` (records left out, those of them by errors); and ``epoch`` itself. Nothing is
        reset by asking.
        """
        return self._session.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Where the loop stands: a few integers for each owned lane, and the recipe. A detached copy of plain values."""
        return self._session.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state, on any world size that divides the lanes, at the next ``iter``.

        Raises ``StateError``, and changes nothing, if the recipe differs, lanes are missing, or the world can't take it.
        """
        self._session.load(state)

    def skip(self, rounds: int) -> None:
        """Goes on exactly ``rounds`` rounds (outputs of every owned lane) without handing them out.

        Call it with the same number on every rank. Where every node gives one record for one, it is arithmetic; otherwise
        the rounds are worked through and thrown away. What was skipped stays in the state, and ``drops`` tells it. To
        skip whole spans at once in any graph, edit the state: ``skip_spans``. Raises ``ConfigError`` for less than 1
        round, StopIteration never: at the end of data the epoch is over.
        """
        check_at_least("rounds", rounds, 1)
        self._session.skip(rounds)

    def close(self) -> None:
        """Ends all threads. The loader can be iterated over again."""
        self._session.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in this process or another, is a fresh loader of the same graph."""
        return _remade, (self.root, self._options)

    def _next(self, iterator: _Iterator) -> Any:
        if iterator is not self._iterator:
            raise ClosedError("this iterator was overtaken by a newer iter() of the same loader; use one at a time")
        return self._session.next()


class _Iterator:
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> _Iterator:
        return self

    def __next__(self) -> Any:
        return self._loader._next(self)


def _remade(root: Node, options: dict[str, Any]) -> Loader:
    return Loader(root, **options)
