"""What a loader has handed out, in tokens, padding and datasets: the numbers behind ``metrics()``."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zephon_nodes.counters import RunCounters
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.stream import Origins, Pointer, pointers_of, rows_in
from zephon_nodes.training import IGNORE

EVERY = 7
"""Batches of which one is looked at document by document, where the mixture is in tokens: that takes longest. No power of
two, so that all lanes have their turn."""

_TOKEN_FIELDS = frozenset(("input_ids", "document_ids", "sequences"))
_DATASET = operator.itemgetter(0)


class Sizes(NamedTuple):
    """``samples``: rows of a batch. ``tokens``, ``padding``: positions of either kind. ``by_dataset``: tokens.
    ``documents``: tokens of each document, ``rows``: of each row, without padding."""

    samples: int
    tokens: int
    padding: int
    by_dataset: Mapping[str, float]
    documents: Sequence[int] = ()
    rows: Sequence[int] = ()


class Tally:
    """Sums over what was delivered. ``weigh``: what the mixture is meant in, "tokens" or "samples" (rows of files).

    ``datasets``: the names of all. Written by the thread that calls ``next`` alone.
    """

    def __init__(self, weigh: str = "samples", datasets: Sequence[str] = ()) -> None:
        self.weigh = weigh
        self._only = datasets[0] if len(datasets) == 1 else None
        self.batches = self.samples = self.tokens = self.padding = 0
        self.given: Counter[str] = Counter()
        self.wanted: Counter[str] = Counter()
        self._target: Mapping[str, float] | None = None
        self._since = 0
        self._run = RunCounters()
        self._waited = self._elapsed = 0.0

    def began(self, run: RunCounters) -> None:
        """A run of the graph begins. Those before it stay counted."""
        self._waited, self._elapsed = self.waited, self.elapsed
        self._run = run

    @property
    def waited(self) -> float:
        """Seconds in which the trainer waited for data."""
        return self._waited + self._run.waited

    @property
    def elapsed(self) -> float:
        """Seconds from the start of each run to its last output."""
        return self._elapsed + max(0.0, self._run.last - self._run.begun)

    def add(self, payload: Any, origins: Origins, target: Mapping[str, float] | None) -> None:
        """One output of the graph. ``target``: the shares that its span was to have."""
        samples, tokens, padding = totals(payload)
        self.batches += 1
        self.samples += samples
        self.tokens += tokens
        self.padding += padding
        if target is not self._target:
            self._settle()
            self._target = target
        if self.weigh != "tokens" or not tokens:
            if self._only is not None:  # there is no need to look at any pointer
                new = rows_in(origins) - (len(cut_documents(payload, self._only)) if tokens else 0)
                self.given[self._only] += new
            else:
                pointers, cut = pointers_of(origins), cut_documents(payload) if tokens else []
                self.given.update(map(_DATASET, pointers))
                self.given.subtract(cut)
                new = len(pointers) - len(cut)
            self._since += new
        elif self.batches % EVERY == 1:
            self.given.update(sizes(payload, pointers_of(origins)).by_dataset)
            self._since += tokens

    def _settle(self) -> None:
        """Adds up what was wanted while the target was the same."""
        for name, share in (self._target or {}).items():
            self.wanted[name] += share * self._since  # type: ignore[assignment]  # Counter holds floats as well
        self._since = 0

    def metrics(self) -> dict[str, float]:
        """See ``Loader.metrics``."""
        self._settle()
        given, wanted = shares(self.given), shares(self.wanted)
        out: dict[str, float] = {
            "batches": self.batches,
            "samples": self.samples,
            "tokens": self.tokens,
            "padding_share": self.padding / max(1, self.padding + self.tokens),
            "data_wait_seconds": self.waited,
            "data_wait_share": self.waited / self.elapsed if self.elapsed else 0.0,
        }
        if wanted:
            out["mixture_error"] = mixture_error(given, wanted)
        out |= {f"share/{name}": share for name, share in given.items()}
        return {name: float(value) for name, value in out.items()}


def shares(amounts: Mapping[str, float]) -> dict[str, float]:
    """Amounts over their sum, in order of name; nothing if there are none."""
    total = sum(amounts.values())
    return {name: amount / total for name, amount in sorted(amounts.items())} if total else {}


def mixture_error(given: Mapping[str, float], wanted: Mapping[str, float]) -> float:
    """The largest distance between a share that was given and one that was wanted: 0.02 is two points of a hundred."""
    return max((abs(given.get(n, 0.0) - wanted.get(n, 0.0)) for n in given.keys() | wanted.keys()), default=0.0)


def totals(payload: Any) -> tuple[int, int, int]:
    """Samples, tokens and padding of one output of a graph: those of ``sizes``, without looking into packed rows."""
    if not isinstance(payload, Microbatch):
        return sizes(payload)[:3]
    if payload.unlaid is not None:
        padding = sum(payload.unlaid.paddings)
        return len(payload), payload.unlaid.input_ids.size - padding, padding
    tokens = padding = widest = 0
    open_rows = list[int]()
    for row in _with_tokens(payload.payloads):
        if "document_ids" in row and "padding_length" in row:
            given = row["padding_length"]
            length = len(row["document_ids"]) - given
        else:
            documents, given = _documents(row)
            length = sum(documents)
        tokens += length
        widest = max(widest, length)
        if given is None:
            open_rows.append(length)
        else:
            padding += given
    return len(payload), tokens, padding + len(open_rows) * widest - sum(open_rows)


def _with_tokens(rows: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The rows that have any. Looked at for every batch, and a dict is no quick thing to be told from a ``Mapping``."""
    dicts = [row for row in rows if type(row) is dict or isinstance(row, Mapping)]
    return [row for row in dicts if not _TOKEN_FIELDS.isdisjoint(row)]


