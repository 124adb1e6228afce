import copy
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.formats.base import BadRow
from zephon_nodes.formats.memory import UNIT_ROWS, MemoryFormat
from zephon_nodes.storage import StoredFile

FILE = StoredFile("rows", "rows")


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
