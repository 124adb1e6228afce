"""The promises of the design, on random graphs, against a plain reference (``graphs.py``)."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from unittest import mock

import pytest
import torch
from graphs import PREDICTABLE, Graph, Op, graphs, plain, tokens
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes import Dataset, Loader, Pipeline, StateError, StaticMixtureWorkSource
from zephon_nodes.concurrency import wheel
from zephon_nodes.testing import (
    assert_any_schedule,
    assert_any_world,
    assert_resumes_everywhere,
    digest,
    run_rounds,
    scheduled,
)


@given(graphs(names=PREDICTABLE), st.integers(0, 1000))
def test_any_runner_gives_what_plain_python_gives(graph, seed):
    want = graph.expected()
    for options in (
        {"runner": "inline"},
        {"runner": "thread", "parallelism": 2, "prefetch": 3},
        {"runner": scheduled(seed)},
    ):
        with graph.pipeline(**options) as pipeline:
            assert [plain(output) for output in pipeline] == want
    # Too few outputs for the trainer to be found a quick one, who runs the engine itself: here it is one from the start.
    with mock.patch.object(wheel, "_SHORT_SECONDS", 1e9), graph.pipeline(parallelism=2, prefetch=2) as pipeline:
        assert [plain(output) for output in pipeline] == want


@given(graphs())
def test_knobs_never_change_data(graph):
    assert_any_schedule(graph.pipeline, schedules=2)


@given(graphs())
def test_stop_anywhere_and_resume(graph):
    assert_resumes_everywhere(graph.pipeline, steps=12)


@given(graphs(), st.randoms(use_true_random=False))
def test_a_chain_of_resumes_is_one_run(graph, random):
    """Stops after drawn numbers of outputs, 0 included, so also right after a load, at spans' edges and at the end."""
    want = [digest(output) for output in graph.pipeline(runner="inline")]
    got, state = [], None
    for _ in range(7):
        pipeline = graph.pipeline(runner=random.choice(["inline", scheduled(random.randrange(99))]))
        if state is not None:
            pipeline.load_state_dict(json.loads(json.dumps(state)))
        if state is None or len(got) < len(want):
            got += [digest(output) for output in itertools.islice(pipeline, random.choice([0, 1, 2, 5, 20]))]
        state = pipeline.state_dict()
        pipeline.close()
    assert got[: len(want)] == want[: len(got)]


@given(graphs(batched=st.sampled_from([1, 3])))
def test_any_world_gives_the_same_global_batches(graph):
    worlds = [world for world in (1, 2, 3, 4, 6) if graph.lanes % world == 0]
    assert_any_world(graph.pipeline, worlds)


@given(graphs(names=("double", "keep", "reverse", "delay", "dedup", "shuffle", "noisy")), st.sampled_from([1, 2]))
def test_every_row_arrives_or_stands_in_the_drop_report(graph, world):
    if graph.lanes % world:
        return
    arrived = Counter()
    for rank in range(world):
        pipeline = graph.pipeline(rank=rank, world_size=world, runner="inline")
        for batch in pipeline if graph.batch else pipeline.batch(1):
            arrived.update((at.dataset, at.row, at.pass_) for row in batch.origins for at in row)
    for rank in range(world):
        pipeline = graph.pipeline(rank=rank, world_size=world, runner="inline")
        for _ in pipeline:
            pass
        arrived.update({f"dropped {rank}": pipeline.drops.total})
    assert sum(arrived.values()) == _rows_of(graph)
    assert max((n for at, n in arrived.items() if isinstance(at, tuple)), default=1) == 1


def _rows_of(graph: Graph) -> int:
    source, count = graph.source(), 0
    for lane in range(graph.lanes):
        for index in itertools.count():
            chunk = source.chunk(lane, index)
            if chunk is None:
                break
            count += len(chunk)
    return count


@given(graphs(), st.integers(1, 30))
def test_a_state_is_small_and_plain(graph, steps):
    pipeline = graph.pipeline(runner="inline")
    fresh = pipeline.state_dict()
    for _ in itertools.islice(pipeline, steps):
        pass
    state = pipeline.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state.keys() == fresh.keys()
    assert all(len(json.dumps({key: state[key]})) < 100 for key in state if key.startswith("lane_"))


