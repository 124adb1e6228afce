"""PackFlat in a graph: every token and every step between tokens exactly once, whatever the algorithm."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import resumed, run, source, take

from zephon_nodes import Pipeline
from zephon_nodes.packing import ALGORITHMS

IGNORE = -100


@st.composite
def documents(draw, masks=st.sampled_from(["none", "all", "some"])):
    """Rows of token ids, no id twice, some of them with a loss mask."""
    kind, at, rows = draw(masks), 1, []
    for length in draw(st.lists(st.integers(0, 21), min_size=1, max_size=25)):
        row = {"input_ids": list(range(at, at + length)), "s": [at * 0.5] * length, "name": f"doc {len(rows)}"}
        if kind == "all" or (kind == "some" and draw(st.booleans())):
            row["loss_mask"] = draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
        rows.append(row)
        at += length
    return rows


algorithms = st.sampled_from(ALGORITHMS)
graphs = {
    "rows": documents(),
    "algorithm": algorithms,
    "length": st.sampled_from([1, 2, 5, 16]),
    "bins": st.sampled_from([1, 3]),
    "cap": st.sampled_from([None, 1, 3]),
    "lanes": st.sampled_from([1, 2]),
    "flush": st.sampled_from([1, 3]),
}


def packed(rows, algorithm="wrap", length=8, bins=3, cap=None, lanes=1, flush=2, **settings):
    pipeline = Pipeline(source(rows, lanes, flush=flush), runner="inline")
    return pipeline.pack_flat(length, algorithm, num_bins=bins, max_documents=cap, **settings)


@given(**graphs, batch=st.sampled_from([1, 3]))
def test_every_step_inside_a_document_is_trained_exactly_once_over_an_epoch(batch, rows, **settings):
    """Report P1: no step from one document to the next. Steps whose target is masked are left out."""
    want = Counter()
    for row in rows:
        ids, mask = row["input_ids"], row.get("loss_mask", [1] * len(row["input_ids"]))
        want.update((ids[i], ids[i + 1]) for i in range(len(ids) - 1) if mask[i + 1])
    got = Counter()
    for microbatch in packed(rows, **settings).batch(batch):
        step = microbatch.to_training(backend="numpy")
        trained = step["labels"] != IGNORE
        got.update(zip(step["input_ids"][trained].tolist(), step["labels"][trained].tolist(), strict=True))
    assert got == want


@given(**graphs)
def test_documents_lie_end_to_end_with_their_positions_ids_and_padding(rows, **settings):
    """A document's tokens are consecutive numbers, and a gap lies between two documents."""
    rows = [{"input_ids": [token + 100 * i for token in row["input_ids"]]} for i, row in enumerate(rows)]
    last = {row["input_ids"][-1] for row in rows if row["input_ids"]}
    length, seen = settings["length"], Counter()
    for sequence in packed(rows, **settings):
        arrays = [sequence[name] for name in ("input_ids", "position_ids", "document_ids")]
        assert all(array.dtype == np.int32 and array.shape == (length,) for array in arrays)
        ids, at, doc = (array.tolist() for array in arrays)
        filled = length - sequence["padding_length"]
        assert ids[filled:] == [0] * (length - filled) == [d + 1 for d in doc[filled:]]
        seen.update(ids[:filled])
        for i in range(filled):
            begins = i == 0 or ids[i] != ids[i - 1] + 1
            assert at[i] == (0 if begins else at[i - 1] + 1)
            assert doc[i] >= 0 if i == 0 else (doc[i] > doc[i - 1] if begins else doc[i] == doc[i - 1])
            assert settings["cap"] is None or doc[i] < settings["cap"]
        cut = filled == length and ids[-1] not in last
        assert sequence["next_id"] == (ids[-1] + 1 if cut else IGNORE)
    assert seen == Counter(token for row in rows for token in row["input_ids"])


@given(**graphs | {"algorithm": st.sampled_from(["first_fit", "best_fit"])})
def test_the_fit_algorithms_keep_documents_whole_that_fit(rows, **settings):
    length = settings["length"]
    sequences = [set(s["input_ids"][s["document_ids"] >= 0].tolist()) for s in packed(rows, **settings)]
    for row in rows:
        ids = row["input_ids"]
        pieces = [ids[i : i + length] for i in range(0, len(ids), length)]
        assert all(any(set(piece) <= sequence for sequence in sequences) for piece in pieces)


