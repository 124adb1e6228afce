"""Promise 1 of everything that looks: what a pipeline gives is the same, byte for byte, whoever looks at it meanwhile."""

from __future__ import annotations

import itertools
import os
import threading
from dataclasses import replace

import pytest
from graphs import PREDICTABLE, graphs, plain
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import source

from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation, from_node
from zephon_nodes.plan import chain, names
from zephon_nodes.testing import digest


def look(pipeline):
    """Everything there is to look at, but for what takes long."""
    pipeline.describe()
    pipeline._repr_svg_()
    pipeline.metrics()
    pipeline.history(3)
    for name in names(chain(pipeline.node)):
        repr(pipeline.peek(2, at=name))


def run(pipeline, looks):
    out = []
    with pipeline:
        for output in pipeline:
            out.append((digest(output), str(pipeline.state_dict())))
            if len(out) in looks:
                look(pipeline)
    return out


@given(graphs(), st.sets(st.integers(1, 12), min_size=1, max_size=2), st.sampled_from(["inline", "thread"]))
@settings(max_examples=12)
def test_looking_changes_neither_outputs_nor_states(graph, looks, runner):
    want = run(graph.pipeline(runner="inline"), set())
    looked = graph.pipeline(runner=runner, parallelism=2)
    if not want:
        return  # a graph that gives nothing has no place for a look between outputs
    look(looked)
    assert run(looked, looks) == want


@given(graphs(names=PREDICTABLE, batched=st.none()), st.integers(1, 30), st.data())
def test_peek_gives_what_plain_python_gives_at_any_node(graph, count, data):
    pipeline = graph.pipeline(runner="thread")
    last = data.draw(st.integers(0, len(graph.ops)))
    part = replace(graph, ops=graph.ops[:last], threads=graph.threads[:last])
    name = names(chain(pipeline.node))[last]
    assert [plain(output) for output in pipeline.peek(count, at=name)] == part.expected()[:count]


def test_profile_changes_nothing_and_leaves_nothing():
    def made():
        return Pipeline(source(400, lanes=2), parallelism=2).shuffle(16).batch(4)

    want = [digest(batch) for batch in made()]
    with made() as pipeline:
        first = [digest(batch) for batch in itertools.islice(pipeline, 5)]
        state = pipeline.state_dict()
        before = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        pipeline.profile(0.05)
        pipeline.profile(None)
        after = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
        assert pipeline.state_dict() == state
        assert before == after
        pipeline.load_state_dict(state)
        assert first + [digest(batch) for batch in pipeline] == want


def test_peek_starts_no_thread_and_opens_no_file_that_stays(tmp_path):
    (tmp_path / "rows.jsonl").write_text("\n".join(f'{{"text": "row {i}"}}' for i in range(50)))
    data = Dataset.from_path("files", tmp_path, index_dir=tmp_path / "index")
    pipeline = Pipeline(StaticMixtureWorkSource([data], num_lanes=2))
    pipeline.peek(3)
    before = threading.active_count(), len(os.listdir("/proc/self/fd"))
    assert len(pipeline.peek(20)) == 20
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == before


class _Looked(Exception):
    pass


def test_a_peek_runs_no_node_behind_the_one_that_is_looked_at():
    def fail(payload):
        raise _Looked

    pipeline = Pipeline(source(10)).map(fail, name="bad").batch(2)
    assert [row["v"] for row in pipeline.peek(3, at="read")] == [0, 1, 2]
    with pytest.raises(Exception, match="bad failed on row 0"):
        pipeline.peek(1, at="bad")


def test_randomness_is_that_of_the_whole_graph():
    """Draws are keyed by a node's name, and names by the whole graph: a later node may own the plain name."""

    def noise(payload, rng):
        return {**payload, "noise": int(rng.integers(1 << 30))}

    pipeline = Pipeline(source(20)).map(noise).map(dict, name="map")
    assert names(chain(pipeline.node)) == ["read", "map_2", "map"]
    assert [row["noise"] for row in pipeline.peek(5, at="map_2")] == [
        row["noise"] for row in itertools.islice(pipeline, 5)
    ]
    pipeline.close()


def test_torchdata_nodes_are_copied_for_a_peek():
    from torchdata.nodes import IterableWrapper

    with Pipeline(from_node(IterableWrapper(range(30))), runner="inline") as pipeline:
        first = list(itertools.islice(pipeline, 3))
        assert list(pipeline.peek(4)) == [0, 1, 2, 3]
        state = pipeline.state_dict()
        pipeline.load_state_dict(state)
        assert first + list(pipeline) == list(range(30))


def test_torchdata_nodes_that_cannot_be_copied_are_refused_and_not_moved():
    from torchdata.nodes import IterableWrapper

    class Alone(IterableWrapper):
        def __deepcopy__(self, memo):
            raise RuntimeError("one of a kind")

    pipeline = Pipeline(from_node(Alone(range(5))))
    with pytest.raises(ConfigError, match="one of a kind"):
        pipeline.peek(2)
    assert list(pipeline) == [0, 1, 2, 3, 4]


def test_a_mixture_in_tokens_is_measured_on_the_side():
    rows = [{"input_ids": [1] * n} for n in (2, 6)] * 8
    data = [Dataset.from_rows("a", rows), Dataset.from_rows("b", rows)]
    work = StaticMixtureWorkSource(data, {"a": 1, "b": 3}, token_estimation=TokenEstimation())
    pipeline = Pipeline(work).batch(2)
    assert len(pipeline.peek(3)) == 3
    assert pipeline.estimates == {} and work.unmeasured() == ["a", "b"]


def test_peek_of_a_wrong_name_or_number_says_what_there_is():
    pipeline = Pipeline(source(4)).map(dict, name="clean").batch(2)
    with pytest.raises(ConfigError, match=r"did you mean 'clean'.*read, clean, batch"):
        pipeline.peek(1, at="cleen")
    with pytest.raises(ConfigError, match="n must be"):
        pipeline.peek(0)


def test_none_is_a_record_like_any_other_and_dropped_ones_are_passed_over():
    def maybe(payload):
        return payload if payload["v"] % 2 else None

    assert list(Pipeline(source(4)).map(maybe).peek(4)) == [None, {"v": 1}, None, {"v": 3}]
    assert list(Pipeline(source(6)).filter(lambda row: row["v"] > 3).peek(9)) == [{"v": 4}, {"v": 5}]
