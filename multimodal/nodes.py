"""Nodes for image-text graphs: thin glue over the pure functions of ``vision``, ``image``, ``placeholders`` and ``collate``.

    LoadImages     files to resized images in one go, the fast way
    DecodeImages   files to full images, for transforms of your own, and
    ResizeImages   those to what the model takes
    ExpandImages   one placeholder id for each image to as many as it has positions
    CollateImages  batches to the tensors of a training step

``PackImages`` is in ``packing``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import fsspec

from multimodal.collate import Rope, collate
from multimodal.image import MAX_PIXELS, ImageError, decode
from multimodal.pixels import Pixels
from multimodal.placeholders import expand_images, images_of
from multimodal.transform import Colour
from multimodal.vision import Vision, load
from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.function_node import generator, wants_rng
from zephon_nodes.hashing import key
from zephon_nodes.node import Node, OnError, Setup, each_record
from zephon_nodes.recipe import describe_function
from zephon_nodes.stream import Record

WHITE: Colour = (255, 255, 255)


class _ImageFiles(Node):
    """What the two nodes that read image files have in common.

    ``field`` ("image"): bytes, a path or URL, a dict with ``bytes`` or ``path`` as Hugging Face's image columns have, null
    for no image, or a list of those. ``root``: folder or URL that relative paths begin from. ``background`` (white): what
    transparency is laid on. The field goes, ``images`` comes: a list of uint8 arrays (H, W, 3).

    A file that isn't there or isn't an image is a bad record: ``RowError`` naming file, row and cause, or a counted drop
    under on_error="skip". A store that fails is a ``ReadError``, and never skipped.
    """

    takes = ("rows",)

    def __init__(
        self,
        source: Node,
        field: str = "image",
        *,
        root: str | None = None,
        background: Colour = WHITE,
        name: str | None = None,
        parallelism: int | None = None,
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, on_error=on_error)
        red, green, blue = background
        self.field, self.root, self.background = field, root, (red, green, blue)

    def settings(self) -> dict[str, Any]:
        return {"field": self.field, "background": list(self.background)}

    def blank_record(self) -> Any:
        return {**super().blank_record(), "images": []}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def loaded(record: Record) -> list[Record]:
            files = image_files(record.payload, self.field, self.root)
            payload = {name: value for name, value in record.payload.items() if name != self.field}
            payload["images"] = [image for index, data in enumerate(files) for image in self._images(index, data)]
            return [record.replaced(payload)]

        return each_record(setup, loaded)

    def _images(self, index: int, data: bytes) -> list[Any]:
        raise NotImplementedError


class LoadImages(_ImageFiles):
    """Decodes image files and resizes them by ``vision``. See ``DecodeImages`` for what a record must have.

    ``scaled`` (True): JPEGs are decoded at 1/2, 1/4 or 1/8 of their size where they are to be made smaller than that
    anyway: about twice as fast, pixels within a few levels of 255 (``image.decode_scaled``). A data setting.

    >>> from multimodal.vision import FixedGrid
    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(LoadImages, FixedGrid(size=32))
    >>> next(iter(graph))["images"][0].shape
    (32, 32, 3)
    """

    kind = "load_images"

    def __init__(
        self, source: Node, vision: Vision, field: str = "image", *, scaled: bool = True, **settings: Any
    ) -> None:
        super().__init__(source, field, **settings)
        self.vision, self.scaled = vision, scaled

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "scaled": self.scaled, **self.vision.recipe()}

    def _images(self, index: int, data: bytes) -> list[Any]:
        return [_named(index, lambda: load(data, self.vision, scaled=self.scaled, background=self.background))]


class DecodeImages(_ImageFiles):
    """Decodes image files at their full size.

    ``field`` ("image"): bytes, a path or URL, a dict with ``bytes`` or ``path``, null for no image, or a list of those; it
    goes, and ``images`` comes: a list of uint8 arrays (H, W, 3). ``root``: where relative paths begin. ``background``
    (white): what transparency is laid on. ``frames`` ("first"): "all" gives every frame of an animation as an image.
    ``max_pixels`` (178,956,970): larger ones are refused by their header. See ``image.decode`` for the rules of colour.

    A file that isn't an image is a bad record: ``RowError`` naming file, row and cause, or a counted drop under
    on_error="skip". A store that fails is a ``ReadError``, and never skipped.

    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(DecodeImages)
    >>> next(iter(graph))["images"][0].shape
    (48, 64, 3)
    """

    kind = "decode_images"

    def __init__(
        self,
        source: Node,
        field: str = "image",
        *,
        frames: str = "first",
        max_pixels: int = MAX_PIXELS,
        **settings: Any,
    ) -> None:
        super().__init__(source, field, **settings)
        if frames not in ("first", "all"):
            raise ConfigError(f"frames must be 'first' or 'all', got {frames!r}")
        self.frames, self.max_pixels = frames, max_pixels

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "frames": self.frames, "max_pixels": self.max_pixels}

    def _images(self, index: int, data: bytes) -> list[Any]:
        found: Any = _named(
            index,
            lambda: decode(data, background=self.background, frames=self.frames, max_pixels=self.max_pixels),  # type: ignore[call-overload]
        )
        return found if self.frames == "all" else [found]


class ResizeImages(Node):
    """Resizes the ``images`` of a record by ``vision``, after ``augment`` if there is one.

    ``augment``: a function of an image (uint8 (H, W, 3)) giving another, such as ``augment.compose(...)``, a torchvision
    v2 transform wrapped to take and give arrays, or your own. With a parameter ``rng`` it gets a generator that depends on
    (node name, ``seed``, record, image) alone: the same crop after a resume and on any worker, another in the next pass.
    ``version``: raise it when you edit the function.

    >>> from multimodal.vision import DynamicResolution
    >>> graph = Pipeline(StaticMixtureWorkSource([pictures])).then(DecodeImages).then(ResizeImages, DynamicResolution())
    >>> next(iter(graph))["images"][0].shape
    (56, 84, 3)
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
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, on_error=on_error)
        self.vision, self.augment, self.seed, self.version = vision, augment, seed, version

    def settings(self) -> dict[str, Any]:
        said = None
        if self.augment is not None:
            recipe = getattr(self.augment, "recipe", None)
            said = {**(recipe() if recipe else describe_function(self.augment, self.version)), "seed": self.seed}
        return {"augment": said, **self.vision.recipe()}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        augment, base = self.augment, key("resize_images", setup.name, self.seed)
        draws = augment is not None and wants_rng(augment)

        def resized(record: Record) -> list[Record]:
            images = list(images_of(record.payload))
            for index, image in enumerate(images):
                if augment is not None:
                    rng = {"rng": generator(base ^ key("image", index), record.identity)} if draws else {}
                    image = augment(image, **rng)
                images[index] = self.vision(image)
            return [record.replaced({**record.payload, "images": images})]

        return each_record(setup, resized)