@given(rows=documents(st.just("none")), lanes=st.sampled_from([1, 2]), length=st.sampled_from([2, 5, 16]))
def test_wrap_pads_one_sequence_a_span_at_most(rows, lanes, length):
    flush = 3
    sequences = list(packed(rows, "wrap", length, lanes=lanes, flush=flush))
    short = sum(1 for s in sequences if s["padding_length"])
    spans = sum(-(-len(range(lane, len(rows), lanes)) // 12) + 1 for lane in range(lanes))
    assert short <= spans


@given(**graphs)
def test_the_i_th_origin_of_a_sequence_is_the_row_of_document_i(rows, **settings):
    for batch in packed(rows, **settings).batch(2):
        for sequence, origins in zip(batch, batch.origins, strict=True):
            ids, doc = sequence["input_ids"], sequence["document_ids"]
            for number, origin in enumerate(origins):
                assert origin.file == "rows" and origin.dataset == "d"
                tokens = ids[doc == number].tolist()
                whole = rows[origin.row]["input_ids"]
                assert set(tokens) <= set(whole) and (tokens or not whole)


@given(**graphs)
def test_every_row_is_an_origin_of_some_sequence_the_empty_ones_too(rows, **settings):
    named = {at.row for batch in packed(rows, **settings).batch(2) for row in batch.origins for at in row}
    assert named == set(range(len(rows)))


@given(**graphs)
def test_extra_fields_are_laid_end_to_end_with_their_own_type(rows, **settings):
    value = {token: row["s"][0] for row in rows for token in row["input_ids"]}
    for sequence in packed(rows, **settings, fields=["s"]):
        known = sequence["document_ids"] >= 0
        if known.any():
            assert sequence["s"].dtype == np.float64
        assert sequence["s"][known].tolist() == [value[token] for token in sequence["input_ids"][known].tolist()]
        assert not sequence["s"][~known].any()
        assert "name" not in sequence


def test_extra_fields_may_have_more_axes_and_reach_the_training_step():
    rows = [{"input_ids": [i, i], "x": np.full((2, 3), i, np.float16)} for i in range(1, 4)]
    (batch,) = packed(rows, length=4, fields=["x"]).batch(2)
    x = batch.to_training(extra=["x"], backend="numpy")["x"]
    assert x.shape == (2, 4, 3) and x.dtype == np.float16
    assert x[0, :, 0].tolist() == [1, 1, 2, 2] and x[1, :, 2].tolist() == [3, 3, 0, 0]


def test_two_documents_by_hand():
    """Reports P1 and P2: [1..5] and [6..9] in sequences of 8."""
    rows = [{"input_ids": [1, 2, 3, 4, 5]}, {"input_ids": [6, 7, 8, 9]}]
    (batch,) = packed(rows, length=8).batch(2)
    step = batch.to_training(extra=["cu_seqlens", "document_ids"], backend="numpy")
    assert step["input_ids"].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8], [9, 0, 0, 0, 0, 0, 0, 0]]
    assert step["labels"].tolist() == [[2, 3, 4, 5, IGNORE, 7, 8, 9], [IGNORE] * 8]
    assert step["position_ids"][0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert step["document_ids"][0].tolist() == [0] * 5 + [1] * 3
    assert step["cu_seqlens"].tolist() == [[0, 5, 8], [0, 1, 8]]
    assert step["max_seqlen"].tolist() == [5, 7]


@given(rows=documents(), algorithm=algorithms, length=st.sampled_from([4, 9]))
def test_cu_seqlens_begin_at_0_grow_and_end_at_the_length(rows, algorithm, length):
    for batch in packed(rows, algorithm, length).batch(2):
        step = batch.to_training(extra=["cu_seqlens", "document_ids"], backend="numpy")
        for cu, doc in zip(step["cu_seqlens"], step["document_ids"], strict=True):
            edges = [0] + [i for i in range(1, length) if doc[i] != doc[i - 1]] + [length]
            assert cu.tolist() == edges + [length] * (len(cu) - len(edges))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_document_comes_twice_or_goes_missing_over_a_resume(algorithm):
    """Report R13: a resume position that ignores how many documents a sequence holds."""
    rng = np.random.default_rng(3)
    rows = [{"input_ids": [i] * int(rng.integers(1, 6))} for i in range(1, 300)]

    def make():
        return packed(rows, algorithm, 22, flush=20, lanes=2).batch(2)

    whole = take(make(), None)[0]
    for cut in range(0, len(whole), 3):
        out, state = take(make(), cut)
        ids = [s["input_ids"][s["document_ids"] >= 0] for batch in out + resumed(make(), state) for s in batch]
        counts = Counter(np.concatenate(ids).tolist())
        assert counts == Counter({i: len(row["input_ids"]) for i, row in enumerate(rows, 1)})


def test_padding_is_the_tokenizers_unless_said_otherwise():
    from tokenizers_for_tests import train_tokenizer

    work = source([{"text": "a"}])
    for settings, pad in (({}, 2), ({"pad_token_id": 77}, 77)):
        (sequence,) = run(Pipeline(work).tokenize(train_tokenizer(), eos="</s>").pack_flat(8, **settings))[0]
        assert set(sequence["input_ids"][8 - sequence["padding_length"] :].tolist()) == {pad}


def test_a_row_whose_labels_are_all_masked_is_given_with_a_count_of_0():
    """Report P9."""
    (batch,) = packed([{"input_ids": [1, 2, 3], "loss_mask": [0, 0, 0]}], length=4).batch(1)
    step = batch.to_training(extra=["num_valid_tokens", "loss_mask"], backend="numpy")
    assert step["num_valid_tokens"] == 0 and step["labels"].tolist() == [[IGNORE] * 4] and not step["loss_mask"].any()
