"""Another branch of stateless nodes for each component, or for whatever a function of the record says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from zephon_nodes.errors import ConfigError
from zephon_nodes.node import Gives, Node, Runner, Setup
from zephon_nodes.plan import Each, apply_each, names
from zephon_nodes.recipe import describe_function
from zephon_nodes.stream import Item, Pointer, Record, component

Branch: TypeAlias = Callable[[Node], Node]


class Switch(Node):
    """Sends each record through the branch of its key and puts the results back in order.

    ``branches``: key -> a function that builds the branch's nodes on the node that it is given, which may be
    ``lambda node: node`` to pass records as they are. The nodes must be stateless (map, filter, flat_map, decode_text,
    tokenize ...). ``by``: a function of the payload giving the key; by default the key is the dataset. ``default``: the
    branch of all other keys; without it every dataset must have a branch, and an unknown key is a bad record.

        Switch(source, {"code": lambda node: Map(node, strip_licence), "chat": lambda node: Map(node, to_text)},
               default=lambda node: node)

    Raises ``ConfigError`` for branches that hold records, that end in different kinds, or that are missing.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).switch(
    ...     {1: lambda node: Map(node, lambda row: "short")},
    ...     by=lambda row: len(row["input_ids"]),
    ...     default=lambda node: Map(node, lambda row: row["text"]),
    ... )
    >>> list(graph)
    ['short', 'two words', 'three of them', 'and the last one']
    """

    kind = "switch"
    takes = ("rows", "packed")

    def __init__(
        self,
        source: Node,
        branches: Mapping[Any, Branch],
        *,
        by: Callable[[Any], Any] | None = None,
        default: Branch | None = None,
        name: str | None = None,
        parallelism: int | None = None,
        runner: Runner | None = None,
    ) -> None:
        super().__init__(source, name=name, parallelism=parallelism, runner=runner)
        if not branches:
            raise ConfigError("switch needs branches: {key: lambda node: Map(node, ...)}")
        self.by = by
        self._chains = {key: self._chain(key, build) for key, build in branches.items()}
        self._default = None if default is None else self._chain("default", default)
        self._check_complete()
        kinds = {chain[-1].gives if chain else source.gives for chain in self._all()}
        if len(kinds) > 1:
            raise ConfigError(f"switch: all branches must give one kind, they give {sorted(kinds)}")
        self._gives: Gives = kinds.pop()

    @property
    def tokenizes(self) -> bool:  # type: ignore[override]
        return any(node.tokenizes for chain in self._all() for node in chain)

    @property
    def gives(self) -> Gives:
        return self._gives

    @property
    def pad_token_id(self) -> int:
        found = [chain[-1].pad_token_id for chain in self._all() if chain]
        return found[0] if found else super().pad_token_id

    def chains(self) -> dict[Any, list[Node]]:
        """The nodes of each branch, by its key; those of the default branch under None."""
        return self._chains if self._default is None else {**self._chains, None: self._default}

    def _all(self) -> list[list[Node]]:
        return [*self._chains.values(), *([] if self._default is None else [self._default])]

    def _chain(self, key: Any, build: Branch) -> list[Node]:
        """The nodes of a branch, without the one that they stand on."""
        if self.source is None or not callable(build):
            raise ConfigError(f"switch: branch {key!r} must be a function of a node, such as lambda node: Map(node, f)")
        nodes, node = [], build(self.source)
        while node is not self.source:
            nodes.append(node)
            if not isinstance(node, Node) or node.source is None:
                raise ConfigError(
                    f"switch: branch {key!r} must build on the node that it is given and return its last node"
                )
            node = node.source
        holding = [node.kind for node in nodes if node.holds or node.rounds is not None]
        if holding:
            raise ConfigError(
                f"switch: branch {key!r} has {holding}, which hold records; put them before or after the switch"
            )
        return nodes[::-1]

    def _check_complete(self) -> None:
        if self.by is not None and not callable(self.by):
            raise ConfigError(
                f"switch: by must be a function of a payload, such as lambda row: row[...], got {self.by!r}"
            )
        if self.by is None:
            names = [dataset.name for dataset in self.work_source.datasets]
            missing = sorted(set(names) - set(self._chains)) if self._default is None else []
            unknown = sorted(set(self._chains) - set(names), key=str)
            if names and (missing or unknown):
                raise ConfigError(
                    f"switch: datasets without a branch {missing}, branches without a dataset {unknown}; add them, or "
                    "default=lambda node: node to pass the others as they are"
                )

    def settings(self) -> dict[str, Any]:
        chains = {repr(key): chain for key, chain in self._chains.items()}
        chains |= {} if self._default is None else {"default": self._default}
        branches = {
            key: [
                {"name": name, "op": node.kind, **_policy(node), **node.settings()}
                for name, node in zip(names(chain), chain, strict=True)
            ]
            for key, chain in chains.items()
        }
        return {"branches": branches, "by": describe_function(self.by) if self.by else "dataset"}

    def one_to_one(self, setup: Setup) -> bool:
        inner = all(
            node.one_to_one(inside)
            for chain in self._all()
            for node, inside in zip(chain, self._inner(setup, chain), strict=True)
        )
        return setup.on_error == "raise" and inner

    def worker(self, setup: Setup) -> Callable[[Any], list[Any]]:
        functions = {key: self._functions(setup, chain) for key, chain in self._chains.items()}
        default = None if self._default is None else self._functions(setup, self._default)

        def switched(records: list[Record]) -> list[Item]:
            places: list[list[Item]] = [[] for _ in records]
            runs: dict[Any, list[int]] = {}
            for place, record in enumerate(records):
                try:
                    runs.setdefault(self._key(record, functions, default is not None), []).append(place)
                except Exception as error:  # noqa: BLE001 - user code: raised with its place, or dropped and counted
                    places[place].append(setup.failed(record.origins, error))
            for key, at in runs.items():
                _run(functions.get(key, default or []), [records[place] for place in at], at, places)
            return [item for place in places for item in place]

        return switched

    def _key(self, record: Record, functions: Mapping[Any, Any], others: bool) -> Any:
        key = component(record) if self.by is None else self.by(record.payload)
        if key not in functions and not others:
            raise ValueError(f"switch has no branch for {key!r}, only for {sorted(map(repr, functions))}")
        return key

    def _functions(self, setup: Setup, chain: list[Node]) -> list[Each]:
        inner = zip(chain, self._inner(setup, chain), strict=True)
        workers = (node.worker(inside) for node, inside in inner)
        return [worker for worker in workers if worker is not None]

    def _inner(self, setup: Setup, chain: list[Node]) -> list[Setup]:
        return [
            setup._replace(name=f"{setup.name}.{name}", on_error=node.on_error or setup.on_error)
            for name, node in zip(names(chain), chain, strict=True)
        ]


class _Mine(tuple[Pointer, ...]):
    """The origins of one record that goes through a branch. An object of its own, also when two records have the same
    rows or none, so that what comes of the record can be told by it."""


def _run(functions: list[Each], records: list[Record], at: list[int], places: list[list[Item]]) -> None:
    """Runs a branch over its records, together, and puts what comes of each into its place.

    Parts, drops and failures carry the origins of their record; what has others of its own follows the item before.
    """
    mine = [_Mine(record.origins) for record in records]
    items: list[Item] = [
        Record(record.payload, record.identity, origins, record.cut, record.parts)
        for record, origins in zip(records, mine, strict=True)
    ]
    for function in functions:
        items = apply_each(function, items)
    index_of = {id(origins): i for i, origins in enumerate(mine)}
    index = 0
    for item in items:
        index = index_of.get(id(item.origins), index)
        if item.origins is mine[index]:
            item.origins = records[index].origins
        places[at[index]].append(item)


def _policy(node: Node) -> dict[str, str]:
    return {"on_error": node.on_error} if node.on_error else {}
