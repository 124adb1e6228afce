"""Megatron-LM: a recipe as its external dataloader (``--dataloader-type external``).

A provider hands out the dataloader, and Megatron reads one microbatch at a time from it, on the first tensor-parallel rank:

    def provider(num_samples):
        args = get_args()
        train = MegatronDataLoader(
            "recipe.toml", micro_batch_size=args.micro_batch_size, seq_length=args.seq_length,
            global_batch_size=args.global_batch_size,
        )
        if args.iteration > 0:
            train.load(args.load, args.iteration, args.consumed_train_samples)
        return train, None, None

``train.save(args.save, iteration)`` after each checkpoint puts the data's state beside the model's, a small file for each
data-parallel rank. ``load`` takes it on any number of data-parallel ranks that divides the lanes, and refuses the state of
another iteration. Megatron's own ``--dataloader-save`` works too: ``save_state`` is what it calls.

Give endless recipes (passes = None): Megatron counts iterations, and doesn't expect data to end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zephon_nodes.errors import ConfigError, StateError
from zephon_nodes.integrations.recipes import check_global_batch, check_length, in_microbatches, pipeline_of
from zephon_nodes.state import merge_states

if TYPE_CHECKING:
    import torch

    from zephon_nodes.microbatch import Microbatch

_FILE = re.compile(r"zephon_data_(\d+)_of_(\d+)\.pt")


class MegatronDataLoader:
    """An endless iterator over the microbatches of this data-parallel rank, as Megatron's ``get_batch`` wants them.

    ``recipe``: the path of a TOML file, or "package.module:function" for a function that gives a ``Pipeline``.
    ``micro_batch_size`` (B), ``seq_length`` (S): Megatron's. ``global_batch_size``: Megatron's, to have it checked that an
    iteration takes whole rounds of the lanes, as the same batches on another number of ranks need; leave it out under
    a batch size that ramps up. ``rank``, ``world_size``: data-parallel; by default those of ``megatron.core.parallel_state``, so
    that tensor-, pipeline- and context-parallel peers get the same bytes. ``options``: see ``Options``.

    Each microbatch is a dict: ``tokens``, ``labels``, ``position_ids`` int64 and ``loss_mask`` float32. Labels are
    shifted inside documents; where nothing is to be learned they are 0 and ``loss_mask`` is 0. ``attention`` tells how documents
    are kept apart:

    - "packed" (default): rows end to end, (1, B * S), with ``cu_seqlens`` int32 (1, K) and ``max_seqlen`` int32 (1,). See
      ``packed_seq_params``.
    - "mask": (B, S), with ``attention_mask`` bool (B, 1, S, S), True where attention is forbidden. Costs B * S * S bytes.
    - "causal": (B, S) and no mask: documents of a row see each other. Positions still begin from 0 in each.

    Raises ``ConfigError`` at construction for sequences of another length, a batch size in the recipe that isn't
    Megatron's, and lanes or a global batch that don't divide.
    """

    def __init__(
        self,
        recipe: str | os.PathLike[str],
        *,
        micro_batch_size: int,
        seq_length: int,
        global_batch_size: int | None = None,
        attention: Literal["packed", "mask", "causal"] = "packed",
        rank: int | None = None,
        world_size: int | None = None,
        **options: Any,
    ) -> None:
        if attention not in ("packed", "mask", "causal"):
            raise ConfigError(f"attention must be 'packed', 'mask' or 'causal', got {attention!r}")
        if rank is None or world_size is None:
            rank, world_size = _data_parallel()
        pipeline = pipeline_of(recipe, rank=rank, world_size=world_size, **options)
        check_length(pipeline, "seq_length", seq_length)
        pipeline = in_microbatches(pipeline, "micro_batch_size", micro_batch_size)
        check_global_batch(pipeline, micro_batch_size, world_size, global_batch_size)
        self._loader = pipeline.loader
        self._attention = attention
        self._rank, self._world = rank, world_size
        self._round = micro_batch_size * world_size
        self._samples = 0
        self._iterator: Iterator[Any] | None = None

    @property
    def consumed_samples(self) -> int:
        """Sequences that all ranks together have taken since the run began, if all have taken as many as this one."""
        return self._samples

    @property
    def recipe_hash(self) -> str:
        """SHA-256 of what decides the data; log it beside Megatron's arguments."""
        return self._loader.recipe_hash

    def __iter__(self) -> MegatronDataLoader:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        if self._iterator is None:
            self._iterator = iter(self._loader)
        batch = next(self._iterator)
        self._samples += self._round
        return megatron_batch(batch, self._attention)

    def close(self) -> None:
        """Ends all threads."""
        self._loader.close()

    # state

    def save_state(self) -> dict[str, Any]:
        """The state of this rank, with ``consumed_samples``: what ``--dataloader-save`` stores."""
        return {"consumed_samples": self._samples, "state": self._loader.state_dict()}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what ``save_state`` gave, on the same number of ranks. Raises ``StateError``."""
        if not isinstance(state, Mapping) or "state" not in state or "consumed_samples" not in state:
            raise StateError(f"this is no state of a MegatronDataLoader: {state!r:.80}")
        self._loader.load_state_dict(state["state"])
        self._samples, self._iterator = state["consumed_samples"], None

    state_dict = save_state
    load_state_dict = restore_state

    def save(self, folder: str | os.PathLike[str], iteration: int) -> None:
        """Puts the state into ``folder``/iter_0000000/, where Megatron's checkpoint of the iteration lies.

        Call it on all ranks, between two iterations; one of the peers that share a data-parallel rank writes.
        """
        import torch

        if not _first_of_peers():
            return
        place = _place(folder, iteration)
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"zephon_data_{self._rank:05d}_of_{self._world:05d}.pt"
        fresh = path.with_suffix(f".{os.getpid()}.tmp")
        torch.save({"iteration": iteration, **self.save_state()}, fresh)
        fresh.replace(path)
        if self._rank == 0:  # another number of ranks may have come to this iteration before
            for other, (_, world) in _files(place).items():
                if world != self._world:
                    other.unlink(missing_ok=True)

    def load(self, folder: str | os.PathLike[str], iteration: int, consumed_samples: int | None = None) -> None:
        """Goes on from the state that belongs to the model's ``iteration``, saved on any number of ranks.

        ``consumed_samples``: what the model's checkpoint says of it (``args.consumed_train_samples``), to be compared.
        Raises ``StateError``, and changes nothing, if there is no state of this iteration, if ranks are missing in it, or if
        it belongs to another iteration.
        """
        import torch

        place = _place(folder, iteration)
        saved = [torch.load(path, weights_only=True) for path in _complete(place, Path(folder), iteration)]
        for said in saved:
            if said.get("iteration") != iteration:
                raise StateError(
                    f"the model is at iteration {iteration}, but the data in {place} are of iteration {said.get('iteration')}"
                )
        samples = {said["consumed_samples"] for said in saved}
        if len(samples) > 1 or (consumed_samples is not None and samples != {consumed_samples}):
            raise StateError(
                f"the model has consumed {consumed_samples} samples at iteration {iteration}, but the data in {place} "
                f"have given {sorted(samples)}; they don't belong together"
            )
        self.restore_state(
            {"consumed_samples": samples.pop(), "state": merge_states([said["state"] for said in saved])}
        )


def megatron_batch(batch: Microbatch, attention: str = "packed") -> dict[str, torch.Tensor]:
    """A microbatch as Megatron's ``get_batch`` wants it; see ``MegatronDataLoader``."""
    packed = attention == "packed"
    extra = ["loss_mask", *(["cu_seqlens"] if packed else ["document_ids"])]
    made = batch.to_training(extra, flat=packed)
    names = {"tokens": "input_ids", "labels": "labels", "loss_mask": "loss_mask", "position_ids": "position_ids"}
    out = {new: made[old].unsqueeze(0) if packed else made[old] for new, old in names.items()}
    out["labels"] = out["labels"].clamp(min=0)
    if packed:
        out["cu_seqlens"] = made["cu_seqlens"].unsqueeze(0)
        out["max_seqlen"] = made["cu_seqlens"].new_tensor([made["max_seqlen"]])
    elif attention == "mask":
        out["attention_mask"] = _mask(made["document_ids"])
    return out


