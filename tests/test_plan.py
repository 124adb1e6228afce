"""Hops: neighbours fuse, different parallelism splits, and none of it changes an output."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import expected, run, source

from zephon_nodes import ConfigError, Filter, Loader, Map, Pipeline, Read, Shuffle
from zephon_nodes.graph import Graph
from zephon_nodes.plan import chain, names


def hops(pipeline, threads=4):
    """(names, threads) of each hop."""
    plan = Graph(pipeline.node).plan(pipeline.node.work_source, 1, threads)
    return [("+".join(hop.names), hop.parallelism) for hop in plan.hops]


def placed(pipeline, runs_in="thread", threads=4):
    """(names, workers, what they are) of each hop."""
    plan = Graph(pipeline.node).plan(pipeline.node.work_source, 1, threads, runs_in)
    return [("+".join(hop.names), hop.parallelism, hop.runner) for hop in plan.hops]


def same(payload):
    return payload


PIPE = Pipeline(source())


def test_neighbouring_stateless_nodes_are_one_hop():
    assert hops(PIPE.map(same).filter(same).flat_map(same).decode_text()) == [
        ("read+map+filter+flat_map+decode_text", 4)
    ]


def test_a_node_that_holds_begins_a_hop_and_what_follows_fuses_to_it():
    pipeline = PIPE.map(same).map_group(list, 3).map(same).shuffle(4).map(same, name="last").batch(2)
    assert hops(pipeline) == [("read+map", 4), ("map_group+map_2", 4), ("shuffle+last", 4), ("batch", 0)]


def test_cheap_nodes_are_run_by_the_driver_alone():
    assert hops(PIPE.pack_flat(8).shuffle(4).batch(2)) == [("read", 0), ("pack_flat", 0), ("shuffle", 0), ("batch", 0)]


def test_rows_that_are_fetched_one_by_one_are_fetched_by_threads():
    """Nothing is fetched ahead of them."""
    pipeline = Pipeline(source(shuffle="global"))
    assert hops(pipeline.pack_flat(8)) == [("read", 4), ("pack_flat", 0)]
    assert hops(pipeline.map(same, parallelism=0)) == [("read", 4), ("map", 0)]


@pytest.mark.parametrize("first", [None, 1, 2, 3])
@pytest.mark.parametrize("second", [None, 1, 2, 3])
def test_different_parallelism_splits_and_the_same_or_none_fuses(first, second):
    got = hops(PIPE.map(same, parallelism=first).map(same, parallelism=second))
    if None not in (first, second) and first != second:
        assert got == [("read+map", first), ("map_2", second)]
    else:
        assert got == [("read+map+map_2", first or second or 4)]


def test_the_default_changes_only_hops_that_were_given_none():
    pipeline = PIPE.map(same).map_group(list, 3, parallelism=2)
    assert hops(pipeline, 7) == [("read+map", 7), ("map_group", 2)]


def test_the_inline_runner_has_no_threads_at_all():
    pipeline = PIPE.map(same, parallelism=3).map(same, parallelism=2).batch(2, parallelism=2)
    assert all(threads == 0 for _, threads in hops(pipeline, 0))


def test_work_that_is_to_run_in_the_driver_does_not_take_its_neighbours_along():
    """A cheap function in the driver's thread is no reason to tokenize there, one document after the other."""
    assert hops(PIPE.map(same, parallelism=0)) == [("read+map", 0)]
    assert hops(PIPE.map(same, parallelism=0).map(same)) == [("read+map", 0), ("map_2", 4)]


def test_neighbours_in_processes_are_one_hop_and_others_another():
    pipeline = PIPE.map(same, runner="process").filter(same, runner="process").map(same).map(same, runner="process")
    assert placed(pipeline) == [
        ("read", 0, "thread"),
        ("map+filter", 4, "process"),
        ("map_2", 4, "thread"),
        ("map_3", 4, "process"),
    ]
    assert placed(PIPE.map(same, runner="process", parallelism=2).map(same, runner="process", parallelism=3)) == [
        ("read", 0, "thread"),
        ("map", 2, "process"),
        ("map_2", 3, "process"),
    ]


def test_a_graph_in_processes_neither_reads_in_them_nor_sends_batches_and_leaves_cheap_nodes_to_the_driver():
    pipeline = PIPE.map(same).map_group(list, 2).map(same).shuffle(4).map(same).batch(2).map_batch(same)
    pipeline = pipeline.map_batch(same, runner="process")
    assert placed(pipeline, "process") == [
        ("read", 0, "thread"),
        ("map", 4, "process"),
        ("map_group+map_2", 4, "process"),
        ("shuffle", 0, "thread"),
        ("map_3", 4, "process"),
        ("batch+map_batch", 4, "thread"),
        ("map_batch_2", 4, "process"),
    ]


