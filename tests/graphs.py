"""Random graphs, and what they must give, in Python that is too plain to be wrong.

A graph is a source, a list of operators, and perhaps a batch size. ``expected`` walks the source lane by lane and span by
span with lists, and knows nothing of records, engines, marks or states.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from zephon_nodes import Dataset, Emit, Pipeline, StaticMixtureWorkSource


def double(payload):
    return {**payload, "v": payload["v"] * 2}


def noisy(payload, rng):
    return {**payload, "noise": int(rng.integers(1 << 30))}


def keep(payload, n):
    return payload["v"] % n != 0


def nothing(payload):
    return False


def copies(payload, n):
    return [{**payload, "copy": i} for i in range(payload["v"] % n)]


def reverse(payloads):
    return payloads[::-1]


def total(payloads):
    return [{"v": sum(p["v"] for p in payloads), "n": len(payloads)}]


class Pairs:
    """Holds one back and sends two on together, new objects."""

    def __init__(self):
        self.held = None

    def push(self, payload):
        if self.held is None:
            self.held = payload
            return None
        first, self.held = self.held, None
        return [{"v": first["v"] + payload["v"], "pair": True}]

    def flush(self):
        if self.held is not None:
            yield Emit({"v": self.held["v"], "pair": False}, (self.held,))


class Dedup:
    """Leaves out values that the span has had."""

    def __init__(self):
        self.seen = set()

    def push(self, payload):
        if payload["v"] % 16 not in self.seen:
            self.seen.add(payload["v"] % 16)
            yield payload


class Delay:
    """Holds back the last n and sends the objects themselves on."""

    def __init__(self, n):
        self.n, self.held = n, []

    def push(self, payload):
        self.held.append(payload)
        return [self.held.pop(0)] if len(self.held) > self.n else []

    def flush(self):
        return self.held


@dataclass(frozen=True)
class Op:
    """``name`` and ``value`` name an operator for a pipeline and for the reference alike."""

    name: str
    value: int = 0

    def add(self, pipeline: Pipeline, parallelism: int | None) -> Pipeline:
        n, p = self.value, {"parallelism": parallelism}
        make = {
            "double": lambda: pipeline.map(double, **p),
            "noisy": lambda: pipeline.map(noisy, **p),
            "keep": lambda: pipeline.filter(functools.partial(keep, n=n), **p),
            "nothing": lambda: pipeline.filter(nothing, **p),
            "copies": lambda: pipeline.flat_map(functools.partial(copies, n=n), **p),
            "reverse": lambda: pipeline.map_group(reverse, n, **p),
            "total": lambda: pipeline.map_group(total, n, **p),
            "pairs": lambda: pipeline.stateful_transform(Pairs),
            "dedup": lambda: pipeline.stateful_transform(Dedup),
            "delay": lambda: pipeline.stateful_transform(functools.partial(Delay, n)),
            "shuffle": lambda: pipeline.shuffle(n),
        }
        return make[self.name]()

    def run(self, span: list[Any]) -> list[Any]:
        """One span of one lane; None if plain Python can't tell."""
        n = self.value
        if self.name == "double":
            return [double(p) for p in span]
        if self.name == "keep":
            return [p for p in span if keep(p, n)]
        if self.name == "nothing":
            return []
        if self.name == "copies":
            return [c for p in span for c in copies(p, n)]
        if self.name in ("reverse", "total"):
            function = reverse if self.name == "reverse" else total
            return [out for i in range(0, len(span), n) for out in function(span[i : i + n])]
        if self.name == "pairs":
            whole = len(span) // 2 * 2
            out = [{"v": span[i]["v"] + span[i + 1]["v"], "pair": True} for i in range(0, whole, 2)]
            return out + [{"v": p["v"], "pair": False} for p in span[whole:]]
        if self.name == "dedup":
            first = {}
            for p in span:
                first.setdefault(p["v"] % 16, p)
            return list(first.values())
        if self.name == "delay":
            return span
        raise NotImplementedError(self.name)


PREDICTABLE = ("double", "keep", "nothing", "copies", "reverse", "total", "pairs", "dedup", "delay")
FEW = st.sampled_from([2, 3, 5])


@st.composite
def ops(draw, names=(*PREDICTABLE, "noisy", "shuffle"), most=4):
    chosen = draw(st.lists(st.sampled_from([n for n in names if n != "nothing"]), max_size=most))
    if "nothing" in names and draw(st.integers(0, 19)) == 0:
        chosen.append("nothing")
    return [Op(name, draw(FEW)) for name in chosen]


