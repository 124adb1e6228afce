"""Proofs for a graph of yours, the same that this package's own nodes pass. Nothing in the package imports this.

Each check takes ``make``, a function without arguments that builds the graph anew: a ``Pipeline`` or the last ``Node``.

    assert_resumes_everywhere(make)   stop after any output and resume: exactly the rest comes
    assert_any_schedule(make)         any runner, parallelism and order of completion: the same data
    assert_any_world(make, worlds)    any number of ranks, with stops and moves between them: the same global batches

They raise ``AssertionError`` that names the first output that differs. Outputs are compared by ``digest``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from zephon_nodes.concurrency import InlineDriver, MakeEngine, WorkTask
from zephon_nodes.digest import content_digest
from zephon_nodes.engine import Engine, Event, Output
from zephon_nodes.hashing import draw
from zephon_nodes.lanes import owned_lanes
from zephon_nodes.loader import Loader
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.node import Node
from zephon_nodes.pipeline import Pipeline
from zephon_nodes.plan import Hop, Plan
from zephon_nodes.state import merge_states

Make: TypeAlias = "Callable[[], Pipeline | Node]"
Round: TypeAlias = "dict[int, str]"
"""Digest of each lane's output."""

_MOVES = 6


def digest(output: Any) -> str:
    """SHA-256 of an output's content, in hex; of a ``Microbatch``, its payloads and the rows that they came from."""
    if isinstance(output, Microbatch):
        return content_digest([output.payloads, [[tuple(at) for at in row] for row in output.pointers]])
    return content_digest(output)


def loader_of(graph: Pipeline | Node, **options: Any) -> Loader:
    """A loader for a graph; a pipeline's own options hold but for those given here."""
    if isinstance(graph, Pipeline):
        return graph.options(**options).loader
    return Loader(graph, **options)


def assert_resumes_everywhere(make: Make, steps: int | None = None, ahead: int = 3, **options: Any) -> None:
    """From the state before every output (the first ``steps``), a fresh graph gives exactly what comes next.

    Each state goes through JSON, must be what the restored graph reports before it gives anything, and keeps its keys all
    along. ``ahead``: outputs compared from each state. ``options``: as of ``Loader``; inline unless said otherwise.
    """
    options = {"runner": "inline", **options}
    loader = loader_of(make(), **options)
    states, outputs = [json.dumps(loader.state_dict())], list[str]()
    for output in itertools.islice(loader, None if steps is None else steps + ahead):
        outputs.append(digest(output))
        states.append(json.dumps(loader.state_dict()))
    loader.close()
    for n, text in enumerate(states[: len(outputs) if steps is None else steps]):
        state = json.loads(text)
        assert state.keys() == json.loads(states[0]).keys(), f"the keys of the state changed at output {n}"
        with loader_of(make(), **options) as resumed:
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state, f"a graph restored at output {n} reports another state"
            got = [digest(output) for output in itertools.islice(resumed, len(outputs[n : n + ahead]))]
        _same(outputs[n : n + ahead], got, f"resumed at output {n}, output", n)


def assert_any_schedule(make: Make, steps: int | None = None, schedules: int = 4, **options: Any) -> None:
    """Inline, in threads with parallelism 1 and 3, and with tasks that end in drawn orders: the same outputs."""
    want = _outputs(make, steps, runner="inline", **options)
    for parallelism in (1, 3):
        got = _outputs(make, steps, runner="thread", parallelism=parallelism, **options)
        _same(want, got, f"in {parallelism} threads, output")
    for seed in range(schedules):
        got = _outputs(make, steps, runner=scheduled(seed), parallelism=3, **options)
        _same(want, got, f"with schedule {seed}, output")


