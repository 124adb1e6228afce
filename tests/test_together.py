"""Rows that go from Read to Batch or a packing node as one item: a ``map`` between them makes records of them, and changes
nothing else."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import chained, run

from zephon_nodes import Batch, Dataset, Emit, Loader, Microbatch, PackFlat, Pipeline, Read, StaticMixtureWorkSource
from zephon_nodes.digest import content_digest
from zephon_nodes.packing import ALGORITHMS
from zephon_nodes.stream import Together
from zephon_nodes.testing import assert_resumes_everywhere, digest

LENGTHS = st.lists(st.integers(0, 14), min_size=12, max_size=40)
PACKS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["pack_flat", "pack_sequences"]),
        "algorithm": st.sampled_from(ALGORITHMS),
        "max_documents": st.sampled_from([None, 1, 3]),
        "homogeneity": st.sampled_from(["none", "component"]),
        "overlong": st.sampled_from(["split", "drop", "raise"]),
    }
)


def documents(lengths, names):
    rows = [
        {"input_ids": np.arange(n, dtype=np.int32), "n": i} | ({"loss_mask": [i % 2] * n} if i % 5 == 0 else {})
        for i, n in enumerate(lengths)
    ]
    return [Dataset.from_rows(name, rows) for name in names]


def packed(pipeline, kind, algorithm, overlong, **settings):
    overlong = "split" if "wrap" in algorithm else overlong
    return getattr(pipeline, kind)(10, algorithm, overlong=overlong, num_bins=3, **settings)


def both(make, change):
    """The same graph, with the rows told apart by a map and without."""
    return [lambda told=told: change(make().map(dict) if told else make()) for told in (False, True)]


def told(pipeline):
    """Everything that is to be seen of a run."""
    outputs, error = run_batches(pipeline)
    drops = [(row.node, row.reason, row.where) for row in pipeline.drops.rows]
    metrics = {k: v for k, v in pipeline.metrics().items() if "seconds" not in k and "wait" not in k}
    return outputs, error, drops, metrics


def run_batches(pipeline):
    outputs = []
    try:
        for batch in pipeline:
            outputs.append((batch.lane, content_digest(list(batch)), batch.origins, batch.pointers))
    except Exception as error:
        return outputs, str(error)
    return outputs, None


@given(
    lengths=LENGTHS,
    names=st.sampled_from(["a", "ab"]),
    lanes=st.sampled_from([1, 3]),
    pack=st.none() | PACKS,
    size=st.integers(1, 8),
    budget=st.sampled_from([None, 30]),
    drop_last=st.booleans(),
    threads=st.booleans(),
    policy=st.sampled_from(["raise", "skip"]),
)
def test_what_comes_out_is_the_same_as_if_rows_had_been_told_apart(
    lengths, names, lanes, pack, size, budget, drop_last, threads, policy
):
    options = {"runner": "thread", "parallelism": 2} if threads else {"runner": "inline"}

    def make():
        work = StaticMixtureWorkSource(documents(lengths, names), None, lanes, 3, 2)
        return Pipeline(work, on_error=policy, **options)

    def rest(pipeline):
        pipeline = packed(pipeline, **pack) if pack else pipeline
        return pipeline.batch(size, max_tokens=budget, drop_last=drop_last)

    together, apart = both(make, rest)
    assert told(together()) == told(apart())


@given(LENGTHS, st.none() | PACKS, st.integers(1, 8), st.lists(st.integers(0, 5), max_size=5), st.sampled_from([1, 2]))
def test_and_over_any_chain_of_resumes(lengths, pack, size, cuts, lanes):
    def make():
        work = StaticMixtureWorkSource(documents(lengths, "ab"), None, lanes, 3, 2)
        return Pipeline(work, runner="inline", on_error="skip")

    def rest(pipeline):
        return (packed(pipeline, **pack | {"overlong": "drop"}) if pack else pipeline).batch(size)

    together, apart = both(make, rest)
    whole = digests(run(apart())[0])
    assert digests(chained(together, cuts)[0]) == digests(run(together())[0]) == whole


def digests(outputs):
    return [content_digest(output) for output in outputs]


@pytest.mark.parametrize(
    ("change", "yes"),
    [
        (lambda p: p.batch(2), True),
        (lambda p: p.pack_flat(8).batch(2), True),
        (lambda p: p.pack_sequences(8).batch(2), True),
        (lambda p: p.map(dict).batch(2), False),
        (lambda p: p.shuffle(4).batch(2), False),
        (lambda p: p.batch(2, parallelism=1), False),
        (lambda p: p, False),
    ],
)
def test_where_rows_stay_together(change, yes, monkeypatch):
    told_apart, records = [], Together.records
    monkeypatch.setattr(Together, "records", lambda rows: told_apart.append(1) or records(rows))
    assert list(change(Pipeline(StaticMixtureWorkSource(documents([3] * 20, "a")), runner="thread", parallelism=1)))
    assert bool(told_apart) == (not yes)


class ByParity(PackFlat):
    def group_of(self, record):
        return str(record.payload["n"] % 2)


def test_what_a_subclass_overrides_is_asked():
    work = StaticMixtureWorkSource(documents([1, 2, 3, 4] * 5, "a"))
    for batch in Loader(Batch(ByParity(Read(work), 8, "first_fit", pad_token_id=0), 2), runner="inline"):
        for row in batch.origins:
            assert len({origin.row % 2 for origin in row}) == 1


class Orphans:
    """Gives documents that name no parents."""

    def push(self, payload):
        yield Emit({"input_ids": np.arange(5, dtype=np.int32)}, ())


@pytest.mark.parametrize("names", ["a", "ab"])
def test_documents_without_parents_that_are_cut_count_for_nobody(names):
    work = StaticMixtureWorkSource(documents([1] * 20, names))
    pipeline = Pipeline(work, runner="inline").stateful_transform(Orphans).pack_flat(4).batch(2)
    assert sum(len(batch) for batch in pipeline) == 25 * len(names)
    assert not any(value for name, value in pipeline.metrics().items() if name.startswith("share/"))


def test_a_batch_may_be_given_lists_of_pointers():
    batch = next(iter(Pipeline(StaticMixtureWorkSource(documents([1, 2, 3], "a")), runner="inline").batch(3)))
    rows, origins = [list(row) for row in batch.pointers], batch.origins
    other = Microbatch(batch.payloads, rows, batch.lane, batch.files)
    assert other.origins == origins and digest(other) == digest(batch)
    batch.pointers = rows[::-1]
    assert batch.origins == origins[::-1]


@pytest.mark.parametrize("column", ["image", "input_ids"])
def test_rows_of_files_are_the_same_in_every_runner(tmp_path, column):
    """Long rows of bytes are made at once when their row group is read, lists of numbers one by one."""
    table = pa.table({"image": [bytes([i]) * 4000 for i in range(90)], "input_ids": [[i] * (i % 9) for i in range(90)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40)

    def make(**options):
        work = StaticMixtureWorkSource([Dataset.from_path("d", tmp_path, columns=[column])], None, 2, 16, 2)
        pipeline = Pipeline(work, **options)
        return (pipeline if column == "image" else pipeline.pack_flat(16, "first_fit")).batch(4)

    runs = [[digest(batch) for batch in make(runner=runner)] for runner in ("inline", "thread", "process")]
    assert runs[0] == runs[1] == runs[2]
    assert_resumes_everywhere(lambda: make(runner="inline"))