@dataclass(frozen=True)
class Graph:
    """``rows``: of each dataset. ``threads``: parallelism of each operator, None for the default."""

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    lanes: int
    chunk_size: int
    flush_every: int
    shuffle: str
    stop: str
    ops: tuple[Op, ...]
    threads: tuple[int | None, ...]
    batch: int | None
    seed: int = 0

    def source(self, **changed: Any) -> StaticMixtureWorkSource:
        datasets = [Dataset.from_rows(f"d{k}", _rows(k, n)) for k, n in enumerate(self.rows)]
        settings = {
            "mixture": {f"d{k}": w for k, w in enumerate(self.weights)},
            "num_lanes": self.lanes,
            "chunk_size": self.chunk_size,
            "flush_every": self.flush_every,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "stop": self.stop,
            **changed,
        }
        return StaticMixtureWorkSource(datasets, **settings)

    def pipeline(self, **options: Any) -> Pipeline:
        pipeline = Pipeline(self.source(), **options)
        for op, threads in zip(self.ops, self.threads, strict=True):
            pipeline = op.add(pipeline, threads)
        return pipeline if self.batch is None else pipeline.batch(self.batch)

    def lanes_expected(self) -> list[list[Any]]:
        """The outputs of each lane, batches as lists."""
        source = self.source()
        out = []
        for lane in range(self.lanes):
            records = [record for span in _spans(source, lane) for record in self._through(span)]
            if self.batch is not None:
                records = [records[i : i + self.batch] for i in range(0, len(records), self.batch)]
            out.append(records)
        return out

    def expected(self) -> list[Any]:
        """The outputs of one rank with all lanes: round by round, lane by lane."""
        rounds = itertools.zip_longest(*self.lanes_expected(), fillvalue=_NOTHING)
        return [output for round_ in rounds for output in round_ if output is not _NOTHING]

    def _through(self, span: list[Any]) -> list[Any]:
        for op in self.ops:
            span = op.run(span)
        return span


_NOTHING = object()


def _rows(k: int, n: int) -> list[dict[str, Any]]:
    return [{"d": k, "v": k * 1000 + i} for i in range(n)]


def _spans(source, lane):
    """The rows of a lane, a list for each span."""
    span = []
    for index in itertools.count():
        chunk = source.chunk(lane, index)
        if chunk is None:
            yield span
            return
        if index and index % source.flush_every == 0:
            yield span
            span = []
        starts = {d.name: d.shard_starts for d in source.datasets}
        span += [source.dataset(p.dataset)[int(starts[p.dataset][p.shard]) + p.row] for p in chunk]


@st.composite
def graphs(draw, names=(*PREDICTABLE, "noisy", "shuffle"), most=4, batched=st.sampled_from([None, 1, 3])):
    rows = tuple(draw(st.lists(st.sampled_from([1, 2, 7, 40, 150]), min_size=1, max_size=3)))
    chosen = tuple(draw(ops(names, most)))
    return Graph(
        rows=rows,
        weights=tuple(draw(st.sampled_from([1.0, 0.5, 0.1])) for _ in rows),
        lanes=draw(st.sampled_from([1, 2, 4, 6])),
        chunk_size=draw(st.sampled_from([1, 5, 16, 100])),
        flush_every=draw(st.sampled_from([1, 2, 5])),
        shuffle=draw(st.sampled_from(["windows", "global", "none"])),
        stop=draw(st.sampled_from(["last", "first", "redistribute"])),
        ops=chosen,
        threads=tuple(draw(st.sampled_from([None, None, 1, 2])) for _ in chosen),
        batch=draw(batched),
        seed=draw(st.integers(0, 3)),
    )


def plain(output: Any) -> Any:
    """An output as the reference writes it."""
    payloads = getattr(output, "payloads", None)
    return output if payloads is None else list(payloads)


def tokens(rng_seed: int, count: int, longest: int) -> list[dict[str, Any]]:
    """Rows of token ids, no two alike, of lengths from 0 to ``longest``."""
    rng = np.random.default_rng(rng_seed)
    out, at = [], 1
    for _ in range(count):
        n = int(rng.integers(0, longest + 1))
        out.append({"input_ids": np.arange(at, at + n, dtype=np.int32)})
        at += n
    return out
