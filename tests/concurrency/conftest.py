"""No test of this folder may leave a worker process, or a descriptor of one, behind."""

import gc

import pytest
from workers import descriptors, gone, worker_pids


@pytest.fixture(autouse=True)
def no_process_is_left(no_thread_is_left):
    before = _of_workers()
    yield
    gc.collect()
    pids = worker_pids()
    assert gone(pids), f"worker processes left: {pids}"
    assert not worker_pids(), "zombies left"
    gc.collect()
    assert len(_of_workers()) <= len(before), "descriptors left"


def _of_workers():
    return [name for name in descriptors() if "socket:" in name or "pidfd" in name or "zephon" in name]
