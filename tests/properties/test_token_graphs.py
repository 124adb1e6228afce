"""The promises again, on graphs of tokens: mixtures that change, reordering, packing, token budgets, chained at random."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from unittest import mock

import numpy as np
from graphs import tokens
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes import Concat, Dataset, Filter, Map, Mix, Phases, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.concurrency import wheel
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

TOKENS_A_ROW = {"a": 9, "b": 4, "c": 2}


def longer(payload):
    return len(payload["input_ids"]) > 3


def same(node):
    return node


def short_ones_out(node):
    return Filter(node, longer)


def marked(node):
    return Map(node, mark)


def mark(payload):
    return {**payload, "loss_mask": np.arange(len(payload["input_ids"])) % 3 > 0}


def to_training(batch):
    return batch.to_training(["document_ids"], backend="numpy")


STEPS = {
    "switch": lambda p: p.switch({"a": marked, "b": same}, default=marked),
    "ensure": lambda p: p.ensure_mixture(6),
    "by_length": lambda p: p.group_by_length(16, 4),
    "middle": lambda p: p.fill_in_the_middle(9_000_001, 9_000_002, 9_000_003),
    "shuffle": lambda p: p.shuffle(5),
}
LOSING = {"filter": lambda p: p.filter(longer), "strict": lambda p: p.ensure_mixture(6, strict=True)}
PACKS = {
    "wrap": lambda p: p.pack_flat(16),
    "best_fit": lambda p: p.pack_flat(16, "best_fit", num_bins=3, homogeneity="component"),
    "best_fit_wrap": lambda p: p.pack_flat(16, "best_fit_wrap", num_bins=2, max_documents=3),
    "apart": lambda p: p.pack_sequences(16, num_bins=3),
    "none": lambda p: p,
}
ENDS = {
    "size": lambda p: p.batch(3),
    "tokens": lambda p: p.batch(max_tokens=40),
    "both": lambda p: p.batch(2, max_tokens=40),
    "mapped": lambda p: p.batch(2).map_batch(to_training),
}
SOURCES = ("static", "tokens", "phases", "ramp", "amended", "concat", "mix")


@dataclass(frozen=True)
class TokenGraph:
    source: str
    steps: tuple[str, ...]
    pack: str
    after: tuple[str, ...]
    end: str
    lanes: int
    flush_every: int
    seed: int

    def datasets(self):
        return [Dataset.from_rows(name, tokens(k, 60, 2 * n)) for k, (name, n) in enumerate(TOKENS_A_ROW.items())]

    def work(self):
        a, b, c = self.datasets()
        common = {"num_lanes": self.lanes, "chunk_size": 8, "flush_every": self.flush_every, "seed": self.seed}
        half = {"a": 0.5, "b": 0.5}
        if self.source == "concat":
            return Concat([StaticMixtureWorkSource([a, b], half, **common), StaticMixtureWorkSource([c], **common)])
        if self.source == "mix":
            return Mix(
                [(StaticMixtureWorkSource([a, b], half, **common), 2), (StaticMixtureWorkSource([c], **common), 1)]
            )
        if self.source in ("phases", "ramp"):
            phases = [(0, {"a": 1}), (3, half), (7, {"a": 1, "b": 1, "c": 4})]
            return StaticMixtureWorkSource(
                [a, b, c], Phases(phases, ramp="linear" if self.source == "ramp" else "step"), **common
            )
        if self.source == "amended":
            return StaticMixtureWorkSource([a, b], half, **common).amended(1, {"a": 0.2, "b": 0.3, "c": 0.5}, [c])
        estimation = TokenEstimation(TOKENS_A_ROW) if self.source == "tokens" else None
        return StaticMixtureWorkSource([a, b, c], {"a": 1, "b": 2, "c": 1}, token_estimation=estimation, **common)

    def pipeline(self):
        pipeline = Pipeline(self.work())
        mixes = self.source not in ("concat", "mix")
        for name in (*self.steps, self.pack, *self.after, self.end):
            if mixes or name not in ("ensure", "strict"):
                pipeline = {**STEPS, **LOSING, **PACKS, **ENDS}[name](pipeline)
        return pipeline


@st.composite
def token_graphs(draw, steps=(*STEPS, *LOSING), ends=tuple(ENDS)):
    return TokenGraph(
        source=draw(st.sampled_from(SOURCES)),
        steps=tuple(draw(st.lists(st.sampled_from(steps), max_size=3))),
        pack=draw(st.sampled_from(list(PACKS))),
        after=tuple(
            draw(st.lists(st.sampled_from([s for s in steps if s in ("ensure", "strict", "shuffle")]), max_size=2))
        ),
        end=draw(st.sampled_from(ends)),
        lanes=draw(st.sampled_from([1, 2, 4])),
        flush_every=draw(st.sampled_from([1, 3])),
        seed=draw(st.integers(0, 5)),
    )


@given(token_graphs())
def test_knobs_never_change_data(graph):
    assert_any_schedule(graph.pipeline, schedules=1)


@given(token_graphs())
def test_a_trainer_that_runs_the_engine_itself_gets_the_same(graph):
    with mock.patch.object(wheel, "_SHORT_SECONDS", 1e9):
        assert_any_schedule(graph.pipeline, schedules=0)


@given(token_graphs())
def test_stop_anywhere_and_resume(graph):
    assert_resumes_everywhere(graph.pipeline, steps=10)


@given(token_graphs())
def test_any_world_gives_the_same_global_batches(graph):
    assert_any_world(graph.pipeline, [world for world in (1, 2, 4) if graph.lanes % world == 0])


@given(token_graphs(steps=("ensure", "by_length", "shuffle"), ends=("size", "tokens", "both")))
def test_every_token_of_every_row_arrives_once(graph):
    want = Counter()
    source = graph.work()
    by_name = {dataset.name: dataset for dataset in source.datasets}
    for lane in range(graph.lanes):
        index = 0
        while (chunk := source.chunk(lane, index)) is not None:
            for at in chunk:
                want.update(by_name[at.dataset][at.row]["input_ids"].tolist())
            index += 1
    got = Counter()
    for batch in graph.pipeline().options(runner="inline"):
        arrays = batch.to_training(["document_ids"], backend="numpy")
        got.update(arrays["input_ids"][arrays["document_ids"] >= 0].tolist())
    assert got == want
