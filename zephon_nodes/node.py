"""What every operator is: a torchdata ``BaseNode`` that says how it works instead of working.

A node holds settings and its source, and gives two things to whoever runs the graph: an accumulator for each span of a
lane (the stateful half), and a worker function (the stateless half). The node that is read from, by a ``Loader``, by a
torchdata node or by hand, runs the whole chain below it in a ``Session``; inner nodes run nothing.

To write one, derive from ``Node`` and override, of the following, what the operator needs:

    kind            what it is called in errors, recipes and plans
    takes, gives    what may stand below it, and what it hands on: "rows", "packed" or "batches"
    settings()      the settings that change the data
    reorders        True if it makes no record that it wasn't given: it is then passed over when tokens are measured
    accumulator()   with ``holds = True``: an ``Accumulator``
    worker()        a function of a call (with an accumulator) or of a list of records (without one), to a list of items
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from torchdata.nodes import BaseNode

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.errors import ConfigError, ReadError, RowError
from zephon_nodes.plan import Workers
from zephon_nodes.stream import Drop, Failure, Pointer, Record
from zephon_nodes.work.base import Source, check_at_least

if TYPE_CHECKING:
    from zephon_nodes.session import Session

OnError: TypeAlias = Literal["raise", "skip"]
Runner: TypeAlias = Literal["thread", "process", "inline"]
Gives: TypeAlias = Literal["rows", "packed", "batches"]


N = TypeVar("N", bound="Node")


class Setup(NamedTuple):
    """What a worker function may know: its node's name, what to do with a bad record, where rows lie, and whether a node
    follows that lays packed sequences out itself (see ``laid_rows``), or takes rows ``together`` (see ``stream``)."""

    name: str
    on_error: OnError
    source: Source
    cache_units: int = 16
    laid_later: bool = False
    together: bool = False

    def failed(self, origins: tuple[Pointer, ...], error: BaseException) -> Drop | Failure:
        """What becomes of a record that ``error`` happened to, by the policy."""
        try:
            reason = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - its own __str__ fails; the traceback of the cause still tells
            reason = type(error).__name__
        if isinstance(error, ReadError):  # a store may answer next time: leaving the row out would be chance
            return Failure(error, origins)
        if self.on_error == "skip":
            return Drop(self.name, reason, origins, failed=True)
        where = self.source.locate(origins)
        row = RowError(f"{self.name} failed on {where}: {reason}", node=self.name, origins=origins, where=where)
        row.__cause__ = error
        return Failure(row, origins)


class Node(BaseNode[Any]):  # type: ignore[misc]
    """Base of all operators. See the head of this file.

    ``source``: the node below. ``name``: unique in the graph, by default the kind; randomness is keyed by it.
    ``parallelism``: workers (a performance setting), 0 for the driver's thread, None for the graph's default.
    ``runner``: what runs the worker function: "thread", "process", "inline" (the driver's thread), or None for what the
    graph's ``runner`` says. Processes pay where the function holds the GIL (Python, not NumPy, Pillow or a tokenizer) for
    much longer than its records take to cross; what crosses must be picklable by cloudpickle.
    ``on_error``: "raise" or "skip" for records that can't be used here; None for the graph's policy.

    >>> class Upper(Node):
    ...     kind = "upper"
    ...     def worker(self, setup):
    ...         return lambda records: [record.replaced(record.payload["text"].upper()) for record in records]
    >>> list(Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).then(Upper))[:2]
    ['ONE', 'TWO WORDS']
    """

    kind: ClassVar[str] = "node"
    takes: ClassVar[tuple[Gives, ...]] = ("rows", "packed")
    holds: ClassVar[bool] = False
    counts: ClassVar[bool] = False
    cheap: ClassVar[bool] = False
    tokenizes: ClassVar[bool] = False
    reorders: ClassVar[bool] = False
    lays: ClassVar[bool] = False
    """Takes sequences of ``laid_rows`` from a packing node right below it, and lays them out."""
    takes_together: ClassVar[bool] = False
    """Its accumulator has a ``push_together``. Not inherited: what a subclass overrides may need records."""
    ours: ClassVar[bool] = False
    """Nothing that users wrote runs in this node's accumulator, nor in its worker function. Not inherited."""
    rounds: int | None = None
    fixed_size: int | None = None
    given: tuple[tuple[Any, ...], dict[str, Any]] | None
    """What the constructor was given behind the source, for a recipe file; None in a copy."""

    def __new__(cls: type[N], *args: Any, **settings: Any) -> N:
        node: N = super().__new__(cls)
        settings.pop("source", None)
        node.given = (args[1:], settings)
        return node

    def __init__(
        self,
        source: Node | None,
        *,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__()
        if parallelism is not None:
            check_at_least("parallelism", parallelism, 0)
        _check_runner(runner, parallelism)
        if on_error not in (None, "raise", "skip"):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {on_error!r}")
        if source is not None:
            self._check_source(source)
        self.source, self.given_name, self.on_error = source, name, on_error
        self.parallelism = 0 if runner == "inline" else parallelism
        self.runner: Workers | None = None if runner == "inline" else runner
        self._session: Session | None = None

    def _check_source(self, source: Any) -> None:
        if not isinstance(source, Node):
            raise ConfigError(
                f"{self.kind} needs a zephon_nodes node as its source, got {type(source).__name__}; "
                "begin with Read(work_source) or Pipeline(work_source); torchdata nodes come in by from_node(...)"
            )
        if source.rounds is not None:
            raise ConfigError(f"{self.kind} can't stand on {source.kind}, which counts whole rounds and must come last")
        if source.gives not in self.takes:
            raise ConfigError(
                f"{self.kind} can't stand on {source.kind}: it takes {' or '.join(self.takes)}, "
                f"and {source.kind} gives {source.gives}; put it {'before batch' if source.gives == 'batches' else 'earlier'}"
            )

    # what an operator overrides

    @property
    def gives(self) -> Gives:
        return self.source.gives if self.source else "rows"

    @property
    def work_source(self) -> Source:
        if self.source is None:
            raise ConfigError(f"{self.kind} has no source")
        return self.source.work_source

    def settings(self) -> dict[str, Any]:
        """The settings that change the data, JSON-able."""
        return {}

    def accumulator(self, place: Place) -> Accumulator:
        """A new accumulator for one span of a lane. Only asked of nodes that hold."""
        raise NotImplementedError

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]] | None:
        """The worker function: of one call if the node holds, else of a list of records. None: records pass as they are."""
        return None

    def one_to_one(self, setup: Setup) -> bool:
        """Whether every record gives exactly one, in order: then a resume needn't read what had been delivered."""
        return False

    @property
    def pad_token_id(self) -> int:
        """The token that fills up sequences: that of the tokenizer below, else 0."""
        return self.source.pad_token_id if self.source else 0

    def blank_record(self) -> Any:
        """A payload without content, for the rows of a batch that is only there to keep ranks in step."""
        return self.source.blank_record() if self.source else {"input_ids": np.zeros(0, np.int32)}

    def blank(self) -> Any:
        """An output without content, for at_end="pad"; None if the node can't make one."""
        return None

    # BaseNode

    def session(self) -> Session:
        """The run of the graph that ends in this node, made when the node is first read from."""
        if self._session is None:
            from zephon_nodes.options import Options
            from zephon_nodes.session import Session

            self._session = Session(self, Options())
        return self._session

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        super().reset(initial_state)
        session = self.session()
        if initial_state is not None:
            session.load(initial_state)
        session.restart(roll_over=False)  # torchdata's nodes and Loader begin the next epoch themselves

    def next(self) -> Any:
        return self.session().next()

    def get_state(self) -> dict[str, Any]:
        return self.session().state()

    def _repr_svg_(self) -> str:
        """The graph up to this node as a drawing, which a notebook shows."""
        from zephon_nodes.explore.drawing import draw
        from zephon_nodes.options import Options

        return draw(self, Options().threads, self._session.plan if self._session is not None else None)

    def close(self) -> None:
        """Ends the threads of a run that was read from this node. Reading again starts anew."""
        if self._session is not None:
            self._session.close()

    def detached(self: N) -> N:
        """The same chain in copies that run nothing: what a running thread may hold on to without keeping a run alive."""
        new = copy.copy(self)
        new.source = self.source.detached() if self.source else None
        return new

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None, "given": None}


def _check_runner(runner: str | None, parallelism: int | None) -> None:
    if runner not in (None, "thread", "process", "inline"):
        raise ConfigError(f"runner must be 'thread', 'process' or 'inline', got {runner!r}")
    if runner is not None and parallelism is not None and (runner == "inline") != (parallelism == 0):
        raise ConfigError(
            f"runner={runner!r} and parallelism={parallelism} contradict each other: inline is parallelism=0"
        )


def each_record(setup: Setup, function: Callable[[Record], list[Any]]) -> Callable[[list[Record]], list[Any]]:
    """A worker function that treats records one by one and handles their errors by the policy."""

    def work(records: list[Record]) -> list[Any]:
        out: list[Any] = []
        for record in records:
            try:
                out += function(record)
            except Exception as error:  # noqa: BLE001 - user code: raised with its place, or dropped and counted
                out.append(setup.failed(record.origins, error))
        return out

    return work
