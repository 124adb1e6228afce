"""Options: how a graph is run, refused at construction where that can't work."""

import dataclasses

import pytest
from runs import run, source

from zephon_nodes import ConfigError, Loader, Options, Pipeline, Read
from zephon_nodes.concurrency import InlineDriver, ThreadDriver, default_parallelism
from zephon_nodes.options import options_of
from zephon_nodes.testing import scheduled

WRONG = [
    ({"runner": "threads"}, "runner must be one of.*inline.*thread.*got 'threads'"),
    ({"runner": None}, "runner.*None"),
    ({"runner": 2}, "runner.*2"),
    ({"agree": 2}, "agree.*2"),
    ({"prefetch": 2.0}, "prefetch must be an integer of at least 1, got 2.0"),
    ({"prefetch": True}, "prefetch must be an integer of at least 1, got True"),
    ({"parallelism": "4"}, "parallelism must be an integer of at least 1, got '4'"),
    ({"rank": 0}, "give rank and world_size together, got rank=0, world_size=None"),
    ({"world_size": 2}, "give rank and world_size together, got rank=None, world_size=2"),
    ({"at_end": "stop"}, "at_end must be 'ragged', 'pad' or 'drop', got 'stop'"),
    ({"at_end": True}, "at_end must be 'ragged', 'pad' or 'drop', got True"),
    ({"on_error": None}, "on_error must be 'raise' or 'skip', got None"),
    ({"max_errors": -1}, "max_errors must be an integer of at least 0, got -1"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=str)
def test_an_option_that_cannot_work_is_refused_by_name_and_value_wherever_it_is_given(wrong, words):
    for make in (
        lambda: Options(**wrong),
        lambda: Loader(Read(source()), **wrong),
        lambda: Pipeline(source(), **wrong),
    ):
        with pytest.raises(ConfigError, match=words):
            make()


def test_a_rank_outside_of_its_world_is_refused_with_both():
    with pytest.raises(ConfigError, match=r"rank must be in \[0, world_size\), got rank=2, world_size=2"):
        Loader(Read(source(lanes=2)), rank=2, world_size=2)


@pytest.mark.parametrize(("typo", "meant"), [("prefech", "prefetch"), ("num_workers", None), ("world", "world_size")])
def test_an_unknown_option_is_refused_with_those_that_there_are(typo, meant):
    with pytest.raises(ConfigError) as found:
        options_of({typo: 1})
    text = str(found.value)
    assert typo in text and all(field.name in text for field in dataclasses.fields(Options))
    assert meant is None or f"did you mean {meant!r}?" in text


def test_all_defaults_are_one_rank_in_threads():
    world, options = Options().in_world()
    assert (world.rank, world.size, options.rank, options.world_size) == (0, 1, 0, 1)
    assert options.driver() is ThreadDriver and options.threads == default_parallelism() >= 1


def test_the_inline_runner_has_no_threads_whatever_the_parallelism():
    options = Options(runner="inline", parallelism=3)
    assert options.threads == 0 and options.driver() is InlineDriver
    assert Options(parallelism=3).threads == 3


def test_a_runner_may_be_any_that_makes_a_driver():
    runner = scheduled(1)
    assert Options(runner=runner).driver() is runner
    assert run(Pipeline(source(9), runner=runner))[0] == [{"v": i} for i in range(9)]


def test_options_of_a_pipeline_add_to_earlier_ones_and_leave_them_alone():
    first = Pipeline(source(6, 2), runner="inline", rank=0, world_size=2)
    second = first.options(rank=1)
    assert run(second)[0] == [{"v": 3}, {"v": 4}, {"v": 5}] and run(first)[0] == [{"v": 0}, {"v": 1}, {"v": 2}]
    with pytest.raises(ConfigError, match="unknown options"):
        first.options(rnak=1)


def test_options_cannot_be_changed_behind_a_loaders_back():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().rank = 1


def test_no_option_is_in_the_recipe_but_the_policy_for_bad_rows():
    want = Loader(Read(source(lanes=2))).recipe
    for changed in (
        {"runner": "inline"},
        {"parallelism": 3},
        {"prefetch": 9},
        {"rank": 1, "world_size": 2, "at_end": "ragged"},
        {"max_errors": 3},
        {"at_end": "drop"},
    ):
        assert Loader(Read(source(lanes=2)), **changed).recipe == want
    assert Loader(Read(source(lanes=2)), on_error="skip").recipe != want
