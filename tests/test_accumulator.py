"""Accumulators: groups of a span, and an accumulator of a user's own in a graph."""

from hypothesis import given
from hypothesis import strategies as st
from runs import chained, expected, run, source

from zephon_nodes import Accumulator, Node, Pipeline
from zephon_nodes.accumulator import Grouping
from zephon_nodes.stream import merged
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere


@given(st.integers(0, 40), st.integers(1, 9))
def test_groups_have_their_size_but_for_the_last(count, size):
    grouping = Grouping(size)
    out = [list(grouping.push(record)) for record in range(count)]
    assert [i for i, groups in enumerate(out) if groups] == list(range(size - 1, count, size))
    whole = [group for groups in out for group in groups] + list(grouping.flush())
    assert whole == [list(range(i, min(count, i + size))) for i in range(0, count, size)]
    assert list(grouping.flush()) == [] and grouping.held() == []


class Runs(Accumulator):
    """Records until one is a multiple of 5: generators that are asked for only in part would lose some."""

    def __init__(self):
        self.waiting = []

    def push(self, record):
        self.waiting.append(record)
        if record.payload["v"] % 5 == 0:
            yield from self.flush()

    def flush(self):
        if self.waiting:
            held, self.waiting = self.waiting, []
            yield held


class Joined(Node):
    kind = "joined"
    holds = True
    places = None

    def accumulator(self, place):
        if self.places is not None:
            self.places.append((place.node, place.lane, place.span, place.epoch))
        return Runs()

    def worker(self, setup):
        return lambda records: [merged({"v": sum(r.payload["v"] for r in records), "n": len(records)}, records)]


def joined(span):
    out, held = [], []
    for row in span:
        held.append(row["v"])
        if row["v"] % 5 == 0:
            out, held = [*out, held], []
    return [{"v": sum(values), "n": len(values)} for values in [*out, held] if values]


@given(
    st.integers(1, 60), st.sampled_from([1, 3]), st.sampled_from([None, 1, 2]), st.lists(st.integers(0, 5), max_size=5)
)
def test_an_accumulator_of_ones_own_gives_what_lists_give_over_any_resumes(rows, lanes, parallelism, cuts):
    def make():
        return Pipeline(source(rows, lanes), runner="inline").then(Joined, parallelism=parallelism)

    want = expected(source(rows, lanes), joined)
    assert run(make().options(runner="thread", parallelism=2)) == (want, None)
    assert chained(make, cuts)[0] == want


def test_each_span_of_each_lane_gets_one_of_its_own():
    node = Joined(Pipeline(source(24, 2)).node, name="mine")
    node.places = []
    run(Pipeline(node, runner="inline"))
    assert sorted(node.places) == [
        ("mine", lane, span, 0) for lane in range(2) for span in range(len(node.places) // 2)
    ]
    assert len(node.places) >= 4


def test_the_shipped_kit_passes_it():
    def make():
        return Pipeline(source(90, 4)).then(Joined).shuffle(3).batch(2)

    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    assert_resumes_everywhere(make, 10)
