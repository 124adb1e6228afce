"""Rows with every kind of column that Arrow-like formats have, for the tests of several of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("f", pa.float32()),
        ("yes", pa.bool_()),
        ("text", pa.string()),
        ("blob", pa.large_binary()),
        ("ids", pa.list_(pa.int32())),
        ("texts", pa.list_(pa.string())),
        ("deep", pa.list_(pa.list_(pa.int16()))),
        ("info", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)


def rows(count):
    found = []
    for i in range(count):
        row = {
            "n": i - 3,
            "f": i / 4,
            "yes": i % 2 == 0,
            "text": "ünï\u2028日" * (i % 5),
            "blob": bytes([i % 256]) * (i % 7 * 100),
            "ids": list(range(i % 6)),
            "texts": [f"t{j}" for j in range(i % 3)],
            "deep": [[j] * j for j in range(i % 4)],
            "info": {"a": i, "b": "x" * (i % 3)},
        }
        if i % 5 == 4:
            row[list(row)[i % 9]] = None
        found.append(row)
    return found


def table(count):
    return pa.Table.from_pylist(rows(count), SCHEMA)


def as_lists(row):
    assert all(value.flags.writeable for value in row.values() if isinstance(value, np.ndarray))
    return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in row.items()}
