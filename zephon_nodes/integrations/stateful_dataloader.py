"""A graph as a dataset for torchdata's StatefulDataLoader and torch's DataLoader.

A DataLoader takes batches from its W workers in turn. So worker w runs lanes w, w + W, w + 2W ... of its rank, and the
order of batches is that of no workers. It stays so to the end only if workers end in the same round, hence ``at_end`` is
"pad" here, or "drop" for graphs that can't give blank batches. A rank's state that stands in the middle of a round, p
lanes having had their turn, deals the lanes from p on for the epoch that it is in: worker 0 must have the next turn.

Workers agree on what they can't know alone in a ``Meeting``. A worker's state is that of its lanes; a DataLoader's holds
those of all its workers, and ``lane_state`` finds them by the keys of our own states, wherever they stand in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle
from torch.utils.data import IterableDataset, get_worker_info

from zephon_nodes.distributed import from_rank_0, spans, world_agreement
from zephon_nodes.errors import ClosedError, ConfigError, StateError
from zephon_nodes.integrations.meeting import Meeting, Rounds
from zephon_nodes.lanes import AtEnd, legal_worlds, owned_lanes
from zephon_nodes.node import Node
from zephon_nodes.options import options_of
from zephon_nodes.session import Session
from zephon_nodes.state import PREFIX, SHARED, LaneState, lane_numbers, merge_states


def as_dataset(root: Node, function: Callable[[Any], Any] | None = None, **options: Any) -> LaneDataset:
    """The graph that ends in ``root`` as a dataset for a DataLoader with ``batch_size=None``; see ``LaneDataset``.

    >>> from torch.utils.data import DataLoader
    >>> source = StaticMixtureWorkSource([rows], num_lanes=2, shuffle="none")
    >>> dataset = as_dataset(Batch(Read(source), 1), function=len)
    >>> list(DataLoader(dataset, batch_size=None))
    [1, 1, 1, 1]
    """
    return LaneDataset(root, function, **options)


class LaneDataset(IterableDataset[Any]):
    """A graph for ``StatefulDataLoader`` (resumes exactly at every step) and torch's ``DataLoader``, one of them at a time.

        dataset = pipeline.as_dataset(function=Microbatch.to_training)
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=4)

    ``function``: applied to each output where it is made, so that a worker sends tensors and not rows. ``options``: as of
    ``Loader``, for each worker process: ``parallelism`` is the threads of one. ``at_end`` is "pad" by default, or "drop"
    if there are no blank batches; "ragged" is for at most one worker.

    ``num_workers`` 0, or any number that divides the lanes of the rank; the order of batches is the same for all, forked
    or spawned, persistent or not. Each iteration of the DataLoader is an epoch; without workers, an iterator of which
    nothing was read doesn't count. Leave its ``in_order=True`` and ``snapshot_every_n_steps=1``.

    Where finite data is read on several ranks, all of them must make the dataset together (a collective), and use the same
    number of workers, or all none. Workers agree on the end in files of ``shared_folder``, which all ranks must see; by
    default a temporary folder, which is enough on one machine. Endless sources need none of this.

    Raises ``ConfigError`` for settings that can't work, at construction; what depends on the number of workers, in them.

    >>> dataset = as_dataset(Read(StaticMixtureWorkSource([rows], shuffle="none")), function=lambda row: row["text"])
    >>> iterator = iter(dataset)
    >>> next(iterator)
    'one'
    >>> state = dataset.state_dict()
    >>> dataset.load_state_dict(state)
    >>> next(iter(dataset))
    'two words'
    """

    def __init__(
        self, root: Node, function: Callable[[Any], Any] | None = None, shared_folder: str | None = None, **options: Any
    ) -> None:
        if not isinstance(root, Node):
            raise ConfigError(f"as_dataset needs a zephon_nodes node, got {type(root).__name__}")
        given = options_of(options)
        if given.agree is not None:
            raise ConfigError("agree can't reach the worker processes of a DataLoader: leave it out, or use a Loader")
        self._root, self._function = root, function
        self._world, options_here = given.in_world()
        source = root.work_source
        self._owned = list(owned_lanes(source.num_lanes, self._world.rank, self._world.size))
        self._options = replace(options_here, at_end=given.at_end or _default_end(root))
        self._ends_alone = source.endless or self._options.at_end == "ragged"
        self._here = self._everywhere = Meeting()
        if self._world.size > 1 and not self._ends_alone:
            self._everywhere = self._meeting_of_ranks(shared_folder)
        self._run: _Run | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._turn: object = None
        session = self._session(self._owned, None)
        session.measure()
        self._start = session.state()

    def _meeting_of_ranks(self, folder: str | None) -> Meeting:
        if not spans(self._world):
            raise ConfigError(
                f"at_end={self._options.at_end!r} needs ranks to agree on the end, but torch.distributed isn't initialised "
                f"with world_size={self._world.size}; initialise it, or use at_end='ragged' or an endless source"
            )
        return from_rank_0(lambda: Meeting(folder), self._world)

    # what a DataLoader calls

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        if info is None:
            run = self._run or self._begin(self._owned, self._start)
            run.session.restart(roll_over=False)
            number, _ = self._here.iteration(0, 0, 0, run.session.epoch)
        else:
            self._check_workers(info.num_workers)
            run, number = self._begin_in_worker(info.num_workers, info.id, info.seed - info.id)
        self._run, self._turn = run, object()
        if run.rounds is not None:
            run.rounds.start(f"iteration {number}", max(_rounds(run.session.state())))
        return self._outputs(run.session, self._turn, info is None)

    def state_dict(self) -> dict[str, Any]:
        """Without workers, that of a ``Loader``. In a worker, that of its lanes. Where workers run, ask the DataLoader."""
        return dict(self._start) if self._run is None else self._run.session.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begins the next iteration where a state of a ``Loader``, of ``gather_state`` or of ``lane_state`` stands.

        Call it before the DataLoader is iterated over. The iteration gives the rest of the state's epoch: nothing, if the
        state was saved after its last output; the next epoch, if it was saved when the loop had ended.
        (A StatefulDataLoader that loads a state of its own calls this in each worker.)

        Raises ``StateError`` as ``Loader.load_state_dict`` does.
        """
        if get_worker_info() is not None:
            self._loaded = state
            return
        session = self._session(self._owned, None)
        session.load(dict(state))
        start = session.state()
        if _finished(state, self._root.work_source.num_lanes):
            start = self._next_epoch(start)
        self.close()
        self._run, self._start = None, start
        self._here.set_epoch(start["epoch"])

    def close(self) -> None:
        """Ends the threads of this process. It can be iterated over again."""
        if self._run is not None:
            self._run.session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, in a worker or elsewhere, begins where this one was loaded, and meets the others where this one does."""
        return _remade, (
            cloudpickle.dumps(
                {**self.__dict__, "_run": None, "_turn": None, "_world": self._world._replace(mesh=None)}
            ),
        )

    # what runs

    def _outputs(self, session: Session, turn: object, here: bool) -> Iterator[Any]:
        while True:
            if self._turn is not turn:
                raise ClosedError(
                    "this iterator was overtaken by a newer iter() of the same dataset; use one at a time"
                )
            try:
                output = session.next()
            except StopIteration:
                if (
                    here
                ):  # in a worker, whose loader may save a state that isn't yet at its end, the next iter() does so
                    session.restart()
                return
            yield output if self._function is None else self._function(output)

    def _session(self, lanes: Sequence[int], rounds: Rounds | None) -> Session:
        agree = rounds or (None if self._ends_alone or get_worker_info() else world_agreement(self._world))
        return Session(self._root, replace(self._options, agree=agree or _alone), share=lanes)

    def _begin(self, lanes: Sequence[int], state: Mapping[str, Any]) -> _Run:
        self.close()
        total = self._root.work_source.num_lanes
        alone = self._ends_alone or len(lanes) == total or get_worker_info() is None
        rounds = None if alone else Rounds(self._everywhere, len(lanes), total)
        run = _Run(self._session(lanes, rounds), rounds, lanes)
        run.session.load(dict(state))
        run.session.restart(roll_over=False)
        return run

    def _begin_in_worker(self, workers: int, worker: int, seed: int) -> tuple[_Run, int]:
        loaded, self._loaded = self._loaded, None
        number, epoch = self._here.iteration(workers, worker, seed, None if loaded is None else loaded["epoch"])
        lanes = self._owned[worker::workers]
        if loaded is not None:
            return self._begin(self._lanes_of(loaded, workers), loaded), number
        if self._run is not None and self._run.lanes == lanes:
            self._run.session.restart(roll_over=False)
            if self._run.session.epoch == epoch:
                return self._run, number
        if epoch == self._start["epoch"]:
            first = (worker + _turn(self._start, workers)) % workers
            return self._begin(self._owned[first::workers], self._start), number
        if self._root.work_source.next_epoch(None) is not None:
            raise ConfigError(
                "a torchdata node counts its epochs itself, so a new worker can't go on with them: "
                "use persistent_workers=True, or num_workers=0"
            )
        return self._begin(lanes, {**self._next_epoch(self._start), "epoch": epoch}), number

    def _next_epoch(self, state: Mapping[str, Any]) -> dict[str, Any]:
        source = self._root.work_source
        lanes = {key: LaneState.of(key, state[key]) for key in map(_key, self._owned)}
        fresh = {key: LaneState(token=source.next_epoch(at.token)).leaf(True) for key, at in lanes.items()}
        return {**state, **fresh, "epoch": state["epoch"] + 1}

    def _check_workers(self, workers: int) -> None:
        owned = len(self._owned)
        if owned % workers:
            raise ConfigError(
                f"num_workers={workers} doesn't divide the {owned} lanes of this rank; use 0 or one of {legal_worlds(owned)}"
            )
        if workers > 1 and self._options.at_end == "ragged" and not self._root.work_source.endless:
            raise ConfigError(
                f"at_end='ragged' with num_workers={workers} would give batches in another order than one process does; "
                "use at_end='pad' or 'drop', or at most one worker"
            )

    def _lanes_of(self, state: Mapping[str, Any], workers: int) -> Sequence[int]:
        held = lane_numbers(state)
        if held not in [self._owned[first::workers] for first in range(workers)]:
            raise StateError(
                f"the state is of a worker with lanes {held}, but {workers} workers run lanes {self._owned} here; to go on "
                "with other workers or ranks, give dataset.load_state_dict what lane_state makes of all ranks' states"
            )
        return held


class _Run(NamedTuple):
    """What a process runs: a session, how it agrees on the end (None: alone), and its lanes."""

    session: Session
    rounds: Rounds | None
    lanes: Sequence[int]


def lane_state(*states: Mapping[str, Any]) -> dict[str, Any]:
    """What StatefulDataLoaders over a ``LaneDataset`` have saved, as a state that loads on any number of workers and ranks.

    ``states``: of the StatefulDataLoader of each rank, with any number of workers; plain states may stand among them.
    The result is what a ``Loader`` would have saved, for ``LaneDataset.load_state_dict`` or ``Loader.load_state_dict``.

        states = [torch.load(f"rank_{rank}.pt") for rank in range(4)]
        dataset.load_state_dict(lane_state(*states))        # on 2 ranks, say, with 0 or 8 workers

    Where lanes stand is read from the keys of our own states alone, wherever the StatefulDataLoader keeps them. What it
    says of steps since its snapshot is looked at only to refuse a state that isn't of this moment.

    Raises ``StateError`` for such a state (save at multiples of ``snapshot_every_n_steps``), if there is no state of
    ours in one, and as ``merge_states`` does.

    >>> dataset = as_dataset(Batch(Read(StaticMixtureWorkSource([rows], num_lanes=2)), 2))
    >>> lane_state({"anything": [dataset.state_dict()]}) == dataset.state_dict()
    True
    """
    return merge_states([_rank_state(state) for state in states])


def _rank_state(state: Mapping[str, Any]) -> dict[str, Any]:
    parts: list[Mapping[str, Any]] = []
    flags: dict[str, Any] = {}
    _search(state, parts, flags)
    if not parts:
        raise StateError(
            "there is no state of a zephon_nodes dataset in this; was it saved by a StatefulDataLoader over as_dataset(...)?"
        )
    if flags.get("_steps_since_snapshot"):
        raise StateError(
            f"the state's lanes stand where they were {flags['_steps_since_snapshot']} batches before it was saved; use "
            "snapshot_every_n_steps=1, or save at multiples of it"
        )
    over = len(parts) > 1 and bool(flags.get("_iterator_finished"))
    if len(parts) == 1:
        return dict(parts[0])
    whole: dict[str, Any] = {}
    for part in parts:
        for key in SHARED:
            if whole.setdefault(key, part[key]) != part[key]:
                raise StateError(f"the workers' states differ in {key}: {whole[key]!r:.200} and {part[key]!r:.200}")
    lanes = {_key(n): LaneState.of(_key(n), part[_key(n)]) for part in parts for n in lane_numbers(part)}
    level = len({at.rounds for at in lanes.values()}) == 1
    ordered = sorted(lanes, key=lambda key: int(key[len(PREFIX) :]))
    return {**whole, **{key: replace(lanes[key], ended=lanes[key].ended or over).leaf(level) for key in ordered}}


def _search(value: Any, parts: list[Mapping[str, Any]], flags: dict[str, Any]) -> None:
    """Adds our own states inside ``value``, and what a StatefulDataLoader says beside them."""
    if isinstance(value, Mapping) and all(key in value for key in SHARED):
        parts.append(value)
    elif isinstance(value, Mapping):
        flags.update({key: value[key] for key in ("_steps_since_snapshot", "_iterator_finished") if key in value})
        for inner in value.values():
            _search(inner, parts, flags)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _search(inner, parts, flags)


def _turn(state: Mapping[str, Any], workers: int) -> int:
    """How many lanes have had their turn in the round in which a rank's state stands."""
    rounds = _rounds(state)
    top, turn = max(rounds), rounds.count(max(rounds)) % len(rounds)
    if workers > 1 and turn and rounds != [top] * turn + [top - 1] * (len(rounds) - turn):
        raise StateError(
            f"the state stands in the middle of a round, its lanes having given {rounds} outputs, which {workers} workers "
            "can't go on with in order; use at most one worker, or save after whole rounds"
        )
    return turn


def _finished(state: Mapping[str, Any], total: int) -> bool:
    """Whether the state of a whole world says that every lane has come to its end."""
    lanes = [LaneState.of(_key(n), state[_key(n)]) for n in lane_numbers(state)]
    return len(lanes) == total and all(at.ended and at.level for at in lanes)


def _rounds(state: Mapping[str, Any]) -> list[int]:
    return [LaneState.of(_key(n), state[_key(n)]).rounds for n in lane_numbers(state)]


def _key(lane: int) -> str:
    return f"{PREFIX}{lane}"


def _default_end(root: Node) -> AtEnd:
    if root.work_source.endless:
        return "ragged"
    return "drop" if root.blank() is None else "pad"


def _alone(rounds: int, largest: bool) -> int:
    return rounds


def _remade(pickled: bytes) -> LaneDataset:
    made = LaneDataset.__new__(LaneDataset)
    made.__dict__.update(cloudpickle.loads(pickled))
    return made
