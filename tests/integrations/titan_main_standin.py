"""A STAND-IN for TorchTitan's main branch (read in August 2026, commit b5bcd76c6), which can't be installed here.

Made from its description alone: what ``torchtitan.components.data.loader`` offers, how the trainer builds and reads a
dataloader, and what its checkpointer does with one. Anything that the real one does beyond that isn't tested by it.
"""

from __future__ import annotations

import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful


class Configurable:
    """Nested ``Config`` classes must be keyword-only dataclasses with slots; ``build`` makes their owner."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        def build(self, **call: Any) -> Any:
            overlap = {field.name for field in fields(self)} & call.keys()
            if overlap:
                raise ValueError(f"build() kwargs {overlap} overlap with config fields")
            return OWNERS[type(self)](config=replace(self), **call)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        config = cls.__dict__.get("Config")
        if config is not None:
            base = next(b.__dict__["Config"] for b in cls.__mro__[1:] if "Config" in b.__dict__)
            if not issubclass(config, base) or "__slots__" not in config.__dict__:
                raise TypeError(f"{cls.__name__}.Config must be a dataclass(kw_only=True, slots=True) on its parent's")
            if not all(field.kw_only for field in fields(config)):
                raise TypeError(f"{cls.__name__}.Config must be keyword-only")
            OWNERS[config] = cls


OWNERS: dict[type, type] = {}


class BaseDataLoader(Stateful, ABC, Configurable):
    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        pass

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[dict[str, Any], torch.Tensor]]: ...

    def close(self) -> None:
        pass


class DataloaderExhaustedError(Exception):
    pass


class Trainer:
    """The parts of the trainer that touch its data."""

    def __init__(self, config: Any, dp_rank: int, dp_world_size: int, tokens_per_microbatch: int, length: int) -> None:
        self.dataloader = config.build(
            dp_world_size=dp_world_size,
            dp_rank=dp_rank,
            tokenizer=object(),
            max_context_length=length,
            num_tokens_per_batch=tokens_per_microbatch,
        )
        self.ntokens_seen = 0

    def batch_generator(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Calls iter once for the run."""
        iterator = iter(self.dataloader)
        while True:
            try:
                inputs, labels = next(iterator)
            except StopIteration as error:
                raise DataloaderExhaustedError from error
            self.ntokens_seen += labels.numel()
            yield inputs, labels

    def close(self) -> None:
        self.dataloader.close()


def modules() -> dict[str, types.ModuleType]:
    """What ``import torchtitan.components.data.loader`` would put into ``sys.modules``."""
    names = ["torchtitan", "torchtitan.components", "torchtitan.components.data"]
    packages = {name: types.ModuleType(name) for name in names}
    for package in packages.values():
        package.__path__ = []  # type: ignore[attr-defined]
    return {**packages, "torchtitan.components.data.loader": sys.modules[__name__]}
