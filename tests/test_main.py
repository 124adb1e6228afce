"""The command line: exit codes, and what is said where."""

from __future__ import annotations

import subprocess
import sys

import pytest

from zephon_nodes.__main__ import main

FILE = """
import random
from zephon_nodes import Dataset, Pipeline, StaticMixtureWorkSource

def rows():
    return Pipeline(StaticMixtureWorkSource([Dataset.from_rows("d", [{"v": i} for i in range(80)])], None, 4, 8, 2))

def good():
    return rows().batch(2)

def random_map():
    return rows().map(lambda payload: random.random()).batch(2)

def bad_row():
    return rows().map(lambda payload: 1 // (payload["v"] - 7)).batch(2)

def nothing():
    return None
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "graph.py"
    path.write_text(FILE)
    return path


def test_verify_of_a_good_pipeline_exits_with_0(file, capsys):
    assert main(["verify", f"{file}:good", "--worlds", "1,2,4", "--steps", "5"]) == 0
    out, err = capsys.readouterr()
    assert "5 global batches are equal" in out and not err


def test_verify_of_a_broken_pipeline_exits_with_1_and_says_where(file, capsys):
    assert main(["verify", f"{file}:random_map", "--worlds", "1,2", "--steps", "3"]) == 1
    assert capsys.readouterr().out.count("DIFFER") == 3


def test_a_bad_row_is_an_error_that_names_the_row(file, capsys):
    assert main(["verify", f"{file}:bad_row", "--worlds", "1", "--steps", "20"]) == 2
    assert "row 7 of" in capsys.readouterr().err


WRONG = {
    "no command": [],
    "an unknown command": ["verfy"],
    "no function": ["verify"],
    "worlds that aren't numbers": ["verify", "FILE:good", "--worlds", "one"],
    "a world of no ranks": ["verify", "FILE:good", "--worlds", "0,1"],
    "steps that aren't a number": ["verify", "FILE:good", "--steps", "many"],
    "seconds that aren't a number": ["demo", "--seconds", "long"],
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_exit_with_2_and_show_the_usage(file, name, capsys):
    with pytest.raises(SystemExit) as caught:
        main([part.replace("FILE", str(file)) for part in WRONG[name]])
    assert caught.value.code == 2
    assert "usage: python -m zephon_nodes" in capsys.readouterr().err


IMPOSSIBLE = {
    "FILE:bad": "'good'",
    "FILE": "FILE.py:function",
    "nowhere.py:good": "nowhere.py",
    "FILE:nothing": "NoneType",
    "FILE:good --worlds 3": "legal world sizes are [1, 2, 4]",
    "FILE:good --steps 0": "steps",
    "FILE:good --steps -1": "steps",
}


@pytest.mark.parametrize("arguments", IMPOSSIBLE)
def test_what_cannot_be_verified_exits_with_2_and_a_sentence(file, arguments, capsys):
    assert main(["verify", *arguments.replace("FILE", str(file)).split()]) == 2
    out, err = capsys.readouterr()
    assert IMPOSSIBLE[arguments] in err
    assert "Traceback" not in err and not out


def test_wrong_worlds_are_told_in_words(file, capsys):
    with pytest.raises(SystemExit):
        main(["verify", f"{file}:good", "--worlds", "1,,two"])
    assert "world sizes are whole numbers with commas between them, got '1,,two'" in capsys.readouterr().err


def test_help_names_both_commands(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "demo" in out and "verify" in out


def test_it_runs_as_a_module(file):
    command = [sys.executable, "-m", "zephon_nodes", "verify", f"{file}:good", "--worlds", "1,4", "--steps", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 global batches are equal" in done.stdout
