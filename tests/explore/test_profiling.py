"""Profiles: what is counted is what was done. Times are only asked to be there."""

from __future__ import annotations

import itertools

import pytest
from runs import source

from zephon_nodes import ConfigError, Pipeline
from zephon_nodes.explore.profiling import of_plan


def double(payload):
    return {"v": 2 * payload["v"]}


def odd(payload):
    return payload["v"] % 4 == 0


def graph(rows=400, **options):
    return Pipeline(source(rows, lanes=2, chunk=16), **options).map(double).filter(odd, name="odd").shuffle(8).batch(4)


@pytest.mark.parametrize(
    "options", [{"runner": "inline"}, {"parallelism": 2}, {"runner": "process", "parallelism": 1}], ids=str
)
def test_the_counters_of_a_whole_run_are_what_was_done(options):
    with graph(**options) as pipeline:
        batches = list(pipeline)
        found = of_plan(pipeline.loader.plan)
        records = {name: found["records", name] for name in ("read", "map", "odd", "shuffle", "batch")}
        assert records == {"read": 400, "map": 400, "odd": 200, "shuffle": 200, "batch": len(batches)}
        assert found["gets",] >= len(batches) and found["elapsed",] > 0 <= found["waited",]
        profile = pipeline.profile(None)
        assert [node.name for node in profile.nodes if node.name != "fetch ahead"] == [
            "read",
            "map",
            "odd",
            "shuffle",
            "batch",
        ]
        assert profile.drops == {("odd", "filtered"): 200}
        across = sum(node.nbytes for node in profile.nodes)
        assert (across > 0) == (options.get("runner") == "process")


def test_no_task_is_left_under_way_at_the_end():
    with graph(parallelism=2) as pipeline:
        assert list(pipeline)
        hops = pipeline.loader.plan.hops
    assert all(hop.counters.under_way == 0 and hop.counters.tasks > 0 for hop in hops)


def test_a_profile_of_its_own_prints_and_names_every_node():
    found = graph(parallelism=1).profile(0.05, wanted=1e9)
    assert found.samples > 0 and found.outputs > 0 and found.seconds > 0
    assert 0 <= found.waited <= 1 and 0 <= found.driver <= 1
    text = str(found)
    for name in ("read", "map", "odd", "shuffle", "batch", "1 thread", "driver"):
        assert name in text
    assert text.splitlines()[-1] == found.bottleneck and found.bottleneck.endswith(".")
    assert "left out" in text and "units in cache" in text


def test_html_is_well_formed_and_escaped():
    import xml.dom.minidom

    html = Pipeline(source(50)).map(double, name="<b>").batch(2).profile(0.01)._repr_html_()
    xml.dom.minidom.parseString(html)
    assert "&lt;b&gt;" in html


def test_short_data_is_gone_through_again():
    found = Pipeline(source(3), runner="inline").batch(2).profile(0.05)
    assert found.outputs * found.seconds > 2 * 2, "two batches an epoch"


def test_nothing_to_profile():
    with pytest.raises(ConfigError, match="no output"):
        Pipeline(source(5)).filter(lambda row: False).profile(0.1)
    with pytest.raises(ConfigError, match="nothing has run yet"):
        graph().profile(None)
    for seconds in (0, -1):
        with pytest.raises(ConfigError, match="seconds > 0"):
            graph().profile(seconds)


def test_an_error_in_a_profile_is_raised_and_leaves_no_thread():
    def fail(payload):
        raise ValueError("bad")

    with pytest.raises(Exception, match="bad"):
        Pipeline(source(5), parallelism=2).map(fail).profile(0.1)


def test_a_profile_needs_no_other_rank():
    found = Pipeline(source(40, lanes=4), rank=1, world_size=4, at_end="ragged").batch(2).profile(0.02)
    assert found.outputs > 0


def test_a_fused_task_that_fails_counts_the_nodes_that_it_came_to():
    def fail(records):
        raise ValueError("bad")

    with Pipeline(source(8), runner="inline").map(double).map_group(fail, 2, name="bad") as pipeline:
        with pytest.raises(Exception, match="bad"):
            next(iter(pipeline))
        plan = pipeline.loader.plan
    assert len(plan.hops[0].counters.laps) == 2
    assert list(itertools.chain(*(hop.names for hop in plan.hops))) == ["read", "map", "bad"]
