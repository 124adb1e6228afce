"""Where the time of a pipeline goes: its counters over a stretch of time, as a table and a sentence."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zephon_nodes.describe import workers
from zephon_nodes.errors import ConfigError
from zephon_nodes.explore.bottleneck import Load, Pace, sentence
from zephon_nodes.explore.grid import escape, html_grid, text_grid
from zephon_nodes.explore.peek import apart
from zephon_nodes.node import Node
from zephon_nodes.options import Options, options_of
from zephon_nodes.plan import Hop, Plan
from zephon_nodes.session import Session

_TRAINS = 0.05
"""Share of its time that a trainer spends on more than taking batches, if it has a pace of its own."""


class Numbers(dict[tuple[str, ...], float]):
    """Counters by name, flat, so that they can be added and subtracted."""


_COLUMNS = ["node", "runs in", "out/s", "seconds", "busy", "waiting", "under way", "MB across"]


class NodeLoad(NamedTuple):
    """One node. ``rate``: records a second that came out. ``seconds``: of work in it. The rest is of its hop, and 0 for a
    node that is fused to another: ``busy``, ``waiting``: shares of the workers' time; ``under_way``: tasks submitted and
    not done, on average; ``nbytes``: sent to processes and back."""

    name: str
    runs: str
    rate: float
    seconds: float
    busy: float
    waiting: float
    under_way: float
    nbytes: int


@dataclass(frozen=True, repr=False)
class Profile:
    """What a pipeline did in ``seconds``. Prints as a table; in a notebook it is one.

    ``nodes``: one entry each. ``samples``, ``outputs``: a second. ``waited``: share of the trainer's time that it waited.
    ``ready``: finished outputs that it found, on average, of ``prefetch``. ``driver``: share of its time that the driver
    was at work. ``drops``: records left out, by (node, reason). ``cache_hits``, ``cache_misses``: of decoded units.
    ``bottleneck``: the sentence.
    """

    seconds: float
    nodes: list[NodeLoad]
    samples: float
    outputs: float
    waited: float
    ready: float
    prefetch: int
    driver: float
    drops: dict[tuple[str, str], int]
    cache_hits: int
    cache_misses: int
    bottleneck: str

    def __str__(self) -> str:
        return "\n".join([text_grid(_COLUMNS, self._rows()), *self._lines(), self.bottleneck])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = "".join(f"<div>{line}</div>" for line in map(escape, self._lines()))
        said = f"<p><b>{escape(self.bottleneck)}</b></p>"
        return f"<div style='font-family:system-ui,sans-serif'>{said}{html_grid(_COLUMNS, self._rows())}<div style='font-size:12px'>{lines}</div></div>"

    def _rows(self) -> list[list[str]]:
        return [
            [
                node.name,
                node.runs,
                f"{node.rate:,.1f}" if node.rate else "",
                f"{node.seconds:.3g}",
                f"{node.busy:.0%}" if node.runs else "",
                *([f"{node.waiting:.0%}", f"{node.under_way:.1f}"] if node.runs not in ("", "driver") else ["", ""]),
                f"{node.nbytes / 1e6:.1f}" if node.nbytes else "",
            ]
            for node in self.nodes
        ]

    def _lines(self) -> list[str]:
        asked = self.cache_hits + self.cache_misses
        lines = [
            f"{self.seconds:.1f} s: {self.samples:,.1f} samples/s, {self.outputs:,.1f} outputs/s; the trainer waited "
            f"{self.waited:.0%} and found {self.ready:.1f} outputs ready (prefetch={self.prefetch}); driver busy {self.driver:.0%}"
        ]
        lines += (
            [f"units in cache: {self.cache_hits:,} of {asked:,} times ({self.cache_hits / asked:.0%})"] if asked else []
        )
        return lines + [f"left out: {count:,} at {node}: {reason}" for (node, reason), count in self.drops.items()]


def profile(root: Node, options: Mapping[str, Any], seconds: float, wanted: float | None = None) -> Profile:
    """Runs a graph of its own for ``seconds`` after its first output, as fast as it goes. See ``Pipeline.profile``."""
    if not seconds > 0:
        raise ConfigError(f"profile needs seconds > 0, got {seconds!r}; None reads the run that is going on")
    given = options_of({**options, "at_end": "ragged", "agree": lambda rounds, largest: rounds})
    session = Session(apart(root), given)
    try:
        plan, found = _run(session, seconds)
    finally:
        session.close()
    return _profile(plan, found, session, given, wanted)


def profile_of_run(session: Session, options: Options, wanted: float | None = None) -> Profile:
    """The run that a session is in, or has last been in, from its start."""
    plan = session.plan
    if plan is None or not plan.counters.gets:
        raise ConfigError("nothing has run yet; iterate first, or give profile(seconds=10) time for a run of its own")
    tally, found = session.tally, of_plan(plan)
    found["samples",], found["outputs",] = tally.samples, tally.batches
    own = tally.elapsed - tally.waited
    if wanted is None and own > _TRAINS * tally.elapsed:
        wanted = tally.samples / own
    return _profile(plan, found, session, options, wanted)


def _run(session: Session, seconds: float) -> tuple[Plan, Numbers]:
    """Runs epochs for a time, and what was counted in it. The first output, before which all had to start, isn't."""
    session.restart()
    try:
        session.next()
    except StopIteration:
        raise ConfigError("this graph gives no output, so there is nothing to profile") from None
    until, before, total = time.perf_counter() + seconds, of_session(session), Numbers()
    start = of_plan(_plan(session))
    while time.perf_counter() < until:
        try:
            session.next()
        except StopIteration:
            _add(total, of_plan(_plan(session)), start)
            session.restart()
            session.next()
            start = Numbers()
    _add(total, of_plan(_plan(session)), start)
    _add(total, of_session(session), before)
    return _plan(session), total


