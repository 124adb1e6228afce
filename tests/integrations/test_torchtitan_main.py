"""The contract of TorchTitan's main branch, against ``titan_main_standin``: flat batches of tokens."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path

import pytest
import titan_main_standin as standin
import torch
import torch.distributed.checkpoint as dcp
from recipe_for_trainers import LANES, LENGTH, ROWS, expected, sha, write_recipe

import zephon_nodes
from zephon_nodes import ConfigError, StateError

ADAPTER = Path(zephon_nodes.__file__).parent / "integrations" / "torchtitan.py"
TOKENS = ROWS * LENGTH


def adapter_against(modules, name):
    """A fresh import of the adapter, which finds these modules as torchtitan."""
    with pytest.MonkeyPatch.context() as patch:
        for real in [module for module in sys.modules if module.split(".")[0] == "torchtitan"]:
            patch.delitem(sys.modules, real)
        for module, found in modules.items():
            patch.setitem(sys.modules, module, found)
        spec = importlib.util.spec_from_file_location(name, ADAPTER)
        made = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, name, made)
        spec.loader.exec_module(made)
        return made


@pytest.fixture(scope="module")
def adapter():
    return adapter_against(standin.modules(), "adapter_for_main")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("main"))


def trainer(adapter, recipe, rank=0, world=1, tokens=TOKENS, length=LENGTH, **settings):
    return standin.Trainer(adapter.TokenDataLoader.Config(recipe=str(recipe), **settings), rank, world, tokens, length)


def taken(made, count):
    got = [sha(x["input"], x["positions"], y) for x, y in itertools.islice(made.batch_generator(), count)]
    return got, made.dataloader.state_dict()


def test_the_batch_contract(adapter, recipe):
    made = trainer(adapter, recipe)
    for inputs, labels in itertools.islice(made.batch_generator(), 4):
        assert list(inputs) == ["input", "positions"]
        for tensor in (*inputs.values(), labels):
            assert tensor.shape == (TOKENS,) and tensor.dtype == torch.int64
        assert (inputs["positions"][::LENGTH] == 0).all()
    assert made.ntokens_seen == 4 * TOKENS
    made.close()


def test_flat_batches_are_the_rows_of_the_recipe_end_to_end(adapter, recipe):
    made = trainer(adapter, recipe)
    got, _ = taken(made, 8)
    made.close()
    assert got == expected(recipe, 8, flat=True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4), (1, 4)])
def test_a_checkpoint_moves_to_another_degree(adapter, recipe, tmp_path, before, after):
    """X1, with plain DCP, one process standing for all ranks: keys of all lanes are there, each rank asks for its own."""
    want = expected(recipe, 16, flat=True)
    owned = LANES // before
    saved = {}
    for rank in range(before):
        made = trainer(adapter, recipe, rank, before)
        got, state = taken(made, 2 * owned)
        made.close()
        assert got == [want[4 * i + rank * owned + j] for i in range(2) for j in range(owned)]
        saved |= state
    dcp.save({"dataloader": saved}, checkpoint_id=tmp_path / "step", no_dist=True)
    owned = LANES // after
    for rank in range(after):
        made = trainer(adapter, recipe, rank, after)
        dcp.load({"dataloader": made.dataloader}, checkpoint_id=tmp_path / "step", no_dist=True)
        got, _ = taken(made, 2 * owned)
        made.close()
        assert got == [want[4 * i + rank * owned + j] for i in range(2, 4) for j in range(owned)]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            {"tokens": 48},
            "num_tokens_per_batch=48, which isn't a multiple of the 32 tokens of a sequence of node 'pack_flat'",
        ),
        ({"tokens": 16}, "num_tokens_per_batch=16, which isn't a multiple"),
        ({"length": 16}, "max_context_length=16, but node 'pack_flat' of the recipe makes sequences of 32 tokens"),
        ({"world": 3}, r"num_lanes=4 .*legal world sizes"),
        ({"num_tokens_per_step": 3 * LENGTH * LANES}, "microbatch_size=2 doesn't divide the 3 sequences"),
        ({"num_tokens_per_step": 33}, "num_tokens_per_step=33, which isn't a multiple"),
    ],
)
def test_start_up_checks_tell_the_numbers(adapter, recipe, call, said):
    with pytest.raises(ConfigError, match=said):
        trainer(adapter, recipe, **call)


def test_run_options_of_the_recipe_hold_unless_the_config_says_otherwise(adapter, recipe):
    own = recipe.with_name("options.toml")
    own.write_text(recipe.read_text() + "\n[options]\nprefetch = 7\nparallelism = 1\n")
    for settings, want in (({}, (7, 1)), ({"prefetch": 3}, (3, 1))):
        made = trainer(adapter, own, **settings)
        options = made.dataloader._pipeline._options
        assert (options["prefetch"], options["parallelism"]) == want
        made.close()


def test_settings_that_fit_are_taken(adapter, recipe):
    trainer(adapter, recipe, num_tokens_per_step=2 * TOKENS * LANES, length=4 * LENGTH).close()


def test_finite_data_end_as_the_trainer_expects(adapter, tmp_path):
    made = trainer(adapter, write_recipe(tmp_path, passes=1))
    with pytest.raises(standin.DataloaderExhaustedError):
        for _ in made.batch_generator():
            pass
    made.close()


def test_missing_lanes_are_an_error(adapter, recipe):
    made = trainer(adapter, recipe, rank=1, world=2)
    _, state = taken(trainer(adapter, recipe, rank=0, world=2), 2)
    with pytest.raises(StateError):
        made.dataloader.load_state_dict(state)
    made.close()


def test_without_torchtitan_the_error_names_the_install():
    with pytest.raises(ConfigError, match="pip install torchtitan"):
        adapter_against(dict.fromkeys(["torchtitan", "torchtitan.components"]), "adapter_for_none")
