"""Going on without some of the data, alike on every rank: after a loss spike, say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from zephon_nodes.errors import StateError
from zephon_nodes.state import PREFIX, LaneState, check_shape, lane_numbers
from zephon_nodes.work.base import Source, WorkSource


def skip_spans(state: Mapping[str, Any], spans: int = 1) -> dict[str, Any]:
    """A state that goes on ``spans`` spans further on in every lane, at its start: after a loss spike, say.

    Nothing is produced for it, and it is the same whatever the number of ranks: apply it to the merged state, or to each
    rank's own. What was skipped stays in the state, and ``loader.drops`` tells it. 1 is the rest of the span that a lane
    is in. Raises ``StateError`` for a source that can't go to any place (``from_node``).

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], chunk_size=1, flush_every=2, shuffle="none"))
    >>> first = next(iter(graph))
    >>> graph.load_state_dict(skip_spans(graph.state_dict()))
    >>> [row["text"] for row in graph]
    ['three of them', 'and the last one']
    """
    check_shape(state)
    if isinstance(spans, bool) or not isinstance(spans, int) or spans < 1:
        raise StateError(f"spans to skip must be an integer of at least 1, got {spans!r}")
    if json.loads(state["recipe"])["source"].get("source") == "from_node":
        raise StateError("torchdata nodes can't go to any place; run on and throw away what is to be skipped")
    out = dict(state)
    for lane in lane_numbers(state):
        at = LaneState.of(f"{PREFIX}{lane}", state[f"{PREFIX}{lane}"])
        out[f"{PREFIX}{lane}"] = (at if at.ended else at.skipped(at.span + spans, 0)).leaf(at.level)
    return out


def jumped(source: Source, lane: int, epoch: int, at: LaneState, records: int) -> LaneState | None:
    """A lane ``records`` pointers further on, from the formula alone; None if it ends before, or has no formula.

    Right where every node gives one record for one.
    """
    if not isinstance(source, WorkSource) or at.ended:
        return None
    span, taken = at.span, at.taken + records
    while True:
        first = span * source.flush_every
        chunks = [source.chunk(lane, index, epoch) for index in range(first, first + source.flush_every)]
        have = sum(len(chunk) for chunk in chunks if chunk is not None)
        if taken <= have:
            return at.skipped(span, taken)
        if chunks[-1] is None:
            return None
        span, taken = span + 1, taken - have
