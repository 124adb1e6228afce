"""TorchTitan: a recipe as its dataloader.

There are two contracts. Releases up to 0.3.0 take rows, (local_batch_size, seq_len): ``RowDataLoader``. The main branch
since August 2026 takes flat tokens, (num_tokens_per_batch,): ``TokenDataLoader``. Both are made by TorchTitan from their
``Config``:

    from zephon_nodes.integrations.torchtitan import RowDataLoader

    dataloader=RowDataLoader.Config(recipe="recipe.toml", global_batch_size=512)

The recipe decides the data, its tokenizer included; the trainer's own is only compared with it. The recipe packs, and leaves
batching to the trainer's sizes. Tensor-, pipeline- and context-parallel peers have one data-parallel rank, so they
get the same bytes. The state is the loader's: a leaf for each lane, which TorchTitan's checkpoints (sync and async) move
to any other data-parallel degree that divides the lanes. Give an endless source (passes = None), or finite data end with a
``DataloaderExhaustedError`` of the trainer, at the same step on all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from zephon_nodes.errors import ConfigError
from zephon_nodes.integrations.recipes import (
    check_global_batch,
    check_length,
    check_tokenizer,
    in_microbatches,
    packed_length,
    pipeline_of,
)
from zephon_nodes.microbatch import Microbatch
from zephon_nodes.pipeline import Pipeline

if TYPE_CHECKING:
    import torch

try:
    from torchtitan.components.data.loader import BaseDataLoader  # the main branch
except ImportError:
    try:
        from torchtitan.components.dataloader import BaseDataLoader  # releases up to 0.3.0
    except ImportError as error:
        raise ConfigError(
            "zephon_nodes.integrations.torchtitan needs TorchTitan: pip install torchtitan (0.3.0 needs Python 3.11, and "
            "triton beside a CPU build of torch)"
        ) from error

TrainerBatch: TypeAlias = "tuple[dict[str, torch.Tensor], torch.Tensor]"


class _RecipeDataLoader(BaseDataLoader):  # type: ignore[misc]
    """What both contracts have in common."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        """``recipe``: the path of a TOML file (``Pipeline.from_toml``), or "package.module:function" for a function that
        gives a ``Pipeline``. ``prefetch``, ``parallelism``: see ``Options``; None for what the recipe says."""

        recipe: str = ""
        prefetch: int | None = None
        parallelism: int | None = None

    def __init__(self, config: Config, dp_world_size: int, dp_rank: int) -> None:
        said = {"prefetch": config.prefetch, "parallelism": config.parallelism}
        options = {name: value for name, value in said.items() if value is not None}
        self._pipeline: Pipeline = pipeline_of(config.recipe, rank=dp_rank, world_size=dp_world_size, **options)

    def _run(self, pipeline: Pipeline, tokenizer: Any) -> None:
        check_tokenizer(pipeline, getattr(tokenizer, "tokenizer", None))
        self._loader = pipeline.loader  # lanes that don't divide over the ranks are refused here

    @property
    def recipe_hash(self) -> str:
        """SHA-256 of what decides the data; log it beside the trainer's configuration."""
        return self._loader.recipe_hash

    def __iter__(self) -> Iterator[TrainerBatch]:
        return map(self._converted, iter(self._loader))

    def _converted(self, output: Any) -> TrainerBatch:
        if not isinstance(output, Microbatch):  # of a map_batch in the recipe, which makes the trainer's form itself
            return output  # type: ignore[no-any-return]
        tensors = output.to_training(flat=self._flat)
        return {"input": tensors["input_ids"], "positions": tensors["position_ids"]}, tensors["labels"]

    _flat = False

    def state_dict(self) -> dict[str, Any]:
        """See ``Loader.state_dict``."""
        return self._loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See ``Loader.load_state_dict``. A state that lacks lanes is an error, and no warning."""
        self._loader.load_state_dict(state_dict)

    def close(self) -> None:
        """Ends all threads."""
        self._loader.close()


class RowDataLoader(_RecipeDataLoader):
    """The contract of releases up to 0.3.0: ``({"input": x, "positions": x}, labels)``, int64 (local_batch_size, seq_len).

    Labels are shifted inside documents, with TorchTitan's ``IGNORE_INDEX`` (-100) where nothing is to be learned.
    Positions begin from 0 in each document, from which its attention masks are made.

    Raises ``ConfigError`` at start-up for packs of another length than ``seq_len``, a trainer's tokenizer that gives other
    ids than the recipe's, a batch size in the recipe that isn't the trainer's, lanes that don't divide over the ranks, and,
    if ``Config.global_batch_size`` says the trainer's, an optimizer step that isn't a whole number of rounds.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_RecipeDataLoader.Config):
        """``global_batch_size``: that of the trainer, to have it checked."""

        global_batch_size: int | None = None

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        seq_len: int,
        local_batch_size: int,
        tokenizer: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(config, dp_world_size, dp_rank)
        check_length(self._pipeline, "seq_len", seq_len)
        pipeline = in_microbatches(self._pipeline, "local_batch_size", local_batch_size)
        check_global_batch(pipeline, local_batch_size, dp_world_size, config.global_batch_size)
        self._run(pipeline, tokenizer)


class TokenDataLoader(_RecipeDataLoader):
    """The contract of the main branch: ``({"input": x, "positions": x}, labels)``, int64 (num_tokens_per_batch,).

    A batch is whole sequences of the recipe laid end to end, so ``num_tokens_per_batch`` must be a multiple of their length,
    and that at most ``max_context_length``. Otherwise as ``RowDataLoader``.

    Raises ``ConfigError`` at start-up, as ``RowDataLoader`` does; ``Config.num_tokens_per_step`` is the trainer's
    tokens per optimizer step over all ranks.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(_RecipeDataLoader.Config):
        """``num_tokens_per_step``: of the trainer, over all ranks, to have it checked."""

        num_tokens_per_step: int | None = None

    _flat = True

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        num_tokens_per_batch: int,
        max_context_length: int | None = None,
        tokenizer: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(config, dp_world_size, dp_rank)
        name, length = packed_length(self._pipeline)
        if max_context_length is not None and length > max_context_length:
            raise ConfigError(
                f"the trainer has max_context_length={max_context_length}, but node {name!r} of the recipe makes "
                f"sequences of {length} tokens; pack to at most that length"
            )
        rows = _multiple("num_tokens_per_batch", num_tokens_per_batch, name, length)
        pipeline = in_microbatches(self._pipeline, f"num_tokens_per_batch / {length}", rows)
        if config.num_tokens_per_step is not None:
            sequences = _multiple("num_tokens_per_step", config.num_tokens_per_step, name, length)
            check_global_batch(pipeline, rows, dp_world_size, sequences)
        self._run(pipeline, tokenizer)


def _multiple(setting: str, tokens: int, name: str, length: int) -> int:
    """Sequences in so many tokens."""
    if tokens < length or tokens % length:
        raise ConfigError(
            f"the trainer has {setting}={tokens}, which isn't a multiple of the {length} tokens of a sequence of node {name!r}"
        )
    return tokens // length
