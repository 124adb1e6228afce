"""Which image-text samples share a sequence, under a budget of tokens and one of images at once.

Samples are never cut, so images stay with their placeholders. ``ImagePacker`` knows sizes only; ``PackImages`` is the
node on top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from multimodal.placeholders import images_of
from multimodal.vision import Vision
from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.errors import ConfigError, RowError
from zephon_nodes.node import Node, OnError, Runner, Setup
from zephon_nodes.pack_node import Homogeneity, PackNode, packed_record
from zephon_nodes.packing import Part
from zephon_nodes.stream import Drop, Record

Algorithm: TypeAlias = Literal["first_fit", "best_fit"]

ALGORITHMS = ("first_fit", "best_fit")
OVERLONG = ("drop", "raise")

Doc = TypeVar("Doc")


class Sizes(NamedTuple):
    """What a sample takes, or what a sequence may take."""

    tokens: int
    images: int = 0
    patches: int = 0


class _Bin(Generic[Doc]):
    """``tokens``, ``images``, ``patches``: room left. ``room``: the smallest share that is left of a budget."""

    __slots__ = ("docs", "images", "patches", "room", "tokens")

    def __init__(self, budget: Sizes) -> None:
        self.tokens, self.images, self.patches = budget
        self.room, self.docs = 1.0, list[Doc]()


class ImagePacker(Generic[Doc]):
    """Puts whole samples into a few open bins, each with room for ``budget``.

    ``num_bins``: how many may be open. ``best`` False: the oldest bin with room in every budget takes a sample; if there
    is none and all are open, the oldest leaves. True: the fullest bin with room takes it, and the fullest leaves; ties go
    to the oldest. A bin is as full as the budget of which it has used the largest share. A bin without room for a token
    leaves at once. With a budget of tokens alone this packs as ``FirstFit`` and ``BestFit`` of ``zephon_nodes`` do.
    """

    def __init__(self, budget: Sizes, num_bins: int, best: bool) -> None:
        self._budget, self._num_bins, self._best = budget, num_bins, best
        self._bins: list[_Bin[Doc]] = []

    def add(self, doc: Doc, sizes: Sizes) -> list[list[Doc]]:
        """Takes a sample that is within the budget. Returns the sequences that are complete now, often none."""
        if sizes.tokens == self._budget.tokens:
            return [[doc]]
        done = []
        tokens, images, patches = sizes
        room = [one for one in self._bins if one.tokens >= tokens and one.images >= images and one.patches >= patches]
        if room:
            chosen = self._choose(room)
        else:
            if len(self._bins) == self._num_bins:
                done.append(self._leave(self._choose(self._bins)))
            chosen = _Bin(self._budget)
            self._bins.append(chosen)
        self._place(chosen, doc, sizes)
        if not chosen.tokens:
            done.append(self._leave(chosen))
        return done

    def flush(self) -> list[list[Doc]]:
        """Returns all that is held, as sequences, oldest bin first, and starts clean."""
        bins, self._bins = self._bins, []
        return [found.docs for found in bins]

    def _choose(self, bins: list[_Bin[Doc]]) -> _Bin[Doc]:
        return min(bins, key=_room) if self._best else bins[0]

    def _place(self, found: _Bin[Doc], doc: Doc, sizes: Sizes) -> None:
        found.docs.append(doc)
        found.tokens -= sizes.tokens
        found.images -= sizes.images
        found.patches -= sizes.patches
        tokens, images, patches = self._budget
        found.room = min(found.tokens / tokens, found.images / images, found.patches / patches)

    def _leave(self, found: _Bin[Doc]) -> list[Doc]:
        self._bins.remove(found)
        return found.docs


def _room(found: _Bin[Any]) -> float:
    return found.room


class PackImages(PackNode):
    """Groups whole image-text samples so that each group is within ``max_length`` tokens, ``max_images`` images and
    ``max_patches`` patches. Nothing is cut: images stay with their placeholders.

    Samples have ``input_ids`` with placeholders expanded, and ``images``: a list of arrays (H, W, 3); none, null and
    missing are the same. Gives {"sequences": [sample, ...], "target_length": max_length}, as ``PackSequences`` does.

    ``max_images`` (None: any number) bounds ``pixel_values`` of images of one size. ``max_patches`` (None) bounds the
    work of the vision encoder where sizes differ; it needs ``vision``, whose ``grid`` tells the patches of an image.
    ``algorithm`` ("first_fit"): or "best_fit", which pads a little less where one budget runs out before the other; see
    ``ImagePacker``. ``num_bins`` (16): sequences that may be open in a lane; more mean less padding, and more images held.
    ``overlong`` ("drop"): samples over a budget by themselves are left out, counted, with the budgets that they pass;
    "raise" makes them errors. ``homogeneity``: as in ``PackFlat``.

    Raises ``ConfigError`` for settings that don't fit, and ``RowError`` for samples that aren't as said above.

    >>> from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
    >>> rows = Dataset.from_rows("demo", [{"input_ids": [1] * n, "images": []} for n in (5, 4, 3)])
    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none"), runner="inline").then(PackImages, 8)
    >>> [[len(sample["input_ids"]) for sample in row["sequences"]] for row in graph]
    [[5, 3], [4]]
    """

    kind = "pack_images"

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        max_length: int,
        *,
        max_images: int | None = None,
        max_patches: int | None = None,
        vision: Vision | None = None,
        algorithm: Algorithm = "first_fit",
        num_bins: int = 16,
        overlong: Literal["drop", "raise"] = "drop",
        homogeneity: Homogeneity = "none",
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        _check("algorithm", algorithm, ALGORITHMS)
        _check("overlong", overlong, OVERLONG)
        super().__init__(
            source,
            max_length,
            algorithm,
            num_bins=num_bins,
            max_documents=None,
            overlong=overlong,
            homogeneity=homogeneity,
            name=name,
            parallelism=parallelism,
            runner=runner,
            on_error=on_error,
        )
        if max_patches is not None and vision is None:
            raise ConfigError(
                f"pack_images: max_patches={max_patches} needs vision=..., which tells the patches of an image"
            )
        self.max_images, self.max_patches, self.vision = max_images, max_patches, vision
        self.best = algorithm == "best_fit"
        self.budget = Sizes(max_length, _limit("max_images", max_images), _limit("max_patches", max_patches))

    def settings(self) -> dict[str, Any]:
        vision = self.vision.recipe() if self.vision is not None else None
        own = {"max_images": self.max_images, "max_patches": self.max_patches, "vision": vision}
        return {name: value for name, value in super().settings().items() if name != "max_documents"} | own

    def sizes(self, payload: Any) -> Sizes:
        """What a sample takes; patches are 0 without ``max_patches``. Raises ``ValueError`` for one that can't be packed."""
        tokens = self.length(payload)
        images = images_of(payload)
        if self.max_patches is None or self.vision is None:
            return Sizes(tokens, len(images))
        return Sizes(tokens, len(images), sum(prod(self.vision.grid(*image.shape[:2])) for image in images))

    def accumulator(self, place: Place) -> Accumulator:
        return _Packing(self, place.node)

    def blank_record(self) -> Any:
        return {"sequences": [], "target_length": self.max_length}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def packed(parts: list[Part]) -> list[Record]:
            payload = {"sequences": [part.doc.payload for part in parts], "target_length": self.max_length}
            return [packed_record(payload, parts)]

        return packed


