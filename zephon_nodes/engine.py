"""The driver's logic: what is fed, what is passed on, and in which order outputs leave. No thread, no clock, no I/O.

Each lane has a feed (its place in the source), an accumulator at each stateful hop, and a queue of finished outputs.
Work leaves a hop in the order in which it was submitted: a deque of tasks, oldest first, with marks standing between
them, so nothing overtakes anything. Everything behind a task that is done is passed on at once and without bound;
only feeding is held back. A lane may be fed while fewer than ``window`` tasks are under way and it has fewer than
``target`` finished outputs; of such lanes the one with the least (finished + under way) is fed. So a lane that filters
everything out is fed on and on while the others wait, memory is bounded per lane, and there is nothing to deadlock on:
the driver waits for a task, or, with every lane at its target, for the trainer.

Outputs leave by rounds: the live lane with the fewest rounds first, ties to the lowest lane.

Where records are counted (at Batch, or at the tail without one) every output gets its cut: the span and how many records
of it have gone in. A lane that starts from a cut is fed its whole span again and drops that many records there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from zephon_nodes.accumulator import Accumulator, Before, Grouping, Place
from zephon_nodes.errors import StateError, named
from zephon_nodes.plan import Counted, Hop, Plan
from zephon_nodes.stream import Cut, Drop, End, Failure, Flush, Item, Origins, Pointer, Record, Together, pointers_of
from zephon_nodes.work.base import QUANTUM, Ahead

KEPT_DROPS = 1000
MOST_MARKS = 8
READERS = -1
"""Stands for the hop number of what is fetched ahead."""


class Task(Protocol):
    """Work under way. ``items`` are there once ``done``."""

    done: bool
    items: list[Item]


Submit: TypeAlias = "Callable[[int, Hop, Sequence[Any]], Task]"


class Start(NamedTuple):
    """Where a lane starts: its cut, and the rounds that it has given in this epoch."""

    cut: Cut
    rounds: int = 0


class Limits(NamedTuple):
    """``window``: tasks under way at most, but for what they give rise to. ``target``: finished outputs a lane.
    ``fill_last``: the last output of a lane is filled up to full size."""

    window: int
    target: int
    fill_last: bool = False


class Output(NamedTuple):
    """One output of the root. ``drops``: what was left out since the lane's previous output. ``sure``: rounds that the
    lane is sure to reach. ``made_of``: the rows, see ``stream.Origins``."""

    lane: int
    payload: Any
    cut: Cut
    drops: tuple[Drop, ...]
    sure: int
    made_of: Origins = ()

    @property
    def origins(self) -> tuple[Pointer, ...]:
        return pointers_of(self.made_of)


class LaneEnd(NamedTuple):
    """A lane's end. ``token``: the source's own state there, if it has one."""

    lane: int
    drops: tuple[Drop, ...]
    token: Any = None


class LaneFailure(NamedTuple):
    """An error, in its place among the outputs."""

    lane: int
    error: BaseException


Event: TypeAlias = "Output | LaneEnd | LaneFailure"


class _Lane:
    """Everything that the driver knows of a lane."""

    def __init__(self, lane: int, start: Start, feed: Iterator[Any], skips_unread: bool) -> None:
        self.lane, self.feed, self.rounds = lane, feed, start.rounds
        self.span, self.token, self.skip = -1, None, start.cut.taken
        self.ordinal = start.cut.taken if skips_unread else 0
        self.accumulators: dict[int, Accumulator] = {}
        self.finished: deque[Event] = deque()
        self.drops: list[Drop] = []
        self.folded: dict[tuple[Any, ...], Drop] = {}
        self.pending = self.handed = self.marks = 0
        self.rest: Sequence[Any] = ()
        self.fed = False

    def flush(self, mark: Flush) -> Failure | None:
        """A span begins where records are counted."""
        short = self.short() if self.span >= 0 else None
        if self.span >= 0:
            self.ordinal = self.skip = 0
        self.span, self.token = mark.span, mark.token
        return short

    def short(self) -> Failure | None:
        """The error of a replay that didn't reach the place that the state names."""
        if self.ordinal >= self.skip:
            return None
        return Failure(
            StateError(
                f"lane {self.lane}: span {self.span} gave {self.ordinal} records, but the state had taken {self.skip} "
                "of it; the data or a function of yours has changed since the state was saved"
            )
        )

    def count(self, item: Item) -> bool:
        """Whether an item is new, and not one that had been delivered before the state was saved."""
        if type(item) is Record:
            self.ordinal += 1
            return self.ordinal > self.skip
        return isinstance(item, Failure) or self.ordinal >= self.skip

    def counted(self, calls: Iterable[Any]) -> list[Any]:
        """Calls with the cuts that their outputs will carry."""
        cut = self.cut
        return [
            Counted(cut._replace(taken=cut.taken - 1), call.call) if type(call) is Before else Counted(cut, call)
            for call in calls
        ]

    def leave_out(self, drop: Drop) -> None:
        """Keeps a drop for the next output; past a number of them, only how many there were of its kind."""
        if len(self.drops) < KEPT_DROPS:
            self.drops.append(drop)
            return
        kind = drop.node, drop.head, drop.failed, drop.place
        if kind not in self.folded:
            self.folded[kind] = Drop(drop.node, drop.head, (), drop.failed, count=0)
            self.folded[kind].place = drop.place
        self.folded[kind].count += drop.count

    def taken_drops(self, cut: Cut | None = None) -> tuple[Drop, ...]:
        """The drops that a cut has passed, all at the lane's end; the others stay. A batch that was closed by the record
        after it is overtaken by what was left out in between, which a resume from its cut comes to once more."""
        drops, self.drops, self.folded = [*self.drops, *self.folded.values()], [], {}
        if cut is None or all(drop.place is None for drop in drops):
            return tuple(drops)
        passed = cut.span, cut.taken
        for drop in drops:
            if drop.place is not None and drop.place >= passed:
                self.leave_out(drop)
        return tuple(drop for drop in drops if drop.place is None or drop.place < passed)

    def sure(self) -> int:
        """Rounds that the lane has given or holds ready."""
        ended = bool(self.finished) and not isinstance(self.finished[-1], Output)
        return self.rounds + len(self.finished) - ended

    @property
    def cut(self) -> Cut:
        return Cut(self.span, self.ordinal, self.token)


