"""torchdata's own nodes as lanes: everything that a work source promises, as far as a node's state can keep it."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import run, take
from torch.utils.data import RandomSampler, Sampler
from torchdata.nodes import (
    Batcher,
    IterableWrapper,
    MapStyleWrapper,
    MultiNodeWeightedSampler,
    ParallelMapper,
    SamplerWrapper,
    Unbatcher,
)

from zephon_nodes import ConfigError, Pipeline, StateError, from_node
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere, scheduled


class ByEpoch(Sampler):
    """Another order each epoch, as torch's DistributedSampler."""

    def __init__(self, rows, seed=0):
        self.rows, self.seed, self.epoch = rows, seed, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return iter(torch.randperm(self.rows, generator=generator).tolist())

    def __len__(self):
        return self.rows


def twice(value):
    return value * 2


def seeded(rows, seed):
    return RandomSampler(range(rows), generator=torch.Generator().manual_seed(seed))


def weighted(seed):
    parts = {"a": IterableWrapper(range(10)), "b": IterableWrapper(range(100, 115))}
    return MultiNodeWeightedSampler(parts, {"a": 0.5, "b": 0.5}, seed=seed, rank=0, world_size=1)


NODES = {
    "iterable": lambda lane: IterableWrapper(range(lane, 11)),
    "sampler": lambda lane: SamplerWrapper(ByEpoch(9, lane)),
    "random": lambda lane: SamplerWrapper(seeded(9, lane)),
    "map_style": lambda lane: MapStyleWrapper([{"v": i} for i in range(8)], ByEpoch(8, lane)),
    "batcher": lambda lane: Batcher(IterableWrapper(range(lane, 13)), 2, drop_last=False),
    "unbatcher": lambda lane: Unbatcher(Batcher(SamplerWrapper(ByEpoch(9, lane)), 4, drop_last=False)),
    "weighted": weighted,
    "none": lambda lane: IterableWrapper([None, {"v": lane}, None]),
    "empty": lambda lane: IterableWrapper(range(3 * lane)),
}


def graph(kind, lanes=2, span=4, **options):
    return Pipeline(from_node(*(NODES[kind](lane) for lane in range(lanes)), span=span), **options).map(wrapped)


def wrapped(item):
    return {"item": item}


@pytest.mark.parametrize("kind", NODES)
def test_lanes_give_what_the_nodes_give_round_by_round(kind):
    items = [list(NODES[kind](lane)) for lane in range(2)]
    want = [wrapped(lane[i]) for i in range(max(map(len, items))) for lane in items if i < len(lane)]
    for runner in ("inline", "thread", scheduled(0)):
        assert run(graph(kind, runner=runner)) == (want, None)


@pytest.mark.parametrize("kind", NODES)
@pytest.mark.parametrize("span", [1, 4, 100])
def test_a_resume_anywhere_and_any_schedule_and_world(kind, span):
    def make():
        return graph(kind, span=span)

    assert_resumes_everywhere(make)
    assert_any_schedule(make, schedules=1)
    assert_any_world(make, [1, 2])


def test_torchdata_s_own_threads_change_nothing():
    def make():
        nodes = [ParallelMapper(IterableWrapper(range(lane, 8)), twice, 2) for lane in range(2)]
        return Pipeline(from_node(*nodes, span=3))

    want = [value for i in range(0, 16, 2) for value in (i, i + 2)][:-1]
    assert run(make()) == (want, None)
    assert_resumes_everywhere(make, steps=3)
    assert_any_world(make, [1, 2], rounds=3)


@settings(max_examples=10)
@given(
    st.sampled_from(["iterable", "sampler", "map_style", "unbatcher", "weighted"]),
    st.lists(st.sampled_from([0, 1, 2, 3, 5, 8]), min_size=5, max_size=5),
    st.sampled_from([1, 3, 50]),
)
def test_a_chain_of_resumes_over_three_epochs_is_one_run(kind, cuts, span):
    long = graph(kind, span=span, runner="inline")
    epochs = [list(long) for _ in range(3)]
    want = [item for epoch in epochs for item in epoch]
    assert len({json.dumps(epoch) for epoch in epochs}) == (1 if kind == "iterable" else 3)
    got, state = [], None
    for cut in [*cuts, 100, 100, 100]:
        pipeline = graph(kind, span=span, runner="inline")
        if state is not None:
            pipeline.load_state_dict(state)
        out, state = take(pipeline, cut)
        got += out
    assert got[: len(want)] == want[: len(got)]
    assert len(got) >= len(want)


