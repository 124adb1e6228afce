"""What the adapters for trainers have in common: a recipe, checked against the trainer's sizes, as microbatches."""

from __future__ import annotations

import os
from typing import Any

from tokenizers import Tokenizer

from zephon_nodes.errors import ConfigError
from zephon_nodes.global_batch import global_batch_plan
from zephon_nodes.import_path import imported
from zephon_nodes.node import Node
from zephon_nodes.ops.batch import Batch
from zephon_nodes.pipeline import Pipeline
from zephon_nodes.plan import chain
from zephon_nodes.tokenizer import Encoder, load_tokenizer


def pipeline_of(recipe: str | os.PathLike[str], **options: Any) -> Pipeline:
    """The pipeline of a recipe: the path of a TOML file, or "package.module:function", a function without arguments that
    gives a ``Pipeline`` or a node. ``options`` win over those of the recipe. Raises ``ConfigError``."""
    text = os.fspath(recipe) if isinstance(recipe, (str, os.PathLike)) else ""
    if not text:
        raise ConfigError(f"recipe must be the path of a TOML file or 'package.module:function', got {recipe!r}")
    if text.endswith(".toml") or ":" not in text:
        return Pipeline.from_toml(recipe, **options)
    made = imported(text, "recipe")()
    if isinstance(made, Node):
        return Pipeline(made, **options)
    if not isinstance(made, Pipeline):
        raise ConfigError(f"recipe {text!r} must give a Pipeline or a node, it gave a {type(made).__name__}")
    return made.options(**options)


def packed_length(pipeline: Pipeline) -> tuple[str, int]:
    """(node, tokens) of the node that makes sequences of one length. Raises ``ConfigError`` if there is none."""
    nodes = [node for node in chain(pipeline.node) if node.gives == "packed" and hasattr(node, "max_length")]
    if not nodes:
        kinds = [node.kind for node in chain(pipeline.node)]
        raise ConfigError(
            f"the trainer takes sequences of one length, and the recipe makes none: {' -> '.join(kinds)}; "
            "add pack_flat(max_length) or pack_sequences(target_length)"
        )
    return nodes[-1].given_name or nodes[-1].kind, nodes[-1].max_length


def check_length(pipeline: Pipeline, setting: str, wanted: int) -> None:
    """Raises ``ConfigError`` unless sequences are ``wanted`` long, which the trainer calls ``setting``."""
    name, length = packed_length(pipeline)
    if length != wanted:
        raise ConfigError(
            f"the trainer has {setting}={wanted}, but node {name!r} of the recipe makes sequences of {length} tokens; "
            "make the two equal"
        )


def in_microbatches(pipeline: Pipeline, setting: str, rows: int) -> Pipeline:
    """The pipeline in microbatches of ``rows``, which the trainer calls ``setting``; as it is if it batches itself.

    Raises ``ConfigError`` if it does so in another size.
    """
    nodes = [node for node in chain(pipeline.node) if isinstance(node, Batch)]
    if not nodes:
        return pipeline.batch(rows)
    if nodes[-1].fixed_size != rows:
        size = f"microbatches of {nodes[-1].microbatch_size}" if nodes[-1].fixed_size else "batches of varying size"
        raise ConfigError(
            f"the trainer has {setting}={rows}, but the recipe makes {size}; leave batch out of the recipe, and the "
            "trainer's size is taken (it isn't part of what decides the data)"
        )
    return pipeline


def check_tokenizer(pipeline: Pipeline, tokenizer: Any) -> None:
    """Raises ``ConfigError`` if the trainer's ``tokenizers.Tokenizer`` gives other ids than the recipe's for a text.

    What isn't such a tokenizer, and a recipe of data that are tokens already, can't be compared and pass.
    """
    for node in chain(pipeline.node):
        encoder = getattr(node, "encoder", None)
        if isinstance(encoder, Encoder) and isinstance(tokenizer, Tokenizer):
            theirs = load_tokenizer(tokenizer, bos=None, eos=None, fast=False).recipe()
            if theirs["probe"] != encoder.recipe()["probe"]:
                raise ConfigError(
                    f"the trainer's tokenizer (vocabulary of {theirs['vocab_size']}) gives other ids than that of node "
                    f"{node.given_name or node.kind!r} of the recipe (vocabulary of {encoder.vocab_size}); use one for both"
                )


def check_global_batch(pipeline: Pipeline, rows: int, world_size: int, global_batch_size: int | None) -> int | None:
    """Microbatches that a rank takes an optimizer step of ``global_batch_size`` sequences; None if that isn't known.

    Raises ``ConfigError`` unless a step takes whole rounds of the lanes, without which another number of ranks would get
    other global batches.
    """
    if global_batch_size is None:
        return None
    lanes = pipeline.node.work_source.num_lanes
    plan = global_batch_plan(lanes, global_batch_size, microbatch_size=rows, world_sizes=[world_size])
    if plan.refused:
        raise ConfigError(plan.refused[world_size])
    return plan.settings[0].grad_accum