def test_a_state_passes_torch_save_with_weights_only(tmp_path):
    graph = Graph((40,), (1.0,), 2, 5, 2, "windows", "last", (Op("double"),), (None,), 3)
    pipeline = graph.pipeline(runner="inline")
    list(itertools.islice(pipeline, 3))
    torch.save(pipeline.state_dict(), tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == pipeline.state_dict()


CHANGES = {
    "num_lanes": {"num_lanes": 4},
    "chunk_size": {"chunk_size": 6},
    "flush_every": {"flush_every": 3},
    "seed": {"seed": 9},
    "shuffle": {"shuffle": "none"},
    "passes": {"passes": 2},
    "stop": {"stop": "first"},
    "mixture": {"mixture": {"d0": 1, "d1": 2}},
}


@pytest.mark.parametrize("setting", CHANGES)
def test_another_source_setting_is_refused_by_name(setting):
    graph = Graph((40, 40), (1.0, 1.0), 2, 5, 2, "windows", "last", (), (), 3)
    state = graph.pipeline().state_dict()
    changed = Pipeline(graph.source(**CHANGES[setting])).batch(3)
    before = changed.state_dict()
    with pytest.raises(StateError, match=rf"source\.{setting}.*->"):
        changed.load_state_dict(state)
    assert changed.state_dict() == before


@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=2, unique=True),
    graphs(names=("double", "keep", "copies", "reverse"), most=3),
)
def test_another_operator_or_order_is_refused(_, graph):
    state = graph.pipeline().state_dict()
    with pytest.raises(StateError, match="settings differ"):
        Op("delay", 1).add(
            graph.pipeline() if graph.batch is None else Pipeline(graph.pipeline().node.source), None
        ).load_state_dict(state)


PACKERS = ["wrap", "first_fit", "best_fit", "best_fit_wrap"]


@settings(max_examples=15)
@given(
    algorithm=st.sampled_from(PACKERS),
    longest=st.sampled_from([3, 20, 60]),
    flush_every=st.sampled_from([1, 3]),
    lanes=st.sampled_from([1, 4]),
    extra=st.sampled_from(["", "shuffle", "filter"]),
    seed=st.integers(0, 99),
)
def test_packing_holds_all_promises(algorithm, longest, flush_every, lanes, extra, seed):
    rows = tokens(seed, 120, longest)

    def make():
        source = StaticMixtureWorkSource([Dataset.from_rows("t", rows)], None, lanes, 8, flush_every, seed)
        pipeline = Pipeline(source)
        if extra == "filter":
            pipeline = pipeline.filter(functools.partial(_long_enough, n=2))
        pipeline = pipeline.pack_flat(16, algorithm, num_bins=3)
        return (pipeline.shuffle(4) if extra == "shuffle" else pipeline).batch(2)

    assert_any_schedule(make, schedules=1)
    assert_resumes_everywhere(make, steps=8)
    assert_any_world(make, [1, 2, 4] if lanes == 4 else [1])
    got = Counter()
    for batch in make().options(runner="inline"):
        for row in batch:
            got.update(row["input_ids"][row["document_ids"] >= 0].tolist())
    want = Counter(
        t for row in rows if extra != "filter" or len(row["input_ids"]) >= 2 for t in row["input_ids"].tolist()
    )
    assert got == want


def _long_enough(payload, n):
    return len(payload["input_ids"]) >= n


@given(graphs(names=("double", "keep", "shuffle"), batched=st.sampled_from([2])), st.sampled_from([1, 3, 4]))
def test_a_new_microbatch_size_keeps_the_records(graph, size):
    """After a level state the records go on, regrouped, so rounds per step times size gives the same global batch."""
    state = run_rounds(graph.pipeline, 1, 2)[1]
    rest = _records(graph, 2, state)
    assert _records(graph, size, state) == rest


def _records(graph: Graph, size: int, state) -> dict[int, list]:
    lanes: dict[int, list] = {}
    from dataclasses import replace

    with replace(graph, batch=size).pipeline(runner="inline") as pipeline:
        pipeline.load_state_dict(state)
        epoch = None
        for batch in pipeline:
            epoch = pipeline.epoch if epoch is None else epoch
            lanes.setdefault(batch.lane, []).extend(batch.payloads)
    return lanes


def test_two_loaders_of_one_node_do_not_disturb_each_other():
    node = Graph((40,), (1.0,), 2, 5, 2, "windows", "last", (Op("shuffle", 5),), (None,), 3).pipeline().node
    want = [digest(output) for output in Loader(node, runner="inline")]
    first, second = iter(Loader(node, runner="inline")), iter(Loader(node, runner="thread"))
    got = list(itertools.zip_longest(map(digest, first), map(digest, second)))
    assert got == [(d, d) for d in want]


@given(graphs(batched=st.sampled_from([2])), st.integers(1, 4))
def test_take_counts_whole_rounds_on_every_world(graph, rounds):
    worlds = [world for world in (1, 2, 3) if graph.lanes % world == 0]
    assert_any_world(lambda: graph.pipeline().take(rounds), worlds)
    whole = [output for output in graph.pipeline(runner="inline").take(rounds)]
    longest = max((len(lane) for lane in _lanes_of(graph).values()), default=0)
    assert len(whole) == sum(min(rounds, len(lane)) for lane in _lanes_of(graph).values())
    assert len(whole) <= rounds * graph.lanes and (len(whole) > 0) == (longest > 0)


def _lanes_of(graph: Graph) -> dict[int, list]:
    lanes: dict[int, list] = {}
    for batch in graph.pipeline(runner="inline"):
        lanes.setdefault(batch.lane, []).append(batch)
    return lanes
