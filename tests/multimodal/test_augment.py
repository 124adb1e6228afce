"""Random crops, and steps as one."""

import pickle
from functools import partial

import mm_pictures as mm
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from multimodal.augment import OnTensor, compose, random_crop, random_flip, random_resized_crop
from multimodal.transform import flip, resize
from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.recipe import describe_function

sides = st.integers(1, 40)


def rng(seed=0):
    return np.random.default_rng(seed)


def numbered(height, width):
    """An image in which each pixel tells where it is."""
    y, x = np.mgrid[:height, :width]
    return np.stack([y, x, y * 0], -1).astype(np.uint8)


@given(sides, sides, st.data())
def test_random_crop_is_a_part_of_the_image(height, width, data):
    size = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    out = random_crop(numbered(height, width), size, rng(data.draw(st.integers(0, 999))))
    top, left = out[0, 0, :2]
    np.testing.assert_array_equal(out, numbered(height, width)[top : top + size[0], left : left + size[1]])


def test_random_crop_takes_every_place_alike():
    generator = rng()
    found = [tuple(random_crop(numbered(4, 3), (2, 2), generator)[0, 0, :2]) for _ in range(3000)]
    counts = [found.count((y, x)) for y in range(3) for x in range(2)]
    assert sum(counts) == 3000 and min(counts) > 420


def test_a_crop_of_a_smaller_image_is_refused():
    with pytest.raises(ValueError, match="crop of 5 x 5 at"):
        random_crop(numbered(4, 9), (5, 5), rng())


@given(sides, sides, sides, sides, st.integers(0, 999))
def test_random_resized_crop_has_the_size_asked_for(height, width, high, wide, seed):
    image = mm.drawn(height, width)
    out = random_resized_crop(image, (high, wide), rng(seed))
    assert out.shape == (high, wide, 3)
    np.testing.assert_array_equal(out, random_resized_crop(image, (high, wide), rng(seed)))


def test_random_resized_crop_keeps_to_scale_and_ratio(monkeypatch):
    taken = []
    monkeypatch.setattr("multimodal.augment.resize", lambda image, size, resample: taken.append(image.shape[:2]))
    generator = rng()
    for _ in range(300):
        random_resized_crop(numbered(200, 250), (8, 8), generator, scale=(0.2, 0.5), ratio=(0.5, 2.0))
    shares = np.array([height * width for height, width in taken]) / (200 * 250)
    ratios = np.array([width / height for height, width in taken])
    assert 0.19 < shares.min() < 0.22 and 0.48 < shares.max() < 0.51
    assert 0.49 < ratios.min() < 0.6 and 1.7 < ratios.max() < 2.03


@pytest.mark.parametrize("shape, part", [((4, 200), (4, 5)), ((200, 4), (5, 4)), ((9, 10), (9, 10))])
def test_where_no_part_fits_the_middle_is_taken(monkeypatch, shape, part):
    taken = []
    monkeypatch.setattr("multimodal.augment.resize", lambda image, size, resample: taken.append(image))
    random_resized_crop(numbered(*shape), (8, 8), rng(), scale=(1.0, 1.0))
    assert taken[0].shape[:2] == part
    top, left = ((side - one) // 2 for side, one in zip(shape, part, strict=True))
    assert tuple(taken[0][0, 0, :2]) == (top, left)


def test_random_flip():
    image, generator = mm.drawn(3, 4), rng()
    flipped = [np.array_equal(random_flip(image, generator), flip(image)) for _ in range(400)]
    assert 150 < sum(flipped) < 250
    assert random_flip(image, generator, p=0.0) is image
    np.testing.assert_array_equal(random_flip(image, generator, p=1.0), flip(image))


def halves(tensor):
    return tensor[:, ::2, ::2]


def test_steps_come_one_after_the_other_and_draw_from_one_generator():
    augment = compose(partial(random_crop, size=(8, 6)), random_flip, OnTensor(halves), flip)
    image, generator = mm.drawn(20, 20), rng(5)
    expected = flip(random_flip(random_crop(image, (8, 6), generator), generator)[::2, ::2])
    np.testing.assert_array_equal(augment(image, rng(5)), expected)
    again = pickle.loads(pickle.dumps(augment))
    np.testing.assert_array_equal(again(image, rng=rng(5)), expected)
    assert again.settings == augment.settings


def test_settings_are_in_the_recipe():
    one = compose(partial(random_crop, size=(8, 6)), partial(random_flip, p=0.25))
    two = compose(partial(random_crop, size=(8, 6)), partial(random_flip, p=0.5))
    assert "random_crop" in one.settings and "[8, 6]" in one.settings and "0.25" in one.settings
    assert describe_function(one) != describe_function(two)
    assert describe_function(one) == describe_function(pickle.loads(pickle.dumps(one)))
    assert "0x" not in compose(OnTensor(halves), OnTensor(torch.nn.ReLU())).settings
    assert "Upsample(size=5" in compose(OnTensor(torch.nn.Upsample(size=5))).settings


def test_as_the_function_of_a_node():
    augment = compose(partial(random_crop, size=(4, 4)))
    rows = Dataset.from_rows("pictures", [{"image": mm.drawn(9, 9, seed=i)} for i in range(8)])

    def crop(row, rng):
        return augment(row["image"], rng).tobytes()

    runs = [list(Pipeline(StaticMixtureWorkSource([rows])).map(crop, parallelism=n)) for n in (1, 3)]
    assert runs[0] == runs[1] and len(set(runs[0])) == 8


def test_what_is_no_step():
    with pytest.raises(ConfigError, match="compose takes functions of an image, got 5"):
        compose(flip, 5)
    augment = compose(lambda image: image / 255)
    with pytest.raises(ValueError, match=r"must give uint8 \(H, W, 3\), gave float64 \(4, 4, 3\)"):
        augment(mm.drawn(4, 4), rng())
    with pytest.raises(ValueError, match="gave NoneType"):
        compose(lambda image: None)(mm.drawn(4, 4), rng())
    assert compose()(mm.drawn(4, 4), rng()).shape == (4, 4, 3)
    assert compose(partial(resize, size=(2, 3)))(mm.drawn(4, 4), rng()).shape == (2, 3, 3)
