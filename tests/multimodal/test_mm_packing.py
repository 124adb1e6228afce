"""PackImages: whole samples under a budget of tokens and one of images at once."""

import doctest
import sys
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mm_samples import DYNAMIC, FIXED, PLACEHOLDER, images_in, picture, samples, visions
from runs import run, source

from multimodal.packing import ImagePacker, PackImages, Sizes, over_budget
from zephon_nodes import ConfigError, Dataset, Pipeline, Read, RowError, StaticMixtureWorkSource
from zephon_nodes.packing import BestFit, FirstFit
from zephon_nodes.stream import Record
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

MANY = sys.maxsize
algorithms = st.sampled_from(["first_fit", "best_fit"])
budgets = st.builds(Sizes, st.just(12), st.sampled_from([3, MANY]), st.sampled_from([10, MANY]))
documents = st.lists(st.builds(Sizes, st.integers(0, 12), st.integers(0, 3), st.integers(0, 10)), max_size=40)


def fits(bin_, sizes, budget):
    return all(sum(one[k] for one in bin_) + sizes[k] <= budget[k] for k in range(3))


def share(bin_, budget):
    return max(Fraction(sum(one[k] for one in bin_), budget[k]) for k in range(3))


def packed_plainly(docs, budget, num_bins, best):
    """Bins as lists of sizes."""
    bins, out = [], []
    for sizes in docs:
        room = [one for one in bins if fits(one, sizes, budget)]
        if sizes.tokens == budget.tokens:
            out.append([sizes])
            continue
        if not room and len(bins) == num_bins:
            out.append(bins.pop(max(range(num_bins), key=lambda i: share(bins[i], budget)) if best else 0))
        if not room:
            bins.append([])
            room = [bins[-1]]
        chosen = max(room, key=lambda one: share(one, budget)) if best else room[0]
        chosen.append(sizes)
        if sum(one.tokens for one in chosen) == budget.tokens:
            bins = [one for one in bins if one is not chosen]
            out.append(chosen)
    return out + bins


def all_of(packer, docs, add):
    return [sequence for doc in docs for sequence in add(packer, doc)] + packer.flush()


@given(documents, budgets, st.sampled_from([1, 2, 5]), st.booleans())
def test_the_packer_does_as_plain_lists_do(docs, budget, num_bins, best):
    docs = [sizes for sizes in docs if over_budget(sizes, budget) is None]
    packer = ImagePacker(budget, num_bins, best)
    got = all_of(packer, docs, lambda packer, sizes: packer.add(sizes, sizes))
    assert got == packed_plainly(docs, budget, num_bins, best)
    assert Counter(one for sequence in got for one in sequence) == Counter(docs)
    assert all(fits(sequence, (0, 0, 0), budget) for sequence in got) and packer.flush() == []


@given(st.lists(st.integers(0, 12), max_size=60), st.sampled_from([1, 3, 16]))
def test_with_tokens_alone_it_packs_as_the_core_does(lengths, num_bins):
    for best, core in ((False, FirstFit), (True, BestFit)):
        got = all_of(
            ImagePacker(Sizes(12, MANY, MANY), num_bins, best),
            list(enumerate(lengths)),
            lambda packer, doc: packer.add(doc, Sizes(doc[1])),
        )
        want = all_of(core(12, num_bins), list(enumerate(lengths)), lambda packer, doc: packer.add(doc, doc[1]))
        assert got == [[part.doc for part in sequence] for sequence in want]


def test_it_names_the_budgets_that_a_sample_passes():
    budget = Sizes(8, 2, 6)
    assert over_budget(Sizes(8, 2, 6), budget) is None
    assert over_budget(Sizes(9, 2, 6), budget) == "over max_length=8: 9 tokens"
    assert over_budget(Sizes(9, 3, 6), budget) == "over max_length=8 and max_images=2: 9 tokens, 3 images"
    assert over_budget(Sizes(1, 1, 7), budget) == "over max_patches=6: 7 patches"


# the node


def packed(rows, max_length=40, lanes=1, on_error="raise", **settings):
    return Pipeline(source(rows, lanes), runner="inline", on_error=on_error).then(PackImages, max_length, **settings)


