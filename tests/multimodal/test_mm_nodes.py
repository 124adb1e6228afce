"""The nodes for images: what a field may hold, bad images under both policies, randomness, and what is in the recipe."""

from __future__ import annotations

import itertools
import json
from functools import partial

import fsspec
import mm_pictures as mm
import numpy as np
import pytest
from files_over_http import serve
from PIL import Image

from multimodal import (
    CollateImages,
    DecodeImages,
    DynamicResolution,
    ExpandImages,
    FixedGrid,
    LoadImages,
    OnTensor,
    ResizeImages,
    compose,
    decode,
    random_flip,
    random_resized_crop,
)
from multimodal.image import ImageError
from multimodal.vision import load
from zephon_nodes import ConfigError, Dataset, Pipeline, Read, ReadError, RowError, StateError, StaticMixtureWorkSource
from zephon_nodes.retries import Retries
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, digest

VISION = FixedGrid(size=16, patch=8)
PNG = mm.written(Image.fromarray(mm.drawn(20, 28)), "PNG")
JPEG = mm.written(Image.fromarray(mm.drawn(90, 120)), "JPEG")


def pipeline(rows, **options):
    source = StaticMixtureWorkSource([Dataset.from_rows("pictures", rows)], shuffle="none")
    return Pipeline(source, **{"runner": "inline", **options})


def loaded(value, field="image", **settings):
    """The images of the only record."""
    (row,) = pipeline([{field: value, "id": 1}]).then(LoadImages, VISION, field, **settings)
    assert row["id"] == 1 and set(row) == {"id", "images"}
    return row["images"]


def failing(rows, node=LoadImages, *arguments, **settings):
    with pytest.raises((RowError, ReadError)) as caught:
        list(pipeline(rows).then(node, *(arguments or (VISION,)), **settings))
    return caught.value


# what a field may hold


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.jpg").write_bytes(JPEG)
    return tmp_path


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes(kind):
    payload = {"image": kind(PNG)}
    node = LoadImages(Read(StaticMixtureWorkSource([Dataset.from_rows("d", [{}])])), VISION)
    assert np.array_equal(node._images(bytes(payload["image"]))[0], load(PNG, VISION))


def test_one_image_none_or_a_list(folder):
    (image,) = loaded(PNG)
    assert image.shape == (16, 16, 3) and image.dtype == np.uint8 and image.flags.writeable
    assert np.array_equal(image, load(PNG, VISION))
    assert loaded(None) == [] and loaded([]) == []
    assert [one.shape for one in loaded([PNG, JPEG, PNG])] == [(16, 16, 3)] * 3
    assert np.array_equal(loaded({"bytes": PNG, "path": "gone.png"})[0], image)
    assert np.array_equal(loaded({"bytes": None, "path": str(folder / "a.png")})[0], image)
    assert np.array_equal(loaded([str(folder / "a.png"), {"path": str(folder / "a.png")}], field="images")[1], image)


def test_paths_begin_at_the_root_and_may_be_urls(folder):
    image = loaded(PNG)[0]
    for root in (folder, str(folder), f"{folder}/"):
        assert np.array_equal(loaded("a.png", root=root)[0], image)
        assert np.array_equal(loaded(str(folder / "a.png"), root=root)[0], image)
        assert len(loaded(["a.png", "below/b.jpg"], root=root)) == 2
    assert np.array_equal(loaded((folder / "a.png").as_uri(), root="elsewhere")[0], image)
    with fsspec.open("memory://pictures/a.png", "wb") as file:
        file.write(PNG)
    assert np.array_equal(loaded("a.png", root="memory://pictures")[0], image)
    assert np.array_equal(loaded("memory://pictures/a.png", root="elsewhere")[0], image)
    with fsspec.open("data:image/png;base64,iVBORw0KGgo=") as file:
        assert file.read() == PNG[:8]
    assert "truncated" in str(failing([{"image": "data:image/png;base64,iVBORw0KGgo="}]))


