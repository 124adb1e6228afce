"""The adapter for Megatron-LM without Megatron: what a microbatch is, start-up checks, and states beside checkpoints."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from recipe_for_trainers import LANES, LENGTH, ROWS, write_recipe

from zephon_nodes import ConfigError, StateError
from zephon_nodes.integrations.megatron import MegatronDataLoader
from zephon_nodes.state import merge_states


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("megatron"))


@pytest.fixture
def made(recipe):
    """Loaders that are closed after the test."""
    out = []

    def make(rank=0, world_size=1, **settings):
        settings = {"micro_batch_size": ROWS, "seq_length": LENGTH, "runner": "inline"} | settings
        out.append(MegatronDataLoader(settings.pop("recipe", recipe), rank=rank, world_size=world_size, **settings))
        return out[-1]

    yield make
    for loader in out:
        loader.close()


def taken(loader, count):
    return [batch["tokens"].tolist() for batch in itertools.islice(loader, count)]


def test_a_packed_microbatch(made):
    for batch in itertools.islice(made(), 5):
        for name in ("tokens", "labels", "position_ids"):
            assert batch[name].shape == (1, ROWS * LENGTH) and batch[name].dtype == torch.int64
        assert batch["loss_mask"].shape == (1, ROWS * LENGTH) and batch["loss_mask"].dtype == torch.float32
        edges = batch["cu_seqlens"]
        assert edges.dtype == batch["max_seqlen"].dtype == torch.int32 and edges.shape[0] == 1
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        assert edges[0].tolist() == [*starts, ROWS * LENGTH]
        assert batch["max_seqlen"].tolist() == [int(edges.diff().max())]
        assert int(batch["labels"].min()) >= 0, "Megatron's loss looks every label up, learned or not"


def test_labels_and_loss_mask_say_the_same_as_torch_labels(made, recipe):
    from zephon_nodes import Pipeline

    plain = Pipeline.from_toml(recipe, runner="inline").batch(ROWS)
    for batch, want in itertools.islice(zip(made(attention="causal"), plain, strict=False), 6):
        labels = want.to_training()["labels"]
        assert torch.equal(torch.where(batch["loss_mask"] > 0, batch["labels"], -100), labels)
        assert "attention_mask" not in batch and "cu_seqlens" not in batch
    plain.close()


def test_an_attention_mask_keeps_documents_and_the_future_apart(made):
    batch = next(made(attention="mask"))
    mask, positions = batch["attention_mask"], batch["position_ids"]
    assert mask.shape == (ROWS, 1, LENGTH, LENGTH) and mask.dtype == torch.bool
    document = (positions == 0).cumsum(1)
    for row in range(ROWS):
        for query, key in itertools.product(range(LENGTH), repeat=2):
            seen = key <= query and document[row, query] == document[row, key]
            assert bool(mask[row, 0, query, key]) is not bool(seen)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seq_length": 64}, "seq_length=64, but node 'pack_flat' of the recipe makes sequences of 32 tokens"),
        ({"world_size": 3}, r"num_lanes=4 .*legal world sizes"),
        ({"global_batch_size": 10}, "global_batch_size=10 isn't a multiple of num_lanes=4"),
        ({"attention": "flash"}, "attention must be 'packed', 'mask' or 'causal', got 'flash'"),
        ({"recipe": "recipe_for_trainers:no_recipe"}, "must give a Pipeline or a node, it gave a int"),
        ({"recipe": ""}, "recipe must be the path of a TOML file"),
    ],
)
def test_start_up_checks_tell_the_numbers(made, settings, said):
    with pytest.raises(ConfigError, match=said):
        made(**settings)


def test_a_batch_in_the_recipe_must_be_megatrons(made, recipe):
    text = recipe.read_text()
    batched = recipe.with_name("batched.toml")
    batched.write_text(text + '\n[[nodes]]\nop = "batch"\nmicrobatch_size = 3\n')
    with pytest.raises(
        ConfigError, match="micro_batch_size=2, but the recipe makes microbatches of 3; leave batch out"
    ):
        made(recipe=batched)
    assert len(taken(made(recipe=batched, micro_batch_size=3), 2)) == 2
    batched.write_text(text + '\n[[nodes]]\nop = "batch"\nmax_tokens = 64\n')
    with pytest.raises(ConfigError, match="makes batches of varying size"):
        made(recipe=batched)


def test_a_recipe_without_packs_is_refused(made, recipe):
    text = recipe.read_text()
    (recipe.parent / "plain.toml").write_text(text[: text.index('[[nodes]]\nop = "pack_flat"')])
    with pytest.raises(ConfigError, match="read -> filter -> shuffle -> tokenize; add pack_flat"):
        made(recipe=recipe.parent / "plain.toml")


def test_the_same_file_gives_a_notebook_and_megatron_the_same_hash(made, recipe):
    from zephon_nodes import Pipeline

    assert (
        made().recipe_hash == made(rank=1, world_size=2).recipe_hash == Pipeline.from_toml(recipe).batch(7).recipe_hash
    )


@pytest.mark.parametrize("recipe_", ["recipe_for_trainers:python_recipe", "recipe_for_trainers:python_node"])
def test_a_python_function_is_a_recipe_too(made, recipe_):
    loader = made(recipe=recipe_)
    assert len(taken(loader, 3)) == 3 and len(loader.recipe_hash) == 64


def test_states_beside_checkpoints_move_between_numbers_of_ranks(made, tmp_path):
    """X1. Four ranks save iterations 1 and 2; two ranks go on from 1."""
    want = taken(made(), 5 * LANES)
    ranks = [made(rank, 4) for rank in range(4)]
    for iteration in (1, 2):
        for rank in ranks:
            taken(rank, 1)
            rank.save(tmp_path, iteration)
    for rank in range(2):
        loader = made(rank, 2)
        loader.load(tmp_path, 1, consumed_samples=ROWS * LANES)
        assert loader.consumed_samples == ROWS * LANES
        got = taken(loader, 4)
        assert got == [want[LANES * (1 + i) + 2 * rank + j] for i in range(2) for j in range(2)]
        assert loader.consumed_samples == 3 * ROWS * LANES


def test_a_model_is_not_paired_with_another_iterations_data(made, tmp_path):
    loader = made()
    for iteration in (1, 2):
        taken(loader, LANES)
        loader.save(tmp_path, iteration)
    before = json.dumps(loader.save_state())
    with pytest.raises(StateError, match=r"at iteration 3, but .*iter_0000003 has no state .*iterations \[1, 2\]"):
        loader.load(tmp_path, 3)
    with pytest.raises(StateError, match=r"consumed 8 samples at iteration 2, but .* have given \[16\]"):
        loader.load(tmp_path, 2, consumed_samples=8)
    (tmp_path / "iter_0000001").rename(tmp_path / "iter_0000007")
    with pytest.raises(StateError, match=r"the model is at iteration 7, but the data in .* are of iteration 1"):
        loader.load(tmp_path, 7)
    assert json.dumps(loader.save_state()) == before


def test_a_state_in_which_ranks_are_missing_is_refused(made, tmp_path):
    """R17."""
    ranks = [made(rank, 4) for rank in range(4)]
    for rank in ranks:
        taken(rank, 1)
        rank.save(tmp_path, 1)
    (tmp_path / "iter_0000001" / "zephon_data_00002_of_00004.pt").unlink()
    with pytest.raises(StateError, match=r"but not of ranks \[2\] of 4; was the save interrupted"):
        made().load(tmp_path, 1)
    ranks[1].save(tmp_path, 1)
    two = made(1, 2)
    taken(two, 2)
    two.save(tmp_path, 1)
    with pytest.raises(StateError, match=r"of runs on \[2, 4\] ranks"):
        made().load(tmp_path, 1)


def test_saving_again_on_another_number_of_ranks_replaces_the_states(made, tmp_path):
    for world in (4, 2):
        for rank in reversed(range(world)):
            loader = made(rank, world)
            taken(loader, LANES // world)
            loader.save(tmp_path, 1)
    assert len(list((tmp_path / "iter_0000001").iterdir())) == 2
    made().load(tmp_path, 1)


def test_a_state_of_anything_else_is_refused(made):
    with pytest.raises(StateError, match="no state of a MegatronDataLoader"):
        made().restore_state({"lane_0": []})


def test_the_state_goes_through_torch_save_as_plain_values(made, tmp_path):
    loader = made()
    taken(loader, 3)
    torch.save(loader.state_dict(), tmp_path / "s.pt")
    again = made()
    again.load_state_dict(torch.load(tmp_path / "s.pt", weights_only=True))
    assert taken(again, 4) == taken(loader, 4)
    assert merge_states([again.save_state()["state"]]) == again.save_state()["state"]
