"""A graph in torchdata's StatefulDataLoader and torch's DataLoader: any number of workers, the same batches; exact resumes."""

from __future__ import annotations

import io
import itertools
import json
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torchdata.nodes as tn
from runs import Lanes, source
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from zephon_nodes import (
    ClosedError,
    ConfigError,
    Dataset,
    Microbatch,
    Pipeline,
    StateError,
    StaticMixtureWorkSource,
    as_dataset,
    from_node,
    lane_state,
    merge_states,
)
from zephon_nodes.testing import digest

EPOCHS = 3
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital'"),
]


def seen(batch):
    return [batch.lane, digest(batch)]


def not_three(payload):
    return payload["v"] % 7 != 3


def mixed(**options):
    """Every kind of state: a mixture, skipped rows, a shuffle window, packs, batches over spans, uneven lanes."""
    rows = [[{"v": i, "input_ids": np.arange(1 + i * k % 9, dtype=np.int32)} for i in range(60)] for k in (5, 7)]
    datasets = [Dataset.from_rows(name, part) for name, part in zip("ab", rows, strict=True)]
    pipeline = Pipeline(StaticMixtureWorkSource(datasets, {"a": 0.3, "b": 0.7}, 4, 5, 2, seed=1), **options)
    return pipeline.filter(not_three).shuffle(4).pack_flat(16).batch(2)


def loader(make=mixed, workers=0, state=None, kind=StatefulDataLoader, function=seen, **settings):
    dataset = make().as_dataset(function)
    if state is not None:
        dataset.load_state_dict(state)
    return kind(dataset, batch_size=None, num_workers=workers, **settings)


def epochs(loading, count=EPOCHS):
    return [list(loading) for _ in range(count)]


def flat(parts):
    return list(itertools.chain.from_iterable(parts))


@pytest.fixture(scope="module")
def plain():
    """What a Loader with the same end gives in each epoch, and its state after each output, from the first epoch's start."""
    with mixed(runner="inline", at_end="pad", agree=lambda rounds, largest: rounds) as pipeline:
        items, states = [], [pipeline.state_dict()]
        for _ in range(EPOCHS + 1):
            items.append([])
            for batch in pipeline:
                items[-1].append(seen(batch))
                states.append(pipeline.state_dict())
    assert len({len(epoch) % 4 for epoch in items}) == 1 and items[0] != items[1] and len(items[0]) > 20
    return items, states


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_any_number_of_workers_gives_the_batches_of_none_in_every_epoch(plain, workers, persistent, kind):
    """Reports D5, D7, G4."""
    if persistent and not workers:
        pytest.skip("no worker to persist")
    assert epochs(loader(workers=workers, kind=kind, persistent_workers=persistent)) == plain[0][:EPOCHS]


def test_spawned_workers_give_the_same_also_of_functions_without_a_name(plain):
    dataset = mixed().map_batch(lambda batch: batch).as_dataset(lambda batch: seen(batch))
    got = epochs(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn"), 2)
    assert got == plain[0][:2]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_stateful_dataloader_resumes_exactly_at_every_step(plain, workers, persistent):
    """Reports G4, R5, R10, R15: the rest of the epoch, and the two after it; a state read again at once is the same."""
    items, _ = plain
    settings = {"workers": workers, "persistent_workers": persistent}
    running, states = loader(**settings), []
    for batch in running:
        assert batch == items[0][len(states)]
        states.append(running.state_dict())
    steps = {*range(0, len(states), 4 if workers else 1), 1, 2, 3, len(states) - 2, len(states) - 1}
    for step in sorted(steps):
        resumed = loader(**settings)
        resumed.load_state_dict(torch_saved(states[step]))
        if step % 3 == 0:
            resumed.state_dict()
        assert epochs(resumed, 2) == [items[0][step + 1 :], items[1]], step
    assert epochs(running, 2) == items[1:3]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_state_of_a_finished_epoch_begins_the_next_one(plain, workers, persistent):
    """Report R5."""
    running = loader(workers=workers, persistent_workers=persistent)
    epochs(running, 2)
    for _ in range(2):
        state = torch_saved(running.state_dict())
        resumed = loader(workers=workers, persistent_workers=persistent)
        resumed.load_state_dict(state)
        assert epochs(resumed, 2) == plain[0][2:4]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, True), (2, False)])
def test_a_load_wins_over_a_state_dict_before_it(plain, workers, persistent):
    """Report R6: dcp.load asks a fresh loader for its state first."""
    items, _ = plain
    first = loader(workers=workers, persistent_workers=persistent)
    assert next(iter(first)) == items[0][0]
    state = torch_saved(first.state_dict())
    fresh = loader(workers=workers, persistent_workers=persistent)
    fresh.state_dict()
    fresh.load_state_dict(state)
    assert epochs(fresh, 2) == [items[0][1:], items[1]]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_lane_state_is_what_a_loader_would_have_saved(plain, workers):
    """At every step, the one in the middle of a round included."""
    items, states = plain
    running = loader(workers=workers)
    assert lane_state(running.state_dict()) == states[0]
    for step, _ in enumerate(running, 1):
        state = lane_state(running.state_dict())
        assert json.loads(json.dumps(state)) == states[step], step
    after = mixed(runner="inline")
    after.load_state_dict(lane_state(running.state_dict()))
    assert seen(next(iter(after))) == items[1][0]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("step", [1, 2, 3, 8, 9, 22])
