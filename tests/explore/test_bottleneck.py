"""The sentence about what is slow: from numbers alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from zephon_nodes.explore.bottleneck import Load, Pace, needed, sentence

BUSY = Load("decode", 4, 0.97)
IDLE = Load("read", 2, 0.2)


def pace(given=80.0, wanted=120.0, waited=0.4, driver=0.2, cores=16, used=5.0):
    return Pace(given, wanted, waited, driver, cores, used)


def test_a_busy_pool_and_how_many_workers_would_do():
    said = sentence([IDLE, BUSY], pace())
    assert said == "decode is busy 97% of 4 workers; 6 would feed your 120 samples/s (parallelism of decode)."


def test_without_a_wish_more_workers_give_more():
    said = sentence([IDLE, BUSY], pace(wanted=None))
    assert said == "decode is busy 97% of 4 workers; more would raise the 80 samples/s (parallelism of decode)."


def test_a_trainer_that_is_fed():
    said = sentence([BUSY], pace(waited=0.01, given=80.0))
    assert said == "The trainer waits 1% of its time: data isn't the bottleneck."
    said = sentence([BUSY], pace(waited=0.9, given=130.0))  # measured without a trainer: all the time is waiting
    assert said == "130 samples/s come, your trainer takes 120. Data isn't the bottleneck."


def test_all_cores_busy():
    said = sentence([BUSY], pace(cores=4, used=3.9))
    assert said == (
        "decode is busy 97% of 4 workers, and all 4 cores are busy: cheaper work or more cores would help "
        "(6 would feed your 120 samples/s)."
    )


def test_threads_that_wait_for_the_lock():
    said = sentence([BUSY._replace(computing=0.25)], pace(used=1.1))
    assert "computes only 25% of that" in said and "the process uses 1.1 of 16 cores" in said
    assert "runner='process'" in said


def test_threads_that_wait_for_storage():
    said = sentence([BUSY._replace(computing=0.05)], pace(used=0.3))
    assert "waiting for storage" in said and "6 would feed" in said and "process" not in said.replace("processor", "")


def test_threads_that_wait_for_what_cannot_be_told():
    said = sentence([BUSY._replace(computing=0.15)], pace(used=0.6))
    assert said == (
        "decode is busy 97% of 4 workers, but computes only 15% of that, and the process uses 0.6 of 16 cores: it waits for "
        "storage, for a processor that others use, or for Python's lock; more parallelism of decode helps against the "
        "first, runner='process' against the last."
    )


def test_processes_have_locks_of_their_own():
    said = sentence([BUSY._replace(computing=0.25, kind="process")], pace(used=1.1))
    assert "lock" not in said and "6 would feed" in said


def test_where_the_processor_time_is_not_known_nothing_is_said_of_it():
    said = sentence([BUSY._replace(computing=0.1)], pace(used=None))
    assert said == "decode is busy 97% of 4 workers; 6 would feed your 120 samples/s (parallelism of decode)."


def test_a_busy_driver_and_what_it_runs():
    said = sentence([IDLE, Load("pack_flat", 0, 0.6), Load("batch", 0, 0.2)], pace(driver=0.95))
    assert said == (
        "80 samples/s come, your trainer takes 120. The driver's thread is busy 95%: pack_flat, batch run there; "
        "parallelism=1 for pack_flat moves its work to a worker."
    )


def test_the_busier_one_of_driver_and_pool_is_named():
    assert sentence([BUSY], pace(driver=0.8)).startswith("decode")
    assert "driver's thread is busy 99%" in sentence([BUSY], pace(driver=0.99))


def test_nobody_is_busy():
    said = sentence([IDLE, Load("map", 1, 0.5)], pace())
    assert "map, the busiest, is at 50% of 1 worker)" in said and "raise prefetch" in said
    assert "raise prefetch" in sentence([], pace())


def test_inline_names_the_slowest_and_the_other_runner():
    said = sentence([Load("read", 0, 0.1), Load("tokenize", 0, 0.8)], pace(wanted=None), inline=True)
    assert said == (
        "80 samples/s come. All runs in the caller's thread; tokenize takes 80% of the time: "
        "runner='thread' would work ahead of the trainer."
    )


def test_nothing_came():
    assert "No output came" in sentence([BUSY], pace(given=0.0))


@given(st.integers(1, 64), st.floats(0.01, 1), st.floats(0.1, 1e5), st.floats(0.1, 1e5))
def test_the_workers_needed_do_what_is_wanted_and_one_less_would_not(workers, busy, given_rate, wanted):
    count = needed(Load("x", workers, busy), given_rate, wanted)
    each = given_rate / (workers * busy)  # what a worker that is always busy does
    assert count * each >= wanted * (1 - 1e-5)
    assert count == 1 or (count - 1) * each <= wanted * (1 + 1e-5)


@given(
    st.lists(st.builds(Load, st.sampled_from("ab"), st.integers(0, 9), st.floats(0, 1), st.floats(0, 1)), max_size=4),
    st.builds(
        Pace,
        st.floats(0, 1e6),
        st.none() | st.floats(0.1, 1e6),
        st.floats(0, 1),
        st.floats(0, 1),
        st.integers(1, 99),
        st.none() | st.floats(0, 99),
    ),
    st.booleans(),
)
def test_there_is_always_a_sentence(loads, pace, inline):
    said = sentence(loads, pace, inline)
    assert said.endswith(".") and "nan" not in said and "inf" not in said
