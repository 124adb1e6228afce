"""Nothing stands on private names of torch, torchdata or a trainer (field report G5)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import multimodal
import zephon_nodes

ROOTS = [Path(package.__file__).parent for package in (zephon_nodes, multimodal)]
FILES = sorted(path for root in ROOTS for path in root.rglob("*.py"))
OTHERS = {"torch", "torchdata", "torchtitan", "megatron", "accelerate", "lightning", "transformers"}


def imported(path):
    """Dotted names that a file imports of other packages."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_file_imports_no_private_name_of_another_package(path):
    names = [name for name in imported(path) if name.split(".")[0] in OTHERS]
    assert not [name for name in names if any(part.startswith("_") for part in name.split("."))]
