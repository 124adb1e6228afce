"""What a checkpoint says, and how recipes differ."""

from __future__ import annotations

import itertools
import json
import xml.dom.minidom
from dataclasses import replace

import pytest
from graphs import graphs
from hypothesis import given
from hypothesis import strategies as st
from runs import source

from zephon_nodes import (
    ConfigError,
    Dataset,
    Loader,
    Pipeline,
    StateError,
    StaticMixtureWorkSource,
    TokenEstimation,
    diff,
    inspect_state,
    skip_spans,
)


def graph(rows=200, lanes=2, **settings):
    return Pipeline(source(rows, lanes, **settings), runner="inline").batch(3)


def stopped(pipeline, count):
    with pipeline:
        for _ in itertools.islice(pipeline, count):
            pass
        return pipeline.state_dict()


@given(graphs(), st.integers(0, 9))
def test_a_view_says_what_the_state_holds(made, count):
    state = json.loads(json.dumps(stopped(made.pipeline(runner="inline"), count)))
    view = inspect_state(state)
    assert {f"lane_{lane}": at.leaf(at.level) for lane, at in view.lanes.items()} == {
        key: leaf for key, leaf in state.items() if key.startswith("lane_")
    }
    assert view.recipe == json.loads(state["recipe"]) and view.epoch == state["epoch"]
    text = repr(view)
    assert len(text.splitlines()[-made.lanes :]) == made.lanes
    assert xml.dom.minidom.parseString(view._repr_html_()).getElementsByTagName("tr").length == made.lanes + 1


def test_rows_before_the_spans_are_close_to_what_was_read():
    state = stopped(graph(4000, chunk=8, flush=4), 300)
    view = inspect_state(state)
    delivered = 300 * 3
    assert view.rows is not None and delivered - 2 * 8 * 4 <= view.rows <= delivered
    assert f"{view.rows:,} rows" in repr(view) and view.tokens is None


def test_tokens_where_the_recipe_knows_them():
    data = [Dataset.from_rows(name, [{"input_ids": [1] * n} for _ in range(400)]) for name, n in (("a", 2), ("b", 6))]
    work = StaticMixtureWorkSource(data, {"a": 1, "b": 1}, 1, 8, 2, token_estimation=TokenEstimation())
    pipeline = Pipeline(work, runner="inline").batch(4)
    tokens = sum(len(row["input_ids"]) for batch in itertools.islice(pipeline, 40) for row in batch)
    view = inspect_state(pipeline.state_dict())
    assert abs(view.tokens - tokens) <= 0.15 * tokens


def test_a_state_in_mid_round_and_one_with_skips_say_so():
    assert "in mid-round" in repr(inspect_state(stopped(graph(), 3)))
    assert "loads on any legal world size" in repr(inspect_state(stopped(graph(), 4)))
    skipped = repr(inspect_state(skip_spans(stopped(graph(), 4), 2)))
    assert "0+6 to 2+0" in skipped


def test_states_of_user_sources_have_no_rows():
    from runs import Lanes

    view = inspect_state(stopped(Pipeline(Lanes([20, 20]), runner="inline"), 6))
    assert view.rows is None and view.tokens is None and "at least about" not in repr(view)


@pytest.mark.parametrize("wrong", [None, 3, [], {}, {"version": 99}, {"recipe": "x"}])
def test_what_is_no_state_is_refused(wrong):
    with pytest.raises(StateError):
        inspect_state(wrong)


@given(graphs(batched=st.just(2)), st.integers(100, 200))
def test_a_diff_names_what_was_changed(made, seed):
    first, second = made.pipeline(), replace(made, seed=seed).pipeline()
    assert [tuple(change) for change in diff(first, second)] == [("source.seed", str(made.seed), str(seed))]
    assert not diff(first, made.pipeline()) and repr(diff(first, first)) == "the recipes are equal"


def test_recipes_come_in_any_form():
    pipeline = graph(seed=1)
    forms = [pipeline, Loader(pipeline.node), pipeline.recipe, json.loads(pipeline.recipe), pipeline.state_dict()]
    other = graph(seed=2)
    for form in forms:
        (change,) = diff(form, other)
        assert change == ("source.seed", "1", "2")


def test_a_diff_prints_as_a_table():
    found = diff(graph(seed=1), graph(seed=2))
    assert repr(found).splitlines()[-1].split() == ["source.seed", "1", "2"]
    xml.dom.minidom.parseString(found._repr_html_())
    assert found[:1] == (found[0],) and len(found) == 1


@pytest.mark.parametrize("wrong", [None, 3, "no json", "[1]", object()])
def test_what_has_no_recipe_is_refused(wrong):
    with pytest.raises(ConfigError, match="a recipe, a state, a pipeline or a loader is needed"):
        diff(wrong, graph())
