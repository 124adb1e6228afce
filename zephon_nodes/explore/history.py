"""What batch after batch was like, kept for plots: sizes, datasets, lengths, origins and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from zephon_nodes.errors import ConfigError
from zephon_nodes.explore.peek import apart
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.node import Node
from zephon_nodes.options import options_of
from zephon_nodes.session import Session
from zephon_nodes.stream import Pointer
from zephon_nodes.tally import cut_documents, shares, sizes
from zephon_nodes.work.base import check_at_least

T = TypeVar("T")


class Entry(NamedTuple):
    """One output. ``seconds``: since the first. ``given``: tokens of each dataset. ``wanted``: shares that the mixture asked
    for, times what came; empty if that isn't known. ``documents``, ``rows``: tokens of each document and of each row,
    without padding. ``origins``: rows of files. ``cut``: datasets of documents whose rest is in another row."""

    seconds: float
    samples: int
    tokens: int
    padding: int
    given: Mapping[str, float]
    wanted: Mapping[str, float]
    documents: tuple[int, ...]
    rows: tuple[int, ...]
    origins: tuple[Pointer, ...]
    cut: tuple[str, ...] = ()


class History:
    """Batches of a run, an entry each, and plots of them. Made by ``pipeline.history()``, or filled by your own loop:

        history = History()
        for batch in history.over(pipeline):
            train_step(batch.to_training())
        history.plot_fill()

    The plots are matplotlib figures (``pip install "zephon_nodes[plots]"``). ``weigh`` ("tokens"): what the mixture is meant
    in, "tokens" or "samples" (rows of files).
    """

    def __init__(self, weigh: str = "tokens") -> None:
        self.entries: list[Entry] = []
        self.weigh = weigh
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

    def add(self, batch: Any, target: Mapping[str, float] | None = None) -> None:
        """One output: a ``Microbatch``, a dict of tensors, or any other payload, of which less is known. ``target``: the
        shares of the mixture."""
        now = time.perf_counter()
        self._begun = self._begun or now
        origins = tuple(at for row in batch.pointers for at in row) if isinstance(batch, Microbatch) else ()
        size = sizes(batch, origins)
        cut = tuple(cut_documents(batch))
        total = size.tokens if self.weigh == "tokens" else len(origins) - len(cut)
        both = dict(size.by_dataset), {name: share * total for name, share in (target or {}).items()}
        lengths = tuple(size.documents), tuple(size.rows)
        seconds = now - self._begun
        self.entries.append(Entry(seconds, size.samples, size.tokens, size.padding, *both, *lengths, origins, cut))

    def shares(self, weigh: str | None = None) -> dict[str, float]:
        """Share of each dataset in all that came, by name: of its "tokens", or "samples" (rows of files). None: what the
        mixture is meant in. Empty if the datasets aren't known.

        >>> pipeline = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).batch(2)
        >>> pipeline.history(2).shares("samples")
        {'demo': 1.0}
        """
        weigh = self.weigh if weigh is None else weigh
        if weigh not in ("tokens", "samples"):
            raise ConfigError(f"weigh must be 'tokens' or 'samples', got {weigh!r}")
        total: dict[str, float] = {}
        for entry in self.entries:
            for name, amount in amounts(entry, weigh).items():
                total[name] = total.get(name, 0) + amount
        return shares(total)

    def plot_fill(self) -> Any:
        """Share of padding, output by output, and over all so far."""
        from zephon_nodes.explore import plots

        return plots.fill(self.entries)

    def plot_mixture(self, target: Mapping[str, float] | None = None, window: int = 20) -> Any:
        """Share of each dataset over ``window`` outputs against the mixture, in what that is meant in: tokens or rows.

        ``target``: shares or weights by dataset; by default those of the source, where the history knows them.
        """
        from zephon_nodes.explore import plots

        return plots.mixture(self.entries, self.weigh, target, window)

    def plot_lengths(self) -> Any:
        """Lengths in tokens of documents, before packing, and of rows, after it."""
        from zephon_nodes.explore import plots

        return plots.lengths(self.entries)

    def plot_throughput(self) -> Any:
        """Tokens a second (samples where there are no tokens), against time."""
        from zephon_nodes.explore import plots

        return plots.throughput(self.entries)

    def plot_order(self) -> Any:
        """Where shuffled rows came from: their rank in the files against their rank in the run, and how far they moved."""
        from zephon_nodes.explore import plots

        return plots.order(self.entries)


def amounts(entry: Entry, weigh: str) -> Mapping[str, float]:
    """How much of each dataset an output has, in "tokens" or "samples"."""
    if weigh == "tokens":
        return entry.given
    found = Counter(at.dataset for at in entry.origins)
    found.subtract(entry.cut)
    return found


def record(root: Node, options: Mapping[str, Any], outputs: int) -> History:
    """The first outputs of an epoch, in a run of its own. See ``Pipeline.history``."""
    check_at_least("outputs", outputs, 1)
    given = options_of({**options, "at_end": "ragged", "agree": lambda rounds, largest: rounds})
    session = Session(apart(root), given)
    history = History(session.tally.weigh)
    try:
        session.restart()
        for _ in range(outputs):
            batch = session.next()
            history.add(batch, session.target())
    except StopIteration:
        return history
    finally:
        session.close()
    return history