def cut_documents(payload: Any, only: str | None = None) -> list[str]:
    """The datasets of documents that a row ends in the middle of. Their rest comes in another row, and counts them.
    ``only``: the dataset, if there is one only."""
    if not isinstance(payload, Microbatch):
        return []
    if payload.unlaid is not None:
        ends = zip(payload.unlaid.next_ids, payload.made_of, strict=True)
        cut = [row for row, (next_id, made_of) in enumerate(ends) if next_id != IGNORE and rows_in(made_of)]
        return [only] * len(cut) if only is not None else [payload.pointers[row][-1].dataset for row in cut]
    out = []
    if not _with_tokens(payload.payloads):
        return []
    for row, pointers in zip(payload.payloads, payload.pointers, strict=True):
        if not isinstance(row, Mapping) or not pointers:
            continue
        if row.get("next_id", IGNORE) != IGNORE:
            out.append(pointers[-1].dataset)
        elif "sequences" in row:
            parts = zip(row["sequences"], pointers, strict=False)
            out += [at.dataset for part, at in parts if part.get("next_id", IGNORE) != IGNORE]
    return out


def sizes(payload: Any, origins: Sequence[Pointer] = ()) -> Sizes:
    """The sizes of one output of a graph: a ``Microbatch``, a dict of ``input_ids`` (and ``document_ids`` or
    ``padding_mask``, as ``to_training`` gives them), or anything else, which counts as one sample without tokens."""
    if isinstance(payload, Microbatch):
        return _of_rows(payload)
    if isinstance(payload, Mapping) and "input_ids" in payload:
        return _of_tensors(payload, origins)
    return Sizes(1, 0, 0, {})


def _of_rows(batch: Microbatch) -> Sizes:
    rows: list[tuple[list[int], int | None]]
    if batch.unlaid is None:
        rows = [_documents(payload) for payload in batch.payloads]
    else:
        rows = [*zip(batch.unlaid.counts, batch.unlaid.paddings, strict=True)]
    by_dataset: Counter[str] = Counter()
    for (documents, _), pointers in zip(rows, batch.pointers, strict=True):
        by_dataset.update(_dealt(documents, pointers))
    lengths = [sum(documents) for documents, _ in rows]
    widest = max(lengths, default=0)
    padding = [widest - n if given is None else given for n, (_, given) in zip(lengths, rows, strict=True)]
    every = [length for documents, _ in rows for length in documents]
    return Sizes(len(batch), sum(lengths), sum(padding), by_dataset, every, lengths)


def _documents(payload: Any) -> tuple[list[int], int | None]:
    """Tokens of each document of a row; its padding, or None where that depends on the other rows."""
    if not isinstance(payload, Mapping):
        return [], 0
    if "document_ids" in payload:
        return _counted(payload["document_ids"])
    if "sequences" in payload and "target_length" in payload:
        lengths = [len(one["input_ids"]) for one in payload["sequences"] if "input_ids" in one]
        return lengths, payload["target_length"] - sum(lengths)
    return ([len(payload["input_ids"])], None) if "input_ids" in payload else ([], 0)


def _counted(document_ids: Any) -> tuple[list[int], int]:
    ids = np.asarray(document_ids).reshape(-1)
    counts = np.bincount(ids + 1) if ids.size else np.zeros(1, np.int64)
    return counts[1:].tolist(), int(counts[0])


def _dealt(documents: Sequence[int], pointers: Sequence[Pointer]) -> dict[str, float]:
    """Tokens of a row by dataset: each document's to its own row's, or, where that can't be told, to all evenly."""
    out: dict[str, float] = {}
    even = None if len(documents) == len(pointers) else sum(documents) / max(1, len(pointers))
    for i, at in enumerate(pointers):
        out[at.dataset] = out.get(at.dataset, 0) + (documents[i] if even is None else even)
    return out


def _of_tensors(batch: Mapping[str, Any], origins: Sequence[Pointer]) -> Sizes:
    ids = batch["input_ids"]
    shape = tuple(getattr(ids, "shape", (len(ids),)))
    count = int(np.prod(shape))
    padding = 0
    if "document_ids" in batch:
        padding = int((np.asarray(batch["document_ids"]) < 0).sum())
    elif "padding_mask" in batch:
        padding = int(np.asarray(batch["padding_mask"]).sum())
    samples = shape[0] if len(shape) > 1 else 1
    return Sizes(samples, count - padding, padding, _dealt([count - padding], origins))
