"""What batch after batch was like, kept for plots: sizes, datasets, lengths, origins and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from zephon_nodes.explore.peek import apart
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.node import Node
from zephon_nodes.options import options_of
from zephon_nodes.session import Session
from zephon_nodes.stream import Pointer
from zephon_nodes.tally import sizes
from zephon_nodes.work.base import check_at_least

T = TypeVar("T")


class Entry(NamedTuple):
    """One output. ``seconds``: since the first. ``given``: amount of each dataset, in tokens, or in rows where there are
    none. ``wanted``: what the mixture asked for, in the same unit; empty if that isn't known. ``documents``, ``rows``:
    tokens of each document and of each row, without padding. ``origins``: rows of files."""

    seconds: float
    samples: int
    tokens: int
    padding: int
    given: Mapping[str, float]
    wanted: Mapping[str, float]
    documents: tuple[int, ...]
    rows: tuple[int, ...]
    origins: tuple[Pointer, ...]


class History:
    """Batches of a run, an entry each, and plots of them. Made by ``pipeline.history()``, or filled by your own loop:

        history = History()
        for batch in history.over(pipeline):
            train_step(batch.to_training())
        history.plot_fill()

    The plots are matplotlib figures (``pip install "zephon_nodes[plots]"``).
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._begun = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        tokens, padding = sum(e.tokens for e in self.entries), sum(e.padding for e in self.entries)
        share = padding / max(1, tokens + padding)
        return f"<History of {len(self)} outputs: {tokens:,} tokens, {share:.1%} padding>"

    def over(self, batches: Iterable[T]) -> Iterator[T]:
        """The same batches, each added when it is asked for."""
        for batch in batches:
            self.add(batch)
            yield batch

    def add(self, batch: Any, wanted: Mapping[str, float] | None = None) -> None:
        """One output: a ``Microbatch``, a dict of tensors, or any other payload, of which less is known."""
        now = time.perf_counter()
        self._begun = self._begun or now
        origins = tuple(at for row in batch.pointers for at in row) if isinstance(batch, Microbatch) else ()
        size = sizes(batch, origins)
        given = size.by_dataset if size.tokens else Counter(at.dataset for at in origins)
        lengths = tuple(size.documents), tuple(size.rows)
        entry = Entry(
            now - self._begun,
            size.samples,
            size.tokens,
            size.padding,
            dict(given),
            dict(wanted or {}),
            *lengths,
            origins,
        )
        self.entries.append(entry)

    def plot_fill(self) -> Any:
        """Share of padding, output by output, and over all so far."""
        from zephon_nodes.explore import plots

        return plots.fill(self.entries)

    def plot_mixture(self, target: Mapping[str, float] | None = None, window: int = 20) -> Any:
        """Share of each dataset over ``window`` outputs, in tokens where there are any, against the mixture.

        ``target``: shares or weights by dataset; by default those of the source, where the history knows them.
        """
        from zephon_nodes.explore import plots

        return plots.mixture(self.entries, target, window)

    def plot_lengths(self) -> Any:
        """Lengths in tokens of documents, before packing, and of rows, after it."""
        from zephon_nodes.explore import plots

        return plots.lengths(self.entries)

    def plot_throughput(self, window: int = 20) -> Any:
        """Tokens a second (samples where there are no tokens) over ``window`` outputs, against time."""
        from zephon_nodes.explore import plots

        return plots.throughput(self.entries, window)

    def plot_order(self) -> Any:
        """Where shuffled rows came from: their rank in the files against their rank in the run, and how far they moved."""
        from zephon_nodes.explore import plots

        return plots.order(self.entries)


def record(root: Node, options: Mapping[str, Any], outputs: int) -> History:
    """The first outputs of an epoch, in a run of its own. See ``Pipeline.history``."""
    check_at_least("outputs", outputs, 1)
    given = options_of({**options, "at_end": "ragged", "agree": lambda rounds, largest: rounds})
    session, history = Session(apart(root), given), History()
    before: Counter[str] = Counter()
    try:
        session.restart()
        for _ in range(outputs):
            batch = session.next()
            wanted = session.tally.wanted
            history.add(batch, {name: wanted[name] - before[name] for name in wanted})
            before = Counter(wanted)
    except StopIteration:
        return history
    finally:
        session.close()
    return history