def test_a_lane_state_goes_on_with_any_number_of_workers(plain, workers, step):
    """Report R11: saved without workers and in the middle of rounds too; epochs go on, and so do the new loader's states."""
    items, states = plain
    running = loader(workers=workers, state=states[step])
    iterator = iter(running)
    assert next(iterator) == items[0][step]
    if workers != 1:
        state = torch_saved(running.state_dict())
        assert lane_state(state) == states[step + 1]
        again = loader(workers=workers)
        again.load_state_dict(state)
        assert epochs(again, 2) == [items[0][step + 1 :], items[1]]
    assert list(iterator) == items[0][step + 1 :]
    assert epochs(running, 2) == items[1:3]


def test_a_state_saved_by_two_workers_goes_on_with_none_and_with_four(plain):
    running = loader(workers=2)
    taken = list(itertools.islice(running, 7))
    state = lane_state(torch_saved(running.state_dict()))
    for workers in (0, 4):
        assert taken + list(loader(workers=workers, state=state)) == plain[0][0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_had_ended_goes_on_with_the_next_epoch_on_other_workers(plain, workers):
    running = loader(workers=2 - workers)
    list(running)
    state = lane_state(running.state_dict())
    assert epochs(loader(workers=workers, state=state), 2) == plain[0][1:3]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_that_are_broken_off_are_left_for_the_next(plain, workers, persistent):
    running = loader(workers=workers, persistent_workers=persistent and workers > 0)
    for epoch in range(3):
        assert list(itertools.islice(running, 3)) == plain[0][epoch][:3]
    assert list(running) == plain[0][3]


@pytest.mark.parametrize("at_end", ["pad", "drop"])
@pytest.mark.parametrize("lengths", [[9, 1, 0, 4], [0, 0, 0, 5], [3, 3, 3, 3], [0, 0, 0, 0]])
def test_workers_agree_on_the_end_of_lanes_of_any_length(at_end, lengths):
    def make():
        return Pipeline(Lanes(lengths), at_end=at_end).batch(2)

    want = epochs(loader(make), 2)
    rounds = [-(-n // 2) for n in lengths]
    assert [len(epoch) for epoch in want] == [4 * (max(rounds) if at_end == "pad" else min(rounds))] * 2
    for workers in (2, 4):
        assert epochs(loader(make, workers), 2) == want


def rows_of(batch):
    return [row["v"] for row in batch]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_endless_source_needs_no_agreement(workers):
    def make():
        return Pipeline(source(9, 4, passes=None)).batch(2)

    running = loader(make, workers, function=rows_of)
    want = [rows_of(batch) for batch in itertools.islice(make(), 50)]
    taken = list(itertools.islice(running, 20))
    state = lane_state(running.state_dict())
    assert taken == want[:20]
    assert list(itertools.islice(loader(make, 2 - workers, state, function=rows_of), 30)) == want[20:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("function", [Microbatch.to_training, None])
def test_batches_and_tensors_travel_from_workers(workers, function):
    with mixed(runner="inline") as pipeline:
        want = next(iter(pipeline))
    got = next(iter(loader(workers=workers, function=function)))
    if function is None:
        assert isinstance(got, Microbatch) and digest(got) == digest(want) and got.origins == want.origins
        got = got.to_training()
    for name, tensor in want.to_training().items():
        assert torch.equal(got[name], tensor)


class Info(NamedTuple):
    """What torch tells a worker of itself."""

    num_workers: int
    id: int = 0
    seed: int = 0


def as_worker(monkeypatch, workers):
    """This process as a worker: a real one that raises takes torch five seconds to end."""
    monkeypatch.setattr("zephon_nodes.integrations.stateful_dataloader.get_worker_info", lambda: Info(workers))


@pytest.mark.parametrize("workers", [3, 5])
def test_workers_that_do_not_divide_the_lanes_are_refused_with_those_that_do(monkeypatch, workers):
    dataset = mixed().as_dataset()
    as_worker(monkeypatch, workers)
    with pytest.raises(ConfigError, match=rf"num_workers={workers} doesn't divide the 4 lanes.*one of \[1, 2, 4\]"):
        iter(dataset)


@pytest.mark.deep
def test_the_refusal_of_a_worker_comes_to_the_trainer():
    with pytest.raises(ConfigError, match="num_workers=3 doesn't divide"):
        next(iter(loader(workers=3)))


def test_a_state_of_a_worker_among_others_is_refused(monkeypatch, plain):
    """StatefulDataLoader itself refuses another number of workers; this is for loaders that don't."""
    dataset = mixed().as_dataset()
    as_worker(monkeypatch, 2)
    dataset.load_state_dict(
        {key: value for key, value in plain[1][4].items() if key not in ("lane_1", "lane_2", "lane_3")}
    )
    with pytest.raises(StateError, match=r"of a worker with lanes \[0\], but 2 workers.*lane_state"):
        iter(dataset)


def test_a_ragged_end_is_refused_with_more_than_one_worker(monkeypatch):
    def make():
        return mixed(at_end="ragged")

    want = [seen(batch) for batch in make()]
    assert list(loader(make)) == list(loader(make, 1)) == want
    dataset = make().as_dataset()
    as_worker(monkeypatch, 2)
    with pytest.raises(ConfigError, match="at_end='ragged' with num_workers=2"):
        iter(dataset)


def test_what_can_not_work_is_refused_when_the_dataset_is_made():
    with pytest.raises(ConfigError, match="agree can't reach the worker processes"):
        mixed(agree=max).as_dataset()
    with pytest.raises(ConfigError, match="needs a zephon_nodes node, got list"):
        as_dataset([])
    with pytest.raises(ConfigError, match=r"needs ranks to agree on the end, but torch.distributed isn't initialised"):
        mixed(rank=0, world_size=2).as_dataset()


def test_states_that_do_not_fit_are_refused(plain):
    with pytest.raises(StateError, match="another recipe"):
        loader(lambda: Pipeline(source(8, 4)).batch(2), state=plain[1][3])
    with pytest.raises(StateError, match="no state of a zephon_nodes dataset"):
        lane_state({"_snapshot": {}})
    running = loader(workers=2, snapshot_every_n_steps=4)
    iterator = iter(running)
    for _ in range(6):
        next(iterator)
    with pytest.raises(StateError, match=r"2 batches before it was saved.*snapshot_every_n_steps=1"):
        lane_state(running.state_dict())
    next(iterator), next(iterator)
    assert lane_state(running.state_dict()) == plain[1][8]


def test_states_of_a_worker_in_a_dataset_for_others_are_refused(plain):
    dataset = mixed().as_dataset(seen)
    part = {key: value for key, value in plain[1][4].items() if key != "lane_2"}
    with pytest.raises(StateError, match=r"misses \[2\]"):
        dataset.load_state_dict(part)


def test_an_older_iterator_of_a_dataset_does_not_read_on():
    dataset = mixed().as_dataset()
    older = iter(dataset)
    next(older)
    next(iter(dataset))
    with pytest.raises(ClosedError, match="overtaken"):
        next(older)
    dataset.close()


def test_a_state_is_stored_once():
    """Report G6."""
    running = loader(workers=2)
    next(iter(running))
    assert json.dumps(running.state_dict()).count('"lane_0"') == 1


def text(batch):
    return str(list(batch))


def nodes():
    return Pipeline(from_node(tn.IterableWrapper(range(9)), span=3)).batch(2)


def test_a_torchdata_node_goes_on_in_a_worker_that_persists():
    want = epochs(loader(nodes, function=text))
    running = loader(nodes, 1, function=text, persistent_workers=True)
    assert epochs(running) == want
    with pytest.raises(ConfigError, match="use persistent_workers=True"):
        epochs(loader(nodes, 1, function=text), 2)


def fails(payload):
    if payload["v"] == 50:
        raise KeyError("this row")
    return payload


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_worker_says_what_failed(workers):
    running = loader(lambda: Pipeline(source(60, 4)).map(fails).batch(2), workers)
    with pytest.raises(Exception, match=r"failed on row 50 of rows .*this row"):
        list(running)


def test_ranks_with_workers_become_ranks_with_others(plain):
    """Four ranks with two workers each (endless: nobody to agree with), then two ranks with none and four workers."""

    def make(rank, world):
        def pipeline():
            return Pipeline(source(40, 8, passes=None, seed=2, shuffle="global"), rank=rank, world_size=world).batch(3)

        return pipeline

    with make(0, 1)() as one:
        want = [seen(batch) for batch in itertools.islice(one, 8 * 9)]
    states = []
    for rank in range(4):
        running = loader(make(rank, 4), 2)
        taken = list(itertools.islice(running, 2 * 5))
        assert taken == [batch for batch in want[: 8 * 5] if batch[0] // 2 == rank]
        states.append(torch_saved(running.state_dict()))
    state = lane_state(*states)
    assert state == merge_states([lane_state(one) for one in states])
    for workers in (0, 4):
        for rank in range(2):
            got = list(itertools.islice(loader(make(rank, 2), workers, state), 4 * 4))
            assert got == [batch for batch in want[8 * 5 :] if batch[0] // 4 == rank]


def torch_saved(state):
    """A state as a checkpoint would bring it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)
