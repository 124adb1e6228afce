"""Every public name has a docstring with an example, and the example runs and gives what it shows."""

from __future__ import annotations

import doctest
import inspect

import numpy as np
import pytest

import zephon_nodes
import zephon_nodes.testing

NAMES = [n for n in zephon_nodes.__all__ if not n.endswith("Error")]


def examples(name: str) -> list[doctest.DocTest]:
    thing = getattr(zephon_nodes, name)
    names = {**{n: getattr(zephon_nodes, n) for n in zephon_nodes.__all__}, "np": np, "rows": rows()}
    found = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", names, name, None, None)
    return [found] if found.examples else []


def rows() -> zephon_nodes.Dataset:
    """What the examples call ``rows``: four short texts with their tokens."""
    texts = ["one", "two words", "three of them", "and the last one"]
    made = [{"text": text, "input_ids": np.arange(len(text.split()), dtype=np.int32) + 1} for text in texts]
    return zephon_nodes.Dataset.from_rows("demo", made)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_runs(name):
    found = examples(name)
    assert found, f"{name} has no example in its docstring"
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in found:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)
