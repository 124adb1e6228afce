import numpy as np
import pytest
import torch

from zephon_nodes import training
from zephon_nodes.collate import assembled_row, converted, payload_field, renamed, stacked
from zephon_nodes.errors import ConfigError
from zephon_nodes.microbatch import Microbatch

PACKED = training.assemble([np.arange(2), np.arange(3)], 6, 0)


def test_unpacked_and_packed_apart_rows_are_laid_as_assemble_does():
    apart = {"sequences": [{"input_ids": [0, 1]}, {"input_ids": np.arange(3)}], "target_length": 6}
    row = assembled_row(apart, 0, 0)
    assert {name: np.asarray(value).tolist() for name, value in row.items()} == {
        name: np.asarray(value).tolist() for name, value in PACKED.items()
    }
    assert assembled_row({"input_ids": [5, 6]}, 0, 0)["document_ids"].tolist() == [0, 0]


def test_masks_of_packed_sequences_are_laid_too_and_default_to_ones():
    sequences = [{"input_ids": [1, 2], "loss_mask": [0, 1]}, {"input_ids": [3]}]
    row = assembled_row({"sequences": sequences, "target_length": 5}, 0, 0)
    assert row["loss_mask"].tolist() == [False, True, True, False, False]


def test_the_next_token_counts_only_for_a_row_that_was_packed():
    one = {"input_ids": [1, 2], "next_id": 3}
    assert assembled_row({"sequences": [one], "target_length": 2}, 0, 0)["next_id"] == 3
    assert assembled_row(one, 0, 0)["next_id"] == -100, "its document ends here: the row isn't a piece"


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ([1, 2], "row 3 is of type list"),
        ({"text": "a", "url": "b"}, "row 3 has no input_ids, but the fields text, url. A Tokenize node is missing"),
        ({"sequences": [{"text": "a"}], "target_length": 4}, "no input_ids, but the fields text"),
        ({"sequences": ["a"], "target_length": 4}, "no input_ids, but a str"),
        ({"input_ids": [[1, 2]]}, r"shape \(1, 2\): 1-D ints"),
        ({"input_ids": [0.5]}, "float64"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, r"2 input_ids, but a loss_mask of shape \(1,\)"),
        ({"document_ids": [0]}, "document_ids, but no input_ids"),
        ({**PACKED, "loss_mask": [1]}, r"differ in length: .*'loss_mask': 1"),
        ({**PACKED, "input_ids": [1]}, "differ in length: {'input_ids': 1"),
        ({"sequences": [{"input_ids": [1, 2, 3]}], "target_length": 2}, "2 tokens was asked for, but its parts have 3"),
    ],
)
def test_rows_that_do_not_fit_are_refused(payload, message):
    with pytest.raises(ConfigError, match=message):
        assembled_row(payload, 3, 0)


@pytest.mark.parametrize(
    ("values", "dtype", "shape"),
    [
        ([1, 2], "int64", (2,)),
        ([1, 2.5], "float64", (2,)),
        ([True, False], "bool", (2,)),
        ([[0.5, 0.25], [0.75, 1]], "float64", (2, 2)),
        ([np.float32(1), np.float32(2)], "float32", (2,)),
        ([np.zeros((2, 3), np.uint8)] * 3, "uint8", (3, 2, 3)),
        ([np.zeros(2, np.float16)] * 2, "float16", (2, 2)),
        ([np.zeros(2, ">i4")] * 2, "int32", (2, 2)),
        ([2**63 + 1, 2**63 + 3], "uint64", (2,)),
    ],
)
def test_numbers_of_one_shape_are_stacked_in_their_own_dtype(values, dtype, shape):
    out = stacked(values)
    assert (str(out.dtype), out.shape) == (dtype, shape)
    assert out.tolist() == [np.asarray(value).tolist() for value in values]
    assert converted(out, "torch").tolist() == out.tolist()


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["a", "b"],
        [None, 1],
        [[1], [1, 2]],
        [["a"], ["b"]],
        [[[1], [2, 3]]],
        [np.zeros(2), np.zeros(3)],
        [np.array(["a"])],
        [np.array([None])],
        [2**63 + 1, 1],
        [2**70, 1],
        [torch.zeros(1), torch.zeros(2)],
        [torch.zeros(1), torch.zeros(1, dtype=torch.int64)],
        [{"a": 1}, {"a": 2}],
        [b"a", b"b"],
    ],
)
def test_other_values_stay_as_they_came(values):
    assert stacked(values) is values


