"""Pipelines and nodes that are pickled, copied, and sent to other processes, before and after they were read from."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import pickle

import pytest
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource


def double(payload):
    return {"v": payload["v"] * 2}


def graph(**options):
    dataset = Dataset.from_rows("d", [{"v": i} for i in range(50)])
    return Pipeline(StaticMixtureWorkSource([dataset], None, 2, 8, 2), **options).map(double).shuffle(4).batch(3)


def values(batches):
    return [[payload["v"] for payload in batch] for batch in batches]


WANT = values(graph(runner="inline"))
COPIES = {"pickle": lambda thing: pickle.loads(pickle.dumps(thing)), "deepcopy": copy.deepcopy, "copy": copy.copy}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("used", [False, True])
def test_a_copied_pipeline_starts_at_the_beginning_and_leaves_the_original_alone(how, used):
    original = graph()
    iterator = iter(original)
    read = values(itertools.islice(iterator, 3 if used else 0))
    with COPIES[how](original) as other:
        assert values(other) == WANT
    assert read + values(iterator) == WANT
    original.close()


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("used", [False, True])
def test_a_copied_node_starts_at_the_beginning_and_leaves_the_original_alone(how, used):
    original = graph().node
    read = values(itertools.islice(original, 3 if used else 0))
    other = COPIES[how](original)
    assert values(other) == WANT
    assert read + values(original) == WANT
    other.close()


def test_a_copy_goes_on_from_the_originals_state():
    original = graph(runner="inline")
    assert values(itertools.islice(original, 4)) == WANT[:4]
    other = copy.deepcopy(original)
    other.load_state_dict(original.state_dict())
    assert values(other) == WANT[4:]


def in_process(pipeline, state):
    if state is not None:
        pipeline.load_state_dict(state)
    with pipeline:
        return values(pipeline)


def test_a_spawned_process_runs_a_pipeline_that_it_was_sent():
    pipeline = graph()
    assert values(itertools.islice(pipeline, 2)) == WANT[:2]
    state = pipeline.state_dict()
    pipeline.close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(in_process, (pipeline, None)) == WANT
        assert pool.apply(in_process, (pipeline, state)) == WANT[2:]


class Batches(IterableDataset):
    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __iter__(self):
        yield from values(self.pipeline)


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("used", [False, True])
def test_torchs_loaders_run_a_pipeline_in_a_worker(loader, used):
    pipeline = graph()
    if used:
        next(iter(pipeline))
    epoch = values(copy.copy(pipeline)) if not used else values(list(pipeline))
    fresh = graph()
    if used:
        next(iter(fresh))
    got = list(loader(Batches(fresh), batch_size=None, num_workers=1))
    fresh.close()
    pipeline.close()
    assert got == epoch
