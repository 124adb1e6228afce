"""A graph as text: what each node does, where it runs, and which settings decide about the data."""

from __future__ import annotations

import json
from typing import Any

from zephon_nodes.graph import Graph
from zephon_nodes.node import Node

_SHOWN = 100


def describe(root: Node, parallelism: int) -> str:
    """A line for each node, from the source to ``root``, grouped by the hop that runs it.

    ``parallelism``: worker threads of a hop that wasn't given any, 0 for the inline runner.
    """
    graph = Graph(root)
    plan = graph.plan(root.work_source, 1, parallelism)
    where = {name: (i, hop.parallelism) for i, hop in enumerate(plan.hops, 1) for name in hop.names}
    source = plan.source
    lines = [f"{type(source).__name__}: {source.num_lanes} lanes, {_brief(_short(source.recipe()))}"]
    for name, node in zip(graph.names, graph.nodes, strict=True):
        hop, threads = where.get(name, (0, 0))
        runs = f"hop {hop}, " + (f"{threads} threads" if threads else "driver") if hop else "no work of its own"
        title = name if name == node.kind else f"{name} ({node.kind})"
        lines.append(f"  {title:20s} [{runs}] {_brief(node.settings())}")
    return "\n".join(lines)


def _short(recipe: dict[str, Any]) -> dict[str, Any]:
    datasets = {name: f"{facts.get('rows')} rows" for name, facts in recipe.get("datasets", {}).items()}
    return {k: v for k, v in recipe.items() if k not in ("source", "datasets", "num_lanes")} | {"datasets": datasets}


def _brief(settings: dict[str, Any]) -> str:
    shown = (f"{name}={_value(value)}" for name, value in settings.items() if value is not None)
    return ", ".join(shown)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if len(text) == 64 and all(c in "0123456789abcdef" for c in text):
        text = text[:12]
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
