import itertools
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mixtures import counted
from runs import run, take

from zephon_nodes import ConfigError, Dataset, Pipeline, Pointer, WorkSource, ZephonError, pointer
from zephon_nodes.stream import Cut, End, Flush
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, scheduled
from zephon_nodes.work import base
from zephon_nodes.work.base import QUANTUM, Ahead, Chunk, identity


def rows_of(name, count):
    return Dataset.from_rows(name, [{"d": name, "v": i} for i in range(count)])


def example():
    """The class that the head of the file shows, as written there."""
    names = {"WorkSource": WorkSource, "pointer": pointer}
    exec(textwrap.dedent(base.__doc__.split("::\n", 1)[1]), names)
    return names["Alternating"]


def alternating(lanes=4):
    return example()([rows_of("a", 300), rows_of("b", 270)], lanes)


class Listed(WorkSource):
    """Lane l gives chunks[l], lists of rows of dataset "a", or whatever stands there."""

    def __init__(self, chunks, flush_every=2, rows=100):
        super().__init__([rows_of("a", rows)], len(chunks), flush_every)
        self._chunks = chunks

    def chunk(self, lane, index, epoch=0):
        if index >= len(self._chunks[lane]):
            return None
        chunk = self._chunks[lane][index]
        if isinstance(chunk, Exception):
            raise chunk
        return chunk


# a user's own


def test_the_example_of_the_docstring_gives_every_lane_rows_of_both_datasets_in_turn():
    out, error = run(Pipeline(alternating(1), runner="inline"))
    assert error is None
    assert [(row["d"], row["v"]) for row in out] == [(name, i) for i in range(270) for name in "ab"]


def test_the_example_keeps_all_promises():
    def make():
        return Pipeline(alternating()).filter(lambda row: row["v"] % 3).shuffle(5).batch(7)

    assert_resumes_everywhere(make, steps=20)
    assert_any_schedule(make, schedules=1)
    assert_any_world(make, [1, 2, 4])


def test_randomness_over_the_example_is_another_in_the_next_epoch():
    """The same crop of an image in every epoch is no augmentation; a user copies the example."""
    pipeline = Pipeline(example()([rows_of("a", 20), rows_of("b", 20)], 1), runner="inline")
    with pipeline.map(lambda row, rng: int(rng.integers(1 << 40))) as graph:
        first, second = list(graph), list(graph)
    assert len(set(first)) == len(first)
    assert not set(first) & set(second)


@given(
    st.lists(st.lists(st.lists(st.integers(0, 99), max_size=150), max_size=7), min_size=1, max_size=2),
    st.integers(1, 3),
    st.data(),
)
def test_a_lane_is_fed_in_small_lists_with_a_mark_at_every_span(lanes, flush_every, data):
    source = Listed([[[Pointer("a", 0, row) for row in chunk] for chunk in lane] for lane in lanes], flush_every)
    lane = data.draw(st.integers(0, len(lanes) - 1))
    spans = [lanes[lane][i : i + flush_every] for i in range(0, len(lanes[lane]) + 1, flush_every)]
    first = data.draw(st.integers(0, len(spans) - 1))
    rows = [[row for chunk in span for row in chunk] for span in spans[first:]]
    skipped = data.draw(st.integers(0, len(rows[0])))
    found, got = [], None
    for work in source.feed(lane, 0, Cut(first, skipped)):
        if isinstance(work, Flush):
            assert work == Flush(lane, first + len(found))
            found.append([])
        elif isinstance(work, End):
            got = work
        elif isinstance(work, Ahead):
            assert len(work.work) > 0
        else:
            assert got is None
            assert 1 <= len(work) <= QUANTUM
            assert work.identities() == [identity(at) for at in work]
            found[-1] += [at.row for at in work]
    assert got == End(lane)
    assert found == [rows[0][skipped:], *rows[1:]]


# pointers and chunks


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.data())
def test_pointer_counts_rows_through_all_files(files, data):
    dataset, _ = counted("d", [[rows] for rows in files])
    places = [(shard, row) for shard, rows in enumerate(files) for row in range(rows)]
    for wrong in (-1, len(places)):
        with pytest.raises(ConfigError, match=rf"row {wrong}.*'d'.*{len(places)} rows"):
            pointer(dataset, wrong)
    if places:
        i = data.draw(st.integers(0, len(places) - 1))
        assert pointer(dataset, i, 3) == Pointer("d", *places[i], 3)


def test_rows_drawn_by_numpy_are_rows_like_any_other():
    """A curriculum of one's own begins with a permutation by numpy."""
    dataset = rows_of("a", 20)
    order = np.random.default_rng(0).permutation(20)
    source = Listed([[[pointer(dataset, row, np.int64(0)) for row in order]]])
    raw = Listed([[[Pointer("a", np.int64(0), row) for row in order]]])
    for each in (source, raw):
        with Pipeline(each, runner="inline") as pipeline:
            assert [row["v"] for row in pipeline] == order.tolist()
    assert all(type(part) is int for part in pointer(dataset, order[0])[1:])
    assert identity(Pointer("a", np.int64(0), order[0])) == identity(Pointer("a", 0, int(order[0])))


POINTERS = st.lists(
    st.builds(Pointer, st.sampled_from(["a", "b"]), st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**40))
)


