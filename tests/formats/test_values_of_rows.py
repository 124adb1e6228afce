"""The column encodings of MDS and the serialisers of LitData, beyond what the golden files hold."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.formats import litdata_values, mds_values
from zephon_nodes.formats.spans import BAD_VALUE

MDS = [
    "bytes",
    "str",
    "int",
    "uint8",
    "float16",
    "ndarray",
    "ndarray:int16",
    "ndarray:float32:2,3",
    "pil",
    "list[png]",
    "jpeg_array",
]
MDS += ["list[pil]", "json", "pkl", "str_int", "str_float", "str_decimal"]
LIT = [
    "str",
    "bool",
    "int",
    "float",
    "bytes",
    "json",
    "numpy",
    "tensor",
    "no_header_numpy:9",
    "no_header_tensor:18",
    "pil",
    "jpeg_array",
    "pickle",
]
READERS = {
    **{f"mds {kind}": mds_values.value_reader(kind) for kind in MDS},
    **{f"lit {kind}": litdata_values.value_reader(kind, False) for kind in LIT},
}


@pytest.mark.parametrize("kind", READERS)
@given(data=st.binary(max_size=40) | st.lists(st.integers(0, 3), max_size=30).map(bytes))
def test_random_bytes_give_a_value_or_an_error_of_values(kind, data):
    try:
        READERS[kind](memoryview(data))
    except BAD_VALUE:
        return


@pytest.mark.parametrize("kind", ["zip", "list[zip]", "ndarray:zip", "jpeg2000", "list[", ""])
def test_unknown_encodings(kind):
    with pytest.raises((ValueError, TypeError)):
        mds_values.value_reader(kind)


@pytest.mark.parametrize("kind", ["zip", "no_header_numpy:99", "no_header_tensor:", "no_header_numpy", ""])
def test_unknown_serialisers(kind):
    with pytest.raises(ValueError):
        litdata_values.value_reader(kind, False)


@pytest.mark.parametrize("order", ["<", ">"])
def test_heads_of_tensors_of_either_byte_order(order):
    piece = struct.pack(f"{order}4I", 16, 2, 2, 3) + np.arange(6, dtype="<i4").tobytes()
    array = litdata_values.value_reader("tensor", False)(memoryview(piece))
    assert array.dtype == np.int32
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_arrays_of_many_dimensions_and_long_ones():
    head = bytes([0x22, 3 << 2 | 1]) + np.array([300, 1, 2], "<u2").tobytes()
    array = mds_values.value_reader("ndarray")(memoryview(head + bytes(2400)))
    assert (array.shape, array.dtype) == ((300, 1, 2), np.float32)
    array += 1


@pytest.mark.parametrize("reader", [READERS["mds pil"], READERS["lit pil"]])
def test_a_picture_that_claims_more_pixels_than_it_has_bytes(reader):
    with pytest.raises(ValueError, match="4294967295 x 4294967295 pixels can't be in 3 bytes"):
        reader(memoryview(struct.pack("<3I", 2**32 - 1, 2**32 - 1, 3) + b"RGB" + b"123"))
