"""Pickling for processes: what comes out is what went in: type, dtype, shape, order, writability, message and cause."""

from __future__ import annotations

import pickle
import sys
import threading
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from zephon_nodes import Dataset, Pointer, RowError, StaticMixtureWorkSource
from zephon_nodes.concurrency import pickling
from zephon_nodes.concurrency.pickling import APART, dumps, dumps_functions, loads, placed
from zephon_nodes.node import Setup
from zephon_nodes.stream import Cut, Drop, Failure, Record


def crossed(thing):
    return loads(dumps(thing))


def assert_same(got, want):
    """Equal in type, dtype, shape, order, writability and content, all the way down."""
    assert type(got) is type(want)
    if isinstance(want, np.ndarray):
        assert (got.dtype, got.shape, got.flags.writeable) == (want.dtype, want.shape, want.flags.writeable)
        if want.flags.forc:
            assert got.flags.f_contiguous == want.flags.f_contiguous
        if want.dtype.hasobject:
            assert got.tolist() == want.tolist()
        else:
            assert got.tobytes() == want.tobytes()
    elif isinstance(want, torch.Tensor):
        assert (got.dtype, got.shape, got.requires_grad, got.layout) == (
            want.dtype,
            want.shape,
            want.requires_grad,
            want.layout,
        )
        assert_same(as_bytes(got), as_bytes(want))
    elif isinstance(want, memoryview):
        assert (got.format, got.shape, got.readonly) == (want.format, want.shape, want.readonly)
        assert got.tobytes() == want.tobytes()
    elif isinstance(want, dict):
        assert list(got) == list(want)
        for key in want:
            assert_same(got[key], want[key])
    elif isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)
    elif isinstance(want, Image.Image):
        assert (got.mode, got.size, got.tobytes(), got.getpalette()) == (
            want.mode,
            want.size,
            want.tobytes(),
            want.getpalette(),
        )
    elif isinstance(want, float):
        assert repr(got) == repr(want)
    else:
        assert got == want


def as_bytes(tensor):
    plain = tensor.detach().to_dense().resolve_conj() if tensor.is_sparse else tensor.detach().resolve_conj()
    flat = plain.contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)  # views refuse a stride of 0


def readonly(array):
    array.flags.writeable = False
    return array


def paletted():
    return Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).convert("RGB").quantize(8)


BIG = 3 * APART
THINGS = {
    "ints": np.arange(BIG, dtype=np.int32),
    "small": np.arange(5, dtype=np.uint16),
    "read-only": readonly(np.arange(BIG)),
    "small read-only": readonly(np.arange(3)),
    "fortran": np.asfortranarray(np.arange(BIG, dtype=np.float32).reshape(64, -1)),
    "strided": np.arange(BIG)[::3],
    "reversed": np.arange(BIG, dtype=np.uint8)[::-1],
    "no elements": np.zeros((0, 3), np.float64),
    "no dimension": np.array(7.5),
    "structured": np.zeros(BIG, [("a", "i4"), ("b", "f8", (2,))]),
    "big-endian": np.arange(BIG, dtype=">i4"),
    "dates": np.arange(BIG).astype("datetime64[s]"),
    "strings": np.array(["a", "bcd"] * BIG),
    "objects": np.array([{"a": 1}, None, "x"], dtype=object),
    "half": np.ones(BIG, np.float16),
    "complex": np.ones(BIG, np.complex128),
    "scalar": np.float32(1.5),
    "bytes": b"\0\1" * BIG,
    "bytearray": bytearray(b"\0\1" * BIG),
    "memoryview": memoryview(bytearray(BIG)),
    "memoryview, read-only": memoryview(b"x" * BIG),
    "memoryview of an array": memoryview(np.arange(BIG, dtype=np.int32).reshape(4, -1)),
    "memoryview, strided": memoryview(bytearray(range(200)))[::2],
    "memoryview, empty": memoryview(b""),
    "text": "Käse \U0001f9c0" * 50,
    "nested": {"a": [1, (2.5, None, {"b": np.arange(3)})], 3: True, "nan": float("nan"), "set": {1, 2}},
    "image": Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)),
    "palette": paletted(),
    "one bit": Image.new("1", (9, 3), 1),
    "record": Pointer("d", 1, 2, 3),
    **{
        str(dtype): torch.arange(BIG).remainder(2).to(dtype).reshape(2, -1)
        for dtype in (
            torch.bfloat16,
            torch.float16,
            torch.float32,
            torch.float64,
            torch.int8,
            torch.uint8,
            torch.int64,
            torch.bool,
            torch.complex64,
            torch.float8_e4m3fn,
        )
    },
    "tensor, transposed": torch.arange(BIG).reshape(3, -1).t(),
    "tensor, view": torch.arange(BIG)[5:-7:2],
    "tensor, empty": torch.zeros(2, 0, 3, dtype=torch.bfloat16),
    "tensor, empty, of an empty array": torch.tensor(np.zeros(0, np.int64)),
    "tensor, no dimension": torch.tensor(3),
    "tensor, expanded": torch.tensor([1.0]).expand(5),
    "tensor with grad": torch.ones(3, requires_grad=True),
    "tensor, conjugated": torch.tensor([1 + 2j]).conj(),
    "tensor, sparse": torch.eye(4).to_sparse(),
}