# epochs that are broken off


def broken_off(stops, runner="inline"):
    """Epochs that end after ``stops`` outputs, then what the next one gives."""
    pipeline = graph("sampler", runner=runner)
    with pipeline:
        for stop in stops:
            for _, _ in zip(range(stop), pipeline, strict=False):
                pass
        return list(pipeline), pipeline.epoch


@pytest.mark.parametrize("stops", [(1,), (2,), (1, 1), (3, 1), (1, 3, 2)])
def test_the_next_epoch_is_the_next_one_for_every_lane_wherever_the_last_was_broken_off(stops):
    """An early break after an odd number of outputs: lane 1 has given less than lane 0, or nothing."""
    lanes = [ByEpoch(9, lane) for lane in range(2)]
    for lane in lanes:
        lane.set_epoch(len(stops))
    want = [wrapped(item) for pair in zip(*lanes, strict=True) for item in pair]
    for runner in ("inline", "thread"):
        assert broken_off(stops, runner) == (want, len(stops))


def test_a_state_from_the_start_of_an_epoch_begins_that_epoch_in_another_process():
    for stop in (1, 2, 3):
        pipeline = graph("sampler", runner="inline")
        for _, _ in zip(range(stop), pipeline, strict=False):
            pass
        iter(pipeline)
        state = json.loads(json.dumps(pipeline.state_dict()))
        fresh = graph("sampler", runner="inline")
        fresh.load_state_dict(state)
        assert list(fresh) == list(pipeline)


def test_a_second_pipeline_over_the_same_nodes_begins_where_the_first_began():
    """A notebook cell that is run twice, or a check on a few batches before training."""
    source = from_node(NODES["sampler"](0), NODES["sampler"](1), span=4)
    first, second = (list(Pipeline(source, runner="inline")) for _ in range(2))
    assert first == second


# nodes that can't keep their word


def test_a_node_that_does_not_come_back_to_its_state_is_refused_not_trusted():
    """A RandomSampler without a generator draws another order in the new process; its state can't tell."""
    torch.manual_seed(0)
    pipeline = Pipeline(from_node(SamplerWrapper(RandomSampler(range(50))), span=8), runner="inline")
    out, state = take(pipeline, 20)
    torch.manual_seed(1)
    fresh = Pipeline(from_node(SamplerWrapper(RandomSampler(range(50))), span=8), runner="inline")
    fresh.load_state_dict(state)
    rest, error = run(fresh)
    assert isinstance(error, StateError) or sorted(out + rest) == list(range(50)), "rows came twice and others never"


# settings


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ((), "none"),
        ((1,), "torchdata nodes.*'int'"),
        (([IterableWrapper([1])],), "torchdata nodes, one a lane.*'list'"),
    ],
    ids=["nothing", "a number", "a list"],
)
def test_what_is_no_node_is_refused(nodes, words):
    with pytest.raises(ConfigError, match=words):
        from_node(*nodes)


def test_a_node_for_two_lanes_is_refused():
    node = IterableWrapper([1])
    with pytest.raises(ConfigError, match="given twice"):
        from_node(node, node)
    with pytest.raises(ConfigError, match=r"span.*at least 1"):
        from_node(node, span=0)


def test_another_span_or_kind_of_node_or_number_of_lanes_is_refused_by_name():
    state = graph("sampler").state_dict()
    for other, words in [
        (graph("sampler", span=5), r"span: 4 -> 5"),
        (graph("iterable"), "nodes.*SamplerWrapper.*IterableWrapper"),
        (graph("sampler", lanes=3), "num_lanes: 2 -> 3"),
    ]:
        with pytest.raises(StateError, match=words):
            other.load_state_dict(state)


def test_records_say_which_item_of_which_node_they_are():
    batches = list(
        Pipeline(from_node(IterableWrapper("ab"), IterableWrapper("cd"), name="mine"), runner="inline").batch(2)
    )
    assert [[(o.dataset, o.shard, o.row) for row in batch.origins for o in row] for batch in batches] == [
        [("mine", 0, 0), ("mine", 0, 1)],
        [("mine", 1, 0), ("mine", 1, 1)],
    ]