def assert_any_world(make: Make, worlds: Sequence[int], rounds: int | None = None, **options: Any) -> None:
    """Every world size gives the same rounds, and so does a run that stops and moves to the next size a few times."""
    options = {"runner": "inline", **options}
    want = run_rounds(make, worlds[0], rounds, **options)[0]
    for world in worlds[1:]:
        _same(want, run_rounds(make, world, rounds, **options)[0], f"on {world} ranks, round")
    moved, state = list[Round](), None
    stretch = max(1, len(want) // _MOVES)
    for n, world in enumerate(itertools.islice(itertools.cycle(worlds), _MOVES)):
        some, state = run_rounds(make, world, stretch if n + 1 < _MOVES else len(want) - len(moved), state, **options)
        moved += some
        if len(moved) >= len(want):
            break
    _same(want, moved, f"moved over {list(worlds)} ranks, round")


def run_rounds(
    make: Make, world: int, rounds: int | None = None, state: dict[str, Any] | None = None, **options: Any
) -> tuple[list[Round], dict[str, Any]]:
    """Runs the ranks of a world one after the other, for some rounds or to the epoch's end: the rounds and the merged state.

    Lanes that have ended give blank outputs (at_end="pad"), so a graph that doesn't end in batches gets batches of one.
    """
    ran = [_run_rank(make, rank, world, rounds, state, options) for rank in range(world)]
    epoch = min(after["epoch"] for _, after in ran)
    last = max(_given(after) for _, after in ran if after["epoch"] == epoch)
    for rank, (_, after) in enumerate(ran):
        if (
            after["epoch"] > epoch or _given(after) < last
        ):  # alone it stopped; in the world it would have been told to go on
            ran[rank] = _run_rank(make, rank, world, rounds, state, {**options, "agree": lambda own, _: max(own, last)})
    together = zip(*(outputs for outputs, _ in ran), strict=True)
    return [dict(lane for part in parts for lane in part.items()) for parts in together], merge_states(
        r[1] for r in ran
    )


def _given(state: dict[str, Any]) -> int:
    """Rounds that a rank has given."""
    return max(int(leaf[2]) for key, leaf in state.items() if key.startswith("lane_"))


def _run_rank(
    make: Make, rank: int, world: int, rounds: int | None, state: dict[str, Any] | None, options: dict[str, Any]
) -> tuple[list[Round], dict[str, Any]]:
    graph = make()
    graph = graph if isinstance(graph, Pipeline) else Pipeline(graph)
    if graph.node.gives != "batches":
        rounds_ = graph.node.rounds
        graph = graph.batch(1) if rounds_ is None else Pipeline(graph.node.source).batch(1).take(rounds_)
    out: list[Round] = []
    options = {"at_end": "pad", "agree": lambda own, _: own, **options}
    with loader_of(graph, rank=rank, world_size=world, **options) as loader:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        lanes = len(owned_lanes(graph.node.work_source.num_lanes, rank, world))
        for output in itertools.islice(loader, None if rounds is None else rounds * lanes):
            if not out or len(out[-1]) == lanes:
                out.append({})
            out[-1][loader.lane] = digest(output)
        return out, json.loads(json.dumps(loader.state_dict()))


def _outputs(make: Make, steps: int | None, **options: Any) -> list[str]:
    with loader_of(make(), **options) as loader:
        return [digest(output) for output in itertools.islice(loader, steps)]


def _same(want: Sequence[Any], got: Sequence[Any], what: str, first: int = 0) -> None:
    for n, (expected, found) in enumerate(zip(want, got, strict=False)):
        assert expected == found, f"{what} {first + n} differs: {found} instead of {expected}"
    assert len(want) == len(got), f"{what}s: {len(got)} instead of {len(want)}"


def scheduled(seed: int) -> Callable[[MakeEngine, Plan], ScheduledDriver]:
    """A runner in which tasks end in an order that ``seed`` draws, for ``Loader(runner=...)``. One thread."""
    return lambda make_engine, plan: ScheduledDriver(make_engine, plan, seed)


class ScheduledDriver(InlineDriver):
    """Runs tasks when nothing else can be done, each time one that is drawn; looks ahead as the thread runner does."""

    def __init__(self, make_engine: MakeEngine, plan: Plan, seed: int) -> None:
        self._waiting: list[WorkTask] = []
        self._seed, self._drawn = seed, 0
        super().__init__(make_engine, plan)

    def _submit(self, i: int, hop: Hop, calls: Sequence[Any]) -> WorkTask:
        if hop.parallelism == 0:
            return super()._submit(i, hop, calls)
        task = WorkTask(hop, calls)
        self._waiting.append(task)
        return task

    def get(self) -> Event:
        engine = self._live()
        for _ in range(self._draw(8)):
            self._advance(engine)
        while not engine.events:
            self._advance(engine)
        event = engine.events.popleft()
        if isinstance(event, Output):
            engine.taken(event.lane)
        return event

    def _advance(self, engine: Engine) -> None:
        if self._waiting and (self._draw(2) or not engine.step()):
            task = self._waiting.pop(self._draw(len(self._waiting)))
            task.run()
            task.finish()
        else:
            engine.step()

    def _draw(self, n: int) -> int:
        self._drawn += 1
        return draw(self._seed, self._drawn) % n


__all__ = [
    "ScheduledDriver",
    "assert_any_schedule",
    "assert_any_world",
    "assert_resumes_everywhere",
    "digest",
    "loader_of",
    "run_rounds",
    "scheduled",
]
