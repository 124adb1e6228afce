"""torchdata nodes as sources: one lane a node, resumed through the node's own state at the span's start.

Such a source can't be asked for any chunk at any time, so the state of the span's start travels with it, as text. The
text is JSON in which tuples, bytes, tensors, arrays and dicts with other keys than str are marked, since states of
torchdata's samplers hold those.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torchdata.nodes import BaseNode

from zephon_nodes.errors import ConfigError, StateError
from zephon_nodes.hashing import key
from zephon_nodes.stream import Cut, End, Flush, Pointer, Record, pass_number
from zephon_nodes.work.base import QUANTUM, Source, check_at_least

_AFTER = "after:"


class NodeSource(Source):
    """Lanes that are torchdata nodes. ``span``: items a span, chunk_size times flush_every of other sources."""

    def __init__(self, nodes: Sequence[BaseNode[Any]], span: int, name: str) -> None:
        self.nodes, self.span, self.name = list(nodes), span, name
        self.num_lanes, self.flush_every = len(self.nodes), 1

    def recipe(self) -> dict[str, Any]:
        kinds = [f"{type(node).__module__}.{type(node).__qualname__}" for node in self.nodes]
        return {
            "source": "from_node",
            "name": self.name,
            "num_lanes": self.num_lanes,
            "span": self.span,
            "nodes": kinds,
        }

    def locate(self, origins: tuple[Pointer, ...]) -> str:
        return "; ".join(f"item {at.row} of node {at.shard} ({at.dataset!r})" for at in origins[:4]) or "an item"

    def next_epoch(self, token: str | None) -> str | None:
        """The token of an epoch's start: a node counts its epochs itself, so it must be put back into the last one."""
        return token if token is None or token.startswith(_AFTER) else _AFTER + token

    def feed(self, lane: int, epoch: int, start: Cut) -> Iterator[Flush | list[Any] | End]:
        node, span, skip = self.nodes[lane], start.span, start.taken
        _rewind(node, start.token)
        ended = False
        while not ended:
            token = to_text(node.state_dict(), lane)
            yield Flush(lane, span, token)
            for first in range(0, self.span, QUANTUM):
                items, ended = _pull(node, min(QUANTUM, self.span - first))
                records = [self._record(lane, epoch, span, first + i, item) for i, item in enumerate(items)]
                if records[max(0, skip - first) :]:
                    yield records[max(0, skip - first) :]
                if ended:
                    break
            span, skip = span + 1, 0
        yield End(lane, to_text(node.state_dict(), lane))

    def _record(self, lane: int, epoch: int, span: int, ordinal: int, item: Any) -> Record:
        at = Pointer(self.name, lane, span * self.span + ordinal, pass_number(epoch, 0))
        return Record(item, key("node", self.name, lane, epoch, span, ordinal), (at,))


def from_node(*nodes: BaseNode[Any], span: int = 8192, name: str = "node") -> NodeSource:
    """A source of torchdata nodes, one lane each.

    ``span`` (8192): items between two places that a checkpoint can go back to; a resume restores the node there and
    replays at most that many. Each node must keep its state in ``state_dict()`` and give the same items after a reset to
    it. A node's own epochs (``reset(None)``) are the epochs of the run.

    Raises ``ConfigError`` for what isn't a ``BaseNode``, and for one node given twice.
    """
    wrong = [type(node).__name__ for node in nodes if not isinstance(node, BaseNode)]
    if wrong or not nodes:
        raise ConfigError(f"from_node needs torchdata nodes, one a lane, got {wrong or 'none'}")
    if len({id(node) for node in nodes}) < len(nodes):
        raise ConfigError("from_node needs a node of its own for each lane; one was given twice")
    check_at_least("span", span, 1)
    return NodeSource(nodes, span, name)


def _rewind(node: BaseNode[Any], token: str | None) -> None:
    """Puts a node where a token says; see ``Source.next_epoch``."""
    if token is None or not token.startswith(_AFTER):
        node.reset(None if token is None else from_text(token))
        return
    node.reset(from_text(token[len(_AFTER) :]))
    _pull(node, 1)
    node.reset(None)


def _pull(node: BaseNode[Any], count: int) -> tuple[list[Any], bool]:
    items = []
    for _ in range(count):
        try:
            items.append(next(node))
        except StopIteration:
            return items, True
    return items, False


def to_text(state: Any, lane: int) -> str:
    """A node's state as text. Raises ``StateError`` naming what can't be written."""
    return json.dumps(_marked(state, lane), separators=(",", ":"))


def from_text(text: str) -> Any:
    return _unmarked(json.loads(text))


def _marked(value: Any, lane: int) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, list):
        return [_marked(part, lane) for part in value]
    if isinstance(value, dict) and all(isinstance(k, str) and not k.startswith("!") for k in value):
        return {k: _marked(part, lane) for k, part in value.items()}
    if isinstance(value, dict):
        return {"!dict": [[_marked(k, lane), _marked(part, lane)] for k, part in value.items()]}
    if isinstance(value, tuple):
        return {"!tuple": [_marked(part, lane) for part in value]}
    if isinstance(value, bytes):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        mark = "!tensor" if isinstance(value, torch.Tensor) else "!array"
        return {mark: [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]}
    raise StateError(
        f"the state of the torchdata node of lane {lane} holds a {type(value).__name__}, which can't be saved"
    )


def _unmarked(value: Any) -> Any:
    if isinstance(value, list):
        return [_unmarked(part) for part in value]
    if not isinstance(value, dict):
        return value
    inner: Any
    mark, inner = next(iter(value.items()), ("", None))
    if mark == "!dict":
        return {_unmarked(k): _unmarked(part) for k, part in inner}
    if mark == "!tuple":
        return tuple(_unmarked(part) for part in inner)
    if mark == "!bytes":
        return base64.b64decode(inner)
    if mark in ("!tensor", "!array"):
        array = np.frombuffer(base64.b64decode(inner[2]), inner[0]).reshape(inner[1]).copy()
        return torch.from_numpy(array) if mark == "!tensor" else array
    return {k: _unmarked(part) for k, part in value.items()}
