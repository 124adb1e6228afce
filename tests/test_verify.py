"""The elastic proof: it agrees where the data does, says where it doesn't, and never proves nothing."""

from __future__ import annotations

import hashlib
import itertools
import random

import pytest

from zephon_nodes import ConfigError, Dataset, Pipeline, StaticMixtureWorkSource
from zephon_nodes.testing import run_rounds
from zephon_nodes.verify import global_digest, load_function, verify


def make(rows=200, function=dict):
    source = StaticMixtureWorkSource([Dataset.from_rows("d", [{"v": i} for i in range(rows)])], None, 4, 8, 2)
    return Pipeline(source).map(function).batch(5)


def said(make, worlds, steps):
    lines = []
    return verify(make, worlds, steps, lines.append), lines


def test_a_good_pipeline_agrees_and_every_step_is_shown():
    agree, lines = said(make, [1, 2, 4], 6)
    assert agree
    assert len(lines) == 6 + 2
    assert "1 rank " in lines[0] and "4 ranks" in lines[0] and "2, then 4" in lines[0]
    assert "6 global batches are equal" in lines[-1]


def test_the_digests_are_those_of_the_global_batches():
    rounds = run_rounds(make, 1, 3)[0]
    want = [hashlib.sha256("".join(round_[lane] for lane in range(4)).encode()).hexdigest() for round_ in rounds]
    assert [global_digest(round_) for round_ in rounds] == want
    _, lines = said(make, [1, 4], 3)
    assert [line.split()[1] for line in lines[1:-1]] == [digest[:12] for digest in want]


@pytest.mark.parametrize("steps", [10, 11, 19, 20, 21, 500])
def test_data_that_ends_before_the_steps_do_is_no_disagreement(steps):
    agree, lines = said(make, [1, 2, 4], steps)
    assert agree, "\n".join(lines)
    assert "10 global batches are equal" in lines[-1]


def test_a_take_is_verified_to_its_end():
    agree, lines = said(lambda: make().take(3), [1, 2], 20)
    assert agree and "3 global batches" in lines[-1]


def test_a_step_that_differs_is_marked_and_no_other():
    runs = itertools.count()

    def make_other():
        last = next(runs) >= 1
        return make(function=lambda payload: {**payload, "n": last and payload["v"] == where})

    where = run_row(5)
    agree, lines = said(make_other, [1, 2], 8)
    assert not agree
    assert [line.split()[0] for line in lines if "DIFFER" in line] == ["5"]
    assert "differ" in lines[-1]


def run_row(step):
    """A row of the batch of lane 0 in a round."""
    return next(itertools.islice(make(), step * 4, None))[0]["v"]


def test_a_random_pipeline_disagrees_everywhere():
    agree, lines = said(lambda: make(function=lambda payload: {**payload, "n": random.random()}), [1, 2], 4)
    assert not agree
    assert sum("DIFFER" in line for line in lines) == 4


def test_a_pipeline_that_gives_nothing_is_no_proof():
    agree, lines = said(lambda: Pipeline(make().node.source).filter(lambda payload: False).batch(5), [1, 2], 4)
    assert not agree
    assert "no batch" in lines[-1]


@pytest.mark.parametrize("steps", [0, -3])
def test_steps_below_one_are_refused(steps):
    with pytest.raises(ConfigError, match="steps"):
        verify(make, [1], steps, print)


PROGRAM = """
from __future__ import annotations
import pickle
from dataclasses import dataclass
from zephon_nodes import Dataset, Pipeline

@dataclass
class Setting:
    lanes: int

def make_pipeline():
    return pickle.loads(pickle.dumps(Setting(4)))

def other():
    pass
number = 3
"""


def test_a_function_is_loaded_from_a_file_with_all_that_python_files_may_hold(tmp_path):
    file = tmp_path / "my graph.py"
    file.write_text(PROGRAM)
    assert load_function(f"{file}:make_pipeline")().lanes == 4


@pytest.mark.parametrize("name", ["", "nothing", "number"])
def test_a_wrong_name_is_answered_with_the_functions_that_there_are(tmp_path, name):
    file = tmp_path / "graph.py"
    file.write_text(PROGRAM)
    with pytest.raises(ConfigError) as caught:
        load_function(f"{file}:{name}")
    assert "'make_pipeline'" in str(caught.value) and "'other'" in str(caught.value)
    assert "Pipeline" not in str(caught.value).replace("'make_pipeline'", ""), "imported names are no help"


@pytest.mark.parametrize("path", ["", "graph.py", "nowhere.py:make", ":make", "folder:make"])
def test_what_names_no_file_and_function_is_refused_with_the_form_that_is_wanted(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graph.py").write_text(PROGRAM)
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=r"FILE\.py:function"):
        load_function(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "graph.yaml").write_text("a: 1")
    with pytest.raises(ConfigError, match="Python file"):
        load_function(f"{tmp_path / 'graph.yaml'}:make")
