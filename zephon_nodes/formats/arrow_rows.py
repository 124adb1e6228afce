"""Plain Python values out of Arrow record batches, row by row, without making a Python object for any other row.

A column gets a reader once: a function from row numbers to values that goes straight to the column's buffers. Going
through ``to_pylist`` costs ten to a hundred times more for token lists and images; it is left for the rare types.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zephon_nodes.errors import ReadError
from zephon_nodes.formats.base import BadRow, Rows, Unit
from zephon_nodes.hashing import I64
from zephon_nodes.storage import StoredFile

Reader: TypeAlias = Callable[[Sequence[int]], list[Any]]

_BINARY = {pa.binary(): np.int32, pa.string(): np.int32, pa.large_binary(): np.int64, pa.large_string(): np.int64}
BAD_VALUE = (ValueError, OverflowError, IndexError, pa.ArrowException)  # IndexError: a code past its dictionary


def give_back() -> None:
    """Gives the memory back that pyarrow keeps for the next decoding, each thread for itself: 30 MB and more, where the units
    of the vision workload of tests/benchmarks/harness need 10."""
    pa.default_memory_pool().release_unused()


def check_names(file: StoredFile, names: Sequence[str], wanted: Sequence[str] | None) -> None:
    """Raises ``ReadError`` if two of the columns that are wanted (None: all) have one name: a row would lose one of them."""
    twice = sorted(name for name in set(names) if names.count(name) > 1 and (wanted is None or name in wanted))
    if twice:
        text = f"{file}: two columns are named {twice[0]!r}, and a row can hold only one: name columns= without it, or rename one"
        raise ReadError(text, path=str(file))


class ArrowUnit(Unit):
    """A unit held as record batches, as they were decoded. Nothing is joined: joined strings could pass 2 GiB.

    A row is a dict. Values: bool, int, float, str, bytes; lists of numbers as writable numpy arrays of the column's
    type, or plain lists where the row has a null inside; dictionary columns as the values that they stand for;
    extension types as their storage; everything else as ``as_py`` gives it. Null is None.

    ``absent``: names that get None in each row.
    """

    def __init__(self, batches: Sequence[pa.RecordBatch], absent: Sequence[str] = ()) -> None:
        self._batches = [batch for batch in batches if batch.num_rows]
        self._starts = [0, *itertools.accumulate(batch.num_rows for batch in self._batches)]
        self._readers: list[list[Reader] | None] = [None] * len(self._batches)
        self._names = [*(self._batches[0].schema.names if self._batches else ()), *absent]
        self._absent = len(absent)
        self.rows = self._starts[-1]
        self.nbytes = sum(batch.get_total_buffer_size() for batch in self._batches)

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``. Raises IndexError for a row that the unit doesn't have."""
        index = _index(rows, self.rows)
        if not index:
            return []
        if len(self._batches) == 1:
            return self._take(0, index)
        which = [bisect_right(self._starts, row) - 1 for row in index]
        payloads: list[Any] = [None] * len(index)
        for number in set(which):
            places = [place for place, batch in enumerate(which) if batch == number]
            start = self._starts[number]
            for place, payload in zip(places, self._take(number, [index[i] - start for i in places]), strict=True):
                payloads[place] = payload
        return payloads

    def sizes(self) -> I64:
        """See ``Unit.sizes``: from the columns' offsets, no row is made."""
        sizes = [_lengths(batch, pa.types.is_string, pa.types.is_large_string) for batch in self._batches]
        if not any(map(np.any, sizes)):
            sizes = [_lengths(batch, pa.types.is_list, pa.types.is_large_list) for batch in self._batches]
        found: I64 = np.maximum(1, np.concatenate([np.zeros(0, np.int64), *sizes]))
        return found

    def _readers_of(self, number: int) -> list[Reader]:
        readers = self._readers[number]
        if readers is None:
            made = [column_reader(column) for column in self._batches[number].columns]
            readers = self._readers[number] = made + [_nothing] * self._absent
        return readers

    def _take(self, number: int, index: list[int]) -> list[Any]:
        readers = self._readers_of(number)
        try:
            columns = [reader(index) for reader in readers]
        except BAD_VALUE:
            # One bad value spoils the call: go row by row to find whose it is.
            if len(index) == 1:
                return [BadRow(self._cause(readers, index))]
            return [payload for row in index for payload in self._take(number, [row])]
        if len(columns) == 1:
            name = self._names[0]
            return [{name: value} for value in columns[0]]
        return [dict(zip(self._names, values)) for values in zip(*columns, strict=True)]  # noqa: B905 - twice as fast

    def _cause(self, readers: Sequence[Reader], row: list[int]) -> Exception:
        for name, reader in zip(self._names, readers, strict=True):
            try:
                reader(row)
            except BAD_VALUE as error:
                cause = ValueError(f"column {name!r} can't be decoded: {error}")
                cause.__cause__ = error
                return cause
        return ValueError("a column can't be decoded")


