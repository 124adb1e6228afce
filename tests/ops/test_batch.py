"""Batch: full batches over spans' edges, the short one at the end, where rows come from."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import Lanes, chained, expected, lane_rows, round_robin, run, source
from tokenizers_for_tests import TEXTS, train_tokenizer

from zephon_nodes import Batch, ConfigError, Dataset, PackFlat, Pipeline, Read, StaticMixtureWorkSource
from zephon_nodes.testing import assert_any_schedule, assert_any_world, assert_resumes_everywhere

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


@pytest.mark.parametrize("wrong", [2**40, -(2**31) - 1, 1.0, True, "<pad>"])
@pytest.mark.parametrize("node", [Batch, PackFlat])
def test_padding_that_is_no_token_id_is_refused_at_construction(node, wrong):
    with pytest.raises(ConfigError, match="pad_token_id must be an integer that fits into int32"):
        node(Read(source()), 2, pad_token_id=wrong)
    assert Batch(Read(source()), 2, pad_token_id=np.int64(2**31 - 1)).pad_token_id == 2**31 - 1


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


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=40)


def documents(lengths):
    return [{"v": i, "input_ids": [7] * n} for i, n in enumerate(lengths)]


def budgeted(lengths, budget, size):
    """Batches of lengths, each as long as the next document doesn't make rows x longest pass the budget."""
    out = [[]]
    for n in lengths:
        full = len(out[-1]) == size
        if out[-1] and (full or max(*out[-1], n) * (len(out[-1]) + 1) > budget):
            out.append([])
        out[-1].append(n)
    return out


@given(LENGTHS, st.integers(1, 30), st.sampled_from([None, 1, 3]), st.integers(1, 3), st.booleans())
def test_a_budget_of_tokens_with_padding_is_kept_but_for_single_long_documents(lengths, budget, size, lanes, threads):
    work = source(documents(lengths), lanes)
    pipeline = Pipeline(work, **RUNNERS[threads]).batch(size, max_tokens=budget)
    want = [[len(row["input_ids"]) for row in lane_rows(work, lane)] for lane in range(lanes)]
    want = round_robin([budgeted(lane, budget, size) if lane else [] for lane in want])
    shapes = [(len(batch), batch.to_training()["input_ids"].numel()) for batch in pipeline]
    assert shapes == [(len(lens), len(lens) * max(lens)) for lens in want]
    assert all(tokens <= budget or rows == 1 for rows, tokens in shapes)


@pytest.mark.parametrize(("pack", "longest"), [("pack_flat", 8), ("pack_sequences", 8)])
def test_packed_rows_count_their_whole_length(pack, longest):
    pipeline = getattr(Pipeline(source(documents([3, 5, 4] * 9))), pack)(longest).batch(max_tokens=20)
    shapes = [tuple(batch.to_training()["input_ids"].shape) for batch in pipeline]
    assert shapes[:-1] == [(2, 8)] * (len(shapes) - 1) and shapes[-1][0] <= 2


def test_documents_without_tokens_count_too_since_they_take_a_place():
    """A row has at least one position, and a batch must not grow without bound."""
    pipeline = Pipeline(source(documents([0] * 50 + [2, 0, 2]))).batch(max_tokens=8)
    sizes = [batch.to_training()["input_ids"].numel() for batch in pipeline]
    assert max(sizes) <= 8


@pytest.mark.parametrize("pack", [None, "pack_flat", "pack_sequences"])
def test_blank_batches_at_the_end_keep_to_the_budget_as_well(pack):
    """They come in the very last steps of a run, on the ranks whose lanes are short."""
    pipeline = Pipeline(Lanes([20, 2]), at_end="pad").map(lambda p: {"input_ids": [1, 2, 3]})
    pipeline = (pipeline if pack is None else getattr(pipeline, pack)(8)).batch(8, max_tokens=16)
    shapes = [tuple(batch.to_training()["input_ids"].shape) for batch in pipeline]
    assert len(shapes) > 4 and all(rows * length <= 16 for rows, length in shapes)


def by_tokens(work, **settings):
    """Rows left out stand before, between and behind the records that close a batch."""
    return Pipeline(work, runner="inline").filter(lambda p: p["v"] % 3).batch(max_tokens=12, **settings)


@given(LENGTHS, st.lists(st.integers(0, 3), max_size=6), st.sampled_from([1, 2]), st.sampled_from([1, 2, 9]))
def test_a_budget_gives_the_same_batches_and_counts_over_any_chain_of_resumes(lengths, cuts, lanes, chunk):
    def make():
        return by_tokens(source(documents(lengths), lanes, chunk))

    whole = make()
    out = run(whole)[0]
    got, state = chained(make, cuts)
    assert got == out
    assert state == whole.state_dict()


@pytest.mark.parametrize("size", [None, 3])
def test_a_budget_stops_at_every_step_and_moves_between_worlds(size):
    lengths = [1 + i * 7 % 5 for i in range(80)]

    def make():
        return by_tokens(source(documents(lengths), 4, 3), microbatch_size=size)

    assert_resumes_everywhere(make)
    assert_any_world(make, [1, 2, 4])
    assert_any_schedule(make, schedules=2)


def test_a_record_without_tokens_says_that_the_budget_needs_them():
    error = run(Pipeline(source(3)).batch(max_tokens=8, name="steps"))[1]
    assert "steps failed on row 0 of rows" in str(error) and "input_ids" in str(error) and "tokenize" in str(error)


def test_a_batch_needs_a_size_or_a_budget_and_the_budget_is_in_the_recipe():
    with pytest.raises(ConfigError, match=r"microbatch_size=\.\.\., max_tokens=\.\.\., or both"):
        Batch(Read(source()))
    with pytest.raises(ConfigError, match="max_tokens must be an integer of at least 1, got 0"):
        Batch(Read(source()), max_tokens=0)
    state = Pipeline(source()).batch(max_tokens=8).state_dict()
    with pytest.raises(ValueError, match=r"nodes\.batch\.max_tokens: 8 -> 9"):
        Pipeline(source()).batch(max_tokens=9).load_state_dict(state)
