import copy
import datetime
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from zephon_nodes.formats.base import BadRow
from zephon_nodes.formats.memory import UNIT_ROWS, MemoryFormat, content_digest
from zephon_nodes.storage import StoredFile

FILE = StoredFile("rows", "rows")
LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUE = st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3), max_leaves=8)


def shard_of(rows):
    return MemoryFormat(rows).open(FILE, None)


@settings(deadline=None)
@given(st.integers(0, 200), st.data())
def test_units_of_64_rows(count, data):
    rows = [{"i": i} for i in range(count)]
    shard = shard_of(rows)
    assert shard.unit_rows.tolist() == [len(rows[at : at + 64]) for at in range(0, count, 64)]
    assert len(shard.unit_bytes) == len(shard.unit_rows)
    index = data.draw(st.lists(st.integers(0, count - 1), max_size=5)) if count else []
    assert shard.take(index) == [rows[i] for i in index]
    assert [shard.read(i // UNIT_ROWS).take([i % UNIT_ROWS])[0] for i in index] == [rows[i] for i in index]


@pytest.mark.parametrize(
    "row",
    [
        {"a": 1, "b": "x"},
        {"a": [1, 2]},
        {"a": {"b": np.arange(3)}},
        [1, [2]],
        {"t": torch.arange(2)},
        {"a": None},
        "text",
        None,
    ],
)
def test_payloads_are_equal_and_fresh(row):
    before = copy.deepcopy(row)
    shard = shard_of([row])
    for take in (shard.take, shard.read(0).take):
        payload = take([0])[0]
        assert repr(payload) == repr(before)
        if isinstance(payload, dict):
            payload["new"] = payload.pop(next(iter(payload)))
            for value in payload.values():
                if isinstance(value, list):
                    value.append(3)
                if isinstance(value, dict):
                    value["b"][0] = 9
                if isinstance(value, torch.Tensor):
                    value[0] = 9
        assert repr(row) == repr(before), "the user's row has changed"


def test_read_only_arrays_come_out_writable():
    array = np.arange(3)
    array.flags.writeable = False
    assert shard_of([{"a": array}]).take([0])[0]["a"].flags.writeable


def test_the_list_itself_may_change_afterwards():
    rows = [{"i": 0}]
    shard = shard_of(rows)
    rows.append({"i": 1})
    assert shard.unit_rows.tolist() == [1]


def test_what_can_not_be_copied_is_a_bad_row():
    bad, good = shard_of([{"lock": threading.Lock()}, {"a": 1}]).read(0).take([0, 1])
    assert isinstance(bad, BadRow)
    assert "lock" in str(bad.cause)
    assert good == {"a": 1}


def test_unit_bytes_follow_the_size_of_the_rows():
    small = shard_of([{"a": 1, "b": None}] * 64).unit_bytes[0]
    big = shard_of([{"a": np.zeros(1000), "b": ["x" * 500]}] * 64).unit_bytes[0]
    assert small == 64 * 16
    assert big == 64 * 8500


@settings(deadline=None)
@given(VALUE, VALUE)
def test_digests_of_values_are_equal_when_the_values_are(one, other):
    assert (content_digest(one) == content_digest(other)) == (strict(one) == strict(other))
    assert content_digest(one) == content_digest(copy.deepcopy(one))


def strict(value):
    """A text that tells 1 from True and 1.0, keeps nan equal to nan, and forgets the order of keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{strict(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(strict, value)) + "]" if isinstance(value, list) else repr(value)


DIFFERENT = [
    *(
        None,
        True,
        1,
        1.0,
        "1",
        b"1",
        [1],
        (1,),
        {1},
        {1: None},
        [],
        {},
        [[]],
        [1, [2]],
        [[1], 2],
        "",
        b"",
        [None],
        -0.0,
        0.0,
    ),
    *(np.array([1]), np.array([1], np.int32), np.array([[1]]), np.array([1, "a"], object), np.int64(1), np.float32(1)),
    *(
        datetime.date(2020, 1, 1),
        datetime.datetime(2020, 1, 1),
        datetime.timedelta(1),
        {"a": {"b": 1}},
        {"a": 1, "b": {}},
    ),
    *(Image.new("L", (2, 2)), Image.new("L", (2, 2), 1), torch.zeros(2), torch.zeros(2).half(), threading.Lock()),
]


def test_digests_tell_kinds_and_shapes_apart():
    digests = [content_digest(value) for value in DIFFERENT]
    assert len(set(digests)) == len(DIFFERENT)


def test_digests_cover_tensors_without_a_numpy_type_by_their_kind():
    assert content_digest(torch.zeros(2).bfloat16()) == content_digest(torch.zeros(2, requires_grad=True))


def test_a_digest_is_the_same_in_another_process():
    value = "{'b': [1, 2.5, 'ü', b'x', None, {3, 1, 'q'}], 'a': {'x': True}}"
    code = f"from zephon_nodes.formats.memory import content_digest; print(content_digest({value}))"
    other = subprocess.run([sys.executable, "-X", "utf8", "-c", code], capture_output=True, text=True, check=True)
    assert (
        other.stdout.strip()
        == content_digest(eval(value))
        == "41a1d34b832fe566974657ee71202bb2632362c7a9820bd80cec1dce10f3305d"
    )