@st.composite
def sets(draw):
    vision = draw(visions)
    rows = draw(st.lists(samples(vision), min_size=1, max_size=15))
    return vision, [{**row, "id": i} for i, row in enumerate(rows)]


@given(sets(), algorithms, st.sampled_from([1, 4]), st.sampled_from([None, 2, 4]), st.sampled_from([None, 90]))
def test_no_sample_is_lost_or_split_and_all_budgets_hold(drawn, algorithm, num_bins, max_images, max_patches):
    vision, rows = drawn
    settings = {"max_images": max_images, "max_patches": max_patches, "vision": vision}
    pipeline = packed(rows, 60, algorithm=algorithm, num_bins=num_bins, **settings)
    seen = Counter()
    for row in pipeline:
        assert row["target_length"] == 60
        for one in row["sequences"]:
            assert one.keys() == rows[one["id"]].keys()
            assert all(np.array_equal(a, b) for a, b in zip(images_in(one), images_in(rows[one["id"]]), strict=True))
            assert one["input_ids"].tolist() == rows[one["id"]]["input_ids"].tolist()
            seen[one["id"]] += 1
        images = [image for one in row["sequences"] for image in images_in(one)]
        patches = sum(image.shape[0] * image.shape[1] for image in images) // vision.patch**2
        assert sum(len(one["input_ids"]) for one in row["sequences"]) <= 60
        assert len(images) <= (max_images or MANY) and patches <= (max_patches or MANY)
    assert set(seen.values()) <= {1}
    assert len(seen) + pipeline.drops.total == len(rows)
    dropped = {int(row.where.split()[1]) for row in pipeline.drops.rows}
    assert dropped == set(range(len(rows))) - seen.keys()


def sample(n, images=0, side=8, **fields):
    ids = np.full(n, 9, np.int32)
    return {"input_ids": ids, "images": [picture(side, side) for _ in range(images)], **fields}


def lengths(rows):
    return [[len(one["input_ids"]) for one in row["sequences"]] for row in rows]


def test_a_sequence_may_be_full_of_images_and_still_take_text():
    rows = [sample(4, 2), sample(4, 1), sample(3, 0), sample(2, 1)]
    assert lengths(packed(rows, 10, max_images=2)) == [[4, 3], [4, 2]]
    assert lengths(packed(rows, 10)) == [[4, 4, 2], [3]]
    assert lengths(packed(rows, 10, max_images=3)) == [[4, 4], [3, 2]]
    assert lengths(packed(rows, 10, max_patches=8, vision=FIXED)) == [[4, 3], [4, 2]]


def test_patches_are_counted_where_sizes_differ():
    rows = [sample(1, 1, side) for side in (8, 16, 4, 8)]  # 16, 64, 4 and 16 patches
    assert [len(row["sequences"]) for row in packed(rows, 40, max_patches=64, vision=DYNAMIC)] == [3, 1]


def test_records_have_the_origins_and_parts_of_their_samples():
    rows = [sample(4, 1), sample(3), sample(8, 1), sample(2, 1)]
    batch = next(iter(packed(rows, 10).batch(2)))
    assert [[origin.row for origin in row] for row in batch.origins] == [[0, 1, 3], [2]]
    node = PackImages(Read(source(rows)), 10)
    accumulator = node.accumulator(type("Place", (), {"node": "pack_images"}))
    records = [Record(row, 100 + i, source(rows).chunk(0, 0)[i : i + 1]) for i, row in enumerate(rows)]
    calls = [call for record in records for call in accumulator.push(record)] + list(accumulator.flush())
    out = [record for call in calls for record in node.worker(None)(call)]
    assert [record.parts for record in out] == [(("d", 4), ("d", 3), ("d", 2)), (("d", 8),)]
    assert len({record.identity for record in out}) == 2


def test_samples_over_a_budget_are_dropped_and_counted_by_the_budget():
    rows = [sample(4, 3), sample(11, 1), sample(12, 4), sample(5, 1), sample(6, 5)]
    pipeline = packed(rows, 10, max_images=2)
    assert lengths(pipeline) == [[5]]
    assert pipeline.drops.failed == 0
    assert pipeline.drops.counts == {
        ("pack_images", "over max_images=2"): 2,
        ("pack_images", "over max_length=10"): 1,
        ("pack_images", "over max_length=10 and max_images=2"): 1,
    }
    assert pipeline.drops.rows[0].reason == "over max_images=2: 3 images" and "row 0" in pipeline.drops.rows[0].where


