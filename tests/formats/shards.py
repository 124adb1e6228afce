"""What the tests of all formats do: rows of a dataset in file order, by units in random order, and one by one."""

from __future__ import annotations

import random

import numpy as np

from zephon_nodes.dataset import Dataset
from zephon_nodes.formats.base import BadRow


def plain(value):
    """Arrays as (dtype, list), so that rows compare with ``==``; each must be writable."""
    if isinstance(value, np.ndarray):
        assert value.flags.writeable
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def check_rows(dataset: Dataset, expected, as_plain=plain):
    """The rows are these: in order, by units and by single rows in a random order, with repeats, and fresh each time."""
    expected = [as_plain(row) for row in expected]
    assert len(dataset) == len(expected)
    assert dataset.unit_rows.sum() == len(expected)
    assert len(dataset.unit_bytes) == len(dataset.unit_rows)
    assert [as_plain(row) for row in dataset] == expected
    order = random.Random(5).choices(range(len(expected)), k=2 * len(expected)) if expected else []
    shards = np.searchsorted(dataset.shard_starts, order, side="right") - 1
    for place, shard in zip(order, shards.tolist()):
        row = place - int(dataset.shard_starts[shard])
        unit, in_unit = dataset.unit_of(shard, row)
        assert as_plain(dataset.shard(shard).read(unit).take([in_unit])[0]) == expected[place]
        single = dataset.shard(shard).take(np.array([row]))
        assert single is None or as_plain(single[0]) == expected[place]
    for shard in range(len(dataset.files)):
        count, start = int(dataset.shard_rows[shard]), int(dataset.shard_starts[shard])
        mixed = random.Random(6).sample(range(count), count)
        many = dataset.shard(shard).take(np.array(mixed, np.int64))
        assert many is None or [as_plain(row) for row in many] == [expected[start + row] for row in mixed]


def all_payloads(dataset: Dataset):
    """The rows in order, the text of the cause for a bad one."""
    found = []
    for shard in range(len(dataset.files)):
        for unit, count in enumerate(dataset.shard(shard).unit_rows.tolist()):
            found += dataset.shard(shard).read(unit).take(range(count))
    return [str(row.cause) if isinstance(row, BadRow) else row for row in found]
