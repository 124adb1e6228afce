"""A graph being run: epochs, checkpoints, the end of data. What ``Loader``, ``Pipeline`` and every node stand on.

Life of a session: ``load`` may set a state; ``restart`` begins an epoch: the loaded place if there is one, else the same
epoch if nothing was read since the last restart, else the next; ``next`` starts the driver when it is first called.
The state is what ``next`` has returned. It is changed by the last act of ``next`` alone, so it can be read at any moment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from zephon_nodes.concurrency import CLOSED, Driver, MakeEngine
from zephon_nodes.distributed import from_rank_0, initialised, world_agreement
from zephon_nodes.drops import DropReport, too_many
from zephon_nodes.engine import Engine, LaneEnd, LaneFailure, Limits, Output, Start, Submit
from zephon_nodes.errors import ClosedError, ConfigError, RowError
from zephon_nodes.estimation import Estimate, measure
from zephon_nodes.graph import Graph
from zephon_nodes.lanes import Agree, AtEnd, Blank, Rounds, check_grad_accum, owned_lanes
from zephon_nodes.node import Node
from zephon_nodes.options import Options
from zephon_nodes.plan import Plan
from zephon_nodes.skipping import jumped
from zephon_nodes.state import LaneState, check_shape, read_state, write_state
from zephon_nodes.stream import Drop, Pointer
from zephon_nodes.tally import Tally
from zephon_nodes.work.base import TASKS_A_WORKER, Source


class _Books(NamedTuple):
    """What has been returned: one value, so that a state that is read at any moment is whole."""

    epoch: int
    lanes: dict[int, LaneState]

    def copied(self) -> _Books:
        return _Books(self.epoch, {lane: replace(at) for lane, at in self.lanes.items()})


class Session:
    """The graph that ends in ``root``, run by ``options``. Opens the datasets to count rows; starts no thread yet.

    ``share``: the lanes of the rank that are run here, by default all of them.
    """

    def __init__(self, root: Node, options: Options, share: Sequence[int] | None = None) -> None:
        self.root = root = root.detached()
        self.graph = Graph(root, options.on_error)
        self.world, self._options = options.in_world()
        self._world, num_lanes = self.world.size, root.work_source.num_lanes
        self._owned: Sequence[int] = owned_lanes(num_lanes, self.world.rank, self._world)
        check_grad_accum(num_lanes, self._world, options.grad_accum)
        self._owned = self._owned if share is None else share
        self._agree, self._at_end = self._ending()
        self._set_source(root.work_source)
        self.estimates: dict[str, Estimate] = {}
        self.drops = DropReport()
        self.plan: Plan | None = None
        self.lane = -1
        self._books = _Books(0, {lane: LaneState() for lane in self._owned})
        self._driver: Driver | None = None
        self._rounds: Rounds | None = None
        self._read = self._resumed = False
        self._over: BaseException | None = None
        self._start = self._books.copied()

    def _set_source(self, source: Source) -> None:
        self._source = source
        self.recipe = self.graph.recipe(source.recipe())
        self.tally = Tally(
            "tokens" if source.token_estimation else "samples", [dataset.name for dataset in source.datasets]
        )
        self._targets: dict[tuple[int, int], dict[str, float] | None] = {}

    # the life of a session

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state as the place where the next restart begins. Raises ``StateError`` and changes nothing if it
        doesn't fit."""
        check_shape(state)
        source = self._source.adopted(json.loads(state["recipe"])["source"])
        recipe = self.graph.recipe(source.recipe())
        earlier = [(self.graph.recipe(recipe), at) for recipe, at in source.earlier_recipes()]
        epoch, lanes = read_state(state, self._owned, self._world, recipe, earlier)
        self.close()
        self._set_source(source)
        self._books, self._read = _Books(epoch, lanes), False
        self._start = self._books.copied()
        self._resumed = any(at.rounds or at.ended for at in lanes.values())
        self.drops = DropReport()
        for lane, at in lanes.items():
            for skip in at.skips:
                self.drops.skipped(lane, skip)

    def restart(self, roll_over: bool = True) -> None:
        """Begins an epoch: see the head of this file. ``roll_over``: whether a loaded epoch of which nothing is left is
        passed over for the next one, or ends at once."""
        self.close()
        self._resumed = self._resumed and roll_over
        if self._read:
            self._next_epoch()
        else:
            self._books = self._start.copied()
        self._over = None

    @property
    def epoch(self) -> int:
        return self._books.epoch

    @property
    def _lanes(self) -> dict[int, LaneState]:
        return self._books.lanes

    def next(self) -> Any:
        """The next output. Raises StopIteration at the end of the epoch, and what went wrong, in its place."""
        if self._over is not None:
            raise self._over
        payload = None
        while payload is None:
            payload = self._guarded_turn()
        return payload

    def _guarded_turn(self) -> Any:
        """One turn. What goes wrong in it is raised again by every further one."""
        try:
            return self._turn()
        except BaseException as error:
            self._stop()
            self._over = (
                error if isinstance(error, Exception) else ClosedError(f"interrupted by {error!r}; iterate anew")
            )
            raise

    def skip(self, rounds: int) -> None:
        """Goes on ``rounds`` rounds from where the state is, without handing them out; see ``Loader.skip``."""
        if isinstance(self._over, StopIteration) and self._read:
            self._next_epoch()
        over, running, self._over = self._over, self._driver is not None, None
        try:
            if not self._jump(rounds):
                self._work_through(rounds)
        finally:
            if not running:
                self._start, self._read, self._resumed = self._books.copied(), False, True
            if over is not None:  # an iterator that is through stays so
                self._stop()
                self._over = over

    def _work_through(self, rounds: int) -> None:
        """Throws away what each lane gives until it has given ``rounds`` outputs more or is at its end."""
        epoch, begun = -1, dict(self._lanes)
        try:
            while epoch != self.epoch or self._before(begun, rounds):
                if epoch != self.epoch:  # it has begun, or the one before had nothing left
                    epoch, begun = self.epoch, dict(self._lanes)
                self._guarded_turn()
        except StopIteration:  # the epoch is over: there is nothing more to skip
            pass
        finally:
            for lane, at in self._lanes.items():
                skipped = [begun[lane].span, begun[lane].taken, at.span, at.taken]
                self._lanes[lane] = replace(at, skips=[*at.skips, skipped])
                self.drops.skipped(lane, skipped)

    def _before(self, begun: Mapping[int, LaneState], rounds: int) -> bool:
        """Whether a lane has still to give some of its ``rounds``."""
        lanes = self._lanes.items()
        return any(
            at.rounds < begun[lane].rounds + rounds for lane, at in lanes if self._at_end == "pad" or not at.ended
        )

    def _jump(self, rounds: int) -> bool:
        """Skips by arithmetic where every node gives one record for one; False where that isn't so on every rank."""
        plan = self.graph.plan(self._source, 1, 0)
        size, most = plan.records_a_round, plan.rounds
        if not plan.skips_unread or size is None:
            return False
        self.measure()
        moved = {lane: jumped(self._source, lane, self.epoch, at, rounds * size) for lane, at in self._lanes.items()}
        lanes = {lane: replace(at, rounds=at.rounds + rounds) for lane, at in moved.items() if at is not None}
        can = len(lanes) == len(moved) and all(most is None or at.rounds <= most for at in lanes.values())
        if self._at_end != "ragged":
            can = bool(self._agree(int(can), False))
        if not can:
            return False
        self._stop()
        self._books = _Books(self.epoch, lanes)
        for lane, at in lanes.items():
            self.drops.skipped(lane, at.skips[-1])
        return True

    def state(self) -> dict[str, Any]:
        """What has been returned so far; see ``state``. Microseconds, no lock."""
        epoch, lanes = self._books
        lanes = dict(lanes)  # in one step: another thread may be inside next
        given = {at.rounds for at in lanes.values() if not at.ended or self._at_end == "pad"}
        return write_state(epoch, self._world, self.recipe, lanes, level=len(given) <= 1)

    def close(self) -> None:
        """Ends all threads. A ``next`` after it raises ``ClosedError`` until the session is restarted."""
        if self._over is None:
            self._over = ClosedError(CLOSED)
        self._stop()

    def _check_open(self) -> None:
        if self._over is not None:
            self._stop()
            raise self._over

    def _stop(self) -> None:
        driver, self._driver, self._rounds = self._driver, None, None
        if driver is not None:
            driver.close()

    # one step

    def _turn(self) -> Any:
        """The output of a turn, None if it had none: a lane came to its end, or an epoch of which nothing was left."""
        self._check_open()
        rounds = self._rounds or self._begin()
        turn = rounds.next()
        if turn is None:
            if not self._rolls_over():
                self._finish(rounds)
                raise StopIteration
            self._stop()
            self._next_epoch()
        elif isinstance(turn, Output):
            return self._deliver(turn)
        elif isinstance(turn, Blank):
            return self._deliver_blank(turn.lane)
        elif isinstance(turn, LaneEnd):
            self._end_lane(turn)
        else:
            raise _in_lane(turn)
        return None

    def _rolls_over(self) -> bool:
        """A state saved after an epoch's last output: nothing is left of it, so the next epoch is what comes."""
        return self._resumed and not self._read

    def _next_epoch(self) -> None:
        epoch, lanes = self._books
        fresh = {lane: LaneState(token=self._source.next_epoch(at.token)) for lane, at in lanes.items()}
        self._books = _Books(epoch + 1, fresh)
        self.drops = DropReport()
        self._start, self._read, self._resumed = self._books.copied(), False, False

    def _begin(self) -> Rounds:
        options = self._options
        self.measure()
        live = {lane: at.start() for lane, at in self._lanes.items() if not at.ended}
        self.plan = plan = self.graph.plan(self._source, len(self._owned), options.threads, options.workers)
        self.tally.began(plan.counters)
        limits = Limits(
            window=TASKS_A_WORKER * sum(hop.parallelism for hop in plan.hops) or 1,
            target=1 if options.runner == "inline" else max(1, -(-options.prefetch // len(self._owned))),
            fill_last=self._at_end == "pad",
        )
        self._driver = options.driver()(_maker(plan, live, self.epoch, limits), plan)
        self._check_open()  # closed meanwhile by another thread, which saw no driver to close
        given = {lane: at.rounds for lane, at in self._lanes.items()}
        ended = {lane for lane, at in self._lanes.items() if at.ended}
        self._rounds = Rounds(given, ended, self._at_end, self._driver.get, self._agree)
        return self._rounds

    def measure(self) -> None:
        """Tokens per row of datasets that the mixture needs them of: once for all ranks, never on a resume."""
        unknown, estimation = self._source.unmeasured(), self._source.token_estimation
        if not unknown or estimation is None:
            return
        plan = self.graph.plan_to_tokens(self._source, self._options.threads)
        self.estimates = from_rank_0(lambda: measure(plan, unknown, estimation), self.world)
        self._set_source(self._source.measured({name: found.tokens_per_row for name, found in self.estimates.items()}))

    def _deliver(self, output: Output) -> Any:
        if output.payload is None:
            raise ConfigError(
                f"{self.graph.names[-1]} gave None, which torchdata's Loader takes for the end of data; "
                "use filter to leave records out, or wrap None in a dict"
            )
        was, (span, taken, token) = self._lanes[output.lane], output.cut
        self.tally.add(output.payload, output.made_of, self._target(span))
        after = was.after(span, taken, token)
        if output.drops:
            failed = self._count(output.drops)
            after = replace(after, dropped=was.dropped + _sum(output.drops), failed=was.failed + failed)
        self._publish(output.lane, after)
        return output.payload

    def _target(self, span: int) -> dict[str, float] | None:
        """The mixture that a span is to have."""
        at = self.epoch, span
        if at not in self._targets:
            mixes = self._source.mixes and len(self._source.datasets) > 1
            kept = self._targets if len(self._targets) < 2 * len(self._owned) else {}
            self._targets = {**kept, at: self._source.shares(*at) if mixes else None}
        return self._targets[at]

    def target(self) -> dict[str, float] | None:
        """The mixture that the last output's span was to have."""
        return self._target(self._lanes[self.lane].span) if self.lane in self._lanes else None

    def metrics(self) -> dict[str, float]:
        """See ``Loader.metrics``."""
        lanes = list(self._lanes.values())
        state = {
            "epoch": self.epoch,
            "dropped": sum(at.dropped for at in lanes),
            "failed": sum(at.failed for at in lanes),
        }
        return self.tally.metrics() | {name: float(number) for name, number in state.items()}

    def _deliver_blank(self, lane: int) -> Any:
        was = self._lanes[lane]
        payload = self.root.blank()
        self._publish(lane, replace(was, rounds=was.rounds + 1))
        return payload

    def _end_lane(self, end: LaneEnd) -> None:
        was = self._lanes[end.lane]
        failed = self._count(end.drops)
        token = was.token if end.token is None else end.token
        dropped = was.dropped + _sum(end.drops)
        self._lanes[end.lane] = replace(was, ended=True, token=token, dropped=dropped, failed=was.failed + failed)

    def _publish(self, lane: int, at: LaneState) -> None:
        self._read, self.lane = True, lane
        self._lanes[lane] = at

    def _count(self, drops: tuple[Drop, ...]) -> int:
        """Adds drops to the report; how many of them were errors. Raises when they are too many."""
        failed = [drop for drop in drops if drop.failed]
        limit = self._options.max_errors
        have = sum(at.failed for at in self._lanes.values())
        if limit is not None and failed and have + _sum(failed) > limit:
            raise too_many(failed[min(max(0, limit - have), len(failed) - 1)], limit, self._source.locate)
        self.drops.add(drops, self._where)
        return _sum(failed)

    def _where(self, origins: tuple[Pointer, ...]) -> str:
        return self._source.locate(origins, None)

    def _finish(self, rounds: Rounds) -> None:
        """The end of an epoch: what lanes left out behind their last round, or had no room for in a full one, is reported."""
        self._read = True
        for event in rounds.rest():
            if isinstance(event, LaneEnd):
                self._end_lane(event)
                continue
            left = [Drop(self.graph.names[-1], "at_end='drop': no full round", (at,)) for at in event.origins]
            self.drops.add([*event.drops, *left], self._source.locate)

    def _ending(self) -> tuple[Agree, AtEnd]:
        """How ranks agree on the end of finite data, and what they do there."""
        options, source = self._options, self.root.work_source
        if source.endless:
            return _alone, "ragged"
        agree = options.agree or (_alone if self._world == 1 else world_agreement(self.world))
        if options.at_end in ("pad", "drop") and agree is None:
            raise ConfigError(
                f"at_end={options.at_end!r} needs ranks to agree on the end, but torch.distributed isn't initialised with "
                f"world_size={self._world}; initialise it, pass agree=..., or use at_end='ragged'"
            )
        if options.at_end is None and agree is None and initialised():
            raise ConfigError(
                f"world_size={self._world} isn't that of torch.distributed, so these ranks can't agree on the end of finite data "
                "and could wait for each other for ever; pass mesh=..., agree=..., at_end='ragged', or an endless source (passes=None)"
            )
        pads = options.at_end == "pad" or (options.at_end is None and agree is not None and self._world > 1)
        can_blank = pads and self.root.blank() is not None
        if options.at_end == "pad" and not can_blank:
            last = self.graph.names[-1]
            why = (
                "gave None for a blank batch" if self.root.gives == "batches" else "isn't batch or a map_batch after it"
            )
            raise ConfigError(f"at_end='pad' needs blank batches, but the last node, {last}, {why}; use at_end='drop'")
        by_default: AtEnd = "ragged"
        if agree is not None and self._world > 1:
            by_default = "pad" if can_blank else "drop"
        return agree or _alone, options.at_end or by_default


def _maker(plan: Plan, starts: dict[int, Start], epoch: int, limits: Limits) -> MakeEngine:
    def make(submit: Submit) -> Engine:
        return Engine(plan, starts, epoch, limits, submit)

    return make


def _sum(drops: Sequence[Drop]) -> int:
    """Records that were left out."""
    return sum(drop.count for drop in drops)


def _alone(rounds: int, largest: bool) -> int:
    return rounds


def _in_lane(failure: LaneFailure) -> BaseException:
    if isinstance(failure.error, RowError):
        failure.error.lane = failure.lane
    return failure.error