class ExpandImages(Node):
    """Makes of each placeholder in ``input_ids`` as many as its image has positions; ``loss_mask`` is 0 on them.

    ``placeholder_id``: the id that stands for one image. ``start_id``, ``end_id``: ids around each image, where the text
    doesn't have them already. More placeholders than images, or fewer, are a bad record. Goes behind ``Tokenize`` or
    ``TokenizeChat``, and before packing.

    >>> from multimodal.vision import FixedGrid
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
        on_error: OnError | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, on_error=on_error)
        self.vision, self.placeholder_id, self.start_id, self.end_id = vision, placeholder_id, start_id, end_id

    def settings(self) -> dict[str, Any]:
        ids = {"placeholder_id": self.placeholder_id, "start_id": self.start_id, "end_id": self.end_id}
        return {**ids, **self.vision.recipe()}

    def one_to_one(self, setup: Setup) -> bool:
        return setup.on_error == "raise"

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        def expanded(record: Record) -> list[Record]:
            payload = expand_images(record.payload, self.vision, self.placeholder_id, self.start_id, self.end_id)
            return [record.replaced(payload)]

        return each_record(setup, expanded)


class CollateImages(Node):
    """``collate`` for each batch: the tensors of a training step, behind ``Batch``.

    ``pixels`` ("uint8"), ``rope`` ("1d"), ``extra``, ``flat``: see ``collate.collate``.
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
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism)
        self.vision, self.placeholder_id = vision, placeholder_id
        self.options: dict[str, Any] = {"pixels": pixels, "rope": rope, "extra": tuple(extra), "flat": flat}

    def settings(self) -> dict[str, Any]:
        options = {**self.options, "extra": list(self.options["extra"])}
        return {"placeholder_id": self.placeholder_id, **options, **self.vision.recipe()}

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        return each_record(setup, lambda record: [record.replaced(self._collated(record.payload))])

    def _collated(self, batch: Any) -> dict[str, Any]:
        return collate(batch, self.vision, self.placeholder_id, **self.options)

    def blank(self) -> Any:
        blank = self.source.blank() if self.source else None
        return None if blank is None else self._collated(blank)


def image_files(payload: Any, field: str, root: str | None = None) -> list[bytes]:
    """The bytes of the image files of a record. Raises ``ImageError`` for what isn't there, ``ReadError`` for a store."""
    if not isinstance(payload, Mapping) or field not in payload:
        has = sorted(map(str, payload)) if isinstance(payload, Mapping) else type(payload).__name__
        raise ImageError(f"field {field!r} is missing; the record has {has}")
    value = payload[field]
    values = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    return [_file(index, one, root) for index, one in enumerate(values)]


def _file(index: int, value: Any, root: str | None) -> bytes:
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if not isinstance(value, str):
        raise ImageError(
            f"image {index} must be bytes, a path or a dict with bytes or path, got {type(value).__name__}"
        )
    path = value if root is None or "://" in value or value.startswith("/") else f"{root.rstrip('/')}/{value}"
    try:
        with fsspec.open(path, "rb") as file:
            return bytes(file.read())
    except FileNotFoundError as error:
        raise ImageError(f"image {index}: there is no file {path}") from error
    except OSError as error:
        raise ReadError(f"image {index}: can't read {path}: {error}", path=path) from error


def _named(index: int, made: Callable[[], Any]) -> Any:
    """An image, or an error that says which of the record's images it was."""
    try:
        return made()
    except ImageError as error:
        raise ImageError(f"image {index}: {error}") from error
