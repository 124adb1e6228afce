"""The fluent front: each method is its node, wrong programs fail where they are written, the issue's programs run."""

import inspect
import itertools
import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from runs import run, source
from tokenizers_for_tests import TEXTS, save_folder, train_tokenizer

import zephon_nodes
from zephon_nodes import (
    ConfigError,
    Dataset,
    Loader,
    MixtureSpec,
    Node,
    Pipeline,
    Read,
    StaticMixtureWorkSource,
    TokenEstimation,
)
from zephon_nodes.testing import assert_any_world, assert_resumes_everywhere, digest


class Echo:
    def push(self, payload):
        return [payload]


NODES = {
    "batch": ("Batch", (3,), {"drop_last": True}),
    "decode_text": ("DecodeText", (["a"],), {"newlines": False}),
    "filter": ("Filter", (bool,), {}),
    "flat_map": ("FlatMap", (list,), {"version": 2}),
    "map": ("Map", (dict,), {"on_error": "skip"}),
    "map_group": ("MapGroup", (list, 3), {"parallelism": 2}),
    "pack_flat": ("PackFlat", (16, "best_fit"), {"num_bins": 3}),
    "pack_sequences": ("PackSequences", (16, "best_fit"), {"max_documents": 3}),
    "shuffle": ("Shuffle", (7, 3), {}),
    "stateful_transform": ("StatefulTransform", (Echo,), {"version": 1}),
    "take": ("Take", (4,), {}),
    "tokenize": ("Tokenize", (train_tokenizer(), "body"), {"output": "ids"}),
}


@pytest.mark.parametrize("method", NODES)
def test_every_method_is_its_node_with_the_same_settings(method):
    name, args, settings = NODES[method]
    kind, below = getattr(zephon_nodes, name), Read(source())
    fluent = getattr(Pipeline(below), method)(*args, **settings, name="mine").node
    plain = kind(below, *args, **settings, name="mine")
    assert type(fluent) is kind and fluent.source is below
    assert (fluent.settings(), fluent.given_name) == (plain.settings(), "mine")
    assert (fluent.parallelism, fluent.on_error) == (plain.parallelism, plain.on_error)


def test_every_node_of_the_package_has_a_method_that_is_named_like_its_kind():
    kinds = [kind for kind in vars(zephon_nodes).values() if inspect.isclass(kind) and issubclass(kind, Node)]
    missing = [kind.kind for kind in kinds if kind not in (Node, Read) and not hasattr(Pipeline, kind.kind)]
    assert len(kinds) > 12 and not missing


def test_every_method_gives_a_new_pipeline_and_leaves_the_old_one_as_it_was():
    first = Pipeline(source(6))
    second = first.map(lambda p: p["v"])
    assert run(first)[0] == [{"v": i} for i in range(6)] and run(second)[0] == list(range(6))
    third = second.options(runner="inline", prefetch=9)
    assert third.node is second.node and third is not second
    assert run(third)[0] == list(range(6)) and third.epoch == 0


def test_options_given_at_the_start_hold_for_the_whole_chain():
    def bad(payload):
        raise ValueError("bad")

    pipeline = Pipeline(source(6), on_error="skip", max_errors=2).map(bad).batch(2).take(3)
    assert "to bear 2 bad records" in str(run(pipeline)[1])


