"""The released TorchTitan (0.3.0) itself: its Config, its batches, its checkpoints over numbers of ranks.

Skipped where torchtitan isn't installed, as in the project's own test environment: it needs Python 3.11 and 0.5 GB. To run:
pip install torch==2.13.0, then torchtitan==0.3.0 triton, and this project with its test extra.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from recipe_for_trainers import LANES, LENGTH, ROWS, expected, sha, write_recipe
from tokenizers_for_tests import save_folder, train_tokenizer

from zephon_nodes import ConfigError, Pipeline, StateError

pytest.importorskip("torchtitan.components.dataloader", reason="the released torchtitan isn't installed")
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import IGNORE_INDEX
from torchtitan.components.tokenizer import HuggingFaceTokenizer
from torchtitan.config import Configurable

from zephon_nodes.integrations.torchtitan import RowDataLoader, TokenDataLoader

pytestmark = pytest.mark.timeout(300)

TESTS = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("titan"))


def built(recipe, rank=0, world=1, settings=None, **call):
    """As the trainer does it."""
    config = RowDataLoader.Config(recipe=str(recipe), **(settings or {}))
    call = {"seq_len": LENGTH, "local_batch_size": ROWS, "tokenizer": None, "snapshot_every_n_steps": 5} | call
    return config.build(dp_world_size=world, dp_rank=rank, **call)


def first(loader, count):
    with_end = list(itertools.islice(iter(loader), count))
    loader.close()
    return with_end


def test_it_is_a_dataloader_with_a_config_as_torchtitan_defines_them(recipe):
    assert issubclass(RowDataLoader, BaseDataLoader) and issubclass(RowDataLoader.Config, BaseDataLoader.Config)
    assert issubclass(RowDataLoader.Config, Configurable.Config)
    config = RowDataLoader.Config(recipe="a.toml", global_batch_size=64)
    assert config.to_dict()["recipe"] == "a.toml"
    trainer = pytest.importorskip("torchtitan.trainer", reason="torchtitan.trainer needs triton")
    assert trainer.Trainer.Config.__dataclass_fields__["dataloader"].default_factory is BaseDataLoader.Config
    assert isinstance(config, trainer.Trainer.Config.__dataclass_fields__["dataloader"].default_factory)


def test_its_config_is_read_from_the_command_line():
    tyro = pytest.importorskip("tyro")
    config = tyro.cli(
        RowDataLoader.Config, args=["--recipe", "a.toml", "--global-batch-size", "64", "--parallelism", "2"]
    )
    assert (config.recipe, config.global_batch_size, config.parallelism, config.prefetch) == ("a.toml", 64, 2, None)


def test_the_batch_contract(recipe):
    for inputs, labels in first(built(recipe), 5):
        assert list(inputs) == ["input", "positions"]
        for tensor in (*inputs.values(), labels):
            assert tensor.shape == (ROWS, LENGTH) and tensor.dtype == torch.int64 and tensor.device.type == "cpu"
        starts = inputs["positions"] == 0
        assert starts[:, 0].all() and int(inputs["positions"].max()) < LENGTH
        last_of_document = torch.cat([starts[:, 1:], torch.zeros(ROWS, 1, dtype=torch.bool)], 1)
        assert (labels[last_of_document] == IGNORE_INDEX).all()
        inner = ~last_of_document[:, :-1] & (labels[:, :-1] != IGNORE_INDEX)
        assert torch.equal(labels[:, :-1][inner], inputs["input"][:, 1:][inner])


def test_the_same_file_gives_a_notebook_and_torchtitan_the_same_data_and_hash(recipe):
    loader = built(recipe)
    got = [sha(inputs["input"], inputs["positions"], labels) for inputs, labels in first(loader, 9)]
    assert got == expected(recipe, 9)
    assert loader.recipe_hash == Pipeline.from_toml(recipe).batch(7).recipe_hash


def test_model_parallel_peers_get_identical_bytes(recipe):
    """D2, X6: peers have one data-parallel rank, and one state."""
    peers = [built(recipe, rank=1, world=2) for _ in range(2)]
    seen = [[sha(x["input"], x["positions"], y) for x, y in itertools.islice(iter(peer), 7)] for peer in peers]
    assert seen[0] == seen[1]
    assert peers[0].state_dict() == peers[1].state_dict()
    for peer in peers:
        peer.close()


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_global_batch_is_the_same_for_every_degree(recipe, world):
    ranks = [
        [sha(x["input"], x["positions"], y) for x, y in first(built(recipe, r, world), 16 // world)]
        for r in range(world)
    ]
    owned = LANES // world
    rounds = [[ranks[r][i * owned : (i + 1) * owned] for r in range(world)] for i in range(4)]
    assert [one for round_ in rounds for rank in round_ for one in rank] == expected(recipe, 16)


@pytest.mark.parametrize(
    ("call", "settings", "said"),
    [
        ({"seq_len": 64}, {}, "seq_len=64, but node 'pack_flat' of the recipe makes sequences of 32 tokens"),
        ({"world": 3}, {}, r"num_lanes=4 .*3.*legal world sizes"),
        ({}, {"global_batch_size": 12}, r"microbatch_size=2 doesn't divide the 3 sequences"),
        ({}, {"global_batch_size": 6}, r"global_batch_size=6 isn't a multiple of num_lanes=4"),
        ({}, {"recipe": "nowhere.toml"}, "recipe file nowhere.toml can't be read"),
    ],
)
def test_start_up_checks_tell_the_numbers(recipe, call, settings, said):
    settings = dict(settings)
    with pytest.raises(ConfigError, match=said):
        built(settings.pop("recipe", recipe), settings=settings, **call)


def test_another_tokenizer_than_the_recipes_is_refused(recipe, tmp_path):
    own = HuggingFaceTokenizer.Config().build(tokenizer_path=str(recipe.parent))
    built(recipe, tokenizer=own).close()
    save_folder(tmp_path, train_tokenizer(vocab_size=300))
    other = HuggingFaceTokenizer.Config().build(tokenizer_path=str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"the trainer's tokenizer \(vocabulary of 300\) gives other ids than .*'tokenize'"
    ):
        built(recipe, tokenizer=other)


def test_a_python_function_is_a_recipe_too():
    assert len(first(built("recipe_for_trainers:python_recipe", settings={"global_batch_size": 16}), 3)) == 3


def test_finite_data_end_with_stop_iteration(tmp_path):
    loader = built(write_recipe(tmp_path, passes=1))
    got = first(loader, 10_000)
    assert len(expected(tmp_path / "recipe.toml", 10_000)) == len(got) < 10_000


def test_a_state_that_lacks_lanes_is_an_error_and_no_warning(recipe):
    """R17."""
    loader = built(recipe)
    state = loader.state_dict()
    state.pop("lane_2")
    with pytest.raises(StateError, match="2"):
        loader.load_state_dict(state)
    with pytest.raises(StateError):
        loader.load_state_dict({})


def test_the_other_contract_stands_beside_it():
    assert issubclass(TokenDataLoader, BaseDataLoader)


@pytest.fixture(scope="module")
def trained(recipe):
    """What ranks of ``titan_ranks.py`` have seen."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent, TESTS, TESTS / "integrations"]))}
    program = [sys.executable, TESTS / "integrations" / "titan_ranks.py", recipe.parent]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((recipe.parent / "titan.json").read_text())


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_its_checkpoints_move_a_run_from_4_ranks_to_2(recipe, trained, mode):
    """X1, R6, R17, R18: saved at step 3 while training goes on, loaded by a fresh loader on another number of ranks."""
    saved, loaded = trained[mode]["saved"], trained[mode]["loaded"]
    want = expected(recipe, 6 * 8)
    steps = [want[8 * i : 8 * i + 8] for i in range(6)]
    assert [step["hashes"] for step in saved] == steps[:5]
    assert [step["step"] for step in loaded] == [4, 5, 6]
    assert [step["hashes"] for step in loaded] == steps[3:]
    for before, after in zip(saved[3:], loaded, strict=False):
        assert after["loss"] == pytest.approx(before["loss"], rel=1e-5)
