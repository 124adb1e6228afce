"""The loader as a training loop meets it: states, iterators, epochs, closing."""

import itertools
import json
import threading

import pytest
import torch
from runs import plain, run, source, take
from torch.utils.data import IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from worlds import run_world

from zephon_nodes import Batch, ClosedError, ConfigError, Loader, Map, Pipeline, Read, Shuffle, merge_states

RUNNERS = [{"runner": "inline"}, {"runner": "thread", "parallelism": 2, "prefetch": 16}]


def node(rows=30, lanes=2, **settings):
    return Batch(Shuffle(Map(Read(source(rows, lanes, shuffle="global", **settings)), dict), 4), 2)


def loader(**options):
    return Loader(node(), **{"runner": "inline", **options})


def outputs(iterable, count=None):
    return [plain(output) for output in itertools.islice(iterable, count)]


WHOLE = [plain(batch) for batch in loader()]


@pytest.mark.parametrize("options", RUNNERS)
def test_a_state_that_is_loaded_wins_over_one_that_was_asked_for_before(options):
    """Report R6: what torch.distributed.checkpoint always does."""
    with loader(**options) as first:
        outputs(first, 5)
        state = first.state_dict()
    with loader(**options) as fresh:
        fresh.state_dict()
        fresh.load_state_dict(state)
        assert fresh.state_dict() == state
        assert outputs(fresh) == WHOLE[5:]


@pytest.mark.parametrize("options", RUNNERS)
def test_iterating_twice_after_a_load_begins_at_the_loaded_place_both_times(options):
    """Some loaders call iter() twice at a restore."""
    with loader() as first:
        outputs(first, 5)
        state = first.state_dict()
    with loader(**options) as fresh:
        fresh.load_state_dict(state)
        for _ in range(3):
            iter(fresh)
        assert outputs(fresh, 2) == WHOLE[5:7]


@pytest.mark.parametrize("options", RUNNERS)
def test_a_load_during_a_live_iteration_stops_it_and_counts_at_the_next_iter(options):
    with loader(**options) as live:
        iterator = iter(live)
        outputs(iterator, 3)
        state = live.state_dict()
        outputs(iterator, 4)
        live.load_state_dict(state)
        assert live.state_dict() == state
        with pytest.raises(ClosedError, match="iterate over it again"):
            next(iterator)
        assert live.state_dict() == state
        assert outputs(live) == WHOLE[3:]


def test_a_load_that_is_refused_changes_nothing_and_the_iteration_goes_on():
    with loader() as live:
        iterator = iter(live)
        outputs(iterator, 3)
        wrong = {**live.state_dict(), "recipe": '{"source": {}}'}
        with pytest.raises(ValueError, match="settings differ"):
            live.load_state_dict(wrong)
        assert outputs(iterator) == WHOLE[3:]


def test_an_older_iterator_says_that_it_was_overtaken():
    with loader() as live:
        first = iter(live)
        outputs(first, 1)
        second = iter(live)
        with pytest.raises(ClosedError, match="overtaken by a newer iter"):
            next(first)
        assert len(outputs(second)) == len(WHOLE) and live.epoch == 1


@pytest.mark.parametrize("options", RUNNERS)
def test_a_closed_loader_begins_the_next_epoch_when_it_was_read_and_the_same_one_when_not(options):
    live = loader(**options)
    with live:
        iter(live)
    with live:
        assert outputs(live, 1) == WHOLE[:1]
    live.close()
    with live:
        assert outputs(live) != WHOLE and live.epoch == 1


def test_an_error_in_the_with_block_closes_the_loader_and_passes_through():
    live = loader(runner="thread")
    with pytest.raises(ZeroDivisionError), live:
        for _ in live:
            1 / 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("zephon")]
    assert outputs(live, 1)
    live.close()


def test_leaving_a_loop_early_and_iterating_again_begins_the_next_epoch():
    live = loader()
    assert outputs(live, 3) == WHOLE[:3]
    second = outputs(live)
    assert len(second) == len(WHOLE) and second != WHOLE and live.epoch == 1


def test_the_state_is_that_of_the_last_batch_that_was_handed_out():
    """Report R20: whoever pulls eight and uses two keeps the state from behind the second."""
    with loader(runner="thread", prefetch=16) as live:
        pulled = []
        for batch in itertools.islice(live, 8):
            pulled.append((plain(batch), live.state_dict()))
    with loader() as fresh:
        fresh.load_state_dict(pulled[1][1])
        assert outputs(fresh) == WHOLE[2:]


