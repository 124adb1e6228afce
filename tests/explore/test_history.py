"""Histories hold what batches were like."""

from __future__ import annotations

import numpy as np
import pytest
from runs import source

from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource, TokenEstimation
from zephon_nodes.explore.history import History


def graph(**options):
    data = [Dataset.from_rows(name, [{"input_ids": np.arange(n)} for n in (2, 3, 5)] * 6) for name in ("a", "b")]
    work = StaticMixtureWorkSource(data, {"a": 0.75, "b": 0.25}, num_lanes=2, stop="first", **options)
    return Pipeline(work, runner="inline").pack_flat(8, "first_fit").batch(2)


def test_a_history_of_its_own_is_that_of_the_run():
    pipeline = graph()
    theirs, mine = pipeline.history(1000), History()
    batches = list(mine.over(pipeline))
    assert len(theirs) == len(mine) == len(batches)
    for a, b in zip(theirs.entries, mine.entries, strict=True):
        assert a._replace(seconds=0, wanted={}) == b._replace(seconds=0, wanted={})
    assert sum(entry.tokens for entry in mine.entries) == pipeline.metrics()["tokens"]
    assert f"{len(batches)} outputs" in repr(mine)


def test_entries_know_documents_rows_and_where_they_are_from():
    first = graph().history(1).entries[0]
    batch = next(iter(graph()))
    assert sum(first.documents) == sum(first.rows) == first.tokens == sum(first.given.values())
    assert first.padding == 16 - first.tokens and first.samples == 2
    assert first.origins == tuple(at for row in batch.pointers for at in row)


@pytest.mark.parametrize("estimation, weigh", [(None, "samples"), (TokenEstimation(), "tokens")])
def test_what_was_wanted_is_in_the_unit_of_the_mixture(estimation, weigh):
    found = graph(token_estimation=estimation).history(5)
    assert found.weigh == weigh
    for entry in found.entries:
        total = entry.tokens if weigh == "tokens" else len(entry.origins)
        assert entry.wanted == pytest.approx({"a": 0.75 * total, "b": 0.25 * total})


def test_shares_are_of_what_came_in_either_unit():
    history = graph(token_estimation=TokenEstimation()).history(1000)
    tokens, rows = ({name: 0 for name in "ab"} for _ in range(2))
    for batch in graph(token_estimation=TokenEstimation()):
        for payload, pointers in zip(batch, batch.pointers, strict=True):
            for i, at in enumerate(pointers):
                tokens[at.dataset] += int((payload["document_ids"] == i).sum())
                rows[at.dataset] += 1
    for unit, counted in (("tokens", tokens), ("samples", rows), (None, tokens)):
        want = {name: count / sum(counted.values()) for name, count in counted.items()}
        assert history.shares(unit) == pytest.approx(want)
    assert History().shares() == {}
    with pytest.raises(ConfigError, match="weigh"):
        history.shares("rows")


def test_other_payloads_and_wrong_numbers():
    history = History()
    assert list(history.over(["a", {"input_ids": [1, 2]}])) == ["a", {"input_ids": [1, 2]}]
    assert [entry.tokens for entry in history.entries] == [0, 2]
    with pytest.raises(ConfigError, match="outputs"):
        Pipeline(source(3)).history(0)
