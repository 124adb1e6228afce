"""The main job on text that every Python has: source code and documentation, mixed, tokenized, packed, batched in lanes."""

from __future__ import annotations

import ast
import itertools
import json
import os
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from zephon_nodes.dataset import Dataset
from zephon_nodes.pipeline import Pipeline
from zephon_nodes.progress import bar
from zephon_nodes.verify import verify
from zephon_nodes.work.static_mixture import StaticMixtureWorkSource

LANES, LENGTH, MICROBATCH = 4, 512, 4
_SOURCES, _LARGEST = 900, 60_000
_LEFT_OUT = ("site-packages", "__pycache__", "encodings", "test", "tests", "idle_test")


def demo(folder: str | None = None, seconds: float = 5.0) -> bool:
    """Prints what the README promises: the graph, a decoded batch, throughput, the elastic proof. Whether that holds."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(folder or temporary)
        make_data(root)
        _show(root)
        _measure(root, seconds)
        print(f"\nThe elastic proof, {LANES} lanes:")
        return verify(lambda: pipeline(root), [1, 2, 4], 12)


def pipeline(root: Path) -> Pipeline:
    """The main job: a mixture of Parquet and JSONL text, tokenized, packed, shuffled, batched."""
    source = StaticMixtureWorkSource(
        [
            Dataset.from_path("code", root / "code"),
            Dataset.from_path("prose", root / "prose", index_dir=root / "index"),
        ],
        mixture={"code": 0.7, "prose": 0.3},
        num_lanes=LANES,
        chunk_size=64,
        flush_every=8,
        seed=42,
    )
    return (
        Pipeline(source)
        .tokenize(root / "tokenizer.json", eos="<|endoftext|>")
        .pack_flat(max_length=LENGTH, algorithm="best_fit_wrap")
        .shuffle(buffer_size=64, seed=42)
        .batch(microbatch_size=MICROBATCH)
    )


def make_data(root: Path) -> None:
    """Writes code as Parquet, prose as JSONL, and a tokenizer trained on them."""
    begin = time.perf_counter()
    code, prose = [], []
    with bar("making data", _SOURCES, "files") as advance:
        for text in itertools.islice(_sources(), _SOURCES):
            code.append(text)
            prose += _docstrings(text)
            advance(1)
    (root / "code").mkdir(parents=True, exist_ok=True)
    (root / "prose").mkdir(exist_ok=True)
    for i in range(4):
        pq.write_table(pa.table({"text": code[i::4]}), root / "code" / f"part-{i}.parquet", row_group_size=64)
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in prose[i::4])
        (root / "prose" / f"part-{i}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=4096, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(code[:150] + prose[:1000], trainer)
    tokenizer.save(str(root / "tokenizer.json"))
    made = time.perf_counter() - begin
    print(
        f"{len(code)} source files as Parquet, {len(prose)} docstrings as JSONL, a tokenizer, in {made:.1f} s: {root}"
    )


def _sources() -> Iterator[str]:
    """Python's own library, file by file, in an order of its own."""
    for folder, folders, files in os.walk(sysconfig.get_paths()["stdlib"]):
        folders[:] = sorted(name for name in folders if name not in _LEFT_OUT)
        for name in sorted(files):
            path = Path(folder) / name
            if name.endswith(".py") and 200 < path.stat().st_size < _LARGEST:
                text = path.read_bytes().decode("utf-8", "ignore")
                yield text


def _docstrings(text: str) -> list[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError):  # the library's tests hold files that are wrong on purpose
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [docstring for docstring in found if docstring and len(docstring) > 80]


def _show(root: Path) -> None:
    graph = pipeline(root)
    print(f"\n{graph.describe()}")
    decode = Tokenizer.from_file(str(root / "tokenizer.json")).decode
    with graph:
        batch = next(iter(graph))
    step = batch.to_training(extra=["num_valid_tokens", "document_ids"])
    print(f"\nThe first batch: {batch}")
    for name in ("input_ids", "labels", "position_ids"):
        print(f"  {name:13s} {tuple(step[name].shape)} {step[name].dtype}")
    for row, origins in list(enumerate(batch.origins))[::2]:
        print(f"  row {row}: {len(origins)} documents, the last from row {origins[-1].row} of {origins[-1].file}:")
        text = decode(step["input_ids"][row][step["document_ids"][row] == len(origins) - 1].tolist())
        print("    " + text[:240].strip().replace("\n", "\n    "))


def _measure(root: Path, seconds: float) -> None:
    tokens = batches = 0
    with pipeline(root) as graph:
        iterator = itertools.chain.from_iterable(itertools.repeat(graph))
        next(iterator)
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            step = next(iterator).to_training(extra=["num_valid_tokens"])
            tokens += step["num_valid_tokens"]
            batches += 1
        passed = time.perf_counter() - begin
        state = graph.state_dict()
    size = len(json.dumps({key: value for key, value in state.items() if key != "recipe"}))
    print(f"\nThroughput: {tokens / passed:,.0f} trained tokens/s, {batches / passed:,.0f} batches/s")
    print(f"A checkpoint of {LANES} lanes: {size} bytes, and a recipe of {len(state['recipe']):,} bytes")
