"""accelerate, Hugging Face's Trainer and Lightning take the loader by the recipes of ``trainer_recipes``: the batches of the
recipe on 2 ranks, and after their own checkpoints the rest of them on 1.

Skipped where they aren't installed, as in the project's own test environment. To run: pip install accelerate lightning
transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_ranks import in_order
from recipe_for_trainers import LANES, expected, write_recipe

TESTS = Path(__file__).parent.parent
NEEDS = {"accelerate": ("accelerate",), "transformers": ("accelerate", "transformers"), "lightning": ("lightning",)}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("which", NEEDS)
def test_a_trainer_sees_the_global_batches_and_resumes_on_another_world(tmp_path, which):
    """D9, X1, G1."""
    for package in NEEDS[which]:
        pytest.importorskip(package)
    recipe = write_recipe(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [TESTS.parent, TESTS, TESTS / "integrations"]))}
    program = [sys.executable, TESTS / "integrations" / "trainer_ranks.py", tmp_path, which]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads((tmp_path / f"{which}.json").read_text())
    want = expected(recipe, 16)
    assert in_order(said["saved"], LANES // 2) == want
    assert in_order(said["resumed"], LANES) == want[8:]