def packed_seq_params(batch: Mapping[str, Any]) -> Any:
    """``megatron.core.packed_seq_params.PackedSeqParams`` (format "thd") of a microbatch with attention="packed"."""
    from megatron.core.packed_seq_params import PackedSeqParams

    edges, longest = batch["cu_seqlens"].squeeze(0), int(batch["max_seqlen"])
    return PackedSeqParams(
        qkv_format="thd", cu_seqlens_q=edges, cu_seqlens_kv=edges, max_seqlen_q=longest, max_seqlen_kv=longest
    )


def _mask(document_ids: torch.Tensor) -> torch.Tensor:
    """bool (B, 1, S, S): True where a query must not see a key, which is later or in another document."""
    import torch

    other = document_ids[:, :, None] != document_ids[:, None, :]
    later = torch.ones(document_ids.shape[1], document_ids.shape[1], dtype=torch.bool).triu(1)
    return (other | later).unsqueeze(1)


def _parallel_state() -> Any:
    try:
        from megatron.core import parallel_state
    except ImportError:
        return None
    return parallel_state if parallel_state.model_parallel_is_initialized() else None


def _data_parallel() -> tuple[int, int]:
    """(rank, world size) among the data-parallel ranks of Megatron."""
    found = _parallel_state()
    if found is None:
        raise ConfigError(
            "megatron.core.parallel_state isn't initialised (or megatron-core isn't installed: pip install megatron-core); "
            "call initialize_model_parallel first, or give rank and world_size"
        )
    return found.get_data_parallel_rank(), found.get_data_parallel_world_size()


