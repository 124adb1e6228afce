"""An engine by hand: fake lanes, hops and tasks, a drawn hand that ends tasks, and plain lists of what must come out."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random
from typing import Any

from zephon_nodes.accumulator import Grouping
from zephon_nodes.engine import Engine, LaneFailure, Limits, Output, Start
from zephon_nodes.plan import Hop, Plan
from zephon_nodes.stream import Cut, Drop, End, Failure, Flush, Record
from zephon_nodes.work.base import Source


@dataclass(frozen=True)
class Work:
    """One record of a lane: it gives ``fan`` outputs, a drop (0), an error (-1), or nothing at all (-2)."""

    lane: int
    place: int
    fan: int


class Lanes(Source):
    """Lanes that are lists of spans, which are lists of fan-outs. Works in quanta of ``quantum`` records."""

    def __init__(self, lanes, quantum=1):
        self.lanes, self.quantum, self.num_lanes, self.flush_every = lanes, quantum, len(lanes), 1

    def recipe(self):
        return {}

    def feed(self, lane, epoch, start):
        first = start.taken
        for span in range(start.span, len(self.lanes[lane])):
            yield Flush(lane, span)
            work = [Work(lane, place, fan) for place, fan in enumerate(self.lanes[lane][span])]
            for i in range(first, len(work), self.quantum):
                yield work[i : i + self.quantum]
            first = 0
        yield End(lane)


def read(works):
    out: list[Any] = []
    for work in works:
        if work.fan == -1:
            out.append(Failure(ValueError(f"lane {work.lane}, record {work.place}")))
        elif work.fan == 0:
            out.append(Drop("read", "nothing", ()))
        out += [Record((work.lane, work.place, i), 0, ()) for i in range(work.fan)]
    return out


def plan_of(lanes, quantum=1, threads=(1,), groups=0, rounds=None, unread=False, counted=False):
    """``threads``: parallelism of the reading hop and of hops that change nothing. ``groups``: size of a grouping hop,
    which counts cuts and runs on over spans if ``counted``."""
    hops = [Hop(["read"], threads[0], False, read=read)]
    hops += [Hop([f"pass {n}"], parallelism, False) for n, parallelism in enumerate(threads[1:])]
    if groups:
        tupled = Hop(["groups"], threads[-1], False, counted, call=_tupled)
        tupled.accumulator = lambda place: Grouping(groups)
        hops.append(tupled)
    return Plan(Lanes(lanes, quantum), hops, counted=counted, skips_unread=unread, rounds=rounds)


def _tupled(records):
    return [Record(tuple(record.payload for record in records), 0, ())]


class Task:
    """Work under way until the engine reads its items."""

    def __init__(self, hop, calls):
        self.hop, self.calls, self.done, self.read = hop, calls, False, False

    def end(self):
        self._items, self.done = self.hop.run(self.calls), True

    @property
    def items(self):
        self.read = True
        return self._items


class Hand:
    """Runs an engine as the drivers do, but ends tasks and takes outputs when ``seed`` says."""

    def __init__(self, plan, starts=None, window=4, target=2, seed=0):
        self.random, self.waiting, self.tasks = Random(seed), [], []
        self.most_tasks = self.most_held = 0
        starts = starts or {lane: Start(Cut(0, 0)) for lane in range(plan.source.num_lanes)}
        self.left = set(starts)
        self.engine = Engine(plan, starts, 0, Limits(window, target), self._submit)

    def _submit(self, i, hop, calls):
        task = Task(hop, calls)
        if hop.parallelism:
            self.waiting.append(task)
            self.tasks.append(task)
        else:
            task.end()
        return task

    def act(self):
        if self.waiting and self.random.random() < 0.5:
            self._end_one()
        elif not self.engine.step():
            assert self.waiting or self.engine.events, "nothing can be done and nothing is under way: a deadlock"
            if self.waiting:
                self._end_one()
        self.tasks = [task for task in self.tasks if not task.read]
        self.most_tasks = max(self.most_tasks, len(self.tasks))
        self.most_held = max(self.most_held, self.engine.held())

    def _end_one(self):
        self.waiting.pop(self.random.randrange(len(self.waiting))).end()

    def events(self):
        """All events until the lanes have ended or one has failed."""
        while self.left:
            for _ in range(self.random.randrange(6)):
                self.act()
            while not self.engine.events:
                self.act()
            event = self.engine.events.popleft()
            if isinstance(event, Output):
                self.engine.taken(event.lane)
            else:
                self.left = set() if isinstance(event, LaneFailure) else self.left - {event.lane}
            yield event


def outputs(spans, groups=0):
    """(payload, cut) of a lane's outputs, by plain lists."""
    out = []
    for number, span in enumerate(spans):
        records = [(place, i) for place, fan in enumerate(span) for i in range(max(0, fan))]
        if groups:
            records = [tuple(records[i : i + groups]) for i in range(0, len(records), groups)]
        out += [(record, (number, ordinal + 1)) for ordinal, record in enumerate(records)]
    return out


def by_rounds(lanes, groups=0):
    """(lane, payload, cut) in the order in which they must leave."""
    mine = [[(lane, *output) for output in outputs(spans, groups)] for lane, spans in enumerate(lanes)]
    return [output for round_ in itertools.zip_longest(*mine) for output in round_ if output is not None]


def seen(events):
    return [(e.lane, bare(e.payload), e.cut[:2]) for e in events if isinstance(e, Output)]


def bare(payload):
    return tuple(map(bare, payload)) if isinstance(payload[0], tuple) else payload[1:]
