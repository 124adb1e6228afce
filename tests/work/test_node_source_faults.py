"""Nodes that fail, and states of nodes that are hard to write down."""

import json

import numpy as np
import pytest
import torch
from runs import run
from torchdata.nodes import BaseNode, IterableWrapper

from zephon_nodes import Pipeline, StateError, from_node
from zephon_nodes.testing import scheduled
from zephon_nodes.work.node_source import from_text, to_text


class Broken(BaseNode):
    """Gives 0, 1, 2, ... and raises at item ``at``."""

    def __init__(self, at=5, state=None):
        super().__init__()
        self.at, self.state = at, state

    def reset(self, initial_state=None):
        super().reset(initial_state)
        self.given = 0 if initial_state is None else initial_state["given"]

    def next(self):
        if self.given == self.at:
            raise ZeroDivisionError("in my node")
        self.given += 1
        return self.given - 1

    def get_state(self):
        return {"given": self.given, "more": self.state}


@pytest.mark.parametrize("runner", ["inline", "thread", scheduled(3)], ids=["inline", "thread", "scheduled"])
def test_an_error_in_a_node_comes_after_all_its_items_in_every_runner(runner):
    for span in (2, 100):
        out, error = run(Pipeline(from_node(Broken(5), span=span), runner=runner))
        assert out == [0, 1, 2, 3, 4]
        assert "in my node" in f"{error} {error.__cause__}"


def test_an_error_in_a_node_says_which_lane_it_was():
    _, error = run(Pipeline(from_node(IterableWrapper(range(9)), Broken(5), span=4), runner="inline"))
    assert "lane 1" in str(error)


def test_a_node_without_a_state_is_refused_before_the_first_item():
    class Stateless(Broken):
        def get_state(self):
            raise NotImplementedError

    out, error = run(Pipeline(from_node(Stateless(5)), runner="inline"))
    assert out == []
    assert isinstance(error, NotImplementedError)


SAVEABLE = [
    *(
        None,
        True,
        3,
        2**70,
        0.1,
        float("inf"),
        "é\ud800",
        b"\x00\xff",
        (1, (2, [3])),
        {"!tuple": [1]},
        {1: {"a": (2,)}},
    ),
    *({(1, 2): 3}, {}, [], (), torch.arange(6).reshape(2, 3).T, torch.zeros(0), torch.tensor(True), np.zeros((0, 2))),
    *(np.arange(4, dtype=">i4"), np.array(["ab"]), torch.Generator().get_state()),
]


@pytest.mark.parametrize("value", SAVEABLE, ids=lambda value: type(value).__name__)
def test_states_of_plain_values_tensors_and_arrays_pass_through_json_unchanged(value):
    back = from_text(json.loads(json.dumps(to_text({"x": value}, 0))))["x"]
    assert type(back) is type(value)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        assert (back.dtype, back.shape) == (value.dtype, value.shape)
        assert back.tolist() == value.tolist()
    else:
        assert back == value


@pytest.mark.parametrize("value", [np.int64(3), np.bool_(True), np.float32(0.5)], ids=repr)
def test_numbers_of_numpy_stay_numbers(value):
    """A node that counts with numpy: ``range(state["n"])`` and dict keys need a number, not an array."""
    back = from_text(to_text({value: value}, 0))
    assert back == {value: value}
    assert not isinstance(back[value], np.ndarray)


UNSAVEABLE = {
    "set": {1},
    "object": object(),
    "array of objects": np.array([1, "a"], object),
    "record array": np.zeros(2, [("a", "i4")]),
    "bfloat16": torch.zeros(2).bfloat16(),
    "sparse": torch.eye(2).to_sparse(),
    "function": print,
}


@pytest.mark.parametrize("kind", UNSAVEABLE)
def test_a_state_is_saved_as_it_is_or_refused_when_it_is_saved(kind):
    """Not at the resume, when the state that could have been had is gone."""
    value = UNSAVEABLE[kind]
    try:
        text = to_text({"x": [value]}, 1)
    except StateError as error:
        assert "lane 1" in str(error)
        assert type(value).__name__ in str(error)
    else:
        (back,) = from_text(text)["x"]
        assert (str(back), str(back.dtype)) == (str(value), str(value.dtype))


def test_a_node_with_a_state_that_can_not_be_saved_gives_nothing():
    out, error = run(Pipeline(from_node(Broken(9, {1, 2})), runner="inline"))
    assert out == []
    assert isinstance(error, StateError)
    assert all(word in str(error) for word in ("lane 0", "set"))
