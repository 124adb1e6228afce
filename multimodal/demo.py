"""Image-text documents, drawn here or made of a folder of images, through the whole graph, with the proof and a contact sheet."""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm

from multimodal.contact_sheet import contact_sheet
from multimodal.graphs import interleaved
from multimodal.nodes import CollateImages
from multimodal.scenes import image_file, scene
from multimodal.vision import DynamicResolution, FixedGrid, Vision
from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.verify import verify

LANES, LENGTH, MICROBATCH, DOCUMENTS, STEPS = 4, 1024, 2, 480, 6
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".tif", ".tiff", ".bmp")
VISIONS: dict[str, Vision] = {
    "dynamic": DynamicResolution(max_pixels=120 * 28 * 28),
    "fixed": FixedGrid(size=160, patch=16, fit="pad"),
}

_END, _IMAGE = "<|endoftext|>", "<image>"
_LEAST_DOCUMENTS, _MOST_FILES = 200, 2000


def demo(
    folder: str | None = None, sheet: str = "contact_sheet.png", style: str = "dynamic", seconds: float = 5.0
) -> bool:
    """Prints what the README promises: throughput, padding, the elastic proof, memory. Saves the sheet. Whether all holds.

    ``folder`` (None): images of the user's, by suffix, each with the text of a .txt file of its name, or else its name;
    None draws scenes. ``sheet``: a PNG file to write. ``style``: "dynamic" or "fixed". ``seconds``: how long throughput is
    measured. Raises ``ConfigError`` for a folder without images, or with none that can be used.
    """
    vision = VISIONS[style]
    _check(Path(sheet), seconds)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        make_data(root, folder)
        print(f"\n{pipeline(root, vision).describe()}")
        _save_sheet(root, vision, Path(sheet))
        _measure(root, vision, seconds)
        print(f"\nThe elastic proof, {LANES} lanes:")
        return _prove(root, vision)


def _check(sheet: Path, seconds: float) -> None:
    """What would fail at the end is refused at the beginning."""
    if sheet.suffix.lower() != ".png" or not sheet.parent.is_dir():
        raise ConfigError(f"the contact sheet must be a .png file in a folder that exists, got {str(sheet)!r}")
    if not seconds > 0:
        raise ConfigError(f"seconds must be above 0, got {seconds}")


def pipeline(root: Path, vision: Vision, **options: Any) -> Pipeline:
    """The graph of the demo: ``graphs.interleaved`` over the Parquet files. Bad images are left out and counted."""
    source = StaticMixtureWorkSource(
        [Dataset.from_path("documents", root / "documents")], num_lanes=LANES, chunk_size=16, flush_every=8, seed=42
    )
    settings: dict[str, Any] = {"max_length": LENGTH, "microbatch_size": MICROBATCH, "image_token": _IMAGE}
    return interleaved(source, root / "tokenizer.json", vision, on_error="skip", **settings, **options)


def make_data(root: Path, folder: str | None = None) -> None:
    """Writes Parquet files of documents with ``images`` (bytes) and ``texts``, and a tokenizer trained on the texts."""
    begin = time.perf_counter()
    rows = list(_bar(_drawn() if folder is None else _found(Path(folder)), "data", _count(folder)))
    (root / "documents").mkdir(parents=True)
    for i in range(4):
        table = pa.Table.from_pylist(rows[i::4])
        pq.write_table(table, root / "documents" / f"part-{i}.parquet", row_group_size=32)
    _train_tokenizer([text for row in rows for text in row["texts"] if text]).save(str(root / "tokenizer.json"))
    images, size = sum(len(row["images"]) for row in rows), sum(len(one) for row in rows for one in row["images"])
    made = time.perf_counter() - begin
    print(f"{len(rows)} documents with {images} images, {size / 1e6:.1f} MB, as 4 Parquet files, in {made:.1f} s")


def _drawn() -> Iterator[dict[str, Any]]:
    """Documents of drawn scenes: mostly one and its caption, some of several, some of text alone."""
    number = 0
    for i in range(DOCUMENTS):
        count = (1, 1, 2, 1, 0, 1, 3, 1)[i % 8]
        scenes = {n: scene(n) for n in range(number, number + max(1, count))}
        number += len(scenes)
        captions = [one.caption for one in scenes.values()]
        if count == 0:
            yield {"images": [], "texts": ["Without a picture: " + captions[0]]}
            continue
        names = [""] if count == 1 else [f"Picture {n + 1}: " for n in range(count)]
        texts = [text for name, caption in zip(names, captions, strict=True) for text in (None, name + caption)]
        yield {"images": [image_file(n, one.image) for n, one in scenes.items()], "texts": texts}


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _count(folder: str | None) -> int:
    return DOCUMENTS if folder is None else min(_MOST_FILES, len(_files(Path(folder))))


