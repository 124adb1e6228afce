"""A state may be asked for at any moment, from any thread: it must be one that resumes exactly, never half of two."""

from __future__ import annotations

import functools
import itertools
import json
import sys
import threading

import pytest
from threads import in_thread

from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.testing import digest

EPOCHS = 4


def rows(kind=StaticMixtureWorkSource):
    return kind([Dataset.from_rows("d", [{"v": i} for i in range(60)])], None, 3, 5, 2, seed=5)


def graph(source=None, function=dict, **options):
    pipeline = Pipeline(source or rows(), **options).map(function)
    return pipeline.filter(lambda payload: payload["v"] % 4).shuffle(3).batch(2)


@functools.cache
def run():
    """The digests of each epoch's batches."""
    pipeline = graph(runner="inline")
    return [[digest(batch) for batch in pipeline] for _ in range(EPOCHS + 2)]


class Watch:
    """Reads states of a pipeline at any moment, and counts the batches that the loop has been given."""

    def __init__(self):
        self.given, self.seen = 0, set()

    def look(self, pipeline):
        before = self.given
        state = pipeline.state_dict()
        text = json.dumps({**state, "recipe": graph().recipe if "Source" in state["recipe"] else state["recipe"]})
        self.seen.add((text, before, self.given + 1))

    def loop(self, pipeline):
        """Counts while it gives a whole epoch's digests."""
        for batch in pipeline:
            self.given += 1
            yield digest(batch)

    def check(self):
        assert self.seen
        faults = [
            (fault, text) for text, low, high in sorted(self.seen) if (fault := wrong(json.loads(text), low, high))
        ]
        assert not faults, [(fault, {**json.loads(text), "recipe": "..."}) for fault, text in faults[:3]]


def wrong(state, low, high):
    """What is wrong with a state that was asked for when the loop had been given ``low`` to ``high`` batches in all."""
    epoch, lanes = state["epoch"], [state[f"lane_{lane}"] for lane in range(3)]
    live = {rounds for _, _, rounds, ended, *_ in lanes if not ended}
    if any(bool(lane[4]) != (len(live) <= 1) for lane in lanes):
        return "whether it is level"
    here = sum(lane[2] for lane in lanes)
    place = sum(map(len, run()[:epoch])) + here
    if not low <= place <= high:
        return f"it says that {place} batches were given, it was {low} to {high}"
    want = list(itertools.chain(run()[epoch][here:], *run()[epoch + 1 :]))[:4]
    fresh = graph(runner="inline")
    fresh.load_state_dict(state)
    got = [digest(batch) for batch in itertools.islice(itertools.chain(fresh, fresh), 4)]
    return "" if got == want else f"after {place} batches other ones come"


@pytest.mark.parametrize("runner", ["inline", "thread"])
def test_another_thread_that_asks_all_the_time_gets_whole_states(runner):
    pipeline, watch, over = graph(runner=runner), Watch(), threading.Event()
    pipeline.state_dict()

    def ask():
        while not over.is_set():
            watch.look(pipeline)

    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    asker, errors = in_thread(ask)
    try:
        for epoch in range(EPOCHS):
            assert list(watch.loop(pipeline)) == run()[epoch]
    finally:
        over.set()
        sys.setswitchinterval(was)
        asker.join(30)
        pipeline.close()
    assert errors == [None]
    watch.check()


@pytest.mark.parametrize("moment", ["next_epoch", "locate"])
def test_a_state_in_the_middle_of_the_books_is_whole(moment):
    """What another thread may see while the next epoch is set up, or while the drops of an ended lane are counted."""

    def looking(self, *args):
        watch.look(pipeline)
        return getattr(StaticMixtureWorkSource, moment)(self, *args)

    watch = Watch()
    source = type("Source", (StaticMixtureWorkSource,), {moment: looking})
    pipeline = graph(rows(source), runner="inline")
    for epoch in range(3):
        assert list(watch.loop(pipeline)) == run()[epoch]
    watch.check()


def test_a_map_function_gets_whole_states_from_its_worker_thread():
    watch = Watch()
    pipeline = graph(function=lambda payload: watch.look(pipeline) or payload)
    assert len(list(watch.loop(pipeline))) == len(run()[0])
    recipe = graph().recipe
    watch.seen = {(json.dumps({**json.loads(text), "recipe": recipe}), *counts) for text, *counts in watch.seen}
    watch.check()


def test_a_state_is_detached_from_the_loader():
    pipeline = graph(runner="inline")
    iterator = iter(pipeline)
    next(iterator)
    state = pipeline.state_dict()
    text = json.dumps(state)
    state["lane_1"][2] = 99
    state["epoch"] = 7
    next(iterator)
    assert json.loads(text)["lane_1"][2] != 99
    assert pipeline.state_dict()["lane_1"][2] != 99 and pipeline.epoch == 0