class _Packing(Accumulator):
    """A packer for each group of components. Calls are lists of parts, a sequence each."""

    def __init__(self, node: PackImages, name: str) -> None:
        self._node, self._name = node, name
        self._packers: dict[str, ImagePacker[Part]] = {}

    def push(self, record: Record) -> Iterable[Any]:
        node = self._node
        sizes = node.sizes(record.payload)
        reason = over_budget(sizes, node.budget)
        if reason is not None:
            return [self._left_out(record, reason)]
        group = node.group_of(record)
        found = self._packers.get(group)
        if found is None:
            found = self._packers[group] = ImagePacker(node.budget, node.num_bins, node.best)
        return found.add(Part(record, 0, sizes.tokens, sizes.tokens), sizes)

    def flush(self) -> Iterable[list[Part]]:
        return [parts for found in self._packers.values() for parts in found.flush()]

    def _left_out(self, record: Record, reason: str) -> Drop:
        if self._node.overlong == "drop":
            return Drop(self._name, reason, record.origins)
        raise RowError(
            f'a sample is {reason}, and overlong="raise" forbids to leave it out: use larger budgets or smaller images, '
            'or overlong="drop"'
        )


def over_budget(sizes: Sizes, budget: Sizes) -> str | None:
    """Which budgets a sample passes, and what it takes of them; None if it is within all."""
    names = ("max_length", "max_images", "max_patches")
    passed = [i for i in range(3) if sizes[i] > budget[i]]
    if not passed:
        return None
    limits = " and ".join(f"{names[i]}={budget[i]}" for i in passed)
    return f"over {limits}: " + ", ".join(f"{sizes[i]} {Sizes._fields[i]}" for i in passed)


def _check(setting: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(
            f"pack_images: {setting}={value!r} doesn't keep samples whole; use one of {', '.join(map(repr, choices))}"
        )


def _limit(setting: str, value: int | None) -> int:
    if value is None:
        return sys.maxsize
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"pack_images: {setting}={value!r}, but an int of at least 1 is needed, or None for no limit")
    return value