def _plan(session: Session) -> Plan:
    if session.plan is None:
        raise ConfigError("nothing has run yet")
    return session.plan


def _add(total: Numbers, after: Numbers, before: Numbers) -> None:
    for name, number in after.items():
        total[name] = total.get(name, 0.0) + number - before.get(name, 0.0)


def of_session(session: Session) -> Numbers:
    """Numbers that go on over epochs."""
    tally = session.tally
    return Numbers({("samples",): tally.samples, ("outputs",): tally.batches, ("processor",): time.process_time()})


def of_plan(plan: Plan) -> Numbers:
    """The counters of one run of a graph."""
    run = plan.counters
    out = Numbers({("elapsed",): max(0.0, run.last - run.begun), ("waited",): run.waited})
    out["driver waited",], out["gets",], out["ready",] = run.driver_waited, run.gets, run.ready
    for hop in hops_of(plan):
        key, counters = "+".join(hop.names), hop.counters
        for field in ("tasks", "busy", "cpu", "queued", "nbytes"):
            out[field, key] = getattr(counters, field)
        for name, lap in zip(hop.names, counters.laps, strict=False):
            out["seconds", name], out["records", name] = lap
    cache = getattr(plan.hops[0].read, "cache", None)
    out["hits",], out["made",] = (cache.hits, cache.made) if cache is not None else (0, 0)
    return out


def _profile(plan: Plan, found: Numbers, session: Session, options: Options, wanted: float | None) -> Profile:
    seconds = found["elapsed",] or 1e-9
    hops, inline = hops_of(plan), options.threads == 0
    driver = 0.0 if inline else max(0.0, 1 - found["driver waited",] / seconds)
    waited = found["waited",] / seconds
    computed = sum(found["cpu", "+".join(hop.names)] for hop in hops)
    native = max(0.0, found.get(("processor",), 0.0) - computed - driver * seconds)
    loads = [_load(hop, found, seconds, native) for hop in hops]
    pace = Pace(
        given=found["samples",] / seconds,
        wanted=wanted,
        waited=waited,
        driver=driver,
        cores=os.cpu_count() or 1,
        used=found["processor",] / seconds if ("processor",) in found else None,
    )
    return Profile(
        seconds=seconds,
        nodes=[node for hop, load in zip(hops, loads, strict=True) for node in _nodes(hop, load, found, seconds)],
        samples=pace.given,
        outputs=found["outputs",] / seconds,
        waited=waited,
        ready=found["ready",] / max(1.0, found["gets",]),
        prefetch=options.prefetch,
        driver=driver,
        drops=dict(session.drops.counts),
        cache_hits=int(found["hits",]),
        cache_misses=int(found["made",]),
        bottleneck=sentence(loads, pace, inline),
    )


def _nodes(hop: Hop, load: Load, found: Numbers, seconds: float) -> list[NodeLoad]:
    key = "+".join(hop.names)
    out = []
    for i, name in enumerate(hop.names):
        rate, spent = found.get(("records", name), 0.0) / seconds, found.get(("seconds", name), 0.0)
        if i:
            out.append(NodeLoad(name, "", rate, spent, 0.0, 0.0, 0.0, 0))
            continue
        waiting = max(0.0, 1 - load.busy) if hop.parallelism else 0.0
        under_way = found["queued", key] / max(1.0, found["tasks", key])
        out.append(NodeLoad(name, workers(hop), rate, spent, load.busy, waiting, under_way, int(found["nbytes", key])))
    return out


def _load(hop: Hop, found: Numbers, seconds: float, native: float) -> Load:
    """``native``: seconds of processors in threads that libraries run for the workers, such as a tokenizer's."""
    key = "+".join(hop.names)
    slowest = max(hop.names, key=lambda name: found.get(("seconds", name), 0.0))
    busy, kind = found["busy", key], "process" if "process" in workers(hop) else "thread"
    computing = min(1.0, (found["cpu", key] + native) / max(busy, 1e-9))
    share = min(1.0, busy / seconds / max(1, hop.parallelism))  # a task that has begun before counts in whole
    return Load(slowest, hop.parallelism, share, computing, kind)


def hops_of(plan: Plan) -> list[Hop]:
    """The hops that work, what is fetched ahead first."""
    return [*([plan.warm] if plan.warm is not None else []), *plan.hops]
