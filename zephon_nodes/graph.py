"""A chain of nodes as a whole: their names, their recipe, and the plan that runs them."""

from __future__ import annotations

from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.node import Node, OnError, Setup
from zephon_nodes.plan import Plan, Workers, chain, compile_graph, names
from zephon_nodes.recipe import ALGORITHM, canonical
from zephon_nodes.work.base import Source


class Graph:
    """The nodes from the source to ``root``. ``names``: one each, unique. ``on_error``: of nodes that weren't given one."""

    def __init__(self, root: Node, on_error: OnError = "raise") -> None:
        self.root, self.nodes = root, chain(root)
        self.names = names(self.nodes)
        self._on_error = on_error

    def plan(self, source: Source, lanes: int, parallelism: int, runs_in: Workers = "thread") -> Plan:
        """How ``lanes`` lanes of a source are run, with so many workers for a hop that wasn't given any."""
        return self._compile(list(zip(self.names, self.nodes, strict=True)), source, lanes, parallelism, runs_in)

    def plan_to_tokens(self, source: Source, threads: int) -> Plan:
        """The plan of the first nodes: up to the last that tokenizes, or else all before the first that packs or batches."""
        tokenizing = [i for i, node in enumerate(self.nodes) if node.tokenizes]
        whole = [i for i, node in enumerate(self.nodes) if node.gives == "rows"]
        named = list(zip(self.names, self.nodes, strict=True))[: (tokenizing or whole)[-1] + 1]
        telling = [(name, node) for name, node in named if not node.reorders and node.rounds is None]
        return self._compile(telling, source, 1, threads)

    def plan_to(self, last: int, source: Source) -> Plan:
        """The plan of the nodes up to number ``last``, for all lanes in the caller's thread."""
        named = list(zip(self.names, self.nodes, strict=True))
        return self._compile(named[: last + 1], source, source.num_lanes, 0)

    def _compile(
        self,
        named: list[tuple[str, Node]],
        source: Source,
        lanes: int,
        parallelism: int,
        runs_in: Workers = "thread",
    ) -> Plan:
        cache = source.units_in_use(lanes)
        following: list[Node | None] = [*(node for _, node in named[1:]), None]
        setups = [
            Setup(name, node.on_error or self._on_error, source, cache, _lays(behind), _takes_together(behind))
            for (name, node), behind in zip(named, following, strict=True)
        ]
        return compile_graph([node for _, node in named], setups, source, parallelism, runs_in)

    def recipe(self, source: dict[str, Any]) -> str:
        """Everything that decides the data, as canonical JSON. ``source``: the recipe of the source."""
        named = list(zip(self.names, self.nodes, strict=True))
        policies = {name: node.on_error or self._on_error for name, node in named}
        return canonical(
            {
                "algorithm": ALGORITHM,
                "source": source,
                "graph": self.names,
                "nodes": {name: _settings(name, node) for name, node in named},
                "on_error": {name: policy for name, policy in policies.items() if policy != "raise"},
            }
        )


def _lays(node: Node | None) -> bool:
    """Not in a process, to which sequences that aren't laid out would bring whole documents."""
    return node is not None and node.lays and node.runner != "process"


def _takes_together(node: Node | None) -> bool:
    own = node is not None and vars(type(node)).get("takes_together", False)
    return bool(own and node and not node.parallelism and node.runner is None)


def _settings(name: str, node: Node) -> dict[str, Any]:
    said = {"op": node.kind, **node.settings()}
    try:
        canonical(said)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"settings() of {name} must give what JSON can hold (numbers, texts, lists, dicts of texts): {error}"
        ) from error
    return said
