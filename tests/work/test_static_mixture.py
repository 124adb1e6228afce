"""The mixture against its definition, row by row. What it costs to read is in ``test_static_mixture_reads``."""

import itertools
import threading
import tracemalloc
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import chunks, counted, lane_rows, mixture, pieces

from zephon_nodes import StaticMixtureWorkSource
from zephon_nodes.stream import Pointer, pass_number, split_pass
from zephon_nodes.work.lane_time import lane_time
from zephon_nodes.work.order import Order

SHUFFLES, STOPS = ["windows", "global", "none"], ["last", "first", "redistribute"]


@st.composite
def mixtures(draw, stops=STOPS, most_rows=150):
    rows = draw(st.lists(st.sampled_from([1, 2, 7, 40, most_rows]), min_size=1, max_size=3))
    return mixture(
        rows,
        [draw(st.sampled_from(["1", "0.5", "1/3"])) for _ in rows],
        draw(st.sampled_from([1, 2, 3, 8])),
        draw(st.sampled_from([1, 5, 16, 100])),
        draw(st.sampled_from([1, 8, 64])),
        shuffle=draw(st.sampled_from(SHUFFLES)),
        passes=draw(st.sampled_from([1, 1, 2])),
        stop=draw(st.sampled_from(stops)),
        seed=draw(st.integers(0, 9)),
    )


def passes_of(source, epoch=0):
    """{dataset: [Counter of the rows of each pass]}, over all lanes."""
    found = {d.name: [] for d in source.datasets}
    for lane in range(source.num_lanes):
        for at in lane_rows(source, lane, epoch):
            number = split_pass(at.pass_)
            assert number[0] == epoch
            counters = found[at.dataset]
            counters += [Counter() for _ in range(number[1] + 1 - len(counters))]
            counters[number[1]][at.row] += 1
    return found


@given(mixtures(), st.integers(0, 2))
def test_every_row_comes_once_a_pass_whatever_the_mode(source, epoch):
    found = passes_of(source, epoch)
    full = {}
    for dataset in source.datasets:
        *before, last = found[dataset.name] or [Counter()]
        assert all(sorted(rows.elements()) == list(range(dataset.rows)) for rows in before), "a pass before the last"
        assert max(last.values(), default=1) == 1
        full[dataset.name] = len(before) + len(last) / dataset.rows
    if source.stop == "redistribute":
        assert set(full.values()) == {source.passes}
    else:
        assert (min if source.stop == "last" else max)(full.values()) == source.passes