def test_a_state_is_a_copy_that_later_steps_leave_alone():
    with loader() as live:
        iterator = iter(live)
        outputs(iterator, 2)
        state = live.state_dict()
        before = json.dumps(state)
        outputs(iterator, 5)
        assert json.dumps(state) == before
        state["lane_0"][0] = 99
        assert live.state_dict()["lane_0"][0] != 99


@pytest.mark.parametrize("options", RUNNERS)
def test_no_setting_of_speed_is_in_the_state(options):
    states = []
    for more in ({}, {"prefetch": 1}, {"prefetch": 64}):
        with loader(**{**options, **more}) as live:
            outputs(live, 4)
            states.append(live.state_dict())
    assert states[0] == states[1] == states[2]


def test_model_parallel_peers_with_one_data_rank_get_the_same_batches():
    """Report D2: dp=2, and 1, 2 or 4 peers of each."""
    for rank in range(2):
        peers = [outputs(loader(rank=rank, world_size=2)) for _ in range(4)]
        assert peers[0] == peers[1] == peers[2] == peers[3]
    both = [outputs(loader(rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(map(str, both[0] + both[1])) == sorted(map(str, WHOLE))


@pytest.mark.parametrize("world", [1, 2])
def test_five_epochs_on_several_ranks_leave_nobody_waiting(world):
    """Report T13, and the states after each of them merge."""

    def make():
        return Pipeline(node())

    whole, state = [], None
    for _ in range(5):
        ranks, state = run_world(make, world, state)
        whole.append(sorted(str(rows) for out in ranks for _, rows in out))
    assert len({str(epoch) for epoch in whole}) == 5 and state["epoch"] == 4
    one = Pipeline(node(), at_end="pad")
    assert [sorted(map(str, run(one)[0])) for _ in range(5)] == whole


def test_lane_and_epoch_and_recipe_can_be_read():
    live = loader()
    assert live.epoch == 0 and live.lane == -1 and json.loads(live.recipe)["graph"][-1] == "batch"
    lanes = []
    for batch in live:
        lanes.append(live.lane)
        assert batch.lane == live.lane
    assert lanes == [i % 2 for i in range(len(WHOLE))]


@pytest.mark.parametrize("world", [3, 4])
def test_a_world_that_does_not_divide_the_lanes_is_refused_at_construction_with_the_legal_ones(world):
    with pytest.raises(ConfigError, match=r"num_lanes=2.*legal world sizes are \[1, 2\]"):
        loader(rank=0, world_size=world)


def test_an_unknown_option_is_refused_with_its_name():
    with pytest.raises(ConfigError, match=r"\['num_workers'\].*parallelism"):
        loader(num_workers=4)
    with pytest.raises(ConfigError, match="did you mean 'prefetch'"):
        loader(prefech=4)


class Ours(IterableDataset):
    """What users write to put a pipeline into a DataLoader."""

    def __init__(self):
        self.loader = loader()

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        self.loader.load_state_dict(state)


def test_a_stateful_dataloader_around_a_pipeline_resumes_and_stores_the_state_once():
    """Reports R11 and G6."""

    def stateful():
        return StatefulDataLoader(Ours(), batch_size=None, num_workers=0)

    whole = [plain(batch) for batch in stateful()]
    assert whole == WHOLE
    outer = stateful()
    seen = outputs(outer, 5)
    state = outer.state_dict()
    assert json.dumps(state, default=str).count("lane_0") == 1
    fresh = stateful()
    fresh.load_state_dict(state)
    assert seen + [plain(batch) for batch in fresh] == WHOLE


def test_a_plain_torch_dataloader_can_iterate_it():
    assert [plain(batch) for batch in torch.utils.data.DataLoader(Ours(), batch_size=None)] == WHOLE


def test_states_of_ranks_that_are_merged_load_on_one_rank():
    states, seen = [], []
    for rank in range(2):
        with loader(rank=rank, world_size=2) as live:
            seen.append(outputs(live, 3))
            states.append(live.state_dict())
    with loader() as one:
        one.load_state_dict(merge_states(states))
        assert [batch for pair in zip(*seen, strict=True) for batch in pair] + outputs(one) == WHOLE
    assert take(Pipeline(node()), 6)[1]["lane_1"] == states[1]["lane_1"]
