"""torchdata nodes as sources: one lane a node, resumed through the node's own state at the span's start.

Such a source can't be asked for any chunk at any time, so the state of the span's start travels with it, as text. The
text is JSON in which tuples, bytes, tensors, arrays and dicts with other keys than str are marked, since states of
torchdata's samplers hold those.
"""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torchdata.nodes import BaseNode

from zephon_nodes.digest import content_digest
from zephon_nodes.errors import ConfigError, RowError, StateError
from zephon_nodes.hashing import key
from zephon_nodes.stream import Cut, End, Flush, Pointer, Record, pass_number
from zephon_nodes.work.base import QUANTUM, Ahead, Source, check_at_least

_AFTER = "after:"


class NodeSource(Source):
    """Lanes that are torchdata nodes. ``span``: items a span, chunk_size times flush_every of other sources."""

    def __init__(self, nodes: Sequence[BaseNode[Any]], span: int, name: str) -> None:
        self.nodes, self.span, self.name = list(nodes), span, name
        self.num_lanes, self.flush_every = len(self.nodes), 1
        self._fresh: dict[int, str] = {}

    def recipe(self) -> dict[str, Any]:
        kinds = [f"{type(node).__module__}.{type(node).__qualname__}" for node in self.nodes]
        return {
            "source": "from_node",
            "name": self.name,
            "num_lanes": self.num_lanes,
            "span": self.span,
            "nodes": kinds,
        }

    def locate_one(self, at: Pointer) -> str:
        return f"item {at.row} of node {at.shard} ({at.dataset!r})"

    def apart(self) -> NodeSource:
        """A copy, nodes and all, which begins where these were first met. Raises ``ConfigError`` for nodes that can't be copied."""
        try:
            return copy.deepcopy(self)
        except Exception as error:
            raise ConfigError(
                f"these torchdata nodes can't be copied ({error}), so looking ahead would move them"
            ) from error

    def next_epoch(self, token: str | None) -> str | None:
        """The token of an epoch's start: a node counts its epochs itself, so it must be put back into the last one."""
        return _AFTER + (token or "")

    def feed(self, lane: int, epoch: int, start: Cut) -> Iterator[Flush | Ahead | Sequence[Any] | End]:
        node, span, skip = self.nodes[lane], start.span, start.taken
        first = self._rewind(lane, start.token)
        while True:
            state = node.state_dict()
            pulled = _Pull(node, self.span)
            head = pulled.take(QUANTUM)
            token = _token(state, head, lane)
            _check_return(first, token, lane)
            first = None
            yield Flush(lane, span, token)
            ordinal = 0
            while head:
                records = [self._record(lane, epoch, span, ordinal + i, item) for i, item in enumerate(head)]
                if records[max(0, skip - ordinal) :]:
                    yield records[max(0, skip - ordinal) :]
                ordinal += len(head)
                head = pulled.take(QUANTUM)
            if pulled.error is not None:
                raise RowError(
                    f"the torchdata node of lane {lane} failed: {pulled.error!r}", lane=lane
                ) from pulled.error
            if pulled.ended:
                yield End(lane, _token(node.state_dict(), [], lane))
                return
            span, skip = span + 1, 0

    def _rewind(self, lane: int, token: str | None) -> str | None:
        """Puts a node where a token says, and gives the digest of what must come first there, if the token knows it.

        No token: the state in which the node was first met. Each mark before a token is an epoch that was begun since.
        """
        node, epochs = self.nodes[lane], 0
        if lane not in self._fresh:
            node.reset(None)
            self._fresh[lane] = _token(node.state_dict(), [], lane)
        token = token or ""
        while token.startswith(_AFTER):
            token, epochs = token[len(_AFTER) :], epochs + 1
        known = from_text(token or self._fresh[lane])
        node.reset(known["state"])
        for _ in range(epochs):
            _Pull(node, 1).take(1)
            node.reset(None)
        return None if epochs else known["first"]

    def _record(self, lane: int, epoch: int, span: int, ordinal: int, item: Any) -> Record:
        at = Pointer(self.name, lane, span * self.span + ordinal, pass_number(epoch, 0))
        return Record(item, key("node", self.name, lane, epoch, span, ordinal), (at,))


def from_node(*nodes: BaseNode[Any], span: int = 8192, name: str = "node") -> NodeSource:
    """A source of torchdata nodes, one lane each.

    ``span`` (8192): items between two places that a checkpoint can go back to; a resume restores the node there and
    replays at most that many. Each node must keep its state in ``state_dict()`` and give the same items after a reset to
    it; the first item is checked. A node's own epochs (``reset(None)``) are the epochs of the run. A node that draws by
    rank, such as ``MultiNodeWeightedSampler``, must be given a rank that stays the same, or runs aren't elastic.

    Raises ``ConfigError`` for what isn't a ``BaseNode``, and for one node given twice.

    >>> from torchdata.nodes import IterableWrapper
    >>> list(Pipeline(from_node(IterableWrapper(range(3)), IterableWrapper("abc"))))
    [0, 'a', 1, 'b', 2, 'c']
    """
    wrong = [type(node).__name__ for node in nodes if not isinstance(node, BaseNode)]
    if wrong or not nodes:
        raise ConfigError(f"from_node needs torchdata nodes, one a lane, as from_node(*nodes); got {wrong or 'none'}")
    if len({id(node) for node in nodes}) < len(nodes):
        raise ConfigError("from_node needs a node of its own for each lane; one was given twice")
    check_at_least("span", span, 1)
    return NodeSource(nodes, span, name)


class _Pull:
    """Items of a node, up to a number, its end or an error. What came before an error is given first."""

    def __init__(self, node: BaseNode[Any], most: int) -> None:
        self._node, self._left = node, most
        self.ended = False
        self.error: Exception | None = None

    def take(self, count: int) -> list[Any]:
        items: list[Any] = []
        while len(items) < min(count, self._left) and not self.ended and self.error is None:
            try:
                items.append(next(self._node))
            except StopIteration:
                self.ended = True
            except Exception as error:  # noqa: BLE001 - raised when its turn comes
                self.error = error
        self._left -= len(items)
        return items


def _token(state: Any, head: list[Any], lane: int) -> str:
    """A node's state as text, with a digest of the item that comes next."""
    return to_text({"state": state, "first": content_digest(head[0]) if head else None}, lane)


def _check_return(first: str | None, token: str, lane: int) -> None:
    if first is not None and from_text(token)["first"] != first:
        raise StateError(
            f"the torchdata node of lane {lane} doesn't come back to its state: after reset(state) it gives another first "
            "item than it did when the state was saved; give it a generator or a seed of its own, or check its state_dict()"
        )


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
    if isinstance(value, np.generic) and isinstance(value.item(), (bool, int, float, str)):
        return value.item()
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return _marked_array(value, lane)
    raise StateError(
        f"the state of the torchdata node of lane {lane} holds a {type(value).__name__}, which can't be saved"
    )


def _marked_array(value: Any, lane: int) -> dict[str, Any]:
    is_tensor = isinstance(value, torch.Tensor)
    try:
        array = value.detach().cpu().numpy() if is_tensor else value
    except (TypeError, RuntimeError):
        array = None
    if array is None or array.dtype.kind not in "biufcSUmM":
        kind = f"{type(value).__name__} of {value.dtype}" + (f", {value.layout}" if is_tensor else "")
        raise StateError(f"the state of the torchdata node of lane {lane} holds a {kind}, which can't be saved")
    said = [array.dtype.str, list(array.shape), base64.b64encode(array.tobytes()).decode()]
    return {"!tensor" if is_tensor else "!array": said}


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
