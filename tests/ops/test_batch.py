"""Batch: full batches over spans' edges, the short one at the end, where rows come from."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, expected, lane_rows, round_robin, run, source
from tokenizers_for_tests import TEXTS, train_tokenizer

from zephon_nodes import Batch, ConfigError, Dataset, Pipeline, Read, StaticMixtureWorkSource

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2}]


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    size=st.integers(1, 9),
    drop_last=st.booleans(),
    threads=st.booleans(),
)
def test_each_lane_is_cut_into_batches_and_only_its_last_may_be_short(lengths, size, drop_last, threads):
    work = Lanes(lengths)
    want = []
    for lane in range(len(lengths)):
        rows = lane_rows(work, lane)
        batches = [rows[i : i + size] for i in range(0, len(rows), size)]
        want.append([batch for batch in batches if len(batch) == size or not drop_last])
    pipeline = Pipeline(work, **RUNNERS[threads]).batch(size, drop_last=drop_last)
    assert run(pipeline) == (round_robin(want), None)
    assert pipeline.drops.total == (sum(n % size for n in lengths) if drop_last else 0)
    assert {row.reason for row in pipeline.drops.rows} <= {"drop_last"}
    assert all(row.where.startswith("row ") for row in pipeline.drops.rows)


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=3),
    st.integers(1, 9),
    st.lists(st.integers(0, 6), max_size=6),
    st.booleans(),
)
def test_any_chain_of_resumes_gives_the_same_batches(lengths, size, cuts, drop_last):
    def make():
        return Pipeline(Lanes(lengths), runner="inline").map(dict).batch(size, drop_last=drop_last)

    assert chained(make, cuts)[0] == run(make())[0]


def test_a_tiny_dataset_beside_a_large_one_gives_full_batches_to_each_lanes_end():
    """Report O8: 1 to 100, 4 lanes."""
    datasets = [Dataset.from_rows("s", [{"s": 1}] * 40), Dataset.from_rows("l", [{"s": 0}] * 4000)]
    work = StaticMixtureWorkSource(datasets, {"s": 1, "l": 100}, 4, 64, 2, stop="redistribute")
    for drop_last in (False, True):
        sizes = {lane: [] for lane in range(4)}
        for batch in Pipeline(work).batch(32, drop_last=drop_last):
            sizes[batch.lane].append(len(batch))
        assert all(set(lane[:-1]) == {32} for lane in sizes.values())
        assert all((lane[-1] == 32) if drop_last else lane[-1] <= 32 for lane in sizes.values())
        assert drop_last or sum(map(sum, sizes.values())) == 4040


@pytest.mark.parametrize("kind", ["pack_flat", "pack_sequences", None])
def test_origins_name_file_and_row_of_every_document_as_the_files_have_them(tmp_path, kind):
    """The text of each document of each sequence is read back from the file and the row that the batch names."""
    texts = {}
    for name in ("a.parquet", "b/c.parquet"):
        (tmp_path / "x" / name).parent.mkdir(parents=True, exist_ok=True)
        texts["x", name] = [f"{TEXTS[i % 3][: 5 + i]} {name} {i}" for i in range(25)]
        pq.write_table(pa.table({"text": texts["x", name]}), tmp_path / "x" / name, row_group_size=7)
    texts["y", "d.jsonl"] = [f"d {i} {'z' * (i % 9)}" for i in range(30)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts["y", "d.jsonl"]))
    datasets = [
        Dataset.from_path("x", tmp_path / "x"),
        Dataset.from_path("y", tmp_path / "d.jsonl", index_dir=tmp_path / "index"),
    ]
    tokenizer = train_tokenizer()
    work = StaticMixtureWorkSource(datasets, None, 2, 8, 2, stop="redistribute")
    pipeline = Pipeline(work).tokenize(tokenizer, eos="</s>")
    if kind is not None:
        pipeline = getattr(pipeline, kind)(64, "best_fit").shuffle(4)
    named, pieces = set(), {}
    for batch in pipeline.batch(3):
        step = batch.to_training(extra=["document_ids"], backend="numpy")
        for ids, documents, origins in zip(step["input_ids"], step["document_ids"], batch.origins, strict=True):
            for number, origin in enumerate(origins):
                place = (origin.dataset, origin.file, origin.row)
                assert tmp_path.joinpath("x" if origin.dataset == "x" else "", origin.file).exists()
                named.add(place)
                pieces.setdefault(place, []).append(ids[documents == number].tolist())
    assert named == {(*file, row) for file, rows in texts.items() for row in range(len(rows))}
    for (dataset, file, row), parts in pieces.items():
        want = [*tokenizer.encode(texts[dataset, file][row]).ids, 2]
        assert sorted(token for part in parts for token in part) == sorted(want) and (len(parts) > 1 or parts == [want])


def test_records_of_a_batch_that_were_merged_or_split_name_all_their_rows():
    pipeline = Pipeline(source(8)).map_group(lambda ps: [{"n": len(ps)}], 4).batch(2)
    (batch,) = list(pipeline)
    assert [[at.row for at in row] for row in batch.origins] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def steps(pipeline, **settings):
    with pipeline:
        return [batch.to_training(backend="numpy", **settings) for batch in pipeline]


PADDED = {
    "pretokenized rows": (lambda p: p, []),
    "pretokenized rows and a field of theirs": (lambda p: p, ["id"]),
    "tokenized rows and a field of theirs": (lambda p: p.tokenize(train_tokenizer()), ["id"]),
    "packed rows and a field that is packed too": (lambda p: p.pack_flat(3, fields=["s"]), ["s"]),
    "rows packed apart and a field of theirs": (lambda p: p.pack_sequences(3), ["id"]),
}


@pytest.mark.parametrize("graph", PADDED)
def test_the_same_training_step_works_for_the_blank_batches_at_the_end(graph):
    """at_end="pad" is the default in a distributed run, and a loop that ran for days must not die at its last step."""
    build, extra = PADDED[graph]
    rows = [{"input_ids": [1, 2, 3], "s": [0.5, 0.5, 0.5], "id": i, "text": "a b"} for i in range(5)]
    outputs = steps(build(Pipeline(source(rows, 2, chunk=1), at_end="pad")).batch(1), extra=extra)
    assert len(outputs) == 6 and (outputs[-1]["labels"] == -100).all()
    assert all(output.keys() == outputs[0].keys() for output in outputs)


def test_blank_batches_need_no_fields_that_nobody_asks_for():
    rows = [{"input_ids": [1, 2, 3]}] * 5
    for kind in ("pack_flat", "pack_sequences"):
        pipeline = getattr(Pipeline(source(rows, 2, chunk=1), at_end="pad"), kind)(4).batch(2)
        outputs = steps(pipeline, extra=["num_valid_tokens", "cu_seqlens"])
        assert len({tuple(output["input_ids"].shape) for output in outputs}) == 1
        assert sum(output["num_valid_tokens"] for output in outputs) == 10


@pytest.mark.parametrize("wrong", [0, -1, 8.0, True, "8"])
def test_a_size_that_is_no_number_of_records_is_refused_at_construction(wrong):
    """Report T14: a batch size of 0 made a loader hang."""
    with pytest.raises(ValueError, match="microbatch_size must be an integer of at least 1, got"):
        Batch(Read(source()), wrong)


def test_what_pad_and_drop_last_say_is_in_the_recipe_and_the_size_is_not():
    state = Pipeline(source()).batch(4).state_dict()
    Pipeline(source()).batch(3).load_state_dict(state)
    for changed in ({"drop_last": True}, {"pad_token_id": 9}):
        ((name, _),) = changed.items()
        with pytest.raises(ValueError, match=rf"nodes\.batch\.{name}:"):
            Pipeline(source()).batch(4, **changed).load_state_dict(state)


def test_a_batch_knows_its_lane_and_is_a_list_of_payloads():
    pipeline = Pipeline(source(12, 3, chunk=1)).batch(2)
    batches = list(pipeline)
    assert [batch.lane for batch in batches] == [0, 1, 2, 0, 1, 2]
    assert [list(batch) for batch in batches] == expected(
        source(12, 3, chunk=1, flush=99), lambda span: [span[:2], span[2:]]
    )
    assert batches[0][0] == next(iter(batches[0])) and len(batches[0]) == 2


def test_a_batch_of_a_torchdata_node_has_no_file():
    from torchdata.nodes import IterableWrapper

    (batch,) = list(Pipeline(IterableWrapper([1, 2])).batch(2))
    assert [(at.file, at.row) for row in batch.origins for at in row] == [("", 0), ("", 1)]


def test_a_batch_of_anything_but_tokens_says_what_is_missing_at_the_training_step():
    (batch,) = list(Pipeline(source(2)).batch(2))
    with pytest.raises(ConfigError, match=r"no input_ids, but the fields v\. A Tokenize node is missing before Batch"):
        batch.to_training()