@given(POINTERS, st.data())
def test_a_chunk_of_arrays_is_the_list_of_its_pointers(pointers, data):
    names = ["b", "a"]
    columns = zip(*pointers, strict=True) if pointers else ((), (), (), ())
    dataset, shard, row, pass_ = (list(column) for column in columns)
    arrays = [np.array(column, np.int64) for column in ([names.index(n) for n in dataset], shard, row, pass_)]
    chunk = Chunk(names, *arrays)
    assert list(chunk) == chunk.pointers() == pointers
    assert len(chunk) == len(pointers)
    assert chunk.identities() == [identity(at) for at in pointers]
    assert all(type(value) is int for at in chunk for value in at[1:])
    if pointers:
        i, j = data.draw(st.integers(-len(pointers), len(pointers) - 1)), data.draw(st.integers(0, len(pointers)))
        assert chunk[i] == pointers[i]
        assert list(chunk[:j]) == pointers[:j]
    with pytest.raises(IndexError):
        chunk[len(pointers)]


def test_every_row_of_every_pass_has_an_identity_of_its_own():
    places = itertools.product("ab", range(5), range(20), range(5))
    found = [identity(Pointer(*place)) for place in places]
    assert len(set(found)) == len(found)
    assert identity(Pointer("wiki", 3, 41, 2)) == 1290058397010761136, "frozen: crops of a resumed run come from it"


# what goes wrong

RUNNERS = ["inline", "thread", scheduled(1)]


@pytest.mark.parametrize(
    "chunk",
    [
        [1, 2],
        [("a", 0, 1)],
        [None],
        ["a"],
        5,
        [Pointer("other", 0, 1)],
        [Pointer("a", 0, 100)],
        [Pointer("a", 1, 0)],
        [Pointer("a", 0, -1)],
        [Pointer("a", 0, 1.5)],
    ],
    ids=repr,
)
def test_a_chunk_that_holds_no_pointers_of_rows_is_an_error_that_names_the_source(chunk):
    """She has to find the line in her own class: which class, what came."""
    out, error = run(Pipeline(Listed([[chunk]]), runner="inline"))
    assert out == []
    assert "Listed" in str(error) or "dataset 'a'" in str(error), f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("runner", RUNNERS, ids=["inline", "thread", "scheduled"])
def test_an_error_in_a_chunk_comes_after_everything_before_it(runner):
    chunks = [[Pointer("a", 0, i)] for i in range(3)]
    out, error = run(Pipeline(Listed([[*chunks, ZeroDivisionError("in my chunk")]]), runner=runner))
    assert [row["v"] for row in out] == [0, 1, 2]
    assert "in my chunk" in f"{error} {error.__cause__}"


def test_a_row_that_is_named_twice_comes_twice():
    out, error = run(Pipeline(Listed([[[Pointer("a", 0, 5)] * 3]]), runner="inline"))
    assert (error, [row["v"] for row in out]) == (None, [5, 5, 5])


def test_datasets_of_one_name_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match=r"different names.*'a'.*rename"):
        example()([rows_of("a", 3), rows_of("b", 3), rows_of("a", 4)], 2)


@pytest.mark.parametrize(
    ("lanes", "flush_every", "words"), [(0, 1, "num_lanes"), (1, 0, "flush_every"), ("4", 1, "num_lanes.*'4'")]
)
def test_lanes_and_spans_below_one_are_refused(lanes, flush_every, words):
    class Own(WorkSource):
        def chunk(self, lane, index, epoch=0):
            return None

    with pytest.raises(ConfigError, match=words):
        Own([rows_of("a", 1)], lanes, flush_every)


def test_a_dataset_is_asked_for_by_name_and_a_wrong_name_says_what_there_is():
    source = alternating()
    assert source.dataset("b").rows == 270
    with pytest.raises(ConfigError, match=r"'c'.*'a'.*'b'"):
        source.dataset("c")


# the recipe


class Every(WorkSource):
    """Every n-th row."""

    def __init__(self, datasets, step):
        super().__init__(datasets)
        self.step = step

    def chunk(self, lane, index, epoch=0):
        return [pointer(self.datasets[0], i) for i in range(0, 20, self.step)] if index == 0 else None


def test_settings_of_a_source_of_ones_own_are_in_the_recipe():
    """A changed step is other data: it must be refused at a restore, though the user did nothing for it."""
    _, state = take(Pipeline(Every([rows_of("a", 20)], 2), runner="inline"), 3)
    with pytest.raises(ZephonError, match=r"step.*2.*3"):
        Pipeline(Every([rows_of("a", 20)], 3), runner="inline").load_state_dict(state)


def test_another_class_or_other_data_is_another_recipe():
    one, other = Every([rows_of("a", 20)], 2).recipe(), Every([rows_of("a", 21)], 2).recipe()
    assert one != other
    assert one["source"].endswith("Every") != alternating().recipe()["source"]
    assert one == Every([rows_of("a", 20)], 2).recipe()


def test_a_message_tells_file_and_row_and_does_not_run_on_for_ever():
    source = alternating()
    text = source.locate(tuple(pointer(source.dataset("a"), i) for i in range(9)))
    assert text.count("(dataset") == 4
    assert "'a'" in text
    assert "5 more" in text