@pytest.mark.parametrize("name", THINGS)
def test_payloads_come_out_as_they_went_in(name):
    want = THINGS[name]
    assert_same(crossed(want), want)
    assert_same(crossed([{"x": want}, want])[0]["x"], want)


@given(hnp.arrays(hnp.scalar_dtypes() | hnp.array_dtypes(), hnp.array_shapes(min_dims=0, min_side=0, max_side=40)))
def test_any_array_comes_out_as_it_went_in(array):
    assume(array.dtype.kind not in "mM" or array.dtype.isnative)  # NumPy itself loses the byte order of these
    assert_same(crossed(array), array)
    assert_same(crossed(array.T), array.T)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=2 * APART),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@given(PLAIN)
def test_any_nested_payload_comes_out_as_it_went_in(thing):
    assert_same(crossed(thing), thing)


def test_large_buffers_are_kept_apart_and_small_ones_are_not():
    assert len(dumps([np.zeros(APART, np.uint8)] * 1)) == 2
    assert len(dumps([np.zeros(APART, np.uint8), torch.zeros(APART), np.zeros(APART // 2, np.uint8)])) == 3


def test_an_object_that_stands_twice_in_a_message_is_one_object_again():
    array = np.arange(BIG)
    first, second = crossed([array, array])
    assert first is second


def test_records_keep_all_that_they_have():
    record = Record({"a": 1}, 2**63 - 1, (Pointer("d", 0, 1, 2), Pointer("e", 3, 4)), Cut(5, 6, {"t": 7}), (("d", 3),))
    got = crossed(record)
    for slot in Record.__slots__:
        assert getattr(got, slot) == getattr(record, slot)
    assert type(got.origins[0]) is Pointer and type(got.cut) is Cut
    drop = crossed(Drop("n", "why: so", (Pointer("d", 0, 1),), True, 4))
    assert (drop.node, drop.reason, drop.origins, drop.failed, drop.count) == (
        "n",
        "why: so",
        (Pointer("d", 0, 1),),
        True,
        4,
    )


@dataclass
class Payload:
    value: int


def as_of_a_script(kind):
    """A class as if it were of ``__main__``, where pickle doesn't find it in another process."""
    made = type(kind.__name__, (), dict(kind.__dict__))
    made.__module__, made.__qualname__ = "__main__", kind.__qualname__
    return made


def test_payloads_of_classes_of_a_script_or_a_function_cross_whole():
    @dataclass
    class Local:
        value: int

    assert crossed(Local(3)) == Local(3) and type(crossed(Local(3))) is Local
    assert b"__main__" in dumps(as_of_a_script(Payload)(3))[0]
    assert crossed(Payload(2)) == Payload(2)


def test_only_what_is_of_a_script_goes_by_cloudpickle_and_not_what_names_it(monkeypatch):
    assert crossed(["__main__", b"__main__", Payload(2)]) == ["__main__", b"__main__", Payload(2)]
    monkeypatch.setattr(pickling, "_clouded", lambda *args: 1 / 0)
    assert crossed(["__main__", b"__main__", Payload(2)]) == ["__main__", b"__main__", Payload(2)]
    made = as_of_a_script(Payload)
    for thing in (made, made(3), [{"x": made(3)}], partial(made, 3), made(3).__init__):
        with pytest.raises(ZeroDivisionError):
            dumps(thing)


def test_what_nobody_can_pickle_says_so():
    with pytest.raises(TypeError, match="lock"):
        dumps({"x": threading.Lock()})


# errors


class TwoArguments(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a = a


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("with a lock")
        self.lock = threading.Lock()


class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no")


def raised(error, cause=None):
    try:
        raise error from cause
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        KeyError("k"),
        TwoArguments(1, 2),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        FileNotFoundError(2, "no such file", "name"),
        SystemExit(3),
        RowError("m", node="n", origins=(Pointer("d", 0, 1),), where="here"),
        ValueError(np.arange(BIG)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_keep_type_message_attributes_cause_and_traceback(error):
    got = crossed(Failure(raised(error, raised(TwoArguments(3, 4), OSError("deep"))))).error
    assert type(got) is type(error) and str(got) == str(error)
    facts = {name: value for name, value in vars(error).items() if name != "__notes__"}
    assert {name: value for name, value in vars(got).items() if name != "__notes__"} == facts
    assert type(got.__cause__) is TwoArguments and got.__cause__.a == 3 and str(got.__cause__) == "3 and 4"
    assert repr(got.__cause__.__cause__) == "OSError('deep')"
    if sys.version_info >= (3, 11):
        (note,) = got.__notes__
        assert "in raised" in note and __file__ in note


def test_a_context_stays_a_context():
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")
    except ValueError as error:
        got = crossed(Failure(error)).error
    assert got.__cause__ is None and repr(got.__context__) == "KeyError('first')"


def test_errors_that_cannot_be_pickled_still_tell_what_they_were():
    got = crossed(Failure(Unpicklable())).error
    assert str(got) == "Unpicklable: with a lock (an exception that can't be pickled)"
    assert "Speechless" in str(crossed(Failure(Speechless())).error)


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError(1), ValueError(2)
    first.__cause__, second.__cause__ = second, first
    assert str(crossed(Failure(first)).error.__cause__) == "2"


# functions


def test_functions_go_without_the_work_source_and_errors_get_their_place_back():
    big = Dataset.from_rows("d", [{"x": bytes(1000)} for _ in range(1000)])
    source = StaticMixtureWorkSource([big])
    data = dumps_functions(partial(Setup.failed, Setup("n", "raise", source)))
    assert len(data) < 10_000
    error = pickle.loads(data)((Pointer("d", 0, 3),), ValueError("why")).error
    assert "rows" not in error.where
    placed(error, source.locate)
    assert error.where == source.locate((Pointer("d", 0, 3),))
    assert str(error) == f"n failed on {error.where}: ValueError: why"
    other = ValueError("(a row)")
    placed(other, source.locate)
    assert str(other) == "(a row)"


def test_a_function_that_asks_for_the_work_source_is_told_that_it_is_elsewhere():
    setup = Setup("n", "raise", StaticMixtureWorkSource([Dataset.from_rows("d", [1])]))
    with pytest.raises(Exception, match="'datasets', which stays in the main process"):
        pickle.loads(dumps_functions(lambda: setup.source.datasets))()


def test_lambdas_closures_and_recursion_cross_with_the_name_of_their_file():
    n = 3

    def factorial(k):
        return 1 if k <= 1 else k * factorial(k - 1)

    function = pickle.loads(dumps_functions(lambda x: factorial(n) + x))
    assert function(1) == 7
    assert function.__code__.co_filename == __file__
