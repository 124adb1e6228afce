"""Datasets in files, random graphs on them, and sources of kinds of their own, for the tests of recipe files."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from graphs import Dedup, Delay, copies, double, keep, noisy, reverse
from hypothesis import strategies as st
from tokenizers_for_tests import TEXTS, save_folder, train_tokenizer

from zephon_nodes import Concat, Dataset, Map, Mix, Phases, Pipeline, StaticMixtureWorkSource, TokenEstimation

NAMES = ("code", "news", "wiki")


def write_files(folder: Path) -> Path:
    """Three datasets of 60 to 90 rows {"text", "v"}, and a tokenizer."""
    for k, name in enumerate(NAMES):
        rows = [{"text": f"{TEXTS[(i + k) % len(TEXTS)]} {i} ", "v": 1000 * k + i} for i in range(60 + 15 * k)]
        if name == "wiki":
            pq.write_table(pa.Table.from_pylist(rows), folder / "wiki.parquet", row_group_size=20)
        else:
            (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    save_folder(folder, train_tokenizer())
    return folder


def datasets(folder: Path, names=NAMES) -> list[Dataset]:
    path = {"wiki": "wiki.parquet"}
    return [Dataset.from_path(name, folder / path.get(name, f"{name}.jsonl")) for name in names]


class Backwards(StaticMixtureWorkSource):
    """A user's own source."""

    def __init__(self, datasets, seed=0):
        super().__init__(datasets, seed=seed, shuffle="none")


def own_pipeline() -> Pipeline:
    """What a recipe in Python is: a function without arguments."""
    return Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", [{"input_ids": [1, 2, 3]}] * 40)], num_lanes=4))


weights = st.sampled_from([1, 0.1, "1/3", 2.5])


@st.composite
def mixtures(draw, names):
    kind = draw(st.sampled_from(["rows", "weights", "nested", "phases", "ramp"]))
    flat = {name: draw(weights) for name in names}
    if kind == "rows":
        return None
    if kind == "nested" and len(names) > 1:
        return {"all": (0.5, {name: flat[name] for name in names[1:]}), names[0]: 3}
    if kind in ("phases", "ramp"):
        later = {name: draw(weights) for name in names}
        return Phases([(0, flat), (draw(st.integers(1, 9)), later)], ramp="step" if kind == "phases" else "linear")
    return flat


@st.composite
def static_sources(draw, folder, lanes=None):
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    source = StaticMixtureWorkSource(
        datasets(folder, names),
        draw(mixtures(names)),
        lanes or draw(st.sampled_from([1, 2, 4])),
        draw(st.sampled_from([5, 256])),
        4 if lanes else draw(st.sampled_from([2, 32])),
        draw(st.integers(0, 3)),
        shuffle=draw(st.sampled_from(["windows", "global", "none"])),
        passes=1 if lanes else draw(st.sampled_from([None, 1, 3])),
        stop=draw(st.sampled_from(["last", "first", "redistribute"])),
        window_bytes=draw(st.sampled_from([32 << 30, 200_000])),
        token_estimation=draw(st.sampled_from([None, TokenEstimation(dict.fromkeys(names, 2.1), tolerance=0.1)])),
    )
    if not lanes and draw(st.booleans()):
        rest = [name for name in NAMES if name not in names][:1]
        if not (rest and source.token_estimation):
            at = 3 if source.endless else 0  # what has an end may have it before
            source = source.amended(at, dict.fromkeys([*names[:1], *rest], 1), datasets(folder, rest), epoch=1)
    return source


@st.composite
def sources(draw, folder):
    kind = draw(st.sampled_from(["static", "static", "static", "concat", "mix"]))
    if kind == "static":
        return draw(static_sources(folder))
    shared = {dataset.name: dataset for dataset in datasets(folder)}
    parts = [
        StaticMixtureWorkSource([shared[name]], None, 2, flush_every=4, seed=draw(st.integers(0, 3)))
        for name in draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=3, unique=True))
    ]
    return Concat(parts) if kind == "concat" else Mix([(part, draw(weights)) for part in parts])


OPS = {
    "double": lambda p: p.map(double),
    "noisy": lambda p: p.map(noisy, seed=5, version="b"),
    "keep": lambda p: p.filter(functools.partial(keep, n=3), on_error="skip"),
    "copies": lambda p: p.flat_map(functools.partial(copies, n=3), parallelism=1),
    "reverse": lambda p: p.map_group(reverse, 4),
    "dedup": lambda p: p.stateful_transform(Dedup),
    "delay": lambda p: p.stateful_transform(functools.partial(Delay, 2)),
    "shuffle": lambda p: p.shuffle(16, 3, name=None),
    "switch": lambda p: p.switch({}.fromkeys(["nobody"], lambda n: Map(n, double)), by=str, default=lambda n: n),
}


@st.composite
def pipelines(draw, folder):
    """Random sources, operators, and, perhaps, tokens in packs in batches."""
    options = draw(st.sampled_from([{}, {"on_error": "skip"}, {"runner": "inline", "prefetch": 2}]))
    pipeline = Pipeline(draw(sources(folder)), **options)
    for name in draw(st.lists(st.sampled_from(sorted(OPS)), max_size=4)):
        pipeline = OPS[name](pipeline)
    if draw(st.booleans()):
        pipeline = pipeline.tokenize(folder / "tokenizer.json", bos=draw(st.sampled_from([None, "auto", "<s>"])))
        if draw(st.booleans()):
            pipeline = pipeline.pack_flat(draw(st.sampled_from([16, 64])), draw(st.sampled_from(["wrap", "best_fit"])))
        else:
            pipeline = pipeline.pack_sequences(200, length_fn=len)
    return pipeline.batch(draw(st.integers(1, 3))) if draw(st.booleans()) else pipeline
