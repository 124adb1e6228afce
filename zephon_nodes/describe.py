"""A graph as text: what each node does, where it runs, which settings decide about the data, and what it has done so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from zephon_nodes.graph import Graph
from zephon_nodes.node import Node
from zephon_nodes.plan import Hop, Plan, Workers

_SHOWN = 100


class Described(NamedTuple):
    """One node: ``title``, its name and kind. ``hop``: number of the hop that runs it, from 1; 0 for a node without work of
    its own. ``runs``: where. ``settings``: in short. ``counted``: what came out of it in a run, "" before."""

    title: str
    hop: int
    runs: str
    settings: str
    counted: str


def describe(root: Node, parallelism: int, run: Plan | None = None, runs_in: Workers = "thread") -> str:
    """A line for each node, from the source to ``root``, grouped by the hop that runs it.

    ``parallelism``: workers of a hop that wasn't given any, 0 for the inline runner. ``run``: the plan of a run, whose
    counters are shown. ``runs_in``: what workers are where a node doesn't say.
    """
    head, nodes = described(root, parallelism, run, runs_in)
    lines = [head]
    for node in nodes:
        where = f"hop {node.hop}, {node.runs}" if node.hop else node.runs
        counted = f" ({node.counted})" if node.counted else ""
        lines.append(f"  {node.title:20s} [{where}] {node.settings}{counted}")
    return "\n".join(lines)


def described(
    root: Node, parallelism: int, run: Plan | None = None, runs_in: Workers = "thread"
) -> tuple[str, list[Described]]:
    """A line for the source, and what there is to say about each node."""
    graph = Graph(root)
    plan = run or graph.plan(root.work_source, 1, parallelism, runs_in)
    where = {name: (i, hop) for i, hop in enumerate(plan.hops, 1) for name in hop.names}
    source = plan.source
    head = f"{type(source).__name__}: {source.num_lanes} lanes, {brief(_short(source.recipe()))}"
    nodes = []
    for name, node in zip(graph.names, graph.nodes, strict=True):
        title = name if name == node.kind else f"{name} ({node.kind})"
        number, hop = where.get(name, (0, None))
        runs = workers(hop) if hop else "no work of its own"
        nodes.append(Described(title, number, runs, brief(_settings(node)), _counted(name, hop)))
    return head, nodes


def _settings(node: Node) -> dict[str, Any]:
    """What a person wants to see of a node: the recipe's settings, and the microbatch size, which isn't in it."""
    size = getattr(node, "microbatch_size", None)
    return ({} if size is None else {"microbatch_size": size}) | node.settings()


def workers(hop: Hop) -> str:
    """Who runs a hop."""
    if not hop.parallelism:
        return "driver"
    return f"{hop.parallelism} {'processes' if hop.runner == 'process' else 'threads'}"


def _counted(name: str, hop: Hop | None) -> str:
    if hop is None or hop.names.index(name) >= len(hop.counters.laps):
        return ""
    lap = hop.counters.laps[hop.names.index(name)]
    return f"{lap.records:,} out, {lap.seconds:.3g} s of work"


def _short(recipe: dict[str, Any]) -> dict[str, Any]:
    datasets = {name: f"{facts.get('rows')} rows" for name, facts in recipe.get("datasets", {}).items()}
    return {k: v for k, v in recipe.items() if k not in ("source", "datasets", "num_lanes")} | {"datasets": datasets}


def brief(settings: Mapping[str, Any]) -> str:
    """Settings on a line: None left out, digests and long values cut."""
    shown = (f"{name}={_value(value)}" for name, value in settings.items() if value is not None)
    return ", ".join(shown)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        text = text[:12]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
