"""The same global batch on other numbers of ranks: the plan against loaders that are run by it, and what is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import source

from zephon_nodes import ConfigError, Pipeline, global_batch_plan
from zephon_nodes.lanes import check_grad_accum, legal_worlds


@given(lanes=st.sampled_from([1, 4, 6]), share=st.integers(1, 6))
def test_every_setting_of_a_plan_gives_the_same_global_batches(lanes, share):
    plan = global_batch_plan(lanes, lanes * share)
    assert {one.world_size for one in plan.settings} == set(legal_worlds(lanes)) and not plan.refused
    steps = set()
    for one in plan.settings:
        world = []
        for rank in range(one.world_size):
            with Pipeline(
                source(7 * lanes, lanes, passes=None),
                rank=rank,
                world_size=one.world_size,
                runner="inline",
                grad_accum=one.grad_accum,
            ).batch(one.microbatch_size) as pipeline:
                taken = list(itertools.islice(pipeline, 2 * one.grad_accum))
                world.append([taken[: one.grad_accum], taken[one.grad_accum :]])
        steps.add(
            tuple(
                tuple(sorted(row["v"] for rank in world for batch in rank[step] for row in batch)) for step in range(2)
            )
        )
    assert len(steps) == 1


def test_what_can_not_be_the_same_is_refused_with_what_can():
    assert global_batch_plan(8, 8, world_sizes=[3, 16]).refused == {
        world: f"8 lanes can't be divided evenly over {world} ranks; legal world sizes are [1, 2, 4, 8]"
        for world in (3, 16)
    }
    with pytest.raises(ConfigError, match=r"global_batch_size=100 isn't a multiple of num_lanes=8.*use 96 or 104"):
        global_batch_plan(8, 100)
    with pytest.raises(ConfigError, match=r"num_lanes=8.*use 8,"):
        global_batch_plan(8, 5)
    with pytest.raises(ConfigError, match=r"microbatch_size=3 doesn't divide the 4 .*sizes that do are \[1, 2, 4\]"):
        global_batch_plan(8, 32, microbatch_size=3)


def test_microbatches_of_a_step_that_are_no_whole_rounds_are_refused_with_the_numbers():
    check_grad_accum(8, 2, 12)
    words = (
        r"grad_accum=6 .*the 4 lanes that each of 2 ranks owns \(num_lanes=8\); use 4 or 8, or one of \[4, 8\] ranks"
    )
    with pytest.raises(ConfigError, match=words):
        Pipeline(source(8, 8), rank=0, world_size=2, grad_accum=6).batch(1).loader
