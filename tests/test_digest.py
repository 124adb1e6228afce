import copy
import datetime
import decimal
import subprocess
import sys
import threading
from collections import OrderedDict, namedtuple
from types import MappingProxyType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.digest import content_digest

LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUE = st.recursive(LEAF, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(), x, max_size=3), max_leaves=8)
Pair = namedtuple("Pair", "a b")
Couple = namedtuple("Couple", "a b")


def strict(value):
    """A text that tells 1 from True and 1.0, keeps nan equal to nan, and forgets the order of keys."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{strict(value[key])}" for key in sorted(value)) + "}"
    return "[" + ",".join(map(strict, value)) + "]" if isinstance(value, list) else repr(value)


@given(VALUE, VALUE)
def test_digests_are_equal_when_the_values_are(one, other):
    assert (content_digest(one) == content_digest(other)) == (strict(one) == strict(other))
    assert content_digest(one) == content_digest(copy.deepcopy(one))


@given(st.lists(VALUE, max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_another_way_to_nest_the_same_values_is_another_digest(values, first, second):
    def nested(at):
        return [values[:at], values[at:]]

    assert (content_digest(nested(first)) == content_digest(nested(second))) == (
        strict(nested(first)) == strict(nested(second))
    )
    assert content_digest(values) != content_digest([values])


DIFFERENT = [
    *(None, True, 1, 1.0, "1", b"1", bytearray(b"1"), [1], (1,), {1}, {1: None}, [], {}, [[]], [1, [2]], [[1], 2]),
    *("", b"", [None], -0.0, 0.0, float("nan"), float("inf"), 1j, 2**70, -(2**70), range(3), "\ud800", "é", "e\u0301"),
    *(np.array([1]), np.array([1], np.int32), np.array([[1]]), np.array([1, "a"], object), np.int64(1), np.float32(1)),
    *(
        np.zeros(0),
        np.zeros((0, 3)),
        np.array([True]),
        np.array(["a"]),
        np.array([b"a"]),
        np.zeros(4),
        np.zeros((2, 2)),
    ),
    *(datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1), datetime.timedelta(1), datetime.time(1)),
    datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
    *({"a": {"b": 1}}, {"a": 1, "b": {}}, {1: 2}, {"1": 2}, {None: 2}, {("a",): 2}, {"a": 1}, {"a": [1]}),
    *(decimal.Decimal("1"), decimal.Decimal("1.0"), Pair(1, 2), Couple(1, 2), (1, 2), frozenset({2}), {(1,)}),
    *(Image.new("L", (2, 2)), Image.new("L", (2, 2), 1), torch.zeros(2), torch.zeros(2).half(), threading.Lock()),
]


def test_kinds_and_shapes_are_told_apart():
    digests = [content_digest(value) for value in DIFFERENT]
    same = [
        (a, b) for i, a in enumerate(DIFFERENT) for j, b in enumerate(DIFFERENT) if i < j and digests[i] == digests[j]
    ]
    assert not same


ALIKE = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1}, OrderedDict(a=1)),
    ({"a": 1}, MappingProxyType({"a": 1})),
    ({3, 1, 2}, {2, 3, 1}),
    (np.arange(6).reshape(2, 3).T, np.arange(6).reshape(2, 3).T.copy()),
    (np.arange(3, dtype=">i4"), np.arange(3, dtype="<i4")),
    (np.arange(10)[::2], np.array([0, 2, 4, 6, 8])),
    (torch.arange(3), np.arange(3)),
]


@pytest.mark.parametrize("number", range(len(ALIKE)))
def test_how_a_value_lies_in_memory_does_not_count(number):
    one, other = ALIKE[number]
    assert content_digest(one) == content_digest(other)


@pytest.mark.parametrize(
    "tensors",
    [
        (torch.zeros(2).bfloat16(), torch.ones(2).bfloat16()),
        (torch.zeros(2, requires_grad=True), torch.ones(2, requires_grad=True)),
        (torch.zeros(2).bfloat16(), torch.zeros(3).bfloat16()),
        (torch.from_numpy(np.empty((0, 3), np.int16)).view(torch.bfloat16), torch.zeros(0, 2).bfloat16()),
        (torch.tensor(1.0).bfloat16(), torch.tensor(2.0).bfloat16()),
    ],
    ids=["bfloat16", "requires_grad", "shapes", "empty", "scalars"],
)
def test_tensors_that_numpy_can_not_hold_are_told_apart_by_their_content(tensors):
    """A payload may hold bfloat16 images: the elastic proof would find any two of them equal."""
    one, other = tensors
    assert content_digest({"image": one}) != content_digest({"image": other})
    assert content_digest({"image": one}) == content_digest({"image": one.detach().clone()})


def test_the_digest_of_an_image_covers_its_palette():
    red, blue = Image.new("P", (2, 2)), Image.new("P", (2, 2))
    red.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    assert content_digest(red) != content_digest(blue)


def test_other_objects_count_by_the_name_of_their_type():
    assert content_digest(threading.Lock()) == content_digest(threading.Lock())
    assert content_digest(object()) != content_digest(threading.Lock())


def test_one_bit_anywhere_in_an_array_counts():
    array = np.zeros(1000, np.uint8)
    seen = {content_digest(array)}
    for at in (0, 499, 999):
        array[at] ^= 1
        seen.add(content_digest(array))
    assert len(seen) == 4


def test_a_digest_is_the_same_in_another_process():
    """And in another release: fingerprints of rows in saved states hold it."""
    value = "{'b': [1, 2.5, 'ü', b'x', None, {3, 1, 'q'}], 'a': {'x': True}}"
    code = f"from zephon_nodes.digest import content_digest; print(content_digest({value}))"
    other = subprocess.run([sys.executable, "-X", "utf8", "-c", code], capture_output=True, text=True, check=True)
    assert (
        other.stdout.strip()
        == content_digest(eval(value))
        == "41a1d34b832fe566974657ee71202bb2632362c7a9820bd80cec1dce10f3305d"
    )


class Slotted:
    __slots__ = ("__a", "never")

    def __init__(self, a):
        self.__a = a


class Both(Slotted):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b


def test_attributes_in_slots_count():
    assert content_digest(Slotted(1)) == content_digest(Slotted(1)) != content_digest(Slotted(2))
    assert len({content_digest(Both(a, b)) for a in (1, 2) for b in (1, 2)}) == 4


def test_a_batch_counts_by_its_rows_whether_or_not_they_were_looked_at():
    def batch(seed):
        rows = [{"input_ids": np.arange(n + 1, dtype=np.int32)} for n in range(9)]
        source = StaticMixtureWorkSource([Dataset.from_rows("d", rows)], seed=seed)
        return next(iter(Pipeline(source, runner="inline").pack_flat(8).batch(2)))

    seen = batch(1)
    assert seen.payloads and batch(1).unlaid
    assert content_digest({"batch": batch(1)}) == content_digest({"batch": seen}) != content_digest({"batch": batch(2)})
