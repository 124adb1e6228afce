"""The first records at a node of a graph, without a loader: run in the caller's thread, from the start, and thrown away."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from zephon_nodes.concurrency import InlineDriver
from zephon_nodes.engine import Engine, LaneEnd, Limits, Output, Start, Submit
from zephon_nodes.errors import ConfigError
from zephon_nodes.estimation import measure
from zephon_nodes.explore.grid import html_grid, text_grid
from zephon_nodes.explore.values import html_of, line_of
from zephon_nodes.graph import Graph
from zephon_nodes.node import Node, OnError
from zephon_nodes.ops.read import Read
from zephon_nodes.plan import chain
from zephon_nodes.stream import Cut, Pointer
from zephon_nodes.work.base import Source, check_at_least

SHOWN_ORIGINS = 2


class Table(Sequence[Any]):
    """Payloads at a node, like a list. ``origins``: of each, its rows as (file, row). ``node``: the node's name.

    Prints as a table: text cut, arrays as dtype and shape. In a notebook pictures are small ones.
    """

    def __init__(self, payloads: Sequence[Any], origins: Sequence[Sequence[tuple[str, int]]], node: str) -> None:
        self.payloads, self.origins, self.node = list(payloads), [list(one) for one in origins], node

    def __len__(self) -> int:
        return len(self.payloads)

    @overload
    def __getitem__(self, i: int) -> Any: ...
    @overload
    def __getitem__(self, i: slice) -> Table: ...
    def __getitem__(self, i: int | slice) -> Any:
        return Table(self.payloads[i], self.origins[i], self.node) if isinstance(i, slice) else self.payloads[i]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.payloads)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, (list, Table)) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @property
    def columns(self) -> list[str]:
        """The fields of the payloads, in the order in which they are met; "value" if some aren't dicts."""
        if not all(isinstance(payload, Mapping) for payload in self.payloads):
            return ["value"]
        return list(dict.fromkeys(str(name) for payload in self.payloads for name in payload))

    def __repr__(self) -> str:
        if not self.payloads:
            return f"no records at {self.node}"
        rows = [[*map(line_of, cells), where] for cells, where in self._cells()]
        return text_grid([*self.columns, "from"], rows)

    def _repr_html_(self) -> str:
        rows = [[*map(html_of, cells), where] for cells, where in self._cells()]
        return html_grid([*self.columns, "from"], rows, f"{len(self)} records at {self.node}")

    def _cells(self) -> Iterator[tuple[list[Any], str]]:
        columns = self.columns
        for payload, origins in zip(self.payloads, self.origins, strict=True):
            fields = {str(name): value for name, value in payload.items()} if isinstance(payload, Mapping) else {}
            cells = (
                [payload] if columns == ["value"] and "value" not in fields else [fields.get(c, "") for c in columns]
            )
            yield cells, _where(origins)


def peek(root: Node, count: int, at: str | None = None, on_error: OnError = "raise") -> Table:
    """The first ``count`` records of an epoch at node ``at`` (default: the last), over all lanes in turn.

    Raises ``ConfigError`` for a name that no node has, and what the graph raises on the way.
    """
    check_at_least("n", count, 1)
    graph = Graph(apart(root), on_error)
    at = graph.names[-1] if at is None else at
    if at not in graph.names:
        close = difflib.get_close_matches(str(at), graph.names, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ConfigError(f"there is no node {at!r} to look at{hint} The nodes are {', '.join(graph.names)}")
    source = graph.root.work_source
    found = _first(graph, source, graph.names.index(at), count)
    origins = [[_origin(source, pointer) for pointer in one.origins] for one in found]
    return Table([one.payload for one in found], origins, at)


def apart(root: Node) -> Node:
    """The same graph, which can be run without moving this one, or any rank having to agree with it."""
    new = root.detached()
    first = chain(new)[0]
    if isinstance(first, Read):
        first.read_from(_ready(Graph(new)))
    return new


def _ready(graph: Graph) -> Source:
    """A source that may be read from: the graph's own, measured if a mixture in tokens needs it."""
    source = graph.root.work_source.apart()
    unknown, estimation = source.unmeasured(), source.token_estimation
    if not unknown or estimation is None:
        return source
    found = measure(graph.plan_to_tokens(source, 1), unknown, estimation)
    return source.measured({name: one.tokens_per_row for name, one in found.items()})


def _first(graph: Graph, source: Source, last: int, count: int) -> list[Output]:
    plan = graph.plan_to(last, source)

    def make(submit: Submit) -> Engine:
        starts = {lane: Start(Cut(0, 0)) for lane in range(source.num_lanes)}
        return Engine(plan, starts, 0, Limits(window=1, target=1), submit)

    ended, found = 0, list[Output]()
    driver = InlineDriver(make, plan)
    while len(found) < count and ended < source.num_lanes:
        event = driver.get()
        if isinstance(event, Output):
            found.append(event)
        elif isinstance(event, LaneEnd):
            ended += 1
        else:
            raise event.error
    return found


def _origin(source: Source, at: Pointer) -> tuple[str, int]:
    files = {dataset.name: dataset.files for dataset in source.datasets}.get(at.dataset)
    return (f"{at.dataset}/{files[at.shard]}" if files else at.dataset), at.row


def _where(origins: Sequence[tuple[str, int]]) -> str:
    shown = ", ".join(f"{file}:{row}" for file, row in origins[:SHOWN_ORIGINS])
    return shown + (f" +{len(origins) - SHOWN_ORIGINS}" if len(origins) > SHOWN_ORIGINS else "")
