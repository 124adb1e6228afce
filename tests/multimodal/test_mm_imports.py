"""Imports of ``multimodal`` go one way: pure functions know no nodes, and nothing makes threads or draws by chance."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import multimodal

ROOT = Path(multimodal.__file__).parent
FILES = {path.stem: path for path in sorted(ROOT.glob("*.py"))}
PURE = (
    "image",
    "decoders",
    "containers",
    "rgb",
    "tiff_tags",
    "transform",
    "pixels",
    "rope",
    "vision",
    "placeholders",
    "scenes",
)
ABOVE = {"nodes", "graphs", "demo", "contact_sheet", "__main__"}
HEAVY = {"torch", "transformers", "torchvision", "simplejpeg"}


def imports(name, inside=True):
    """The modules that one imports; ``inside``: in its functions too."""
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree) if inside else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("name", PURE)
def test_pure_functions_know_no_nodes(name):
    ours = {module.removeprefix("multimodal.") for module in imports(name) if module.startswith("multimodal.")}
    assert not ours & (ABOVE | {"packing", "files"})
    core = {module.split(".")[1] for module in imports(name) if module.startswith("zephon_nodes.")}
    assert core <= {"errors", "hashing", "training", "work"}


@pytest.mark.parametrize("name", FILES)
def test_threads_and_chance_live_in_the_core_and_heavy_packages_are_imported_where_they_are_used(name):
    tops = {module.split(".")[0] for module in imports(name)}
    assert not tops & {"threading", "queue", "concurrent", "multiprocessing", "asyncio", "random"}
    assert not {module.split(".")[0] for module in imports(name, inside=False)} & HEAVY


@pytest.mark.parametrize("name", FILES)
def test_every_module_says_what_it_is_for(name):
    assert ast.get_docstring(ast.parse(FILES[name].read_text(encoding="utf-8")))


def test_the_demo_is_not_imported_with_the_package():
    code = "import sys, multimodal; print([m for m in ('multimodal.demo', 'multimodal.scenes', 'transformers') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
