"""How programs end that don't close anything (``exits.py``): soon, with the right code, and without a word on stderr."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)  # the first test runs the programs of all

QUIET = {
    "three_items": 0,
    "three_items_through_torchdata": 0,
    "abandoned_generator": 0,
    "slow_map_in_flight": 0,
    "reader_thread_outlives_main": 0,
    "exit_function_of_the_user": 0,
    "sys_exit_in_the_loop": 7,
    "fork_whose_child_ends": 0,
    "fork_whose_child_iterates_anew": 0,
    "fork_whose_child_reads_on": 0,
}
PROCESSES = {
    "three_items/process": 0,
    "three_items_through_torchdata/process": 0,
    "abandoned_generator/process": 0,
    "slow_map_in_flight/process": 0,
    "worker_hangs/process": 0,
    "reader_thread_outlives_main/process": 0,
    "exit_function_of_the_user/process": 0,
    "sys_exit_in_the_loop/process": 7,
    "os_exit_in_the_loop/process": 6,
    "fork_whose_child_ends/process": 0,
    "fork_whose_child_iterates_anew/process": 0,
    "fork_whose_child_reads_on/process": 0,
}
LOUD_PROCESSES = {
    "error_in_flight/process": "ValueError: in the loop",
    "error_of_a_map/process": "KeyError: 'nothing'",
    "worker_is_killed/process": "was killed by SIGKILL",
}
SIGNALLED_PROCESSES = ["worker_waits/process", "computes_in_the_loop/process"]
SLOW = (
    *(f"{name}/process" for name in ("three_items_through_torchdata", "abandoned_generator", "slow_map_in_flight")),
    *(f"{name}/process" for name in ("reader_thread_outlives_main", "exit_function_of_the_user")),
    *(f"fork_whose_child_{does}/process" for does in ("ends", "iterates_anew", "reads_on")),
    "sys_exit_in_the_loop/process",
    "error_of_a_map/process",
    "computes_in_the_loop/process:SIGTERM",
    "computes_in_the_loop/process:SIGKILL",
)
"""Only run with --deep: each costs the start of its workers."""
LOUD = {"error_in_flight": "ValueError: in the loop", "error_of_a_map": "KeyError: 'nothing'"}
SIGNALLED = ["waits_in_next", "computes_in_the_loop", "map_function_sleeps"]


def run(jobs):
    """(exit code, stderr) of every run of each job."""
    program = [sys.executable, Path(__file__).with_name("exits.py"), *jobs]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    out = defaultdict(list)
    for line in done.stdout.splitlines():
        said = json.loads(line)
        assert not said["left"], f"{said['job']} left processes {said['left']}"
        out[said["job"]].append((said["code"], said["stderr"]))
    return out


@pytest.fixture(scope="module")
def ends(request):
    times = 20 if request.config.getoption("--deep") else 1
    jobs = [*QUIET, *LOUD, *(f"{name}:{signal}" for name in SIGNALLED for signal in ("SIGINT", "SIGTERM"))]
    jobs += [*PROCESSES, *LOUD_PROCESSES]
    jobs += [f"{name}:{signal}" for name in SIGNALLED_PROCESSES for signal in ("SIGINT", "SIGTERM", "SIGKILL")]
    if times == 1:
        jobs = [job for job in jobs if job not in SLOW]
    found = run([job for job in jobs for _ in range(times)])
    assert set(found) == set(jobs)
    return found


@pytest.mark.parametrize("program", QUIET | PROCESSES)
def test_a_program_ends_soon_and_silently(ends, program):
    assert program in ends or program in SLOW
    assert ends[program] == [((QUIET | PROCESSES)[program], "")] * len(ends[program])


@pytest.mark.parametrize("program", LOUD | LOUD_PROCESSES)
def test_an_error_is_the_only_thing_that_is_said(ends, program):
    for code, stderr in ends[program]:
        assert code == 1
        assert (LOUD | LOUD_PROCESSES)[program] in stderr
        assert stderr.startswith("Traceback") or "Traceback in worker process" in stderr
        for noise in ("Exception ignored", "Fatal", "Exception in thread", "Warning"):
            assert noise not in stderr


@pytest.mark.parametrize("program", SIGNALLED + SIGNALLED_PROCESSES)
def test_ctrl_c_ends_it_with_nothing_but_a_keyboard_interrupt(ends, program):
    for code, stderr in ends[f"{program}:SIGINT"]:
        assert code == -2
        assert stderr.startswith("Traceback") and stderr.count("Traceback") == 1
        assert stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("program", SIGNALLED + SIGNALLED_PROCESSES)
def test_sigterm_ends_it_at_once(ends, program):
    assert ends[f"{program}:SIGTERM"] == [(-15, "")] * len(ends[f"{program}:SIGTERM"])


@pytest.mark.parametrize("program", SIGNALLED_PROCESSES)
def test_the_workers_of_a_trainer_that_is_killed_end_with_it(ends, program):
    """``run`` has seen that none is left."""
    assert ends[f"{program}:SIGKILL"] == [(-9, "")] * len(ends[f"{program}:SIGKILL"])


def test_a_fresh_interpreter_ends_so_too():
    program = "import exits; exits.three_items()"
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.deep
def test_ctrl_c_needs_not_wait_for_all_records_of_a_slow_map_function():
    ((code, stderr),) = run(["map_function_is_slow_at_every_record:SIGINT"])[
        "map_function_is_slow_at_every_record:SIGINT"
    ]
    assert code == -2
    assert stderr.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.deep
def test_a_map_function_that_hangs_does_not_keep_the_program_for_long():
    assert run(["map_function_hangs"])["map_function_hangs"] == [(0, "")]