def _found(folder: Path) -> Iterator[dict[str, Any]]:
    """Documents of a folder's images. A few are repeated, so that there is enough for several ranks."""
    files = _files(folder)
    if not files:
        raise ConfigError(
            f"there are no images in {str(folder)!r}; these suffixes are looked for: {', '.join(SUFFIXES)}"
        )
    if len(files) > _MOST_FILES:
        print(f"{len(files)} images in {folder}, the first {_MOST_FILES} are taken")
    files = files[:_MOST_FILES]
    for path in itertools.islice(itertools.cycle(files), max(len(files), _LEAST_DOCUMENTS)):
        beside = path.with_suffix(".txt")
        text = beside.read_text(encoding="utf-8", errors="replace").strip() if beside.is_file() else ""
        text = text or path.stem.replace("_", " ").replace("-", " ")
        yield {"images": [path.read_bytes()], "texts": [None, text.replace(_IMAGE, " ")]}


def _train_tokenizer(texts: Sequence[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1024, special_tokens=[_END, _IMAGE], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _save_sheet(root: Path, vision: Vision, file: Path) -> None:
    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    graph = pipeline(root, vision)
    last = graph.node
    named = CollateImages(last.source, vision, tokenizer.token_to_id(_IMAGE), extra=["document_ids", "origins"])  # type: ignore[arg-type]
    with Pipeline(named, on_error="skip") as shown:
        step = next(iter(shown), None)
        if step is None:
            raise ConfigError(f"no image can be used, or all texts are too long: {shown.drops}")
    print("\nThe first step:")
    for name, value in step.items():
        if hasattr(value, "dtype"):
            print(f"  {name:15s} {str(value.dtype).removeprefix('torch.'):7s} {tuple(value.shape)}")
    title = f"A step of {len(step['input_ids'])} packed sequences, as a model gets it: {type(vision).__name__}"
    page = contact_sheet(step, vision, partial(tokenizer.decode, skip_special_tokens=False), title)
    page.save(file)
    print(f"\nContact sheet of that step: {file.resolve()} ({page.width} x {page.height})")


def _measure(root: Path, vision: Vision, seconds: float) -> None:
    used = positions = images = steps = 0
    with pipeline(root, vision) as graph:
        iterator = itertools.chain.from_iterable(itertools.repeat(graph))
        for _ in range(2 * LANES):
            next(iterator)
        begin = time.perf_counter()
        with _bar(None, "throughput", None) as bar:
            while (passed := time.perf_counter() - begin) < seconds:
                step = next(iterator)
                used += int((step["document_ids"] >= 0).sum())
                positions += step["input_ids"].numel()
                images += len(step["image_positions"])
                steps += 1
                bar.update()
        state, drops = graph.state_dict(), graph.drops
    size = len(json.dumps({key: value for key, value in state.items() if key != "recipe"}))
    print(
        f"\nThroughput: {images / passed:,.0f} images/s, {used / passed:,.0f} usable tokens/s, {steps / passed:,.0f} steps/s"
    )
    print(f"Padding: {1 - used / positions:.1%} of {positions:,} positions")
    print(f"A checkpoint of {LANES} lanes: {size} bytes, and a recipe of {len(state['recipe']):,} bytes")
    print(f"Peak memory: {_peak_bytes() / 2**20:,.0f} MiB, with Python, torch and the data set just made")
    print(f"Drop report: {drops}")


def _prove(root: Path, vision: Vision) -> bool:
    with _bar(None, "ranks", None) as bar:

        def make() -> Pipeline:
            bar.update()
            return pipeline(root, vision)

        lines: list[str] = []
        holds = verify(make, [1, 2, 4], STEPS, lines.append)
    print("\n".join(lines))
    return holds


def _bar(iterable: Any, what: str, total: int | None) -> Any:
    """A bar that shows that it works, and is silent where nobody watches."""
    return tqdm(iterable, what, total, leave=False, disable=None, file=sys.stderr)


def _peak_bytes() -> int:
    """The most memory that this process has held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