def test_a_node_says_otherwise_than_its_graph():
    pipeline = PIPE.map(same, runner="thread").map(same, runner="inline").map(same).batch(2, runner="process")
    assert placed(pipeline, "process") == [
        ("read+map", 4, "thread"),
        ("map_2", 0, "thread"),
        ("map_3", 4, "process"),
        ("batch", 4, "process"),
    ]
    assert placed(Pipeline(Read(source(), runner="process")).map(same).map(same, runner="process")) == [
        ("read", 4, "process"),
        ("map", 4, "thread"),
        ("map_2", 4, "process"),
    ]


def test_the_inline_runner_overrules_all():
    pipeline = PIPE.map(same, runner="process").map(same, runner="thread", parallelism=2)
    assert all(threads == 0 for _, threads, _ in placed(pipeline, threads=0))


def test_describe_says_which_threads_run_what():
    text = Pipeline(source(), parallelism=3).map(same, name="clean").shuffle(4).batch(2).describe()
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert "hop 1, 3 threads" in lines["read"] and "hop 1, 3 threads" in lines["clean"]
    assert "hop 2, driver" in lines["shuffle"] and "hop 3, driver" in lines["batch"]
    assert "(map)" in lines["clean"] and "buffer_size=4" in lines["shuffle"]


OPS = {
    "map": lambda p, n: p.map(lambda q: {"v": q["v"] + 1}, parallelism=n),
    "filter": lambda p, n: p.filter(lambda q: q["v"] % 5, parallelism=n),
    "flat_map": lambda p, n: p.flat_map(lambda q: [q, q], parallelism=n),
    "map_group": lambda p, n: p.map_group(lambda qs: qs[::-1], 3, parallelism=n),
}
PLAIN = {
    "map": lambda span: [{"v": q["v"] + 1} for q in span],
    "filter": lambda span: [q for q in span if q["v"] % 5],
    "flat_map": lambda span: [q for q in span for _ in range(2)],
    "map_group": lambda span: [q for i in range(0, len(span), 3) for q in span[i : i + 3][::-1]],
}


@given(
    st.lists(st.tuples(st.sampled_from(list(OPS)), st.sampled_from([None, 0, 1, 2])), max_size=5),
    st.sampled_from(["inline", "thread"]),
)
def test_fused_or_not_the_outputs_are_those_of_plain_lists(ops, runner):
    work = source(30, 2)
    pipeline = Pipeline(work, runner=runner, parallelism=2)

    def through(span):
        for name, _ in ops:
            span = PLAIN[name](span)
        return span

    for name, threads in ops:
        pipeline = OPS[name](pipeline, threads)
    assert run(pipeline) == (expected(work, through), None)


def test_an_error_in_the_middle_of_a_fused_hop_leaves_its_neighbours_in_place():
    def odd(payload):
        if payload["v"] % 3 == 1:
            raise ValueError("odd")
        return payload

    pipeline = Pipeline(source(30), on_error="skip").map(odd).flat_map(lambda p: [p, p]).map(same)
    assert run(pipeline)[0] == [{"v": i} for i in range(30) if i % 3 != 1 for _ in range(2)]
    assert pipeline.drops.failed == 10


def test_a_resume_skips_pointers_unread_where_every_node_gives_one_for_one():
    def unread(pipeline, policy="raise"):
        return Graph(pipeline.node, policy).plan(pipeline.node.work_source, 1, 0).skips_unread

    assert unread(PIPE) and unread(PIPE.map(same)) and unread(PIPE.map(same).batch(2)) and unread(PIPE.take(2))
    assert unread(PIPE.map(same).decode_text().batch(2).take(3))
    for pipeline in (
        PIPE.filter(same),
        PIPE.flat_map(same),
        PIPE.map_group(list, 2),
        PIPE.shuffle(2),
        PIPE.pack_flat(4),
    ):
        assert not unread(pipeline) and not unread(pipeline.batch(2))
    assert not unread(PIPE.map(same), "skip") and not unread(PIPE.map(same, on_error="skip"))


def test_names_are_the_kinds_numbered_where_they_repeat_and_around_those_that_were_given():
    pipeline = PIPE.map(same).map(same, name="map").map(same).filter(same).map(same, name="x")
    assert names(chain(pipeline.node)) == ["read", "map_2", "map", "map_3", "filter", "x"]


def test_a_name_given_twice_is_refused_when_the_loader_is_made():
    node = Map(Filter(Map(Read(source()), same, name="clean"), same), same, name="clean")
    with pytest.raises(ConfigError, match=r"different names, got \['clean'\] more than once; pass another name="):
        Loader(Shuffle(node, 3))
