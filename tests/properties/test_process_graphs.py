"""Random graphs in worker processes: every task crosses, and the data are those of plain Python."""

from __future__ import annotations

import functools

import cloudpickle
import graphs as graphs_module
import pytest
from graphs import PREDICTABLE, graphs, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from warm import warm_process

from zephon_nodes.testing import assert_any_world, assert_resumes_everywhere, digest

cloudpickle.register_pickle_by_value(graphs_module)  # else the process would import it, and hypothesis with it

FEW = settings(max_examples=max(1, settings.default.max_examples // 10))
"""Where each example starts processes of its own."""


@pytest.fixture(scope="module")
def warm():
    with warm_process() as runner:
        yield runner


@given(graph=graphs(names=PREDICTABLE), seed=st.integers(0, 1000))
def test_a_process_gives_what_plain_python_gives(warm, graph, seed):
    with graph.pipeline(runner=warm(seed), parallelism=2) as pipeline:
        assert [plain(output) for output in pipeline] == graph.expected()


@given(graph=graphs(), seed=st.integers(0, 1000))
def test_a_process_gives_what_the_driver_gives(warm, graph, seed):
    with graph.pipeline(runner="inline") as pipeline:
        want = [digest(output) for output in pipeline], str(pipeline.drops)
    with graph.pipeline(runner=warm(seed), parallelism=1) as pipeline:
        assert ([digest(output) for output in pipeline], str(pipeline.drops)) == want


@FEW
@given(graph=graphs(), seed=st.integers(0, 1000))
def test_stop_anywhere_and_resume_in_a_process(warm, graph, seed):
    assert_resumes_everywhere(graph.pipeline, steps=4, runner=warm(seed))


@FEW
@given(graph=graphs(batched=st.sampled_from([1, 3])), seed=st.integers(0, 1000))
def test_any_world_gives_the_same_global_batches_in_a_process(warm, graph, seed):
    worlds = [world for world in (1, 2, 3) if graph.lanes % world == 0]
    assert_any_world(functools.partial(graph.pipeline), worlds, runner=warm(seed))


@FEW
@given(graph=graphs(names=PREDICTABLE), parallelism=st.sampled_from([1, 2]), prefetch=st.sampled_from([1, 5]))
def test_pools_of_processes_give_what_plain_python_gives(graph, parallelism, prefetch):
    with graph.pipeline(runner="process", parallelism=parallelism, prefetch=prefetch) as pipeline:
        assert [plain(output) for output in pipeline] == graph.expected()