ORDERS = {
    "map on batches": (lambda p: p.batch(2).map(dict), ["map", "batch", "rows or packed", "gives batches", "before batch"]),
    "batch on batches": (lambda p: p.batch(2).batch(2), ["batch", "gives batches", "before batch"]),
    "shuffle on batches": (lambda p: p.batch(2).shuffle(4), ["shuffle", "gives batches", "before batch"]),
    "packing batches": (lambda p: p.batch(2).pack_flat(8), ["pack_flat", "takes rows", "gives batches"]),
    "tokenizing what is packed": (lambda p: p.pack_flat(8).tokenize(train_tokenizer()), ["tokenize", "pack_flat", "earlier"]),
    "packing twice": (lambda p: p.pack_flat(8).pack_sequences(8), ["pack_sequences", "takes rows", "gives packed"]),
    "on take": (lambda p: p.take(2).batch(2), ["batch", "take", "must come last"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_nodes_in_a_wrong_order_are_refused_where_they_are_written_with_the_right_place(name):
    build, words = ORDERS[name]
    with pytest.raises(ConfigError) as found:
        build(Pipeline(source()))
    assert all(word in str(found.value) for word in words), str(found.value)


@pytest.mark.parametrize(
    "wrong",
    [{"runner": "threads"}, {"prefetch": 0}, {"at_end": "stop"}, {"on_error": "warn"}, {"parallelism": -1}],
    ids=str,
)
def test_wrong_run_options_are_refused_where_they_are_written(wrong):
    """Not at the first iteration, minutes later, in another file."""
    ((name, value),) = wrong.items()
    for make in (lambda: Pipeline(source(), **wrong), lambda: Pipeline(source()).options(**wrong)):
        with pytest.raises(ConfigError, match=rf"{name} must be.*{value!r}"):
            make()


def test_an_unknown_run_option_is_refused_where_it_is_written():
    with pytest.raises((ConfigError, TypeError), match="num_workers"):
        Pipeline(source(), num_workers=4)


@pytest.mark.parametrize("wrong", [None, "data", [source()], 5, {}], ids=lambda w: type(w).__name__)
def test_what_no_pipeline_can_begin_with_is_refused_by_type(wrong):
    with pytest.raises(
        ConfigError, match=f"needs a WorkSource or a node, got {type(wrong).__name__}; .*subclass of WorkSource"
    ):
        Pipeline(wrong)


def test_a_torchdata_node_can_be_the_beginning():
    from torchdata.nodes import IterableWrapper

    assert run(Pipeline(IterableWrapper(range(5))).map(lambda n: n + 1))[0] == [1, 2, 3, 4, 5]


def test_a_pipeline_has_the_state_epoch_drops_and_recipe_of_its_loader():
    pipeline = Pipeline(source(20), runner="inline").filter(lambda p: p["v"] % 2).batch(2)
    with pipeline:
        for batch in itertools.islice(pipeline, 3):
            assert batch
        loader = pipeline.loader
        assert pipeline.state_dict() == loader.state_dict() and pipeline.recipe == loader.recipe
        assert pipeline.drops is loader.drops and pipeline.epoch == loader.epoch == 0
    other = Loader(pipeline.node)
    other.load_state_dict(pipeline.state_dict())
    pipeline.load_state_dict(other.state_dict())
    assert run(Pipeline(pipeline.node))[0][3:] == run(pipeline)[0]


def test_a_pipeline_is_pickled_without_what_it_runs():
    pipeline = Pipeline(source(9)).map(dict).batch(2)
    with pipeline:
        first = next(iter(pipeline))
        other = pickle.loads(pickle.dumps(pipeline))
    with other:
        assert digest(next(iter(other))) == digest(first)


def test_a_printed_pipeline_names_its_nodes_and_settings():
    text = str(Pipeline(source(40, 2)).map(dict, name="clean").shuffle(7).batch(2))
    for word in ("2 lanes", "40 rows", "clean", "shuffle", "buffer_size=7", "batch"):
        assert word in text


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files for the issue's programs, and a tokenizer that stands for gpt2."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(5)
    for name in ("demo", "wiki", "news"):
        (tmp_path / name).mkdir()
        texts = [f"{TEXTS[i % 4]} {name} {i} " * int(rng.integers(1, 9)) for i in range(120)]
        pq.write_table(pa.table({"text": texts[:70]}), tmp_path / name / "a.parquet", row_group_size=16)
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts[70:])
        (tmp_path / name / "b.jsonl").write_text(lines)
    save_folder(tmp_path / "gpt2", train_tokenizer())
    return tmp_path


def first_program(folder, **settings):
    dataset = Dataset.from_path("demo", folder / "demo", fmt="parquet")
    ws = StaticMixtureWorkSource([dataset], mixture=MixtureSpec({"demo": 1.0}), chunk_size=1024, **settings)
    return (
        Pipeline(ws)
        .tokenize(tokenizer_id="gpt2", parallelism=4)
        .pack_sequences(target_length=2048)
        .ensure_mixture()
        .batch(microbatch_size=8)
    )


def second_program(folder, **settings):
    source = StaticMixtureWorkSource(
        datasets=[
            Dataset.from_path("wiki", folder / "wiki" / "a.parquet"),
            Dataset.from_path("news", folder / "news" / "b.jsonl", index_dir=folder / "index"),
        ],
        mixture={"wiki": 0.5, "news": 0.5},
        token_estimation=TokenEstimation(),
        seed=42,
        **settings,
    )
    return (
        Pipeline(source)
        .tokenize(tokenizer_id="gpt2", field="text", parallelism=4)
        .pack_flat(max_length=2048, algorithm="wrap")
        .shuffle(buffer_size=1024, seed=42)
        .batch(microbatch_size=8)
    )


@pytest.mark.parametrize("program", [first_program, second_program])
def test_the_programs_of_the_issue_run_as_written(folder, program):
    pipeline = program(folder)
    steps = 0
    for batch in pipeline:
        step = batch.to_training()
        assert {tensor.shape[1:] for tensor in step.values()} == {(2048,)}
        assert {origin.file for row in batch.origins for origin in row} <= {"a.parquet", "b.jsonl"}
        steps += 1
    assert steps >= 1 and pipeline.epoch == 0


@pytest.mark.parametrize("program", [first_program, second_program])
def test_the_programs_of_the_issue_hold_the_promises_on_four_lanes(folder, program):
    def make():
        return program(folder, num_lanes=4, flush_every=1)

    assert_any_world(make, [1, 2, 4], rounds=3)
    assert_resumes_everywhere(make, steps=4)