def test_images_of_parquet_arrive(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.array([{"bytes": PNG, "path": None}, None, {"bytes": JPEG, "path": "b.jpg"}])
    pq.write_table(pa.table({"image": column}), tmp_path / "pictures.parquet")
    source = StaticMixtureWorkSource([Dataset.from_path("pictures", tmp_path)], shuffle="none")
    assert [len(row["images"]) for row in Pipeline(source).then(LoadImages, VISION)] == [1, 0, 1]


def test_images_of_several_fields_come_in_order():
    graph = pipeline([{"left": PNG, "right": [JPEG, PNG]}]).then(LoadImages, VISION, "left", name="left")
    (row,) = graph.then(LoadImages, VISION, "right", name="right")
    want = [load(PNG, VISION), load(JPEG, VISION, scaled=True), load(PNG, VISION)]
    assert set(row) == {"images"} and len(row["images"]) == 3
    assert all(map(np.array_equal, row["images"], want))
    error = failing([{"image": PNG, "images": ["a.png"]}])
    assert "image 0 must be an array (H, W, 3), got str" in str(error)


# bad images

HUGE = PNG[:16] + (60_000).to_bytes(4, "big") * 2 + PNG[24:]
BAD = {
    "empty": (b"", "empty: 0 bytes"),
    "text": (b"<html>404</html>", "not an image: starts with b'<html>"),
    "cut by one": (JPEG[:-1], "truncated"),
    "cut by 54": (JPEG[:-54], "truncated"),
    "half": (JPEG[: len(JPEG) // 2], "truncated"),
    "png cut in a chunk": (PNG[:60], "truncated"),
    "bomb": (HUGE, "over max_pixels: 60000 x 60000 pixels, 178956970 are allowed"),
    "null in a list": ([PNG, None], "image 1 is empty; bytes, a path"),
    "an empty path": ("", "image 0 is empty; bytes, a path"),
    "a number": (7, "image 0 is of type int; bytes, a path"),
    "an array": (np.zeros((4, 4, 3), np.uint8), "image 0 is of type ndarray; bytes, a path"),
    "a text for a path": ("a photo of a cat " * 400, "there is no file a photo of a cat a photo"),
    "half of a pair": ("\ud800.png", "can't open \\ud800.png"),
    "no file": ("gone.jpg", "there is no file gone.jpg"),
    "a folder": ("/", "there is no file /"),
    "an impossible path": ("a\0b", "embedded null byte"),
    "broken base64": ("data:image/png;base64,!", "image 0: empty: 0 bytes"),
    "a URL of an unknown kind": ("nonsense://a/b.jpg", "Protocol not known"),
    "dict of nulls": ({"bytes": None, "path": None}, "image 0 is empty; bytes, a path"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_image_names_file_row_and_cause(name):
    bad, cause = BAD[name]
    rows = [{"image": PNG}, {"image": bad}, {"image": PNG}]
    error = failing(rows)
    assert isinstance(error, RowError) and isinstance(error.__cause__, ValueError)
    assert cause in str(error) and "load_images failed on row 1 of rows (dataset 'pictures')" in str(error)
    assert "image 0" in str(error) or "image 1" in str(error)


@pytest.mark.parametrize("node", [LoadImages, DecodeImages])
def test_or_is_left_out_counted_and_named(node):
    rows = [{"image": one, "id": i} for i, one in enumerate([PNG, *(bad for bad, _ in BAD.values()), PNG])]
    graph = pipeline(rows).then(node, *([VISION] if node is LoadImages else []), on_error="skip")
    assert [row["id"] for row in graph] == [0, len(rows) - 1]
    assert graph.drops.total == graph.drops.failed == len(BAD)
    for (_, cause), drop, place in zip(BAD.values(), graph.drops.rows, itertools.count(1), strict=False):
        assert cause in drop.reason and f"row {place} of rows" in drop.where


def test_a_mislabelled_image_is_known_by_its_bytes(tmp_path):
    (tmp_path / "really.jpg").write_bytes(PNG)
    (tmp_path / "text.jpg").write_text("no picture")
    assert np.array_equal(loaded("really.jpg", root=tmp_path)[0], load(PNG, VISION))
    assert "not an image: starts with b'no picture'" in str(failing([{"image": "text.jpg"}], root=tmp_path))


def test_a_field_that_is_not_there_and_a_record_that_is_no_dict():
    assert "field 'image' is missing; the record has ['caption', 'picture']" in str(
        failing([{"picture": PNG, "caption": ""}])
    )
    assert "field 'image' is missing; the record has str" in str(failing(["text"]))


def test_an_image_that_the_vision_refuses_is_named_too():
    line = mm.written(Image.fromarray(np.zeros((1, 900, 3), np.uint8)), "PNG")
    error = failing([{"image": [PNG, line]}], LoadImages, DynamicResolution())
    assert "image 1: image of 1 x 900: one side is more than 200 times the other" in str(error)
    error = failing([{"images": [mm.drawn(8, 8), mm.drawn(1, 900)]}], ResizeImages, DynamicResolution())
    assert "image 1: image of 1 x 900" in str(error)


def test_images_over_http():
    pytest.importorskip("aiohttp")
    with serve({"a.png": PNG, "text.jpg": b"no image"}) as site:
        assert np.array_equal(loaded(f"{site.url}/a.png?size=large")[0], loaded(PNG)[0])
        rows = [{"image": name, "id": i} for i, name in enumerate(("a.png", "gone.png", "text.jpg", "a.png"))]
        graph = pipeline(rows).then(LoadImages, VISION, root=site.url, on_error="skip")
        assert [row["id"] for row in graph] == [0, 3]
        assert [drop.reason for drop in graph.drops.rows] == [
            f"ImageError: image 0: there is no file {site.url}/gone.png",
            "ImageError: image 0: not an image: starts with b'no image'; JPEG, PNG, WebP, GIF, TIFF and BMP are read",
        ]
        site.failing = True
        options = {"retries": Retries(give_up_after=0)}
        with pytest.raises(ReadError, match="can't read it"):
            list(pipeline(rows).then(LoadImages, VISION, root=site.url, on_error="skip", storage_options=options))


class Failing(fsspec.AbstractFileSystem):
    protocol = "failing"

    def _open(self, path, mode="rb", **_):
        raise {"denied": PermissionError, "late": TimeoutError, "gone": FileNotFoundError}[
            path.split("/")[-1].split("?")[0]
        ](path.split("?")[0])


@pytest.fixture
def failing_store():
    fsspec.register_implementation("failing", Failing, clobber=True)


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("name", ["denied", "late"])
def test_a_store_that_fails_is_never_skipped(failing_store, name, policy):
    with pytest.raises(ReadError, match=name):
        options = {"retries": Retries(give_up_after=0)}
        node = partial(LoadImages, vision=VISION, on_error=policy, storage_options=options)
        list(pipeline([{"image": f"failing://{name}"}]).then(node))


def test_a_signature_in_a_url_is_not_told(failing_store):
    for name in ("gone?signature=secret", "denied?signature=secret"):
        assert "secret" not in str(failing([{"image": f"failing://{name}"}]))


def test_but_what_the_store_says_is_not_there_may_be(failing_store):
    graph = pipeline([{"image": "failing://gone"}, {"image": PNG}]).then(LoadImages, VISION, on_error="skip")
    assert len(list(graph)) == 1 and graph.drops.failed == 1


def test_a_package_that_is_missing_for_a_store_is_never_skipped():
    fsspec.register_implementation("lacking", "no_such_package_at_all.Store", clobber=True)
    with pytest.raises(ReadError, match="no_such_package_at_all"):
        list(pipeline([{"image": "lacking://a"}]).then(LoadImages, VISION, on_error="skip"))


def test_bad_images_leave_the_same_order_on_all_ranks_and_resume_exactly():
    kinds = [PNG, JPEG, JPEG[:-54], PNG, b"", PNG]
    rows = [{"image": kinds[i * 7 % 6], "id": i} for i in range(60)]

    def make():
        source = StaticMixtureWorkSource([Dataset.from_rows("d", rows)], num_lanes=4, chunk_size=4, flush_every=2)
        return Pipeline(source).then(LoadImages, VISION, on_error="skip").batch(3)

    assert_resumes_everywhere(make)
    assert_any_world(make, [1, 2, 4])
    assert sum(len(batch) for batch in make()) == 40


# decoding and resizing apart


def test_full_images_and_all_frames():
    (row,) = pipeline([{"image": [mm.FILES["gif"], PNG]}]).then(DecodeImages)
    assert [image.shape for image in row["images"]] == [(20, 28, 3)] * 2
    (row,) = pipeline([{"image": [mm.FILES["gif"], PNG]}]).then(DecodeImages, frames="all")
    assert [image.shape for image in row["images"]] == [(20, 28, 3)] * 4


def test_loading_is_decoding_and_resizing():
    rows = [{"image": [PNG, JPEG]}]
    (whole,) = pipeline(rows).then(LoadImages, VISION, scaled=False)
    (apart,) = pipeline(rows).then(DecodeImages).then(ResizeImages, VISION)
    assert all(map(np.array_equal, whole["images"], apart["images"]))
    (fast,) = pipeline(rows).then(LoadImages, VISION)
    assert fast["images"][1].shape == (16, 16, 3) and not np.array_equal(fast["images"][1], whole["images"][1])


def test_background_and_bombs_are_settings():
    clear = mm.written(Image.new("RGBA", (20, 20), (9, 9, 9, 0)), "PNG")
    assert (loaded(clear)[0] == 255).all()
    assert (loaded(clear, background=(1, 2, 3))[0] == (1, 2, 3)).all()
    assert "over max_pixels: 20 x 28 pixels, 559 are allowed" in str(failing([{"image": PNG}], max_pixels=559))
    assert "559 are allowed" in str(failing([{"image": PNG}], DecodeImages, "image", max_pixels=559))


AUGMENT = compose(partial(random_resized_crop, size=(24, 24), scale=(0.1, 0.9)), random_flip)


def augmented(augment=AUGMENT, seed=0, passes=1):
    rows = [{"image": [JPEG, JPEG][: 1 + i % 2], "id": i} for i in range(24)]
    source = StaticMixtureWorkSource(
        [Dataset.from_rows("d", rows)], num_lanes=2, chunk_size=4, flush_every=2, passes=passes
    )
    return Pipeline(source).then(DecodeImages).then(ResizeImages, VISION, augment, seed=seed)


def test_a_crop_is_the_same_after_a_resume_and_with_any_worker():
    assert_resumes_everywhere(lambda: augmented().batch(2))
    assert_any_schedule(augmented, schedules=1)
    assert_any_world(lambda: augmented().batch(2), [1, 2])


def test_crops_differ_between_records_images_passes_and_seeds():
    rows = list(augmented(passes=2).options(runner="inline"))
    images = [image.tobytes() for row in rows for image in row["images"]]
    assert len(images) == len(set(images)) == 72
    other = [image.tobytes() for row in augmented(seed=1, passes=2) for image in row["images"]]
    assert not set(images) & set(other)


def test_any_callable_is_an_augment():
    def mirrored(image):
        return image[:, ::-1]

    def drawing(image, rng):
        return image if rng.random() < 0.5 else image[::-1]

    plain = next(iter(augmented(None).options(runner="inline")))["images"][0]
    mirror = VISION(decode(JPEG)[:, ::-1])
    assert np.array_equal(next(iter(augmented(mirrored)))["images"][0], mirror) and not np.array_equal(plain, mirror)
    assert next(iter(augmented(drawing)))["images"][0].shape == plain.shape
    as_tensor = OnTensor(lambda tensor: tensor.flip(-1))
    assert np.array_equal(next(iter(augmented(as_tensor)))["images"][0], next(iter(augmented(mirrored)))["images"][0])


def test_an_augment_that_normalises_is_refused_by_name():
    error = failing([{"images": [mm.drawn(8, 8)]}], ResizeImages, VISION, lambda image: image / 255)
    assert "image 0" in str(error) and "must give uint8 (H, W, 3), gave float64" in str(error)


# settings


def node(kind, *arguments, **settings):
    row = {"input_ids": [1], "images": []}
    source = Read(StaticMixtureWorkSource([Dataset.from_rows("d", [row])]))
    return kind(Pipeline(source).batch(1).node if kind is CollateImages else source, *arguments, **settings)


@pytest.mark.parametrize(
    ("kind", "arguments", "settings", "message"),
    [
        (LoadImages, ["image"], {}, "load_images: vision must be a FixedGrid or a DynamicResolution, got 'image'"),
        (LoadImages, [VISION, 5], {}, "field must be the name of a field"),
        (LoadImages, [VISION], {"background": (0, 0, 256)}, "background must be three ints of 0 to 255"),
        (LoadImages, [VISION], {"background": (0, 0)}, "background must be three ints"),
        (LoadImages, [VISION], {"max_pixels": 0}, "max_pixels"),
        (LoadImages, [VISION], {"on_error": "drop"}, "on_error"),
        (DecodeImages, [], {"frames": "last"}, "frames must be 'first' or 'all'"),
        (ResizeImages, [None], {}, "resize_images: vision must be"),
        (ResizeImages, [VISION, 5], {}, "augment must be a function of an image, got 5"),
        (ResizeImages, [VISION], {"seed": -1.5}, "seed"),
        (ExpandImages, [VISION, -1], {}, "placeholder_id"),
        (ExpandImages, [VISION, "<image>"], {}, "placeholder_id"),
        (ExpandImages, [VISION, 1], {"end_id": -2}, "end_id"),
        (CollateImages, [VISION, None], {}, "placeholder_id"),
        (CollateImages, [VISION, 1], {"pixels": "float16"}, "pixels='float16' is unknown"),
        (CollateImages, [VISION, 1], {"rope": "2d"}, "rope='2d' is unknown"),
        (CollateImages, [VISION, 1], {"extra": "pixel_values"}, "is a name that collate gives itself"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_construction(kind, arguments, settings, message):
    with pytest.raises(ConfigError, match=message):
        node(kind, *arguments, **settings)


def test_what_changes_pixels_is_in_the_recipe_and_where_files_lie_is_not():
    base = node(LoadImages, VISION).settings()
    for changed in (
        node(LoadImages, VISION, scaled=False),
        node(LoadImages, VISION, background=(0, 0, 0)),
        node(LoadImages, VISION, "picture"),
        node(LoadImages, VISION, max_pixels=9),
        node(LoadImages, FixedGrid(size=16, patch=8, fit="squash")),
        node(LoadImages, FixedGrid(size=16, patch=8, resample="bilinear")),
        node(LoadImages, DynamicResolution()),
    ):
        assert changed.settings() != base
    bombs, budget = DynamicResolution(max_pixels=10_000), DynamicResolution(max_pixels=20_000)
    assert (
        len({json.dumps(node(LoadImages, v, max_pixels=m).settings()) for v in (bombs, budget) for m in (9, 10)}) == 4
    )
    elsewhere = node(LoadImages, VISION, root="/elsewhere", storage_options={"anon": True}, parallelism=7)
    assert elsewhere.settings() == base
    for kind in (node(ResizeImages, VISION, AUGMENT), node(CollateImages, VISION, 1), node(ExpandImages, VISION, 1)):
        assert json.loads(json.dumps(kind.settings())) == kind.settings()
    other = compose(partial(random_resized_crop, size=(24, 24), scale=(0.2, 0.9)), random_flip)
    assert node(ResizeImages, VISION, AUGMENT).settings() != node(ResizeImages, VISION, other).settings()
    assert node(ResizeImages, VISION, AUGMENT, version=1).settings() != node(ResizeImages, VISION, AUGMENT).settings()
    assert node(ResizeImages, VISION, AUGMENT, seed=1).settings() != node(ResizeImages, VISION, AUGMENT).settings()


def test_a_restore_with_another_transform_is_refused_and_says_which():
    state = pipeline([{"image": PNG}]).then(LoadImages, VISION).state_dict()
    other = pipeline([{"image": PNG}]).then(LoadImages, FixedGrid(size=32, patch=8, resample="bilinear"), scaled=False)
    with pytest.raises(StateError) as caught:
        other.load_state_dict(state)
    said = str(caught.value)
    assert "vision.size: 16 -> 32" in said and "resample" in said and "scaled: true -> false" in said


# to tensors


def test_batches_name_the_rows_of_their_documents_if_asked():
    rows = [{"input_ids": [7, 1, 8], "images": [mm.drawn(16, 16, seed=i)], "id": i} for i in range(3)]
    graph = (
        pipeline(rows).then(ExpandImages, VISION, 1).batch(3).then(CollateImages, VISION, 1, extra=["origins", "id"])
    )
    (step,) = graph
    assert [[at.row for at in row] for row in step["origins"]] == [[0], [1], [2]] and step["id"].tolist() == [0, 1, 2]
    assert set(step) == {
        *("input_ids", "labels", "position_ids", "pixel_values", "image_positions", "image_counts", "origins", "id")
    }


def test_a_lane_that_has_ended_gives_blank_batches_of_the_same_tensors():
    rows = [{"image": PNG, "input_ids": [7, 1, 8]} for _ in range(3)]
    source = StaticMixtureWorkSource([Dataset.from_rows("d", rows)], num_lanes=2, chunk_size=1, flush_every=1)
    graph = Pipeline(source, runner="inline", at_end="pad", rank=0, world_size=1, agree=lambda own, _: own)
    graph = graph.then(LoadImages, VISION).then(ExpandImages, VISION, 1).batch(1).then(CollateImages, VISION, 1)
    steps = list(graph)
    assert len(steps) == 4 and [len(step["pixel_values"]) for step in steps].count(0) == 1
    assert len({(frozenset(step), step["pixel_values"].dtype) for step in steps}) == 1
    assert next(step for step in steps if not len(step["pixel_values"]))["labels"].unique().tolist() == [-100]


def test_a_placeholder_without_its_image_names_the_row():
    error = failing([{"input_ids": [1, 1], "images": [mm.drawn(16, 16)]}], ExpandImages, VISION, 1)
    assert "has 2 image placeholders (id 1), the record has 1 images" in str(error) and "row 0 of rows" in str(error)


def test_nodes_go_to_other_processes():
    import pickle

    graph = augmented().batch(2)
    again = pickle.loads(pickle.dumps(graph))
    assert [digest(one) for one in again] == [digest(one) for one in graph]


def test_full_decoding_is_what_decode_gives():
    (row,) = pipeline([{"image": JPEG}]).then(DecodeImages)
    assert np.array_equal(row["images"][0], decode(JPEG)) and issubclass(ImageError, ValueError)
