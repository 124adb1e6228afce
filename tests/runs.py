"""Small sources, and ways to run a graph, for tests of nodes and loaders."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from zephon_nodes import Dataset, Microbatch, Pipeline, StaticMixtureWorkSource, WorkSource, pointer


def source(rows: int | Sequence[Any] = 40, lanes: int = 1, chunk: int = 4, flush: int = 2, **settings: Any):
    """One dataset "d", in file order unless said otherwise. ``rows``: payloads, or how many {"v": i}."""
    payloads = [{"v": i} for i in range(rows)] if isinstance(rows, int) else rows
    settings = {"shuffle": "none", "chunk_size": chunk, "flush_every": flush, **settings}
    return StaticMixtureWorkSource([Dataset.from_rows("d", payloads)], None, lanes, **settings)


class Lanes(WorkSource):
    """Lane l holds ``lengths[l]`` rows, {"v": 1000 * l + i}, ``size`` of them a chunk. The same in every epoch."""

    def __init__(self, lengths: Sequence[int], size: int = 4, flush_every: int = 2) -> None:
        rows = [{"v": 1000 * lane + i} for lane, n in enumerate(lengths) for i in range(n)]
        super().__init__([Dataset.from_rows("d", rows)], len(lengths), flush_every)
        self.lengths, self.size = tuple(lengths), size

    def chunk(self, lane: int, index: int, epoch: int = 0):
        first, before = index * self.size, sum(self.lengths[:lane])
        if first >= self.lengths[lane]:
            return None
        upto = min(self.lengths[lane], first + self.size)
        return [pointer(self.datasets[0], before + i, epoch) for i in range(first, upto)]


def spans(work: WorkSource, lane: int, epoch: int = 0) -> list[list[Any]]:
    """The payloads of a lane, a list for each span."""
    out: list[list[Any]] = [[]]
    index = 0
    while (chunk := work.chunk(lane, index, epoch)) is not None:
        if index and index % work.flush_every == 0:
            out.append([])
        starts = {d.name: d.shard_starts for d in work.datasets}
        out[-1] += [work.dataset(at.dataset)[int(starts[at.dataset][at.shard]) + at.row] for at in chunk]
        index += 1
    return out


def lane_rows(work: WorkSource, lane: int) -> list[Any]:
    """The payloads of a lane."""
    return [payload for span in spans(work, lane) for payload in span]


def round_robin(lanes: Sequence[Sequence[Any]]) -> list[Any]:
    """The outputs of one rank with these lanes: each lane in turn, those that have ended passed over."""
    rounds = itertools.zip_longest(*lanes, fillvalue=round_robin)
    return [output for round_ in rounds for output in round_ if output is not round_robin]


def expected(work: WorkSource, function: Any = list, epoch: int = 0) -> list[Any]:
    """What a graph gives that turns each span's payloads into ``function(payloads)``."""
    lanes = range(work.num_lanes)
    return round_robin([[out for span in spans(work, lane, epoch) for out in function(span)] for lane in lanes])


def plain(output: Any) -> Any:
    return list(output) if isinstance(output, Microbatch) else output


def run(graph: Pipeline) -> tuple[list[Any], BaseException | None]:
    """The outputs of an epoch, batches as lists, and the error that ended it, if any."""
    out: list[Any] = []
    try:
        for output in graph:
            out.append(plain(output))
    except BaseException as error:
        return out, error
    finally:
        graph.close()
    return out, None


def take(graph: Pipeline, count: int | None) -> tuple[list[Any], dict[str, Any]]:
    """The next outputs, and the state after them, through JSON."""
    with graph:
        out = [plain(output) for output in itertools.islice(graph, count)]
        return out, json.loads(json.dumps(graph.state_dict()))


def resumed(graph: Pipeline, state: dict[str, Any], count: int | None = None) -> list[Any]:
    """What comes next in a fresh graph that has loaded a state."""
    graph.load_state_dict(state)
    return take(graph, count)[0]


def chained(make: Any, cuts: Sequence[int]) -> tuple[list[Any], dict[str, Any]]:
    """An epoch run with a stop and a resume after each of ``cuts`` outputs, and then to its end: outputs, last state."""
    total = len(run(make())[0])
    out: list[Any] = []
    state: dict[str, Any] | None = None
    for cut in [*cuts, None]:
        graph = make()
        if state is not None:
            graph.load_state_dict(state)
        # A state after an epoch's last output would begin the next epoch.
        got, state = take(graph, None if cut is None else max(0, min(cut, total - len(out) - 1)))
        out += got
    assert state is not None
    return out, state
