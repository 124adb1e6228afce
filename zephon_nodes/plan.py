"""A chain of nodes compiled into hops.

A hop is what a group of records goes through in one go: perhaps one accumulator with its worker function, and then any
number of stateless functions. Neighbouring stateless nodes are fused, because crossing a thread costs more than most of
them do; nodes that were given different ``parallelism`` or another ``runner`` are not. A hop without parallelism is run by the
driver itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from zephon_nodes.accumulator import Accumulator, Place
from zephon_nodes.counters import HopCounters, RunCounters
from zephon_nodes.errors import ConfigError
from zephon_nodes.stream import Cut, Drop, Failure, Item, Pointer, Record, Together
from zephon_nodes.work.base import Source

if TYPE_CHECKING:
    from zephon_nodes.node import Node, Setup

Workers: TypeAlias = Literal["thread", "process"]
Each: TypeAlias = Callable[[list[Record]], list[Item]]


class Counted(NamedTuple):
    """A call of the counting node, with the cut that its output will carry."""

    cut: Cut
    call: Any


@dataclass
class Hop:
    """``names``: of the fused nodes. ``parallelism``: workers, 0 for the driver. ``counts``: cuts are counted here.
    ``runner``: what the workers are, "thread" or "process". ``tidy``: what each of its threads does between two tasks now and
    then, if there is anything."""

    names: list[str]
    parallelism: int
    explicit: bool
    counts: bool = False
    accumulator: Callable[[Place], Accumulator] | None = None
    call: Callable[[Any], list[Item]] | None = None
    failed: Callable[[tuple[Pointer, ...], BaseException], Item] | None = None
    read: Callable[[Any], list[Item]] | None = None
    each: list[Each] = field(default_factory=list)
    runner: Workers = "thread"
    tidy: Callable[[], None] | None = None
    counters: HopCounters = field(default_factory=HopCounters, repr=False, compare=False)

    def run(self, calls: Sequence[Any], lap: Callable[[int], None] = lambda records: None) -> list[Item]:
        """What becomes of the calls (the first hop: of the source's work; without accumulator: of the items), in order.
        ``lap``: called behind each node of ``names``, with the number of records that it gave."""
        if self.read:
            items = self.read(calls)
        elif self.accumulator:
            items = [item for call in calls for item in self._one(call)]
        else:
            items = list(calls)
        if len(self.names) > len(self.each):
            lap(_records(items))
        for function in self.each:
            items = apply_each(function, items)
            lap(_records(items))
        return items

    def _one(self, call: Any) -> list[Item]:
        if isinstance(call, Counted):
            items = self._one(call.call)
            for item in items:
                if isinstance(item, Record):
                    item.cut = call.cut
            return items
        if self.call is None or isinstance(call, (Drop, Failure)):
            return [call]
        return self.call(call)


def _records(items: list[Item]) -> int:
    """How many items are no drops. The quickest way to tell: it is done behind every node."""
    first: Any = items[0] if items else None
    if type(first) is Together:
        return len(first.payloads)
    return len(items) - [*map(type, items)].count(Drop)


def apply_each(function: Each, items: list[Item]) -> list[Item]:
    """A function of records, over a list in which drops and failures keep their places."""
    if all(type(item) is Record for item in items):
        return function(items) if items else []  # type: ignore[arg-type]
    out: list[Item] = []
    run: list[Record] = []
    for item in items:
        if isinstance(item, Record):
            run.append(item)
            continue
        out += function(run) if run else []
        out.append(item)
        run = []
    return out + (function(run) if run else [])


@dataclass
class Plan:
    """``source``: where lanes begin. ``hops``: in order. ``counted``: some hop counts cuts, else the tail does.
    ``skips_unread``: every node before the count is one-to-one, so a resume skips pointers without reading them.
    ``rounds``: of a Take, or None. ``records_a_round``: that a lane gives in a round, None if that isn't fixed.
    ``warm``: fetches ahead what the source will come to, on ``readers`` threads. ``ours``: the driver runs nothing that
    users wrote, which may hold on to its thread."""

    source: Source
    hops: list[Hop]
    counted: bool
    skips_unread: bool
    rounds: int | None
    records_a_round: int | None = 1
    readers: int = 0
    warm: Hop | None = None
    ours: bool = False
    counters: RunCounters = field(default_factory=RunCounters, repr=False, compare=False)


def chain(root: Node) -> list[Node]:
    """The nodes from the source to ``root``."""
    nodes, node = [], root
    while True:
        nodes.append(node)
        if node.source is None:
            return nodes[::-1]
        node = node.source


def names(nodes: Sequence[Node]) -> list[str]:
    """A name for each node, unique in the graph: as given, else the kind, with _2, _3 ... behind repeats."""
    given = [node.given_name for node in nodes if node.given_name]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise ConfigError(f"nodes need different names, got {twice} more than once; pass another name=")
    taken, out = set(given), []
    for node in nodes:
        name, n = node.given_name or node.kind, 1
        while name in taken and not node.given_name:
            n += 1
            name = f"{node.kind}_{n}"
        taken.add(name)
        out.append(name)
    return out


def compile_graph(
    nodes: Sequence[Node], setups: Sequence[Setup], source: Source, parallelism: int, runs_in: Workers = "thread"
) -> Plan:
    """The plan of a chain. ``parallelism``: workers of a hop that wasn't given any; 0 runs everything inline. ``runs_in``:
    what they are where a node doesn't say. Even so, rows are read in threads, and whole batches stay in them: they are worth
    a crossing only if a function says so itself."""
    hops: list[Hop] = []
    for node, setup in zip(nodes, setups, strict=True):
        _add(hops, node, setup, parallelism, runs_in)
    counting = next((i for i, node in enumerate(nodes) if node.counts), len(nodes))
    counted = counting < len(nodes)
    behind = all(n.one_to_one(s) for n, s in zip(nodes[counting + 1 :], setups[counting + 1 :], strict=True))
    readers = (nodes[0].parallelism or parallelism) if parallelism else 0
    read = hops[0].read if readers and hops[0].runner == "thread" else None
    warm, tidy = getattr(read, "warm", None), getattr(read, "tidy", None)
    return Plan(
        source=source,
        hops=hops,
        counted=counted,
        skips_unread=all(n.one_to_one(s) for n, s in zip(nodes[:counting], setups[:counting], strict=True)),
        rounds=nodes[-1].rounds,
        records_a_round=(nodes[counting].fixed_size if counted else 1) if behind else None,
        readers=readers if warm else 0,
        warm=Hop(["fetch ahead"], readers, True, read=warm, tidy=tidy) if warm else None,
        ours=_ours(source) and all(map(_ours, _driven(hops, nodes, setups))),
    )


def _ours(part: Node | Source) -> bool:
    return bool(vars(type(part)).get("ours", False))


def _driven(hops: Sequence[Hop], nodes: Sequence[Node], setups: Sequence[Setup]) -> list[Node]:
    """The nodes of which the driver runs something: those without workers, and every accumulator."""
    by_name = {setup.name: node for node, setup in zip(nodes, setups, strict=True)}
    names_ = [name for hop in hops for name in hop.names if not hop.parallelism or by_name[name].holds]
    return [by_name[name] for name in names_]


def _add(hops: list[Hop], node: Node, setup: Setup, parallelism: int, runs_in: Workers) -> None:
    own = node.parallelism if parallelism else 0
    default = 0 if node.cheap and node.runner is None else parallelism
    wish = default if own is None else own
    in_threads = node.source is None or node.source.gives == "batches"
    runner = "thread" if wish == 0 else node.runner or ("thread" if in_threads else runs_in)
    worker = node.worker(setup)
    if node.holds or node.source is None:
        hop = Hop([setup.name], wish, own is not None, counts=node.counts, runner=runner)
        if node.holds:
            hop.accumulator, hop.call, hop.failed = node.accumulator, worker, setup.failed
        else:
            hop.read = worker
        hops.append(hop)
        return
    if worker is None:
        return
    hop = hops[-1]
    # What was given to the driver takes no neighbours along, and what is left to it doesn't go to processes.
    driven = own == 0 or (own is None and hop.explicit and hop.parallelism == 0)
    apart = wish > 0 and runner != hop.runner
    if apart or (hop.parallelism != wish and (driven or (own is not None and hop.explicit))):
        hops.append(hop := Hop([], wish, own is not None, runner=runner))
    hop.names.append(setup.name)
    if own is not None:
        hop.parallelism, hop.explicit = own, True
    elif not hop.explicit:
        hop.parallelism = max(hop.parallelism, default)
    hop.each.append(worker)