class RowsUnit(Unit):
    """A unit whose rows have been made: dicts of values that nobody can change. Rows and sizes are those of ``ArrowUnit``."""

    def __init__(self, batches: Iterable[pa.RecordBatch], absent: Sequence[str] = ()) -> None:
        """Makes them as the batches come: while one is still in the processor's cache. Raises ``BAD_VALUE``."""
        self._made: list[dict[str, Any]] = []
        self.nbytes = 0
        for batch in batches:
            names = [*batch.schema.names, *absent]
            columns = [column.to_pylist() for column in batch.columns] + [[None] * batch.num_rows] * len(absent)
            self._made += [dict(zip(names, values)) for values in zip(*columns, strict=True)]  # noqa: B905 - twice as fast
            self.nbytes += batch.get_total_buffer_size()
        self.rows = len(self._made)

    def take(self, rows: Rows) -> list[Any]:
        """See ``Unit.take``. Raises IndexError for a row that the unit doesn't have."""
        made = self._made
        return [made[i].copy() for i in _index(rows, self.rows)]

    def sizes(self) -> I64:
        """See ``ArrowUnit.sizes``."""
        texts = [[value for value in row.values() if isinstance(value, str)] for row in self._made]
        return np.array([max(1, sum(len(text.encode()) for text in row)) for row in texts], np.int64)


def _index(rows: Rows, count: int) -> list[int]:
    index: list[int] = np.asarray(rows, np.int64).tolist() if isinstance(rows, np.ndarray) else [*rows]
    if index and (min(index) < 0 or max(index) >= count):
        raise IndexError(f"rows {min(index)} to {max(index)} were asked of a unit of {count} rows")
    return index


def can_be_made(schema: pa.Schema) -> bool:
    """Whether the values of all columns are of types that ``RowsUnit`` takes: texts, bytes and numbers."""
    return all(kind in _BINARY or _is_number(kind) for kind in schema.types)


def _lengths(batch: pa.RecordBatch, small: Callable[..., bool], large: Callable[..., bool]) -> I64:
    """Lengths of the rows of all columns of a kind, summed."""
    total = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if small(column.type) or large(column.type):
            total += np.diff(_offsets(column, np.int64 if large(column.type) else np.int32))
    return total


def column_reader(array: pa.Array) -> Reader:
    """The reader of an array: row numbers (within bounds) to a list of values, None for null.

    The reader raises ValueError, OverflowError, IndexError or ArrowException where a value can't be had, for example broken UTF-8.
    """
    if isinstance(array, pa.ExtensionArray):
        return column_reader(array.storage)
    if pa.types.is_dictionary(array.type):
        return _dictionary(array)
    plain = _plain(array)
    if plain is None:
        return lambda index: [array[i].as_py() for i in index]
    return _with_nulls(plain, array) if array.null_count else plain