class Engine:
    """Runs a plan for the owned lanes from their starts, one ``step`` at a time, into ``events``.

    ``quantum``: most records fed at a time; may be changed between steps.
    """

    def __init__(self, plan: Plan, starts: Mapping[int, Start], epoch: int, limits: Limits, submit: Submit) -> None:
        self.events: deque[Event] = deque()
        self.quantum = QUANTUM
        self._plan, self._hops, self._submit = plan, plan.hops, submit
        self._epoch, self._limits = epoch, limits
        self._queues: list[deque[tuple[_Lane, Any]]] = [deque() for _ in plan.hops]
        self._pending = 0
        self._lanes = {lane: self._lane(lane, start) for lane, start in starts.items()}
        self._turns = [(lane.rounds, number) for number, lane in self._lanes.items()]
        heapq.heapify(self._turns)

    def _lane(self, lane: int, start: Start) -> _Lane:
        unread = self._plan.skips_unread
        cut = start.cut if unread else start.cut._replace(taken=0)
        return _Lane(lane, start, self._plan.source.feed(lane, self._epoch, cut), unread)

    def step(self) -> bool:
        """Passes on what is done and feeds once. False: nothing can be done before a task ends or an output is taken."""
        moved = self._pass_on()
        return self._feed() or moved

    def taken(self, lane: int) -> None:
        """The trainer has taken an output of a lane."""
        self._lanes[lane].handed -= 1

    def held(self) -> int:
        """Finished outputs that wait, over all lanes."""
        return sum(len(lane.finished) + lane.handed for lane in self._lanes.values())

    # feeding

    def _feed(self) -> bool:
        if self._pending >= self._limits.window:
            return False
        lane = self._hungriest()
        if lane is None:
            return False
        try:
            work = lane.rest if len(lane.rest) else next(lane.feed)
        except Exception as error:  # noqa: BLE001 - the trainer sees it, in its place
            lane.fed = True
            self._queues[0].append((lane, _Done([Failure(error)])))
            self._count(lane, 1)
            return True
        if isinstance(work, Ahead):
            self._warm(work)
        elif isinstance(work, (Flush, End)):
            lane.fed = isinstance(work, End)
            self._mark(0, lane, work)
        else:
            work, lane.rest = work[: self.quantum], work[self.quantum :]
            self._arrive(0, lane, work)
        return True

    def _warm(self, work: Ahead) -> None:
        """Has units fetched that a lane will come to. Nothing waits for it and nothing comes of it."""
        warm = self._plan.warm
        if warm is not None:
            self._submit(READERS, warm, work.work)

    def _hungriest(self) -> _Lane | None:
        best, least = None, None
        for lane in self._lanes.values():
            finished = len(lane.finished) + lane.handed
            if lane.fed or finished >= self._limits.target or lane.marks > MOST_MARKS:
                continue
            need = (finished + lane.pending, lane.rounds, lane.lane)
            if least is None or need < least:
                best, least = lane, need
        return best

    # passing on

    def _pass_on(self) -> bool:
        moved = False
        for i in reversed(range(len(self._queues))):
            queue = self._queues[i]
            while queue and (isinstance(queue[0][1], (Flush, End)) or queue[0][1].done):
                lane, entry = queue.popleft()
                moved = True
                if isinstance(entry, (Flush, End)):
                    lane.marks -= 1
                    self._mark(i + 1, lane, entry)
                else:
                    self._count(lane, -1)
                    self._arrive(i + 1, lane, entry.items)
        return moved

    def _count(self, lane: _Lane, by: int) -> None:
        lane.pending += by
        self._pending += by

    def _arrive(self, i: int, lane: _Lane, items: Sequence[Any]) -> None:
        """Items come to hop ``i``."""
        if i == len(self._hops):
            self._tail(lane, items)
            return
        hop = self._hops[i]
        calls = self._accumulate(i, hop, lane, items) if hop.accumulator else items
        self._work(i, hop, lane, calls)

    def _work(self, i: int, hop: Hop, lane: _Lane, calls: Sequence[Any]) -> None:
        if not len(calls):
            return
        task = self._submit(i, hop, calls)
        if hop.parallelism == 0 and not self._queues[i]:
            self._arrive(i + 1, lane, task.items)
            return
        self._queues[i].append((lane, task))
        self._count(lane, 1)

    def _accumulate(self, i: int, hop: Hop, lane: _Lane, items: Sequence[Item | Together]) -> list[Any]:
        accumulator, calls, counts = lane.accumulators[i], list[Any](), hop.counts
        push = accumulator.push
        for item in items:
            if isinstance(item, Together):
                calls += self._together(i, hop, lane, item)
                continue
            if counts and not lane.count(item):
                continue
            if type(item) is not Record:
                if counts and type(item) is Drop:
                    item.place = lane.span, lane.ordinal
                calls.append(item)
                continue
            try:
                new = push(item)
                if new:
                    new = list(new)  # before any of it is kept: it may be a generator that raises
                    calls += lane.counted(new) if counts else new
            except Exception as error:  # noqa: BLE001 - raised with its place, or dropped and counted
                calls += _refused(hop, [item.origins], error)
        return calls

    def _together(self, i: int, hop: Hop, lane: _Lane, rows: Together) -> list[Any]:
        """As ``_accumulate`` for each of the records."""
        counts = hop.counts
        done = None
        if not counts or lane.ordinal >= lane.skip:
            done = lane.accumulators[i].push_together(rows)
        if done is None:
            return self._accumulate(i, hop, lane, rows.records())
        if not counts:
            return [call for _, call in done]
        cut, lane.ordinal = lane.cut, lane.ordinal + len(rows.payloads)
        return [Counted(cut._replace(taken=cut.taken + pushed), call) for pushed, call in done]

    def _mark(self, i: int, lane: _Lane, mark: Flush | End) -> None:
        """A mark comes to hop ``i``: what the accumulator holds goes first, then the mark."""
        if i == len(self._hops):
            self._tail_mark(lane, mark)
            return
        hop = self._hops[i]
        if hop.accumulator:
            self._work(i, hop, lane, self._turn_over(i, hop, lane, mark))
        if self._queues[i]:
            self._queues[i].append((lane, mark))
            lane.marks += 1
        else:
            self._mark(i + 1, lane, mark)

    def _turn_over(self, i: int, hop: Hop, lane: _Lane, mark: Flush | End) -> list[Any]:
        """The old accumulator's last calls; a new accumulator takes its place, but a counting one lives on to the end."""
        calls: list[Any] = []
        old = lane.accumulators.get(i)
        if hop.counts:
            failure = lane.flush(mark) if isinstance(mark, Flush) else lane.short()
            if failure:
                return [failure]
        if old is not None and (isinstance(mark, End) or not hop.counts):
            if hop.counts and mark.token is None:
                # Behind a lane's last output nothing of its spans is left, drops included.
                lane.span, lane.ordinal = lane.span + 1, 0
            new = _guarded(hop, old.held(), old.flush)
            calls += lane.counted(new) if hop.counts else new
            old = None
        if old is None and isinstance(mark, Flush) and hop.accumulator:
            place = Place(hop.names[0], lane.lane, mark.span, self._epoch, self._plan.source, self._limits.fill_last)
            try:
                lane.accumulators[i] = hop.accumulator(place)
            except Exception as error:  # noqa: BLE001 - user code: a factory
                calls.append(Failure(named(error, place.node, "could not be set up")))
                lane.accumulators[i] = Grouping(1)
        return calls

    # the tail

    def _tail(self, lane: _Lane, items: Sequence[Item]) -> None:
        if lane.finished and isinstance(lane.finished[-1], LaneFailure):
            return
        for item in items:
            if not self._plan.counted and not lane.count(item):
                continue
            if isinstance(item, Drop):
                lane.leave_out(item)
            elif isinstance(item, Failure):
                self._fail(lane, item.error)
                break
            else:
                cut = item.cut if self._plan.counted and item.cut else lane.cut
                lane.finished.append(Output(lane.lane, item.payload, cut, lane.taken_drops(cut), 0, item.made_of))
        self._emit()

    def _tail_mark(self, lane: _Lane, mark: Flush | End) -> None:
        if not self._plan.counted:
            failure = lane.flush(mark) if isinstance(mark, Flush) else lane.short()
            if failure:
                self._fail(lane, failure.error)
        if isinstance(mark, End):
            lane.finished.append(LaneEnd(lane.lane, lane.taken_drops(), mark.token))
            self._emit()

    def _fail(self, lane: _Lane, error: BaseException) -> None:
        lane.fed = True
        lane.finished.append(LaneFailure(lane.lane, error))

    def _emit(self) -> None:
        """Moves what is due from the lanes to ``events``."""
        while self._turns:
            lane = self._lanes[self._turns[0][1]]
            if self._plan.rounds is not None and lane.rounds >= self._plan.rounds:
                lane.fed = True
                lane.finished.clear()
                lane.finished.append(LaneEnd(lane.lane, ()))
            if not lane.finished:
                return
            event = lane.finished.popleft()
            if not isinstance(event, Output):
                heapq.heappop(self._turns)
                self.events.append(event)
                if isinstance(event, LaneFailure):
                    self._turns.clear()
                continue
            lane.rounds += 1
            lane.handed += 1
            self.events.append(event._replace(sure=min(lane.sure(), self._plan.rounds or lane.sure())))
            heapq.heapreplace(self._turns, (lane.rounds, lane.lane))


class _Done:
    """A task that needs no work."""

    done = True

    def __init__(self, items: list[Item]) -> None:
        self.items = items


def _guarded(hop: Hop, origins: list[tuple[Pointer, ...]], step: Callable[[], Iterable[Any]]) -> list[Any]:
    """The calls of an accumulator's step; if it raises, what the node's policy makes of each of ``origins``."""
    try:
        return list(step())
    except Exception as error:  # noqa: BLE001 - raised with its place, or dropped and counted
        return _refused(hop, origins, error)


def _refused(hop: Hop, origins: list[tuple[Pointer, ...]], error: Exception) -> list[Any]:
    """What becomes of records of which an accumulator has made an error."""
    if hop.failed is None:
        return [Failure(error)]
    items = [hop.failed(each, error) for each in origins or [()]]
    failures = [item for item in items if isinstance(item, Failure)]
    return [hop.failed(tuple(at for each in origins for at in each), error)] if failures else items
