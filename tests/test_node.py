"""Our nodes as torchdata nodes, and users' own nodes in our graphs."""

import copy
import itertools
import json
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from runs import expected, run, source
from torchdata.nodes import BaseNode, Batcher, IterableWrapper, Mapper, PinMemory, Prefetcher
from torchdata.nodes import Loader as TorchLoader

from zephon_nodes import Batch, ConfigError, Loader, Map, Node, Pipeline, Read, RowError, Shuffle, from_node
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere


def graph(rows=30, lanes=2, **settings):
    return Shuffle(Map(Read(source(rows, lanes, **settings)), dict), 5)


def on_top(kind, node):
    return {
        "Loader": lambda: node,
        "Prefetcher": lambda: Prefetcher(node, 4),
        "Batcher": lambda: Batcher(node, 3, drop_last=False),
        "Mapper": lambda: Mapper(Prefetcher(node, 16), str),
        "PinMemory": lambda: PinMemory(node),
    }[kind]()


KINDS = ["Loader", "Prefetcher", "Batcher", "Mapper"]
if torch.cuda.is_available():
    KINDS.append("PinMemory")


@pytest.mark.parametrize("kind", KINDS)
def test_torchdatas_nodes_and_loader_run_and_resume_on_top_of_ours(kind):
    """Report R8: what is prefetched is not lost at a resume."""
    loader = TorchLoader(on_top(kind, graph()))
    whole = list(loader)
    flat = [p for batch in whole for p in batch] if kind == "Batcher" else whole
    plain = run(Pipeline(graph()))[0]
    assert flat == (list(map(str, plain)) if kind == "Mapper" else plain)
    for cut in range(1, len(whole), 4):
        loader = TorchLoader(on_top(kind, graph()))
        seen = list(itertools.islice(loader, cut))
        state = json.loads(json.dumps(loader.state_dict()))
        fresh = TorchLoader(on_top(kind, graph()))
        fresh.load_state_dict(state)
        assert seen + list(fresh) == whole


@given(st.lists(st.integers(1, 12), min_size=1, max_size=60))
def test_two_hundred_drawn_stops_behind_deep_prefetching_have_no_gap(cuts):
    """Report R8: prefetch depth 16 and three buffered stages of our own."""

    def make():
        pipeline = Pipeline(source(70, 2), prefetch=16, parallelism=2)
        return pipeline.map(dict).map_group(list, 4).map(dict, parallelism=1).shuffle(5)

    whole, at, state = run(make())[0], 0, None
    for cut in cuts:
        if at + cut >= len(whole):
            return
        with make() as pipeline:
            if state is not None:
                pipeline.load_state_dict(state)
            assert list(itertools.islice(pipeline, cut)) == whole[at : at + cut]
            at, state = at + cut, pipeline.state_dict()


def test_epochs_of_torchdatas_loader_are_our_epochs():
    ours = Pipeline(graph(shuffle="global"))
    epochs = [run(ours)[0] for _ in range(3)]
    loader = TorchLoader(graph(shuffle="global"))
    assert [list(loader) for _ in range(3)] == epochs
    loader = TorchLoader(graph(shuffle="global"))
    for batch in itertools.islice(loader, 9):
        assert batch
    fresh = TorchLoader(graph(shuffle="global"))
    fresh.load_state_dict(loader.state_dict())
    assert [list(fresh), list(fresh), list(fresh)] == [epochs[0][9:], epochs[1], epochs[2]]


def test_a_node_can_be_read_by_hand_and_reset():
    node, want = graph(), run(Pipeline(graph()))[0]
    assert isinstance(node, BaseNode)
    assert [next(node) for _ in range(4)] == want[:4]
    state = node.state_dict()
    assert next(node) == want[4]
    node.reset(state)
    assert [next(node), next(node)] == want[4:6]
    node.reset()
    second = list(node)
    assert second != want and sorted(p["v"] for p in second) == list(range(30))
    node.close()


