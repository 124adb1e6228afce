"""Every notebook runs from start to end, keeps to the rules of a page, and is kept as it came out of one straight run."""

from __future__ import annotations

import ast
import itertools
import re
import shutil
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("matplotlib")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_CELLS, COLUMNS, MOST_BYTES, PROSE = 14, 79, 400_000, 700
BATCH = ("Microbatch", "input_ids")

SLOW = ("09", "10")
"""Measure for seconds, and train: run with --deep."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_to_run = pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.deep] * path.stem.startswith(SLOW)) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)


def read(path):
    return nbformat.read(str(path), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cell):
    """The text of a cell's outputs, in whatever form."""
    said = [output.get("text", "") + "".join(output.get("data", {}).values()) for output in cell.outputs]
    return "".join(said)


def on_stderr(notebook):
    each = [output for cell in code_cells(notebook) for output in cell.outputs]
    return [output.text for output in each if output.output_type == "stream" and output.name == "stderr"]


@each_to_run
@pytest.mark.timeout(400)
def test_a_notebook_runs(path, tmp_path):
    copy = shutil.copy(path, tmp_path)
    notebook = read(copy)
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    assert all(cell.execution_count for cell in code_cells(notebook))
    assert any(said in outputs(code_cells(notebook)[0]) for said in BATCH)
    assert on_stderr(notebook) == []


@every_notebook
def test_a_notebook_keeps_to_the_rules(path):
    notebook = read(path)
    cells = code_cells(notebook)
    assert len(cells) <= MOST_CELLS
    wide = [line for cell in cells for line in cell.source.splitlines() if len(line) > COLUMNS]
    assert wide == []
    last = ast.walk(ast.parse(cells[-1].source))
    assert any(isinstance(node, ast.Assert) for node in last), "a notebook ends in asserts"
    long = [cell.source for cell in notebook.cells if cell.cell_type == "markdown" and len(cell.source) > PROSE]
    assert long == []


@every_notebook
def test_a_notebook_is_kept_with_its_outputs(path):
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from start to end"
    assert any(said in outputs(cells[0]) for said in BATCH), "the first cell prints a batch"
    assert [output for cell in cells for output in cell.outputs if output.output_type == "error"] == []
    assert on_stderr(read(path)) == []
    assert path.stat().st_size < MOST_BYTES


@every_notebook
def test_links_of_a_notebook_lead_somewhere(path):
    prose = "".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in link]
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_notebooks_are_numbered():
    numbers = [int(path.name[:2]) for path in NOTEBOOKS]
    assert numbers and all(b == a + 1 for a, b in itertools.pairwise([0, *numbers]))
