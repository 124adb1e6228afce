import datetime
import decimal
import gc
from types import FunctionType, ModuleType

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_nodes.formats.arrow_rows import BAD_VALUE, ArrowUnit, RowsUnit, can_be_made, column_reader
from zephon_nodes.formats.base import BadRow

INT = st.integers(-100, 100)
TEXT, BLOB = st.text(max_size=5), st.binary(max_size=5)
FLOAT = st.floats(-10, 10, width=16)
TYPES = {
    pa.bool_(): st.booleans(),
    pa.int8(): INT,
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float16(): FLOAT,
    pa.float32(): FLOAT,
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): TEXT,
    pa.large_string(): TEXT,
    pa.binary(): BLOB,
    pa.large_binary(): BLOB,
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string_view(): TEXT,
    pa.list_(pa.binary_view()): st.lists(BLOB | st.none(), max_size=3),
    pa.null(): st.none(),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(datetime.timezone.utc)),
    pa.decimal128(10, 2): st.integers(-999, 999).map(lambda n: decimal.Decimal(n) / 100),
    pa.list_(pa.int32()): st.lists(INT, max_size=4),
    pa.large_list(pa.uint16()): st.lists(st.integers(0, 99), max_size=4),
    pa.list_(pa.bool_()): st.lists(st.booleans(), max_size=9),
    pa.list_(pa.float16()): st.lists(FLOAT, max_size=3),
    pa.list_(pa.float64(), 2): st.lists(FLOAT, min_size=2, max_size=2),
    pa.list_(pa.int16(), 0): st.just([]),
    pa.list_(pa.int64()): st.lists(INT | st.none(), max_size=4),
    pa.list_(pa.string()): st.lists(TEXT | st.none(), max_size=3),
    pa.list_(pa.list_(pa.int32())): st.lists(st.lists(INT, max_size=3) | st.none(), max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": INT, "b": st.lists(TEXT, max_size=2)}
    ),
    pa.list_(pa.struct([("x", pa.binary())])): st.lists(st.fixed_dictionaries({"x": BLOB | st.none()}), max_size=2),
    pa.map_(pa.string(), pa.int32()): st.lists(st.tuples(TEXT, INT), max_size=2, unique_by=lambda pair: pair[0]),
}


