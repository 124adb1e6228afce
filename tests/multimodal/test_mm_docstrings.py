"""Every public name of ``multimodal`` has a docstring with an example, and the example runs and gives what it shows."""

from __future__ import annotations

import doctest
import inspect

import mm_pictures as mm
import numpy as np
import pytest
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers

import multimodal
import multimodal.files
import multimodal.graphs
import zephon_nodes

THINGS = {name: getattr(multimodal, name) for name in multimodal.__all__ if not name.endswith("Error")}
THINGS |= {f"graphs.{name}": getattr(multimodal.graphs, name) for name in multimodal.graphs.__all__}


def known():
    """What the examples know: the public names of both packages, and ``pictures``, a dataset of two PNG files, and a
    ``tokenizer`` of a few words."""
    images = [mm.written(Image.fromarray(mm.drawn(48, 64, seed=i)), "PNG") for i in range(2)]
    pictures = zephon_nodes.Dataset.from_rows("pictures", [{"image": image, "caption": "A cat."} for image in images])
    words = ["<|endoftext|>", "<image>", "a", "cat", "and", "what", "user", "assistant", ":", "?"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(words[:2])
    names = {name: getattr(package, name) for package in (zephon_nodes, multimodal) for name in package.__all__}
    return {**names, "np": np, "pictures": pictures, "tokenizer": tokenizer}


def run(name, thing, globs):
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", globs, name, None, None)
    assert test.examples, f"{name} has no example in its docstring"
    runner = doctest.DocTestRunner(
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    )
    report: list[str] = []
    runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", THINGS)
def test_the_example_of_a_public_name_runs(name):
    thing = THINGS[name]
    run(name, thing, {**known(), **vars(inspect.getmodule(thing)), **known()})


def test_public_names_are_sorted_and_explained():
    for package in (multimodal, multimodal.graphs):
        assert list(package.__all__) == sorted(set(package.__all__))
        assert all(inspect.getdoc(getattr(package, name)) for name in package.__all__)


def test_the_example_of_image_files():
    run("image_files", multimodal.files.image_files, vars(multimodal.files).copy())
