"""The fluent front: one line a method over the node constructors, and a ``Loader`` underneath."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchdata.nodes import BaseNode

from zephon_nodes.describe import describe
from zephon_nodes.errors import ConfigError
from zephon_nodes.integrations.stateful_dataloader import LaneDataset
from zephon_nodes.loader import Loader
from zephon_nodes.node import Node
from zephon_nodes.ops.batch import Batch
from zephon_nodes.ops.decode_text import DecodeText
from zephon_nodes.ops.ensure_mixture import EnsureMixture
from zephon_nodes.ops.fill_in_the_middle import FillInTheMiddle
from zephon_nodes.ops.filter import Filter
from zephon_nodes.ops.flat_map import FlatMap
from zephon_nodes.ops.group_by_length import GroupByLength
from zephon_nodes.ops.map import Map
from zephon_nodes.ops.map_batch import MapBatch
from zephon_nodes.ops.map_group import MapGroup
from zephon_nodes.ops.pack_flat import PackFlat
from zephon_nodes.ops.pack_sequences import PackSequences
from zephon_nodes.ops.read import Read
from zephon_nodes.ops.shuffle import Shuffle
from zephon_nodes.ops.stateful_transform import StatefulTransform
from zephon_nodes.ops.switch import Branch, Switch
from zephon_nodes.ops.take import Take
from zephon_nodes.ops.tokenize import Tokenize
from zephon_nodes.ops.tokenize_chat import TokenizeChat
from zephon_nodes.options import options_of
from zephon_nodes.recipe_file import read_recipe_file, write_recipe
from zephon_nodes.remote import Options as StoreOptions
from zephon_nodes.work.base import Source
from zephon_nodes.work.node_source import from_node

if TYPE_CHECKING:
    from types import TracebackType

    from zephon_nodes.drops import DropReport
    from zephon_nodes.estimation import Estimate
    from zephon_nodes.explore.history import History
    from zephon_nodes.explore.peek import Table
    from zephon_nodes.explore.profiling import Profile
    from zephon_nodes.plan import Plan


class Pipeline:
    """A graph built by chaining. Every method returns a new pipeline; iterating one runs it.

    ``source``: a ``WorkSource``, a zephon_nodes node, or a torchdata ``BaseNode``. ``options``: as of ``Loader``.

        pipeline = (
            Pipeline(source, rank=0, world_size=1)
            .tokenize("tokenizer.json")
            .pack_flat(max_length=2048)
            .batch(microbatch_size=8)
        )
        for batch in pipeline:
            train_step(batch.to_training())

    The operators take the settings of the node of the same name.

    >>> graph = Pipeline(StaticMixtureWorkSource([rows], shuffle="none"), runner="inline").pack_flat(max_length=4).batch(microbatch_size=2)
    >>> [batch.to_training()["input_ids"].shape for batch in graph]
    [torch.Size([2, 4]), torch.Size([1, 4])]
    """

    def __init__(self, source: Source | Node | BaseNode[Any], **options: Any) -> None:
        if isinstance(source, Node):
            self.node = source
        elif isinstance(source, Source):
            self.node = Read(source)
        elif isinstance(source, BaseNode):
            self.node = Read(from_node(source))
        else:
            raise ConfigError(
                f"Pipeline needs a WorkSource or a node, got {type(source).__name__}; datasets go into "
                "StaticMixtureWorkSource([...]), a source of your own is a subclass of WorkSource"
            )
        options_of(options)  # what can't work is refused here, and not at the first iteration
        self._options = options
        self._loader: Loader | None = None

    @classmethod
    def from_toml(
        cls,
        path_or_text: str | os.PathLike[str],
        *,
        storage_options: Mapping[str, StoreOptions] | None = None,
        **options: Any,
    ) -> Pipeline:
        """The pipeline of a recipe file, or of its text: datasets, source, nodes with their settings, functions by import
        path. See the head of ``recipe_file`` for the form.

        ``storage_options``: by dataset name, on top of those of the file, which is no place for secrets; or a function that
        gives all of a dataset's, as ``Dataset.from_path`` takes it. ``options``: run
        options, which win over those of the file. Relative paths begin in the folder of the file; those of a text in the
        working directory.

        Raises ``ConfigError`` for unknown keys, nodes and settings, with the file, the key and the nearest name that there
        is, and for settings that can't work.

            pipeline = Pipeline.from_toml("recipe.toml", rank=0, world_size=8).batch(8)
        """
        found = read_recipe_file(path_or_text, storage_options)
        return cls(found.node, **{**found.options, **options})

    def to_toml(self) -> str:
        """The text of a recipe file that gives the same recipe: ``from_toml(to_toml(p)).recipe == p.recipe``.

        Local paths are written in full; storage options whose names sound like secrets, caches, rank and world size not at
        all. Raises ``ConfigError``, naming the node or the dataset, for what has no form in a file: lambdas and
        functions of a notebook, ``from_rows`` datasets, tokenizers that aren't given by path or id, sources of other kinds.
        """
        return write_recipe(self.node, self._options)

    def options(self, **options: Any) -> Pipeline:
        """The same graph with other run options: runner, rank, world_size, prefetch, at_end, on_error ... (``Options``)."""
        return Pipeline(self.node, **{**self._options, **options})

    def then(self, kind: Callable[..., Node], *args: Any, **settings: Any) -> Pipeline:
        """Any node class, your own included: ``pipeline.then(MyNode, ...)`` is ``MyNode(pipeline.node, ...)``."""
        return Pipeline(kind(self.node, *args, **settings), **self._options)

    # operators, in the order of their names

    def batch(self, microbatch_size: int | None = None, **settings: Any) -> Pipeline:
        """See ``Batch``."""
        return self.then(Batch, microbatch_size, **settings)

    def decode_text(self, fields: Sequence[str] = ("text",), **settings: Any) -> Pipeline:
        """See ``DecodeText``."""
        return self.then(DecodeText, fields, **settings)

    def ensure_mixture(self, buffer_size: int = 256, **settings: Any) -> Pipeline:
        """See ``EnsureMixture``."""
        return self.then(EnsureMixture, buffer_size, **settings)

    def fill_in_the_middle(self, prefix_id: int, middle_id: int, suffix_id: int, **settings: Any) -> Pipeline:
        """See ``FillInTheMiddle``."""
        return self.then(FillInTheMiddle, prefix_id, middle_id, suffix_id, **settings)

    def filter(self, function: Callable[..., Any], **settings: Any) -> Pipeline:
        """See ``Filter``."""
        return self.then(Filter, function, **settings)

    def flat_map(self, function: Callable[..., Any], **settings: Any) -> Pipeline:
        """See ``FlatMap``."""
        return self.then(FlatMap, function, **settings)

    def group_by_length(self, window: int = 1024, run: int = 32, **settings: Any) -> Pipeline:
        """See ``GroupByLength``."""
        return self.then(GroupByLength, window, run, **settings)

    def map(self, function: Callable[..., Any], **settings: Any) -> Pipeline:
        """See ``Map``."""
        return self.then(Map, function, **settings)

    def map_batch(self, function: Callable[..., Any], **settings: Any) -> Pipeline:
        """See ``MapBatch``."""
        return self.then(MapBatch, function, **settings)

    def map_group(self, function: Callable[..., Any], size: int, **settings: Any) -> Pipeline:
        """See ``MapGroup``."""
        return self.then(MapGroup, function, size, **settings)

    def pack_flat(self, max_length: int, algorithm: str = "wrap", **settings: Any) -> Pipeline:
        """See ``PackFlat``."""
        return self.then(PackFlat, max_length, algorithm, **settings)

    def pack_sequences(self, target_length: int, algorithm: str = "first_fit", **settings: Any) -> Pipeline:
        """See ``PackSequences``."""
        return self.then(PackSequences, target_length, algorithm, **settings)

    def shuffle(self, buffer_size: int = 1024, seed: int = 0, **settings: Any) -> Pipeline:
        """See ``Shuffle``."""
        return self.then(Shuffle, buffer_size, seed, **settings)

    def stateful_transform(self, factory: Callable[[], Any], **settings: Any) -> Pipeline:
        """See ``StatefulTransform``."""
        return self.then(StatefulTransform, factory, **settings)

    def switch(self, branches: Mapping[Any, Branch], **settings: Any) -> Pipeline:
        """See ``Switch``."""
        return self.then(Switch, branches, **settings)

    def take(self, rounds: int, **settings: Any) -> Pipeline:
        """See ``Take``."""
        return self.then(Take, rounds, **settings)

    def tokenize(self, tokenizer: Any = None, field: str = "text", **settings: Any) -> Pipeline:
        """See ``Tokenize``."""
        return self.then(Tokenize, tokenizer, field, **settings)

    def tokenize_chat(self, tokenizer: Any = None, field: str = "messages", **settings: Any) -> Pipeline:
        """See ``TokenizeChat``."""
        return self.then(TokenizeChat, tokenizer, field, **settings)

    # running

    @property
    def loader(self) -> Loader:
        """The loader that runs this pipeline, made at first use."""
        if self._loader is None:
            self._loader = Loader(self.node, **self._options)
        return self._loader

    def as_dataset(self, function: Callable[[Any], Any] | None = None) -> LaneDataset:
        """The same graph and options for torchdata's StatefulDataLoader or torch's DataLoader; see ``LaneDataset``."""
        return LaneDataset(self.node, function, **self._options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    # looking

    def peek(self, n: int = 5, at: str | None = None) -> Table:
        """The first ``n`` records of an epoch at the node named ``at`` (default: the last), over all lanes in turn.

        Run in this thread on a graph of its own, so neither the place of this pipeline nor what it gives changes. A list
        of payloads, with their ``origins``, that prints as a table; in a notebook pictures are small ones. Raises
        ``ConfigError`` for an unknown node, and what your functions raise.

        >>> Pipeline(StaticMixtureWorkSource([rows], shuffle="none")).map(len, name="count").batch(2).peek(2, at="read").origins
        [[('demo/rows', 0)], [('demo/rows', 1)]]
        """
        from zephon_nodes.explore.peek import peek

        return peek(self.node, n, at, options_of(self._options).on_error)

    def show(self, batch: Any = None, *, figure: bool = False, rows: int = 8) -> Any:
        """A batch drawn, texts decoded by this graph's tokenizer; see ``show``. ``batch``: by default the first of an epoch."""
        from zephon_nodes.explore.show import show

        return show(self.peek(1)[0] if batch is None else batch, self, figure=figure, rows=rows)

    def profile(self, seconds: float | None = 10.0, wanted: float | None = None) -> Profile:
        """Where the time goes: for each node, records a second and seconds of work; for each pool of workers, how busy it
        is; and in a sentence the bottleneck, with the setting that would help.

        ``seconds``: how long a graph of its own is run, as fast as it goes, from the start of an epoch and in this thread's
        presence; neither the place of this pipeline nor what it gives changes. None reads the counters of the run that
        is going on instead, which are always on, and takes the trainer's pace as what is wanted.
        ``wanted``: samples (rows of batches) a second that your trainer takes.

            print(pipeline.profile(seconds=10, wanted=120))
            print(pipeline.profile(None))           # in mid-training

        Raises ``ConfigError`` if nothing has run yet or nothing comes.
        """
        from zephon_nodes.explore.profiling import profile, profile_of_run

        if seconds is None:
            return profile_of_run(self.loader.session, options_of(self._options), wanted)
        return profile(self.node, self._options, seconds, wanted)

    def history(self, outputs: int = 200) -> History:
        """The first ``outputs`` of an epoch as entries for plots, from a run of its own, which changes nothing here.

        history = pipeline.history(500)
        history.plot_mixture()      # also plot_fill, plot_lengths, plot_throughput, plot_order
        """
        from zephon_nodes.explore.history import record

        return record(self.node, self._options, outputs)

    def metrics(self) -> dict[str, float]:
        """See ``Loader.metrics``."""
        return self.loader.metrics()

    def state_dict(self) -> dict[str, Any]:
        """See ``Loader.state_dict``."""
        return self.loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See ``Loader.load_state_dict``."""
        self.loader.load_state_dict(state)

    def skip(self, rounds: int) -> None:
        """See ``Loader.skip``."""
        self.loader.skip(rounds)

    def close(self) -> None:
        """See ``Loader.close``."""
        if self._loader is not None:
            self._loader.close()

    @property
    def epoch(self) -> int:
        """See ``Loader.epoch``."""
        return self.loader.epoch

    @property
    def drops(self) -> DropReport:
        """See ``Loader.drops``."""
        return self.loader.drops

    @property
    def estimates(self) -> dict[str, Estimate]:
        """See ``Loader.estimates``."""
        return self.loader.estimates

    @property
    def recipe(self) -> str:
        """See ``Loader.recipe``."""
        return self.loader.recipe

    @property
    def recipe_hash(self) -> str:
        """See ``Loader.recipe_hash``."""
        return self.loader.recipe_hash

    def describe(self) -> str:
        """The graph as text: nodes, settings, which workers run what, and, once it has run, what came out of each."""
        options = options_of(self._options)
        return describe(self.node, options.threads, self._run, options.workers)

    __str__ = describe

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same where IPython shows no drawings, or a host strips them from a notebook."""
        printer.text(self.describe())

    def _repr_svg_(self) -> str:
        """The graph as a drawing, which a notebook shows."""
        from zephon_nodes.explore.drawing import draw

        options = options_of(self._options)
        return draw(self.node, options.threads, self._run, options.workers)

    @property
    def _run(self) -> Plan | None:
        return self._loader.plan if self._loader is not None else None

    def __getstate__(self) -> dict[str, Any]:
        """Pickles and copies without the loader, so without its threads and its place."""
        return {**self.__dict__, "_loader": None}

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
