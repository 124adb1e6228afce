"""Nodes for image-text graphs: thin glue over the pure functions of ``vision``, ``image``, ``placeholders`` and ``collate``.

    LoadImages     files to resized images in one go, the fast way
    DecodeImages   files to full images, for transforms of your own, and
    ResizeImages   those to what the model takes
    ExpandImages   one placeholder id for each image to as many as it has positions
    CollateImages  batches to the tensors of a training step

``PackImages`` is in ``packing``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from multimodal.augment import checked
from multimodal.collate import Rope, check_settings, collate
from multimodal.files import image_files
from multimodal.image import MAX_PIXELS, ImageError, decode
from multimodal.pixels import Pixels
from multimodal.placeholders import expand_images, images_of
from multimodal.transform import Colour
from multimodal.vision import Vision, check_vision, load
from zephon_nodes.errors import ConfigError
from zephon_nodes.function_node import generator, wants_rng
from zephon_nodes.hashing import key
from zephon_nodes.node import Node, OnError, Runner, Setup, each_record
from zephon_nodes.recipe import describe_function
from zephon_nodes.stream import Record
from zephon_nodes.work.base import check_at_least, check_seed

WHITE: Colour = (255, 255, 255)

T = TypeVar("T")


class _ImageFiles(Node):
    """What the two nodes that read image files have in common."""

    takes = ("rows",)

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        field: str = "image",
        *,
        root: str | os.PathLike[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        background: Colour = WHITE,
        max_pixels: int = MAX_PIXELS,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        if not isinstance(field, str) or not field:
            raise ConfigError(f"{self.kind}: field must be the name of a field, got {field!r}")
        if len(background) != 3 or not all(isinstance(one, int) and 0 <= one <= 255 for one in background):
            raise ConfigError(f"{self.kind}: background must be three ints of 0 to 255, got {background!r}")
        check_at_least("max_pixels", max_pixels, 1)
        red, green, blue = background
        self.field, self.root, self.storage_options = field, root, storage_options
        self.background, self.max_pixels = (red, green, blue), max_pixels

    def settings(self) -> dict[str, Any]:
        return {"field": self.field, "background": list(self.background), "max_pixels": self.max_pixels}

    def blank_record(self) -> Any:
        return {**super().blank_record(), "images": []}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def loaded(record: Record) -> list[Record]:
            files = image_files(record.payload, self.field, self.root, self.storage_options)
            payload = {name: value for name, value in record.payload.items() if name != self.field}
            new = [image for index, data in enumerate(files) for image in _named(index, self._images, data)]
            return [record.replaced({**payload, "images": [*images_of(payload), *new]})]

        return each_record(setup, loaded)

    def _images(self, data: bytes) -> list[Any]:
        raise NotImplementedError


class LoadImages(_ImageFiles):
    """Decodes image files and resizes them by ``vision``. The field goes, ``images`` comes: a list of uint8 arrays
    (H, W, 3), as ``vision`` makes them, behind those that another ``LoadImages`` has put there.

    ``field`` ("image"): bytes, a path or URL, a dict with ``bytes`` or ``path`` as Hugging Face's image columns have, null
    for no image, or a list of those. ``root`` (None): folder or URL that relative paths begin from. ``storage_options``:
    of fsspec, for URLs.
    ``scaled`` (True): JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where they are to be made smaller than that
    anyway: up to twice as fast, pixels within a few levels of 255 (``image.decode_scaled``). False: every pixel is decoded.
    ``background`` (white): what transparency is laid on. ``max_pixels`` (178,956,970): larger images are refused by their
    header. See ``image.decode`` for the rules of colour and orientation.

    An image that is missing, empty, truncated, too large or no image is a bad record: ``RowError`` naming file, row and
    cause, or a counted drop under on_error="skip". A store that fails is a ``ReadError``, and never skipped.

    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(LoadImages, FixedGrid(size=32))
    >>> next(iter(graph))["images"][0].shape
    (32, 32, 3)
    """

    kind = "load_images"

    def __init__(
        self, source: Node, vision: Vision, field: str = "image", *, scaled: bool = True, **settings: Any
    ) -> None:
        super().__init__(source, field, **settings)
        check_vision(self.kind, vision)
        self.vision, self.scaled = vision, bool(scaled)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "scaled": self.scaled, "vision": self.vision.recipe()}

    def _images(self, data: bytes) -> list[Any]:
        how: dict[str, Any] = {"scaled": self.scaled, "background": self.background, "max_pixels": self.max_pixels}
        return [load(data, self.vision, **how)]


class DecodeImages(_ImageFiles):
    """Decodes image files at their full size: ``images`` comes, a list of uint8 arrays (H, W, 3).

    ``frames`` ("first"): "all" gives every frame of an animation, and every page of a TIFF, as an image of its own.
    ``field``, ``root``, ``storage_options``, ``background``, ``max_pixels``, and what becomes of bad images: as in
    ``LoadImages``.

    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(DecodeImages)
    >>> next(iter(graph))["images"][0].shape
    (48, 64, 3)
    """

    kind = "decode_images"

    def __init__(self, source: Node, field: str = "image", *, frames: str = "first", **settings: Any) -> None:
        super().__init__(source, field, **settings)
        if frames not in ("first", "all"):
            raise ConfigError(f"frames must be 'first' or 'all', got {frames!r}")
        self.frames = frames

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "frames": self.frames}

    def _images(self, data: bytes) -> list[Any]:
        how: dict[str, Any] = {"background": self.background, "frames": self.frames, "max_pixels": self.max_pixels}
        found = decode(data, **how)
        return found if self.frames == "all" else [found]


class ResizeImages(Node):
    """Resizes the ``images`` of a record by ``vision``, after ``augment`` if there is one.

    ``augment``: a function of an image (uint8 (H, W, 3)) giving another, such as ``compose(...)``, a torchvision v2
    transform in ``OnTensor``, or your own. With a parameter ``rng`` it gets a generator that depends on (node name,
    ``seed``, record, image) alone: the same crop after a resume and on any worker, another in the next pass.
    ``version``: raise it when you edit the function.

    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(DecodeImages).then(ResizeImages, DynamicResolution())
    >>> next(iter(graph))["images"][0].shape
    (56, 56, 3)
    """

    kind = "resize_images"
    takes = ("rows",)

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        vision: Vision,
        augment: Callable[..., Any] | None = None,
        *,
        seed: int = 0,
        version: str | int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        check_vision(self.kind, vision)
        check_seed(seed)
        if augment is not None and not callable(augment):
            raise ConfigError(f"resize_images: augment must be a function of an image, got {augment!r}")
        self.vision, self.augment, self.seed, self.version = vision, augment, seed, version

    def settings(self) -> dict[str, Any]:
        said = None if self.augment is None else {**describe_function(self.augment, self.version), "seed": self.seed}
        return {"augment": said, "vision": self.vision.recipe()}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        augment, base = self.augment, key("resize_images", setup.name, self.seed)
        draws = augment is not None and wants_rng(augment)

        def one(index: int, image: Any, identity: int) -> Any:
            if augment is not None:
                rng = {"rng": generator(base ^ key("image", index), identity)} if draws else {}
                image = checked(augment, augment(image, **rng))
            return self.vision(image)

        def resized(record: Record) -> list[Record]:
            images = [_named(i, one, i, image, record.identity) for i, image in enumerate(images_of(record.payload))]
            return [record.replaced({**record.payload, "images": images})]

        return each_record(setup, resized)


class ExpandImages(Node):
    """Makes of each placeholder in ``input_ids`` as many as its image has positions; ``loss_mask`` is 0 on them.

    ``placeholder_id``: the id that stands for one image. ``start_id``, ``end_id``: ids around each image, where the text
    doesn't have them already. More placeholders than images, or fewer, are a bad record. Goes behind ``Tokenize`` or
    ``TokenizeChat`` and behind the images, and before packing. Don't let the tokenizer cut texts off (``max_length``):
    images would lose their placeholders; ``PackImages`` leaves out what is too long.

    >>> row = {"input_ids": [7, 1, 8], "images": [np.zeros((32, 32, 3), np.uint8)]}
    >>> source = StaticMixtureWorkSource([Dataset.from_rows("d", [row])])
    >>> list(Pipeline(source).then(ExpandImages, FixedGrid(size=32), 1))[0]["input_ids"].tolist()
    [7, 1, 1, 1, 1, 8]
    """

    kind = "expand_images"
    takes = ("rows",)

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        vision: Vision,
        placeholder_id: int,
        *,
        start_id: int | None = None,
        end_id: int | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner, on_error=on_error)
        check_vision(self.kind, vision)
        for setting, value in (("placeholder_id", placeholder_id), ("start_id", start_id), ("end_id", end_id)):
            if value is not None or setting == "placeholder_id":
                check_at_least(setting, value, 0)
        self.vision, self.placeholder_id, self.start_id, self.end_id = vision, placeholder_id, start_id, end_id

    def settings(self) -> dict[str, Any]:
        ids = {"placeholder_id": self.placeholder_id, "start_id": self.start_id, "end_id": self.end_id}
        return {**ids, "vision": self.vision.recipe()}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def expanded(record: Record) -> list[Record]:
            payload = expand_images(record.payload, self.vision, self.placeholder_id, self.start_id, self.end_id)
            return [record.replaced(payload)]

        return each_record(setup, expanded)


class CollateImages(Node):
    """``collate`` for each batch: the tensors of a training step, behind ``Batch``. Shapes and dtypes are told there.

    ``pixels`` ("uint8"): as they are, a fourth of the bytes to move, to be normalised on the device by
    ``normalise_pixel_values``; "float32" and "bfloat16" are normalised here. ``rope`` ("1d"): "3d" gives positions on three
    axes as well. ``extra``: names of other things wanted, such as "document_ids", "cu_seqlens", "origins". ``flat``
    (False): rows laid end to end.

    >>> row = {"input_ids": [7, 1, 8], "images": [np.zeros((32, 32, 3), np.uint8)]}
    >>> vision = FixedGrid(size=32)
    >>> graph = Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", [row] * 2)])).then(ExpandImages, vision, 1)
    >>> step = next(iter(graph.batch(2).then(CollateImages, vision, 1)))
    >>> step["input_ids"].shape, step["pixel_values"].shape, step["image_positions"].tolist()
    (torch.Size([2, 6]), torch.Size([2, 3, 32, 32]), [[0, 1], [1, 1]])
    """

    kind = "collate_images"
    takes = ("batches",)

    def __init__(  # noqa: PLR0913
        self,
        source: Node,
        vision: Vision,
        placeholder_id: int,
        *,
        pixels: Pixels = "uint8",
        rope: Rope = "1d",
        extra: Sequence[str] = (),
        flat: bool = False,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner)
        check_vision(self.kind, vision)
        check_at_least("placeholder_id", placeholder_id, 0)
        extra = (extra,) if isinstance(extra, str) else tuple(extra)
        check_settings(vision, pixels, rope, extra)
        self.vision, self.placeholder_id = vision, placeholder_id
        self.options: dict[str, Any] = {"pixels": pixels, "rope": rope, "extra": extra, "flat": bool(flat)}

    def settings(self) -> dict[str, Any]:
        options = {**self.options, "extra": list(self.options["extra"])}
        return {"placeholder_id": self.placeholder_id, **options, "vision": self.vision.recipe()}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        return each_record(setup, lambda record: [record.replaced(self._collated(record.payload))])

    def _collated(self, batch: Any) -> dict[str, Any]:
        return collate(batch, self.vision, self.placeholder_id, **self.options)

    def blank(self) -> Any:
        blank = self.source.blank() if self.source else None
        return None if blank is None else self._collated(blank)


def _named(index: int, function: Callable[..., T], *arguments: Any) -> T:
    """What the function gives for an image, or an error that says which of the record's images it was."""
    try:
        return function(*arguments)
    except ValueError as error:
        raise ImageError(f"image {index}: {error}") from error
