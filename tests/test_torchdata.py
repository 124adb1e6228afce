"""torchdata's own nodes on top of ours, and ours on top of theirs: resume exact at every step, epochs whole."""

from __future__ import annotations

import functools
import gc
import itertools
import json

import pytest
import torch
import torchdata.nodes as tn
from threads import still_running
from torch.utils.data import DataLoader, IterableDataset, Sampler

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource, from_node


def chain(rows=11, lanes=2):
    """A node of ours with every kind of state: skipped rows, a shuffle window, batches over spans."""
    dataset = Dataset.from_rows("d", [{"v": i} for i in range(rows)])
    pipeline = Pipeline(StaticMixtureWorkSource([dataset], None, lanes, 3, 2, seed=1))
    return pipeline.filter(not_three).shuffle(2).batch(2).node


def not_three(payload):
    return payload["v"] != 3


def endless(loader):
    """Epoch after epoch."""
    return itertools.chain.from_iterable(itertools.repeat(loader))


def plain(item):
    """An item of any of these graphs as lists of numbers."""
    if hasattr(item, "payloads"):
        return [payload["v"] for payload in item.payloads]
    if isinstance(item, (list, tuple)):
        return [plain(part) for part in item]
    return item["v"] if isinstance(item, dict) else item


def unpinned(monkeypatch):
    """Lets PinMemory run where there is no accelerator: its thread and its state stay, only the copy is left out."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr("torchdata.nodes.pin_memory.pin_memory", lambda item, device: item)


@pytest.fixture(autouse=True)
def torchdatas_threads_end():
    """Their threads end when they are collected, and ours with them; it takes more than one collection."""
    yield
    for _ in range(5):
        gc.collect()
        if not still_running():
            break


GRAPHS = {
    "Loader": lambda: chain(),
    "Prefetcher": lambda: tn.Prefetcher(chain(), 4),
    "Prefetcher, snapshots every 3": lambda: tn.Prefetcher(chain(), 4, snapshot_frequency=3),
    "PinMemory": lambda: tn.PinMemory(chain()),
    "Batcher": lambda: tn.Batcher(chain(), 2, drop_last=False),
    "Unbatcher": lambda: tn.Unbatcher(chain()),
    "Mapper": lambda: tn.Mapper(chain(), plain),
    "ParallelMapper": lambda: tn.ParallelMapper(chain(), plain, 2, method="thread"),
    "many": lambda: tn.Prefetcher(tn.Batcher(tn.ParallelMapper(chain(), plain, 2), 2, drop_last=False), 2),
    "theirs in ours": lambda: Pipeline(from_node(chain(), span=3)).map(plain).node,
    "theirs over ours in ours": lambda: Pipeline(from_node(tn.Prefetcher(chain(), 2), span=2)).map(plain).node,
}


@functools.cache
def epochs(name, count=3):
    """What a loader gives in each epoch, and its state after every item and after every epoch."""
    loader, items, states = tn.Loader(GRAPHS[name]()), [], [(0, saved(tn.Loader(GRAPHS[name]())))]
    for _ in range(count):
        items.append([])
        for item in loader:
            items[-1].append(plain(item))
            states.append((sum(map(len, items)), saved(loader)))
        states.append((sum(map(len, items)), saved(loader)))
    return items, states


def saved(loader):
    """A state as a checkpoint would bring it back."""
    return json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("name", GRAPHS)
def test_every_epoch_is_whole_and_in_an_order_of_its_own(monkeypatch, name):
    unpinned(monkeypatch)
    items, _ = epochs(name)
    rows = [sorted(_flat(epoch)) for epoch in items]
    assert rows == [[v for v in range(11) if v != 3]] * 3
    assert items[0] != items[1] != items[2] != items[0]


def _flat(value):
    return [v for part in value for v in _flat(part)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("name", GRAPHS)
def test_every_state_brings_exactly_what_had_not_been_given(monkeypatch, name):
    unpinned(monkeypatch)
    items, states = epochs(name)
    want = [item for epoch in items for item in epoch]
    wrong = {}
    for given, state in states:
        if given > len(items[0]) + 2:
            break
        loader = tn.Loader(GRAPHS[name]())
        loader.load_state_dict(state)
        got = [plain(item) for item in itertools.islice(endless(loader), len(want) - given)]
        if got != want[given:]:
            wrong[given] = got[:3], want[given : given + 3]
        loader = None
    assert not wrong, "items given before the state: (what came, what was to come)"


def test_our_loader_gives_what_torchdata_gives():
    items, _ = epochs("Loader")
    pipeline = Pipeline(chain())
    assert [[plain(batch) for batch in pipeline] for _ in range(3)] == items


def test_a_state_after_a_state_is_the_same_and_loses_nothing():
    loader = tn.Loader(chain())
    list(itertools.islice(loader, 2))
    other = tn.Loader(chain())
    other.load_state_dict(loader.state_dict())
    iterator = iter(other)
    assert other.state_dict()["root"] == loader.state_dict()["root"]
    assert [plain(batch) for batch in iterator] == epochs("Loader")[0][0][2:]


def test_a_node_counts_reset_as_torchdata_does():
    """reset(None) begins the next epoch if something was read since the last reset, else the same one."""
    node, want = chain(), epochs("Loader")[0]
    node.reset(None)
    node.reset(None)
    assert [plain(batch) for batch in node] == want[0]
    node.reset(None)
    assert plain(next(node)) == want[1][0]
    node.reset(None)
    assert [plain(batch) for batch in node] == want[2]


class Shuffled(Sampler):
    """Knows its epoch, as a DistributedSampler does."""

    def __init__(self):
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([100 * self.epoch + i for i in range(7)])


@pytest.mark.parametrize("taken", [0, 1, 3, 7, 9])
def test_a_sampler_below_goes_back_to_the_epoch_of_the_state(taken):
    def read(pipeline, count):
        return list(itertools.islice(endless(pipeline), count))

    def make():
        return Pipeline(from_node(tn.SamplerWrapper(Shuffled()), span=2))

    first = make()
    run = endless(first)
    assert list(itertools.islice(run, taken)) == [100 * epoch + i for epoch in range(3) for i in range(7)][:taken]
    state = first.state_dict()
    want = list(itertools.islice(run, 12))
    fresh = make()
    fresh.load_state_dict(state)
    assert read(fresh, 12) == want
    first.load_state_dict(state)
    got = read(first, 12)
    run = None
    first.close()
    assert got == want, "the same loader, gone back to its own state"


class Rows(IterableDataset):
    """A pipeline in the hands of torch's DataLoader."""

    def __init__(self, pipeline):
        self.pipeline = pipeline

    def __iter__(self):
        return ([payload["v"] for payload in batch] for batch in self.pipeline)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("read_before", [False, True])
def test_a_dataloader_runs_a_pipeline_in_the_process_or_in_a_forked_one(workers, read_before):
    pipeline = Pipeline(chain())
    epoch = 0
    if read_before:
        next(iter(pipeline))
        epoch = 1
    loader = DataLoader(Rows(pipeline), batch_size=None, num_workers=workers)
    assert [batch if isinstance(batch, list) else batch.tolist() for batch in loader] == epochs("Loader")[0][epoch]
    pipeline.close()