def _first_of_peers() -> bool:
    """Whether this is the first of the ranks that share a data-parallel rank."""
    found = _parallel_state()
    if found is None:
        return True
    ranks = found.get_tensor_model_parallel_rank(), found.get_pipeline_model_parallel_rank()
    return (*ranks, found.get_context_parallel_rank()) == (0, 0, 0)


def _place(folder: str | os.PathLike[str], iteration: int) -> Path:
    return Path(folder) / f"iter_{iteration:07d}"


def _files(place: Path) -> dict[Path, tuple[int, int]]:
    """(rank, world size) of each file of states in a folder."""
    found = {path: _FILE.fullmatch(path.name) for path in sorted(place.glob("zephon_data_*"))}
    return {path: (int(match[1]), int(match[2])) for path, match in found.items() if match}


def _complete(place: Path, folder: Path, iteration: int) -> list[Path]:
    """The files of all ranks. Raises ``StateError`` if there are none, or if some are missing."""
    found = _files(place)
    if not found:
        others = sorted(
            int(other.name[5:]) for other in folder.glob("iter_*") if other.name[5:].isdecimal() and _files(other)
        )
        raise StateError(
            f"the model is at iteration {iteration}, but {place} has no state of the data; there are states of iterations {others}"
        )
    worlds = sorted({world for _, world in found.values()})
    missing = sorted(set(range(worlds[0])) - {rank for rank, _ in found.values()})
    if len(worlds) > 1 or missing:
        what = f"of runs on {worlds} ranks" if len(worlds) > 1 else f"but not of ranks {missing} of {worlds[0]}"
        raise StateError(f"{place} has states {what}; was the save interrupted? Resume from another iteration")
    return list(found)
