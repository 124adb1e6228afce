"""A graph being run: epochs, checkpoints, the end of data. What ``Loader``, ``Pipeline`` and every node stand on.

Life of a session: ``load`` may set a state; ``restart`` begins an epoch: the loaded place if there is one, else the same
epoch if nothing was read since the last restart, else the next; ``next`` starts the driver when it is first called.
The state is what ``next`` has returned. It is changed by the last act of ``next`` alone, so it can be read at any moment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from zephon_nodes.concurrency import DRIVERS, Driver, MakeEngine, default_parallelism
from zephon_nodes.distributed import world_agreement, world_default
from zephon_nodes.drops import DropReport
from zephon_nodes.engine import Engine, LaneEnd, LaneFailure, Limits, Output, Submit
from zephon_nodes.errors import ClosedError, ConfigError, RowError
from zephon_nodes.lanes import Agree, AtEnd, Blank, Rounds, owned_lanes
from zephon_nodes.node import Node, OnError, Setup
from zephon_nodes.plan import Plan, chain, compile_graph, names
from zephon_nodes.recipe import ALGORITHM, canonical
from zephon_nodes.state import LaneState, read_state, write_state
from zephon_nodes.stream import Drop
from zephon_nodes.work.base import check_at_least

if TYPE_CHECKING:
    from zephon_nodes.stream import Pointer

log = logging.getLogger("zephon_nodes")


@dataclass(frozen=True)
class Options:
    """How a graph is run. None of it changes the data, but ``at_end`` what comes after the last full round, and
    ``on_error`` whether bad rows raise.

    ``rank``, ``world_size``: by default those of torch.distributed if it is initialised, else 0 of 1.
    ``runner``: "thread" or "inline". ``parallelism``: worker threads of a hop that wasn't given any.
    ``prefetch``: finished outputs held ready, over all owned lanes (at least one a lane).
    ``at_end``: see ``lanes``; by default "pad" where ranks can agree through torch.distributed, else "ragged".
    ``on_error``, ``max_errors``: the policy of nodes that weren't given one, and after how many bad records to stop anyway.
    ``agree``: how ranks agree on the end, in place of torch.distributed.
    """

    rank: int | None = None
    world_size: int | None = None
    runner: str | Callable[[MakeEngine, Plan], Driver] = "thread"
    parallelism: int | None = None
    prefetch: int = 4
    at_end: AtEnd | None = None
    on_error: OnError = "raise"
    max_errors: int | None = None
    agree: Agree | None = None

    def __post_init__(self) -> None:
        if isinstance(self.runner, str) and self.runner not in DRIVERS:
            raise ConfigError(f"runner must be one of {sorted(DRIVERS)}, got {self.runner!r}")
        if self.at_end not in (None, "ragged", "pad", "drop"):
            raise ConfigError(f"at_end must be 'ragged', 'pad' or 'drop', got {self.at_end!r}")
        if self.on_error not in ("raise", "skip"):
            raise ConfigError(f"on_error must be 'raise' or 'skip', got {self.on_error!r}")
        check_at_least("prefetch", self.prefetch, 1)
        for name in ("parallelism", "world_size"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        for name in ("rank", "max_errors"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 0)
        if (self.rank is None) != (self.world_size is None):
            raise ConfigError(f"give rank and world_size together, got rank={self.rank}, world_size={self.world_size}")


class Session:
    """The graph that ends in ``root``, run by ``options``. Opens the datasets to count rows; starts no thread yet."""

    def __init__(self, root: Node, options: Options) -> None:
        self.root = root
        self._nodes = chain(root)
        self._names = names(self._nodes)
        self._source = root.work_source
        self._options = options = _with_world(options)
        assert options.rank is not None and options.world_size is not None
        self._world = options.world_size
        self._owned = owned_lanes(self._source.num_lanes, options.rank, self._world)
        self._agree, self._at_end = self._ending()
        self.recipe = canonical(self._recipe())
        self.epoch, self.lane = 0, -1
        self.drops = DropReport()
        self._lanes = {lane: LaneState() for lane in self._owned}
        self._start = self.state()
        self._driver: Driver | None = None
        self._rounds: Rounds | None = None
        self._read = self._resumed = False
        self._over: BaseException | None = None

    # the life of a session

    def load(self, state: dict[str, Any]) -> None:
        """Takes a state as the place where the next restart begins. Raises ``StateError`` and changes nothing if it
        doesn't fit."""
        epoch, lanes = read_state(state, self._owned, self._world, self.recipe)
        self.close()
        self.epoch, self._lanes = epoch, lanes
        self._start, self._read = self.state(), False
        self._resumed = any(at.rounds or at.ended for at in lanes.values())

    def restart(self) -> None:
        """Begins an epoch: see the head of this file."""
        self.close()
        if self._read:
            self._next_epoch()
        else:
            self.epoch, self._lanes = read_state(self._start, self._owned, self._world, self.recipe)
        self._over = None

    def next(self) -> Any:
        """The next output. Raises StopIteration at the end of the epoch, and what went wrong, in its place."""
        if self._over is not None:
            raise self._over
        try:
            return self._next()
        except BaseException as error:
            self._stop()
            self._over = (
                error if isinstance(error, Exception) else ClosedError(f"interrupted by {error!r}; iterate anew")
            )
            raise

    def state(self) -> dict[str, Any]:
        """What has been returned so far; see ``state``. Microseconds, no lock."""
        given = {at.rounds for at in self._lanes.values() if not at.ended or self._at_end == "pad"}
        for at in self._lanes.values():
            at.level = len(given) <= 1
        return write_state(self.epoch, self._world, self.recipe, self._lanes)

    def close(self) -> None:
        """Ends all threads. A ``next`` after it raises ``ClosedError`` until the session is restarted."""
        self._stop()
        if self._over is None:
            self._over = ClosedError("this loader was closed; iterate over it again to start anew")

    def _stop(self) -> None:
        driver, self._driver, self._rounds = self._driver, None, None
        if driver is not None:
            driver.close()

    # one step

    def _next(self) -> Any:
        while True:
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

    def _rolls_over(self) -> bool:
        """A state saved after an epoch's last output: nothing is left of it, so the next epoch is what comes."""
        return self._resumed and not self._read

    def _next_epoch(self) -> None:
        self.epoch += 1
        self._lanes = {lane: LaneState(token=self._source.next_epoch(at.token)) for lane, at in self._lanes.items()}
        self.drops = DropReport()
        self._start, self._read, self._resumed = self.state(), False, False

    def _begin(self) -> Rounds:
        options = self._options
        live = {lane: at.start() for lane, at in self._lanes.items() if not at.ended}
        plan = self._plan()
        limits = Limits(
            window=2 * sum(hop.parallelism for hop in plan.hops) or 1,
            target=1 if options.runner == "inline" else max(1, -(-options.prefetch // len(self._owned))),
            fill_last=self._at_end == "pad",
        )
        make = _maker(plan, live, self.epoch, limits)
        runner = DRIVERS[options.runner] if isinstance(options.runner, str) else options.runner
        self._driver = runner(make, plan)
        given = {lane: at.rounds for lane, at in self._lanes.items()}
        ended = {lane for lane, at in self._lanes.items() if at.ended}
        self._rounds = Rounds(given, ended, self._at_end, self._driver.get, self._agree)
        return self._rounds

    def _plan(self) -> Plan:
        options = self._options
        cache = self._source.units_in_use(len(self._owned))
        setups = [
            Setup(name, node.on_error or options.on_error, self._source, cache)
            for name, node in zip(self._names, self._nodes, strict=True)
        ]
        parallelism = 0 if options.runner == "inline" else options.parallelism or default_parallelism()
        return compile_graph(self._nodes, setups, parallelism)

    def _deliver(self, output: Output) -> Any:
        if output.payload is None:
            raise ConfigError(
                f"{self._names[-1]} gave None, which torchdata's Loader takes for the end of data; "
                "use filter to leave records out, or wrap None in a dict"
            )
        was = self._lanes[output.lane]
        failed = self._count(output.drops)
        cut = output.cut
        after = LaneState(cut.span, cut.taken, was.rounds + 1, token=cut.token)
        self._publish(output.lane, replace(after, dropped=was.dropped + len(output.drops), failed=was.failed + failed))
        return output.payload

    def _deliver_blank(self, lane: int) -> Any:
        was = self._lanes[lane]
        payload = self.root.blank()
        self._publish(lane, replace(was, rounds=was.rounds + 1))
        return payload

    def _end_lane(self, end: LaneEnd) -> None:
        was = self._lanes[end.lane]
        failed = self._count(end.drops)
        token = was.token if end.token is None else end.token
        dropped = was.dropped + len(end.drops)
        self._lanes[end.lane] = replace(was, ended=True, token=token, dropped=dropped, failed=was.failed + failed)

    def _publish(self, lane: int, at: LaneState) -> None:
        self._read, self.lane = True, lane
        self._lanes[lane] = at

    def _count(self, drops: tuple[Drop, ...]) -> int:
        """Adds drops to the report; how many of them were errors. Raises when they are too many."""
        failed = [drop for drop in drops if drop.failed]
        limit = self._options.max_errors
        have = sum(at.failed for at in self._lanes.values())
        if limit is not None and have + len(failed) > limit:
            last = failed[limit - have]
            where = self._source.locate(last.origins)
            raise RowError(
                f"on_error='skip' was to bear {limit} bad records, here is one more: {last.node} failed on {where}: "
                f"{last.reason}; see the drop report, or raise max_errors",
                node=last.node,
                origins=last.origins,
                where=where,
            )
        self.drops.add(drops, self._source.locate)
        return len(failed)

    def _finish(self, rounds: Rounds) -> None:
        """The end of an epoch: under at_end="drop", what no full round had room for is reported."""
        self._read = True
        if self._at_end != "drop":
            return
        for output in rounds.rest():
            self.drops.add(output.drops, self._source.locate)
            left = Drop(self._names[-1], "at_end='drop': no full round", _origins(output.payload))
            self.drops.add([left], self._source.locate)

    # settings

    def _ending(self) -> tuple[Agree, AtEnd]:
        options = self._options
        if self._source.endless:
            return _alone, "ragged"
        agree = options.agree or world_agreement(self._world)
        if self._world == 1 and agree is None:
            agree = _alone
        if options.at_end in ("pad", "drop") and agree is None:
            raise ConfigError(
                f"at_end={options.at_end!r} needs ranks to agree on the end, but torch.distributed isn't initialised with "
                f"world_size={self._world}; initialise it, pass agree=..., or use at_end='ragged'"
            )
        if options.at_end == "pad" and self.root.blank() is None:
            raise ConfigError(f"at_end='pad' needs a graph that ends in batch, this one ends in {self._names[-1]}")
        can_pad = agree is not None and self._world > 1 and self.root.blank() is not None
        return agree or _alone, options.at_end or ("pad" if can_pad else "ragged")

    def _recipe(self) -> dict[str, Any]:
        nodes = {
            name: {"op": node.kind, **node.settings()} for name, node in zip(self._names, self._nodes, strict=True)
        }
        policies = {
            name: policy
            for name, node in zip(self._names, self._nodes, strict=True)
            if (policy := node.on_error or self._options.on_error) != "raise"
        }
        return {
            "algorithm": ALGORITHM,
            "source": self._source.recipe(),
            "graph": self._names,
            "nodes": nodes,
            "on_error": policies,
        }


def _with_world(options: Options) -> Options:
    if options.rank is not None:
        return options
    rank, world_size = world_default()
    return replace(options, rank=rank, world_size=world_size)


def _maker(plan: Plan, starts: dict[int, Any], epoch: int, limits: Limits) -> MakeEngine:
    def make(submit: Submit) -> Engine:
        return Engine(plan, starts, epoch, limits, submit)

    return make


def _alone(rounds: int, largest: bool) -> int:
    return rounds


def _in_lane(failure: LaneFailure) -> BaseException:
    if isinstance(failure.error, RowError):
        failure.error.lane = failure.lane
    return failure.error


def _origins(payload: Any) -> tuple[Pointer, ...]:
    """The pointers of a batch, if it is one."""
    return tuple(pointer for row in getattr(payload, "pointers", ()) for pointer in row)
