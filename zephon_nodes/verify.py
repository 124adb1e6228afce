"""The elastic proof: the SHA-256 of every global batch, on several numbers of ranks, with a stop and a move in the middle."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from zephon_nodes.errors import ConfigError
from zephon_nodes.progress import bar
from zephon_nodes.testing import Make, Round, run_rounds
from zephon_nodes.work.base import check_at_least


def global_digest(round_: Round) -> str:
    """SHA-256 of a global batch: of the digests of its lanes in order."""
    return hashlib.sha256("".join(round_[lane] for lane in sorted(round_)).encode()).hexdigest()


def verify(make: Make, worlds: Sequence[int], steps: int, say: Callable[[str], Any] = print) -> bool:
    """Runs ``steps`` rounds on each world size, ranks simulated in threads; prints a line a step; whether all agree.

    Each world runs without a stop, and then once more: half of the steps, a state through JSON, the other half on the
    next world size of the list.
    """
    check_at_least("steps", steps, 1)
    columns: dict[str, list[str]] = {}
    with bar("verify", 2 * len(worlds), "runs") as advance:
        for world in worlds:
            columns[f"{world} rank{'s' * (world != 1)}"] = [
                global_digest(round_) for round_ in run_rounds(make, world, steps)[0]
            ]
            advance(1)
        steps = min(steps, *map(len, columns.values()))  # the data may end before: a resume would begin the next epoch
        if steps == 0:
            say("nothing to compare: the pipeline gives no batch")
            return False
        half = max(1, steps // 2)
        for world, other in zip(worlds, [*worlds[1:], worlds[0]], strict=True):
            first, state = run_rounds(make, world, half)
            rest = run_rounds(make, other, steps - half, state)[0] if steps > half else []
            columns[f"{world}, then {other}"] = [global_digest(round_) for round_ in [*first, *rest]]
            advance(1)
    say("step  " + "  ".join(f"{title:12s}" for title in columns).rstrip())
    agree = True
    for step in range(max(map(len, columns.values()))):
        digests = [column[step] if step < len(column) else "-" for column in columns.values()]
        same = len(set(digests)) == 1
        agree &= same
        say(f"{step:4d}  " + "  ".join(f"{text[:12]:12s}" for text in digests) + ("" if same else "  DIFFER"))
    every = hashlib.sha256("".join(next(iter(columns.values()))).encode()).hexdigest()
    say(f"all {steps} global batches are equal everywhere, SHA-256 {every}" if agree else "global batches differ")
    return agree


def load_function(path: str) -> Make:
    """The function that "FILE.py:name" names. Raises ``ConfigError`` if there is none."""
    file, _, name = path.rpartition(":")
    if not file or not os.path.isfile(file):
        raise ConfigError(f"expected FILE.py:function, got {path!r}" + (f"; there is no file {file!r}" if file else ""))
    spec = importlib.util.spec_from_file_location("pipeline_to_verify", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{file!r} isn't a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))  # as python FILE.py does
    sys.modules[spec.name] = module  # dataclasses and pickle look there
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        mine = {key: value for key, value in vars(module).items() if getattr(value, "__module__", "") == spec.name}
        there = sorted(key for key, value in mine.items() if callable(value) and not key.startswith("_"))
        raise ConfigError(f"{file!r} has no function {name!r}; it has {there}")
    return function  # type: ignore[no-any-return]
