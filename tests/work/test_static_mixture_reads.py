"""What a mixture costs to read, and how well it shuffles: decoded units are counted, nothing is timed."""

import itertools
import statistics
from collections import Counter

import pytest
from mixtures import counted, lane_rows

from zephon_nodes import Pipeline, StaticMixtureWorkSource

EVEN, UNEVEN = [[16] * 20] * 64, [[16] * 19 + [1 + 5 * n % 16] for n in range(64)]
MIXED = {"wiki": ([[16] * 20] * 32, 2), "news": ([[16] * 19 + [3]] * 32, 1)}


def make(files, shuffle="windows", lanes=8, **settings):
    """A source and the counters of the units that it reads. ``files``: units of each, or {name: (those, weight)}."""
    files = files if isinstance(files, dict) else {"wiki": (files, 1)}
    made = {name: counted(name, units) for name, (units, _) in files.items()}
    weights = {name: weight for name, (_, weight) in files.items()}
    datasets = [dataset for dataset, _ in made.values()]
    return StaticMixtureWorkSource(datasets, weights, lanes, shuffle=shuffle, **settings), [r for _, r in made.values()]


def decoded(files, rank, world, runner="inline", **settings):
    """(units decoded by a rank, rows given by it) in an epoch."""
    source, reads = make(files, **settings)
    with Pipeline(source, rank=rank, world_size=world, runner=runner) as pipeline:
        rows = sum(1 for _ in pipeline)
    return sum(sum(each.values()) for each in reads), rows


def existing(files):
    return sum(len(units) for units in files)


@pytest.mark.parametrize("files", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_over_all_ranks_a_row_group_is_decoded_about_once_and_each_rank_reads_its_share(files, world, capsys):
    """64 files of 20 row groups, 8 lanes: HF #6594, every rank read everything when files don't divide."""
    per_rank = [decoded(files, rank, world)[0] for rank in range(world)]
    with capsys.disabled():
        print(f"\n{world} ranks: {sum(per_rank) / existing(files):.3f} decodes a unit, a rank at most ", end="")
        print(f"{max(per_rank) / existing(files) * world:.3f} of its share")
    assert existing(files) <= sum(per_rank) <= 1.1 * existing(files)
    assert max(per_rank) <= 1.15 * existing(files) / world


@pytest.mark.parametrize("world", [1, 4])
def test_threads_decode_no_more_than_one_thread(world):
    per_rank = [decoded(UNEVEN, rank, world, "thread")[0] for rank in range(world)]
    assert sum(per_rank) <= 1.1 * existing(UNEVEN)


def test_a_mixture_decodes_each_dataset_about_once():
    for world in (1, 8):
        units = [decoded(MIXED, rank, world, stop="redistribute")[0] for rank in range(world)]
        assert sum(units) <= 1.1 * 32 * 20 * 2


@pytest.mark.parametrize("shuffle", ["windows", "global", "none"])
@pytest.mark.parametrize("units", [[16] * 20, [16], [1] * 3], ids=["20 row groups", "one row group", "three rows"])
def test_with_three_files_and_eight_lanes_no_lane_starves(units, shuffle):
    """Also where there are fewer row groups than lanes: then lanes share them, decoded once a rank."""
    source, reads = make([units] * 3, shuffle)
    lanes = [len(lane_rows(source, lane)) for lane in range(8)]
    assert sum(lanes) == 3 * sum(units)
    assert max(lanes) - min(lanes) <= 1
    if shuffle != "global":
        with Pipeline(source, runner="inline") as pipeline:
            assert sum(1 for _ in pipeline) == 3 * sum(units)
        assert sum(reads[0].values()) <= 1.1 * 3 * len(units)


def test_a_resume_in_the_middle_decodes_only_what_is_left_and_the_span_it_is_in():
    source, _ = make(EVEN, flush_every=2, chunk_size=64)
    with Pipeline(source, runner="inline") as pipeline:
        for _ in itertools.islice(pipeline, 16000):
            pass
        state = pipeline.state_dict()
    fresh, rest = make(EVEN, flush_every=2, chunk_size=64)
    with Pipeline(fresh, runner="inline") as pipeline:
        pipeline.load_state_dict(state)
        assert sum(1 for _ in pipeline) == 20480 - 16000
    windows = 8 * 2 * 4
    assert sum(rest[0].values()) <= (20480 - 16000) / 16 + windows


# how well it shuffles


def places(source, lane_order):
    """Row numbers in the order in which rounds of one row deliver them, and the dataset's rows."""
    starts = source.datasets[0].shard_starts
    lanes = [[int(starts[at.shard]) + at.row for at in lane_rows(source, lane)] for lane in lane_order]
    return [row for round_ in itertools.zip_longest(*lanes) for row in round_ if row is not None]


def quality(files, shuffle, lanes=8):
    """(mean displacement of a row as a share of all rows, share of neighbours in a lane that lie in one unit)."""
    source, _ = make(files, shuffle, lanes)
    order = places(source, range(lanes))
    displaced = statistics.fmean(abs(row - place) for place, row in enumerate(order)) / len(order)
    one_unit = []
    for lane in range(lanes):
        at = [(p.shard, source.datasets[0].unit_of(p.shard, p.row)[0]) for p in lane_rows(source, lane)]
        one_unit += [a == b for a, b in itertools.pairwise(at)]
    return displaced, statistics.fmean(one_unit)


def test_windows_carry_rows_all_over_the_dataset_and_part_most_neighbours(capsys):
    """wds #71: small shards and many workers gave batches that were clusters. A perfect shuffle displaces by 1/3."""
    found = {name: quality([[16] * 20] * 16, name) for name in ("windows", "global", "none")}
    with capsys.disabled():
        for name, (displaced, one_unit) in found.items():
            print(
                f"\n{name}: mean displacement {displaced:.3f} of the rows, neighbours of one unit {one_unit:.3f}",
                end="",
            )
    assert 0.25 < found["windows"][0] < 0.42
    assert 0.3 < found["global"][0] < 0.37
    assert found["windows"][1] < 0.35
    assert found["global"][1] < 0.02
    assert found["none"][1] > 0.9


def test_many_small_shards_and_many_lanes_do_not_give_clusters():
    """wds #71 again: 100 shards of 100 rows, 16 lanes. A batch of 16 rounds holds rows of many shards."""
    source, _ = make([[100]] * 100, lanes=16)
    lanes = [[at.shard for at in lane_rows(source, lane)] for lane in range(16)]
    batches = [[shard for lane in lanes for shard in lane[at : at + 4]] for at in range(0, 600, 4)]
    assert statistics.fmean(len(set(batch)) for batch in batches) > 24
    order = places(source, range(16))
    assert statistics.fmean(abs(row - place) for place, row in enumerate(order)) > 0.25 * len(order)


def test_every_lane_sees_every_part_of_the_dataset_over_the_passes():
    """A lane that kept its part of the data would train its rank's share of each batch on the same rows for ever."""
    source, _ = make([[16] * 20] * 4, lanes=4, passes=8)
    for lane in range(4):
        shards = Counter(at.shard for at in lane_rows(source, lane))
        assert len(shards) == 4
        assert min(shards.values()) > 0.5 * 8 * 320 / 4