def _plain(array: pa.Array) -> Reader | None:
    """A reader that knows nothing of nulls, for the types that have a fast one."""
    kind = array.type
    if _is_number(kind):
        item = _values(array).item
        return lambda index: [item(i) for i in index]
    if kind in _BINARY:
        return _binary(array)
    if pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type):
        edges = np.arange(len(array) + 1) * kind.list_size + array.offset * kind.list_size
        return _number_lists(array.values, edges)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _is_number(kind.value_type):
        return _number_lists(array.values, _offsets(array, np.int64 if pa.types.is_large_list(kind) else np.int32))
    return None


def _binary(array: pa.Array) -> Reader:
    offsets, raw = _offsets(array, _BINARY[array.type]), array.buffers()[2] or b""
    text = array.type in (pa.string(), pa.large_string())

    def read(index: Sequence[int]) -> list[Any]:
        at, data = offsets.data, memoryview(raw)  # each call has its own: without the GIL no two threads may share one
        if text:
            return [str(data[at[i] : at[i + 1]], "utf-8") for i in index]
        return [bytes(data[at[i] : at[i + 1]]) for i in index]

    return read


def _number_lists(child: pa.Array, edges: npt.NDArray[Any]) -> Reader:
    """Of an array whose list ``i`` is from edge ``i`` to the next one of ``child``."""
    values, valid = _values(child), _validity(child) if child.null_count else None

    def read(index: Sequence[int]) -> list[Any]:
        at = edges.data
        if valid is None:
            return [values[at[i] : at[i + 1]].copy() for i in index]
        return [_number_list(values[at[i] : at[i + 1]], valid[at[i] : at[i + 1]]) for i in index]

    return read


def _number_list(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_]) -> Any:
    if valid.all():
        return values.copy()
    return [value if ok else None for value, ok in zip(values.tolist(), valid.tolist(), strict=True)]


def _dictionary(array: pa.Array) -> Reader:
    if not len(array.dictionary):
        return _nothing
    valid, inner = _validity(array.indices), column_reader(array.dictionary)
    code_of = np.where(valid, _values(array.indices), 0).astype(np.int64).item  # under a null may be any number

    def read(index: Sequence[int]) -> list[Any]:
        return inner([code_of(i) for i in index])

    return read if valid.all() else _with_nulls(read, array)


def _with_nulls(plain: Reader, array: pa.Array) -> Reader:
    is_valid = _validity(array).item

    def read(index: Sequence[int]) -> list[Any]:
        return [value if is_valid(i) else None for value, i in zip(plain(index), index, strict=True)]

    return read


def _nothing(index: Sequence[int]) -> list[Any]:
    return [None] * len(index)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _values(array: pa.Array) -> npt.NDArray[Any]:
    """The numbers of an array, whatever lies under its nulls."""
    buffer = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        return _bits(buffer, array)
    kind = "f" if pa.types.is_floating(array.type) else "u" if pa.types.is_unsigned_integer(array.type) else "i"
    dtype = np.dtype(f"{kind}{array.type.bit_width // 8}")  # to_pandas_dtype wants pandas, before pyarrow 26
    return (
        np.frombuffer(buffer or b"", dtype, len(array) + array.offset)[array.offset :]
        if len(array)
        else np.zeros(0, dtype)
    )


def _validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    buffer = array.buffers()[0]
    return np.ones(len(array), np.bool_) if buffer is None else _bits(buffer, array)


def _bits(buffer: pa.Buffer, array: pa.Array) -> npt.NDArray[np.bool_]:
    stop = array.offset + len(array)
    if not len(array):
        return np.zeros(0, np.bool_)
    return np.unpackbits(np.frombuffer(buffer, np.uint8), count=stop, bitorder="little")[array.offset :].view(np.bool_)


def _offsets(array: pa.Array, dtype: type) -> npt.NDArray[Any]:
    return np.frombuffer(array.buffers()[1], dtype, array.offset + len(array) + 1)[array.offset :]
