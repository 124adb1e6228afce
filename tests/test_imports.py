"""Imports go one way. Read from the source, so that a wrong one fails here and not in somebody's notebook."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import zephon_nodes
import zephon_nodes.testing

ROOT = Path(zephon_nodes.__file__).parent
FILES = {
    ".".join(("zephon_nodes", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}
THREADS = {"threading", "queue", "concurrent", "multiprocessing", "_thread"}
"""Packages for concurrency."""


def imports(module, at_run_time=False):
    """The modules that one imports, anywhere in it; ``at_run_time``: while it is imported itself."""
    found: set[str] = set()
    todo = [ast.parse(FILES[module].read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & FILES.keys()
            found |= inner or {node.module or ""}
        elif at_run_time and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif at_run_time and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            todo += node.orelse
            continue
        todo += ast.iter_child_nodes(node)
    return found


def inside(package):
    return [name for name in FILES if name.startswith(f"zephon_nodes.{package}.") or name == f"zephon_nodes.{package}"]


def ours(names):
    return {name.removeprefix("zephon_nodes.") for name in names if name.split(".")[0] == "zephon_nodes"}


def tops(names):
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("module", inside("formats"))
def test_formats_know_no_nodes(module):
    allowed = {"errors", "hashing", "storage", "listing", "digest"}
    assert {name for name in ours(imports(module)) if name.split(".")[0] != "formats"} <= allowed
    assert not tops(imports(module)) & {"torch", "torchdata"}


@pytest.mark.parametrize("module", inside("ops"))
def test_ops_never_import_ops_and_nothing_that_runs_them(module):
    known = ours(imports(module))
    assert not {name for name in known if name.split(".")[0] == "ops"}
    assert not known & {"session", "loader", "pipeline", "engine", "testing", "verify", "describe", "graph", "options"}


@pytest.mark.parametrize("module", inside("work"))
def test_work_knows_neither_nodes_nor_formats_nor_torch(module):
    known = ours(imports(module))
    assert not {
        name for name in known if name.split(".")[0] in ("node", "ops", "formats", "session", "loader", "engine")
    }
    if module != "zephon_nodes.work.node_source":
        assert not tops(imports(module)) & {"torch", "torchdata"}


@pytest.mark.parametrize("module", ["engine", "lanes", "plan", "accumulator", "stream", "state", "recipe", "hashing"])
def test_the_core_is_plain_python(module):
    assert not tops(imports(f"zephon_nodes.{module}")) & (THREADS | {"torch", "torchdata", "asyncio", "time", "random"})


def test_threads_and_processes_live_in_one_package():
    assert {m for m in FILES if tops(imports(m)) & THREADS} <= set(inside("concurrency"))


def test_nothing_but_verify_imports_the_testing_kit():
    assert [m for m in FILES if "testing" in ours(imports(m))] == ["zephon_nodes.verify"]


def test_the_core_knows_nothing_of_multimodal():
    assert not [module for module in FILES if "multimodal" in tops(imports(module))]


def test_no_module_is_imported_by_what_it_imports():
    done: set[str] = set()

    def visit(module, path):
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done:
            return
        for name in sorted(imports(module, at_run_time=True) & FILES.keys()):
            visit(name, [*path, module])
        done.add(module)

    for module in FILES:
        visit(module, [])
    assert done == set(FILES)


@pytest.mark.parametrize("package", [zephon_nodes, zephon_nodes.testing], ids=lambda module: module.__name__)
def test_public_names_exist_and_are_explained(package):
    assert list(package.__all__) == sorted(set(package.__all__))
    for name in package.__all__:
        thing = getattr(package, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing) and issubclass(thing, tuple):
            assert not inspect.getdoc(thing).startswith(f"{name}("), (
                f"{name} has only the docstring that Python makes up"
            )


def test_every_name_that_the_package_imports_is_public():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported == set(zephon_nodes.__all__)


@pytest.mark.parametrize("module", FILES)
def test_every_module_says_what_it_is_for(module):
    text = FILES[module].read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text))