def test_a_reset_without_reading_begins_the_same_epoch():
    node, want = graph(), run(Pipeline(graph()))[0]
    for _ in range(3):
        node.reset()
        node.state_dict()
    assert list(node) == want


def test_a_node_that_was_closed_can_be_reset():
    node, want = graph(), run(Pipeline(graph()))[0]
    next(node)
    node.close()
    node.reset(TorchLoader(graph()).state_dict()["root"])
    assert list(node) == want


def test_state_is_asked_of_a_fresh_node_without_starting_to_read():
    node = graph()
    assert node.state_dict() == Pipeline(graph()).state_dict()


def test_our_nodes_stand_on_torchdatas_through_from_node():
    lanes = [IterableWrapper(range(7)), IterableWrapper(range(100, 103))]
    pipeline = Pipeline(from_node(*lanes)).map(lambda n: n * 2)
    assert run(pipeline)[0] == [0, 200, 2, 202, 4, 204, 6, 8, 10, 12]
    assert list(TorchLoader(Prefetcher(Batch(Read(from_node(IterableWrapper(range(5)))), 2), 2)))[2].payloads == [4]
    with pytest.raises(ConfigError, match=r"torchdata nodes come in by from_node"):
        Map(IterableWrapper([1]), str)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda node: pickle.loads(pickle.dumps(node))])
def test_a_node_is_copied_without_its_run(how):
    node = graph()
    first = next(node)
    other = how(node)
    node.close()
    fresh = Loader(other, runner="inline")
    assert next(iter(fresh)) == first


class Repeat(Node):
    """A user's own stateless node."""

    kind = "repeat"

    def __init__(self, source, times, **settings):
        super().__init__(source, **settings)
        self.times = times

    def settings(self):
        return {"times": self.times}

    def worker(self, setup):
        return lambda records: [record.child(record.payload, i) for record in records for i in range(self.times)]


def test_a_users_own_node_holds_the_promises_of_ours():
    def make():
        return Batch(Shuffle(Repeat(Map(Read(source(40, 4)), dict), 3, parallelism=2), 5), 2)

    assert_resumes_everywhere(make, steps=12)
    assert_any_schedule(make, schedules=2)
    assert_any_world(make, [1, 2, 4])
    work = source(40, 4)
    assert run(Pipeline(work).then(Repeat, 3))[0] == expected(work, lambda span: [p for p in span for _ in range(3)])


class Broken(Node):
    kind = "broken"

    def __init__(self, source, error):
        super().__init__(source)
        self.error = error

    def worker(self, setup):
        def work(records):
            if any(record.payload["v"] == 5 for record in records):
                raise self.error
            return records

        return work


@pytest.mark.parametrize("error", [ValueError("no good"), StopIteration("no good")], ids=["error", "stop"])
@pytest.mark.parametrize("runner", ["inline", "thread"])
def test_an_error_of_a_users_own_node_names_the_node_and_is_never_the_end_of_the_data(error, runner):
    out, got = run(Pipeline(source(9, chunk=3), runner=runner).then(Broken, error))
    assert out == [{"v": 0}, {"v": 1}, {"v": 2}]
    assert got is not None and not isinstance(got, StopIteration)
    assert "broken" in str(got) and "no good" in f"{got} {got.__cause__}"


def test_what_stands_where_is_checked_by_what_nodes_give_and_take():
    class OnBatches(Node):
        kind = "on_batches"
        takes = ("batches",)

        def worker(self, setup):
            return lambda records: [record.replaced(len(record.payload)) for record in records]

    assert run(Pipeline(source(5)).batch(2).then(OnBatches))[0] == [2, 2, 1]
    with pytest.raises(ConfigError, match="on_batches can't stand on read: it takes batches, and read gives rows"):
        OnBatches(Read(source()))


def test_a_bad_row_is_named_when_a_node_is_read_by_hand():
    def fail(payload):
        raise ValueError("no good")

    with pytest.raises(RowError, match="row 0 of rows"):
        next(Map(Read(source()), fail))