def test_or_are_errors_that_name_the_row():
    out, error = run(packed([sample(4, 1), sample(4, 3)], 10, max_images=2, overlong="raise"))
    assert out == [] and isinstance(error, RowError)
    for word in ("pack_images", "row 1", "over max_images=2: 3 images", 'overlong="drop"'):
        assert word in str(error)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"images": []}, "field 'input_ids'"),
        ({"input_ids": np.arange(3), "images": [b"JPEG"]}, "image 0 must be an array"),
        ({"input_ids": np.arange(3), "images": picture(4, 4)}, "must be a list"),
        ({"input_ids": np.arange(3), "loss_mask": [1]}, "loss_mask"),
    ],
)
def test_samples_that_cannot_be_packed_are_bad_records(wrong, message):
    rows = [sample(4, 1), wrong, sample(3)]
    error = run(packed(rows, 10))[1]
    assert isinstance(error, RowError) and "row 1" in str(error) and message in str(error)
    skipping = packed(rows, 10, on_error="skip")
    assert lengths(skipping) == [[4, 3]] and skipping.drops.failed == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "wrap"}, "algorithm='wrap' doesn't keep samples whole; use one of 'first_fit', 'best_fit'"),
        ({"overlong": "split"}, "overlong='split' doesn't keep samples whole; use one of 'drop', 'raise'"),
        ({"max_images": 0}, "max_images=0, but an int of at least 1"),
        ({"max_patches": True, "vision": FIXED}, "max_patches=True"),
        ({"max_patches": 9}, "needs vision="),
        ({"num_bins": 0}, "num_bins=0"),
        ({"max_length": 0}, "max_length=0"),
        ({"homogeneity": "all"}, "homogeneity"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PackImages(Read(source()), **{"max_length": 8, **settings})


def test_all_settings_that_change_the_data_are_in_the_recipe():
    node = PackImages(Read(source()), 8, max_images=2, max_patches=9, vision=DYNAMIC)
    assert node.settings() == {
        "max_length": 8,
        "algorithm": "first_fit",
        "num_bins": 16,
        "overlong": "drop",
        "homogeneity": "none",
        "max_images": 2,
        "max_patches": 9,
        "vision": DYNAMIC.recipe(),
    }


def test_components_that_may_not_share_a_sequence_do_not():
    sets = [Dataset.from_rows(name, [sample(2, 1, of=name) for _ in range(6)]) for name in "ab"]
    work = StaticMixtureWorkSource(sets, shuffle="none")
    pipeline = Pipeline(work, runner="inline").then(PackImages, 9, max_images=3, homogeneity="component")
    assert {frozenset(one["of"] for one in row["sequences"]) for row in pipeline} == {frozenset("a"), frozenset("b")}


def test_blank_rows_hold_no_samples():
    assert PackImages(Read(source()), 8).blank_record() == {"sequences": [], "target_length": 8}


def with_images(payload):
    count = payload["id"] % 3
    ids = np.array([*[PLACEHOLDER] * (4 * count), *range(10, 10 + payload["n"])], np.int32)
    return {**payload, "input_ids": ids, "images": [picture(8, 8, payload["id"])] * count}


@pytest.mark.parametrize("algorithm", ["first_fit", "best_fit"])
def test_it_holds_the_promises_of_every_node(algorithm):
    rows = [{"id": i, "n": n} for i, n in enumerate(np.random.default_rng(1).integers(0, 16, 60).tolist())]

    def make():
        pipeline = Pipeline(source(rows, 2, chunk=8)).map(with_images)
        return pipeline.then(PackImages, 20, max_images=3, num_bins=3, algorithm=algorithm).batch(2)

    assert_resumes_everywhere(make)
    assert_any_schedule(make, schedules=1)
    assert_any_world(make, [1, 2])


def test_the_examples_run():
    report = doctest.testmod(sys.modules["multimodal.packing"])
    assert report.attempted and not report.failed