def test_tensors_are_stacked_and_keep_their_dtype():
    out = stacked([torch.ones(2, dtype=torch.bfloat16)] * 2)
    assert (out.dtype, tuple(out.shape)) == (torch.bfloat16, (2, 2))
    array = converted(stacked([torch.ones(2, requires_grad=True)] * 2), "numpy")
    assert isinstance(array, np.ndarray) and array.tolist() == [[1, 1], [1, 1]]


def test_fields_of_packed_sequences_are_lists_of_lists():
    rows = [
        {"sequences": [{"input_ids": [], "url": "a"}, {"input_ids": [], "url": "b"}], "target_length": 4, "n": 1},
        {"sequences": [{"input_ids": [], "url": "c"}], "target_length": 4, "n": 2},
    ]
    assert payload_field(rows, "url") == [["a", "b"], ["c"]]
    assert payload_field(rows, "n").tolist() == [1, 2]
    assert payload_field(rows, "target_length").tolist() == [4, 4]
    with pytest.raises(ConfigError, match=r"'img': row 0 has no such field.*n, sequences, target_length, url$"):
        payload_field(rows, "img")


def test_a_field_that_some_rows_lack_is_refused():
    with pytest.raises(ConfigError, match=r"'b': row 1 has no such field.*all rows have: a$"):
        payload_field([{"a": 1, "b": 2}, {"a": 1}], "b")


@pytest.mark.parametrize("name", ["input_ids", "labels", "position_ids", "max_seqlen"])
def test_names_that_are_made_here_are_no_fields(name):
    with pytest.raises(ConfigError, match=f"'{name}': to_training makes that itself"):
        payload_field([{name: [1]}], name)


def test_renaming():
    fields = {"a": 1, "b": 2, "c": 3}
    assert renamed(fields, {"a": "x"}) == {"x": 1, "b": 2, "c": 3}
    assert renamed(fields, {"a": "b", "b": "a"}) == {"b": 1, "a": 2, "c": 3}
    assert renamed(fields, {}) == fields
    with pytest.raises(ConfigError, match="rename='d' isn't in the output, which has a, b, c"):
        renamed(fields, {"d": "x"})
    for collision in ({"a": "b"}, {"c": "a"}, {"a": "x", "b": "x"}):
        with pytest.raises(ConfigError, match="to two fields"):
            renamed(fields, collision)


def test_conversion_leaves_other_values_alone():
    words = ["a"]
    assert converted(words, "torch") is words and converted(3, "numpy") == 3
    assert isinstance(converted(np.zeros(1), "torch"), torch.Tensor)
    assert isinstance(converted(torch.zeros(1), "numpy"), np.ndarray)


def test_rows_that_were_packed_and_stored_need_only_document_ids():
    stored = {"input_ids": [5, 6, 7, 8, 0, 0], "document_ids": [0, 0, 1, 1, -1, -1]}
    arrays = Microbatch([stored], [()], 0, {}).to_training(["padding_mask"], backend="numpy")
    assert arrays["position_ids"].tolist() == [[0, 1, 0, 1, 0, 1]]
    assert arrays["labels"].tolist() == [[6, -100, 8, -100, -100, -100]]
    assert arrays["padding_mask"].tolist() == [[False] * 4 + [True] * 2]