@given(mixtures(most_rows=40), st.integers(0, 2))
def test_chunks_are_what_the_definition_says(source, epoch):
    """Row i of the c rows of a piece is due at (z + (i + phi) / c) N / (r L); a chunk holds what is due in it, in order."""
    lanes = source.num_lanes
    rates = [source.chunk_size * share for share in source.given_shares]
    quotas = [Fraction(source.passes * d.rows, lanes) for d in source.datasets]
    time = lane_time(rates, quotas, source.stop)
    want = {(lane, index): [] for lane in range(lanes) for index in range(time.chunks)}
    for k, dataset in enumerate(source.datasets):
        edges = [time.taken(k, 0, i) for i in range(time.chunks + 1)]
        window_rows = max(1, source.window_units * dataset.rows // len(dataset.unit_rows))
        order = Order(dataset.name, dataset.unit_rows, lanes, source.shuffle, window_rows, source.seed)
        each = Fraction(dataset.rows, order.rounds * lanes)
        for z, lane in itertools.product(range(int(edges[-1] / each) + 1), range(lanes)):
            start, stop = order.piece(epoch, z, lane)
            number = pass_number(epoch, z // order.rounds)
            phase = Fraction(order.phase(epoch, z, lane), 2**32)
            for i, row in enumerate(order.take(number, (start, stop), 0, stop - start).tolist()):
                due = (z + (i + phase) / (stop - start)) * each
                for index in range(time.chunks):
                    if edges[index] <= due < edges[index + 1]:
                        place = (due - edges[index]) / (edges[index + 1] - edges[index])
                        want[lane, index].append((place, dataset.name, Pointer(dataset.name, 0, row, number)))
    for (lane, index), rows in want.items():
        assert list(source.chunk(lane, index, epoch)) == [at for _, _, at in sorted(rows)]
    assert all(source.chunk(lane, time.chunks, epoch) is None for lane in range(lanes))


@given(
    st.sampled_from([(1000, 250), (40, 503, 7), (333, 334)]),
    st.sampled_from([("0.5", "0.5", "0.5"), ("0.9", "0.1", "1/7")]),
    st.sampled_from([1, 3, 8]),
    st.sampled_from([1, 16, 100]),
    st.sampled_from(SHUFFLES),
)
def test_every_prefix_of_every_lane_is_mixed_to_about_a_row(rows, weights, lanes, chunk_size, shuffle):
    """A lane has had ceil(x c - phi) of a piece's c rows when it has gone through the part x of it, so it is less than a
    row from x c, which is less than a row from x N / (r L); a whole piece behind it is less than a row from N / (r L)."""
    source = mixture(rows, weights[: len(rows)], lanes, chunk_size, stop="first", shuffle=shuffle)
    for lane in range(lanes):
        had, rounds = Counter(), Counter()
        for n, at in enumerate(lane_rows(source, lane), 1):
            had[at.dataset] += 1
            for k, dataset in enumerate(source.datasets):
                cut = pieces(source, dataset)
                rounds[k] = 0 if dataset.rows % cut == 0 else int(had[dataset.name] * cut / dataset.rows) + 1
            bounds = [2 + rounds[k] for k in range(len(rows))]
            for k, (share, dataset) in enumerate(zip(source.given_shares, source.datasets, strict=True)):
                assert abs(had[dataset.name] - share * n) <= bounds[k] + share * sum(bounds)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_small_dataset_that_repeats_has_its_share_in_every_lane(shuffle):
    """Else some lanes never hear of it, or less than the mixture says, and lanes end far from each other."""
    apart = {}
    for rows in [(1, 800), (5, 400), (21, 1003)]:
        source = mixture(rows, (1, 1), 8, shuffle=shuffle)
        lanes = [Counter(at.dataset for at in lane_rows(source, lane)) for lane in range(8)]
        apart[rows] = max(max(c[d] for c in lanes) - min(c[d] for c in lanes) for d in ("d0", "d1"))
    assert max(apart.values()) <= 4, f"rows of a dataset between the lane with most and that with fewest: {apart}"


@given(mixtures(["redistribute"]))
def test_lanes_end_in_the_same_chunk_and_within_a_row_for_each_round_of_a_dataset(source):
    lanes = [Counter(at.dataset for at in lane_rows(source, lane)) for lane in range(source.num_lanes)]
    assert len({len(chunks(source, lane)) for lane in range(source.num_lanes)}) == 1
    for dataset in source.datasets:
        had = [count[dataset.name] for count in lanes]
        assert max(had) - min(had) <= source.passes * pieces(source, dataset) // source.num_lanes


@given(st.sampled_from([(3, 50), (40, 7)]), st.sampled_from([1, 4]), st.sampled_from(SHUFFLES), st.integers(0, 40))
def test_all_lanes_are_in_the_same_pass_at_the_same_time(rows, lanes, shuffle, index):
    source = mixture(rows, (1, 2), lanes, shuffle=shuffle, passes=None)
    for lane in range(lanes):
        for share, dataset in zip(source.given_shares, source.datasets, strict=True):
            rate = source.chunk_size * share * lanes / dataset.rows
            allowed = range(int(rate * index), -int(-rate * (index + 1) // 1))
            seen = {split_pass(at.pass_)[1] for at in source.chunk(lane, index) if at.dataset == dataset.name}
            assert seen <= set(allowed)
    assert source.endless
    assert source.chunk(0, 10**9) is not None


@pytest.mark.parametrize("chunk_size", [4, 7, 1000])
def test_one_lane_and_no_shuffling_is_exactly_file_order_in_every_epoch(chunk_size):
    """streaming #749: shuffle=False, but the order differed between epochs."""
    dataset, _ = counted("d", [[3, 4], [], [0, 5, 1]])
    source = StaticMixtureWorkSource([dataset], None, 1, chunk_size, shuffle="none", seed=5)
    for epoch in (0, 3):
        places = [(at.shard, at.row) for at in lane_rows(source, 0, epoch)]
        assert places == [(0, row) for row in range(7)] + [(2, row) for row in range(6)]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("shuffle", ["windows", "global"])
def test_epochs_passes_and_lanes_have_orders_of_their_own(shuffle, lanes):
    source = mixture((100,), None, lanes, 8, shuffle=shuffle, passes=2)
    orders = []
    for epoch in range(4):
        rows = [(split_pass(at.pass_)[1], at.row) for lane in range(lanes) for at in lane_rows(source, lane, epoch)]
        orders += [tuple(row for pass_, row in rows if pass_ == number) for number in range(2)]
    assert len(set(orders)) == 8
    assert all(sorted(order) == list(range(100)) for order in orders)


def test_a_trillion_rows_are_neither_made_nor_walked_through():
    """The memory of construction and of a far chunk is that of the units and of the chunk, whatever the rows."""
    dataset, _ = counted("huge", [[10**12 // 4096] * 16] * 256)
    assert dataset.rows == 10**12 // 4096 * 4096
    for shuffle in SHUFFLES:
        tracemalloc.start()
        source = StaticMixtureWorkSource([dataset], None, 512, shuffle=shuffle, window_bytes=1 << 60)
        chunk = source.chunk(300, 7_000_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2_000_000
        assert 254 <= len(chunk) <= 258
        assert all(0 <= at.shard < 256 and 0 <= at.row < dataset.rows // 256 for at in chunk)
        assert source.chunk(0, 7_700_000) is None


def test_chunks_are_pure_in_any_order_and_any_thread():
    source, fresh = (mixture((90, 7), (3, 1), 3, 8, passes=2) for _ in range(2))
    places = [(lane, index, epoch) for lane in range(3) for index in range(9) for epoch in (0, 1)]
    want = {place: list(fresh.chunk(*place)) for place in places}
    wrong = []

    def ask(order):
        wrong.extend(place for place in order if list(source.chunk(*place)) != want[place])

    orders = [places, places[::-1], places[1::2] + places[::2], sorted(places, key=lambda place: place[::-1])]
    threads = [threading.Thread(target=ask, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_order_of_the_list_of_datasets_does_not_matter_but_names_and_seed_do():
    def rows(names, order, **settings):
        made = [counted(name, [[8] * 5])[0] for name in names]
        source = StaticMixtureWorkSource(
            [made[i] for i in order], dict(zip(names, (2, 1), strict=True)), 2, 16, **settings
        )
        return [
            (names.index(at.dataset), at.row) for lane in range(2) for at in lane_rows(source, lane)
        ], source.recipe()

    base = rows(("a", "b"), (0, 1))
    assert rows(("a", "b"), (1, 0)) == base
    assert rows(("a", "c"), (0, 1))[0] != base[0]
    assert rows(("a", "b"), (0, 1), seed=1)[0] != base[0]
    alone = [at for at in base[0] if at[0] == 0]
    assert [at for at in rows(("a", "c"), (0, 1))[0] if at[0] == 0] == alone, (
        "another dataset's name moved this one's rows"
    )


def test_golden_chunks():
    """The algorithm of today, frozen: a change here needs a new ``ALGORITHM`` in ``recipe``."""

    def text(chunk):
        return " ".join(f"{at.dataset}:{at.row}" + "'" * split_pass(at.pass_)[1] for at in chunk)

    windows, everywhere = (mixture((40, 9), (3, 1), 2, 8, seed=7, shuffle=kind) for kind in ("windows", "global"))
    assert text(windows.chunk(1, 2, 1)) == "d1:5 d0:1 d0:7 d0:5 d1:2' d0:3 d0:20 d0:18"
    assert text(everywhere.chunk(0, 1)) == "d0:18 d0:9 d0:26 d1:6 d0:17 d0:28 d0:30"