def plain(value):
    """The same value as ``to_pylist`` gives it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


@settings(deadline=None)
@given(st.data())
def test_a_reader_gives_what_to_pylist_gives_at_those_rows(data):
    kind = data.draw(st.sampled_from(list(TYPES)))
    values = data.draw(st.lists(TYPES[kind] | st.none(), min_size=1, max_size=20))
    array = pa.array(values, kind)
    start = data.draw(st.integers(0, len(values) - 1))
    sliced = array[start : start + data.draw(st.integers(1, len(values)))]
    index = data.draw(st.lists(st.integers(0, len(sliced) - 1), max_size=20))
    assert [plain(value) for value in column_reader(sliced)(np.array(index, np.int64))] == [
        sliced.to_pylist()[i] for i in index
    ]


@settings(deadline=None)
@given(
    st.sampled_from([pa.string(), pa.large_binary(), pa.int32(), pa.list_(pa.int32())]),
    st.lists(st.integers(0, 3) | st.none(), min_size=1, max_size=20),
    st.booleans(),
)
def test_dictionary_columns_give_the_values(kind, codes, empty):
    values = {"string": ["a", None, "c", ""], "int32": [5, 6, None, 8]}.get(str(kind), [[1], [2, 3], None, []])
    values = [b"", None, b"y", b"z"] if kind == pa.large_binary() else values
    codes = [None] * len(codes) if empty else codes
    array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), pa.array([] if empty else values, kind))
    expected = [None if code is None else values[code] for code in codes]
    for at in range(len(codes)):
        index = np.arange(len(codes) - at)
        assert [plain(value) for value in column_reader(array[at:])(index)] == expected[at:]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.large_list(pa.float16()), pa.list_(pa.bool_()), pa.list_(pa.uint8(), 2)]
)
def test_number_lists_are_arrays_of_their_type_writable_and_fresh(kind):
    unit = ArrowUnit([pa.record_batch({"x": pa.array([[1, 0], None, [0, 1]]).cast(kind)})])
    first, null, other = (row["x"] for row in unit.take([0, 1, 0]))
    assert null is None
    assert first.dtype == pa.array([], kind.value_type).to_numpy(zero_copy_only=False).dtype
    first[:] = 0
    assert other.tolist() == unit.take([0])[0]["x"].tolist() == [1, 0]


def test_a_row_with_a_null_in_its_list_is_a_list_and_its_neighbours_stay_arrays():
    unit = ArrowUnit([pa.record_batch({"x": pa.array([[1, 2], [3, None]], pa.list_(pa.int32()))})])
    full, holed = (row["x"] for row in unit.take([0, 1]))
    assert isinstance(full, np.ndarray)
    assert holed == [3, None]


def test_extension_types_come_as_their_storage():
    storage = pa.array([[1, 2, 3, 4], [5, 6, 7, 8]], pa.list_(pa.int32(), 4))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [2, 2]), storage)
    assert [value.tolist() for value in column_reader(tensors)(np.array([1, 0]))] == [[5, 6, 7, 8], [1, 2, 3, 4]]


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=6), st.data())
def test_rows_of_several_batches_come_in_the_order_asked(sizes, data):
    batches = [
        pa.record_batch({"n": pa.array([(b, i) for i in range(n)], pa.list_(pa.int64(), 2))})
        for b, n in enumerate(sizes)
    ]
    unit = ArrowUnit(batches, absent=["gone"])
    expected = [{"n": [b, i], "gone": None} for b, n in enumerate(sizes) for i in range(n)]
    assert unit.rows == len(expected)
    index = data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=20)) if expected else []
    assert [{**row, "n": row["n"].tolist()} for row in unit.take(index)] == [expected[i] for i in index]


@pytest.mark.parametrize(
    "unit", [ArrowUnit([pa.record_batch({"x": [1, 2]})]), RowsUnit([pa.record_batch({"x": [1, 2]})])]
)
def test_rows_that_the_unit_does_not_have_are_refused(unit):
    for rows in ([2], [0, -1]):
        with pytest.raises(IndexError, match="of a unit of 2 rows"):
            unit.take(rows)


@settings(deadline=None)
@given(st.data())
def test_rows_made_at_once_are_those_that_are_made_one_by_one(data):
    kinds = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    count = data.draw(st.integers(0, 9))
    columns = [data.draw(st.lists(TYPES[kind] | st.none(), min_size=count, max_size=count)) for kind in kinds]
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    batch = pa.record_batch(arrays, [f"c{i}" for i in range(len(kinds))])
    flat = all(not pa.types.is_nested(k) and k != pa.null() and "view" not in str(k) for k in kinds)
    fixed = any(pa.types.is_fixed_size_binary(k) or pa.types.is_temporal(k) or pa.types.is_decimal(k) for k in kinds)
    assert can_be_made(batch.schema) == (flat and not fixed)
    if not can_be_made(batch.schema):
        return
    cut = data.draw(st.integers(0, count))
    made, kept = RowsUnit([batch[:cut], batch[cut:]], ["gone"]), ArrowUnit([batch], ["gone"])
    rows, want = made.take(range(count)), kept.take(range(count))
    assert rows == want and [[*row] for row in rows] == [[*row] for row in want]
    assert [type(v) for row in rows for v in row.values()] == [type(v) for row in want for v in row.values()]
    assert made.sizes().tolist() == kept.sizes().tolist() and made.rows == count


def test_rows_that_were_made_are_fresh_each_time():
    unit = RowsUnit([pa.record_batch({"x": [1, 2], "t": ["a", "béc"]})])
    one, two = unit.take(np.array([1])), unit.take([1, 0, 1])
    one[0]["x"] = 5
    assert two == unit.take([1, 0, 1]) == [{"x": 2, "t": "béc"}, {"x": 1, "t": "a"}, {"x": 2, "t": "béc"}]
    assert unit.sizes().tolist() == [1, 4] and unit.rows == 2 and unit.nbytes > 20


def broken_text(kind):
    return pa.array(
        [b"good", b"\xff\xfe", b"fine"], pa.large_binary() if kind == pa.large_string() else pa.binary()
    ).view(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_broken_utf8_is_a_bad_row_that_names_the_column_and_spoils_no_other(kind):
    unit = ArrowUnit([pa.record_batch({"id": [1, 2, 3], "text": broken_text(kind)})])
    first, bad, last = unit.take([0, 1, 2])
    assert (first, last) == ({"id": 1, "text": "good"}, {"id": 3, "text": "fine"})
    assert isinstance(bad, BadRow)
    assert str(bad.cause).startswith("column 'text' can't be decoded: 'utf-8' codec")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_broken_utf8_can_not_be_made_at_once(kind):
    with pytest.raises(BAD_VALUE):
        RowsUnit([pa.record_batch({"text": broken_text(kind)})])


def test_a_value_that_python_can_not_hold_is_a_bad_row_in_any_type():
    dates = pa.array([0, 10**8], pa.int32()).view(pa.date32())  # the second is past the year 9999
    good, bad = ArrowUnit([pa.record_batch({"day": dates})]).take([0, 1])
    assert good == {"day": datetime.date(1970, 1, 1)}
    assert isinstance(bad, BadRow)


def test_nbytes_is_that_of_the_batches():
    unit = ArrowUnit([pa.record_batch({"x": pa.array([1, 2, 3], pa.int64())})] * 2)
    assert unit.nbytes == 48


def test_a_code_past_its_dictionary_is_a_bad_row():
    codes = pa.array([0, 7, 0], pa.int8())
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["a"]), safe=False)
    first, bad, last = ArrowUnit([pa.record_batch({"kind": column})]).take([0, 1, 2])
    assert first == last == {"kind": "a"}
    assert isinstance(bad, BadRow)


def _reached(thing, seen):
    """Everything that a thing holds, but for modules and classes."""
    if id(thing) not in seen and not isinstance(thing, (type, ModuleType)):
        seen[id(thing)] = thing
        held = gc.get_referents(thing) if not isinstance(thing, FunctionType) else thing.__closure__ or ()
        for each in held:
            _reached(each, seen)
    return seen.values()


def test_threads_that_share_a_unit_share_no_memoryview():
    """Without the GIL two of them that slice one find it released; seen on 3.13t, where a run of texts ended in an error."""
    columns = {"t": ["a", "b"], "b": [b"a", b"b"], "n": [1, 2], "l": [[1], [2, 3]], "x": [[1.5], [None, 2.5]]}
    unit = ArrowUnit(pa.table(columns).to_batches())
    unit.take([0, 1])
    assert not any(isinstance(thing, memoryview) for thing in _reached(unit, {}))
