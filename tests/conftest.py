"""Shared by all tests. Being here also puts this folder on the import path, for helpers such as ``tokenizers_for_tests``."""

import gc
import threading

import hypothesis
import pytest

hypothesis.settings.register_profile("quick", max_examples=20, deadline=None, derandomize=True)
hypothesis.settings.register_profile("deep", max_examples=400, deadline=None)


def pytest_addoption(parser):
    parser.addoption("--deep", action="store_true", help="many more random cases, and the slow checks")


def pytest_configure(config):
    hypothesis.settings.load_profile("deep" if config.getoption("--deep") else "quick")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--deep"):
        for item in items:
            if "deep" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow; run with --deep"))


def pytest_collection_finish(session):
    """Garbage collections, of which fixtures make two a test, need only look at what tests have made."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Every loader that a test leaves behind must take its threads along when it is closed or collected."""
    yield
    ours = [t for t in threading.enumerate() if t.name.startswith("zephon")]
    for _ in range(3):  # a collection does nothing while another thread is in the middle of one
        if any(thread.is_alive() for thread in ours):
            gc.collect()
            for thread in ours:
                thread.join(1)
    left = [t.name for t in threading.enumerate() if t.name.startswith("zephon")]
    assert not left, f"threads left: {left}"
