import asyncio
import logging
import pickle
from types import SimpleNamespace

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_faults import FakeClock

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.retries import GaveUpError, Retries, ShortBodyError, Verdict, verdict


def failing(*errors):
    """A function that raises these in turn, and then gives 7."""
    left = list(errors)

    def work():
        if left:
            raise left.pop(0)
        return 7

    return work


def call(policy, work, refresh=lambda: None):
    return policy.call("the file: reading", work, refresh, str)


def http(status, headers=None):
    asked = SimpleNamespace(real_url="http://h/x")
    return aiohttp.ClientResponseError(asked, (), status=status, message="no", headers=headers)


@given(st.integers(1, 9), st.floats(0.01, 2), st.floats(2, 60))
def test_waits_double_up_to_the_longest_and_are_shortened_by_up_to_a_half(failures, first, longest):
    clock = FakeClock()
    policy = Retries(1e9, first, longest, clock)
    assert call(policy, failing(*[OSError("x")] * failures)) == 7
    assert len(clock.sleeps) == failures
    for number, wait in enumerate(clock.sleeps):
        full = min(longest, first * 2**number)
        assert full / 2 <= wait <= full


def test_processes_wait_differently(monkeypatch):
    waits = set()
    for pid in range(20):
        monkeypatch.setattr("os.getpid", lambda pid=pid: pid)
        waits.add(Retries().wait(5, "a"))
    assert len(waits) == 20


def test_it_gives_up_after_the_time_and_says_how_often_it_tried(caplog):
    clock = FakeClock()
    last = OSError("the last")
    with caplog.at_level(logging.WARNING), pytest.raises(GaveUpError) as caught:
        call(Retries(100, 1, 10, clock), failing(*[OSError("x")] * 12, last, *[last] * 100))
    error = caught.value
    assert error.kind is Verdict.PASSING
    assert 80 < clock.time <= 100
    assert error.attempts == len(clock.sleeps) + 1 == len(caplog.records) + 1
    assert error.__cause__ is last
    assert "the file: reading: attempt 1 failed (x); the next is in" in caplog.text


def test_a_server_that_says_when_to_come_back_is_listened_to():
    clock = FakeClock()
    assert (
        call(Retries(100, 0.1, 20, clock), failing(http(429, {"Retry-After": "7"}), http(503, {"Retry-After": "999"})))
        == 7
    )
    assert clock.sleeps == [7, 20]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError("x"), Verdict.MISSING),
        (IsADirectoryError("x"), Verdict.MISSING),
        (http(404), Verdict.MISSING),
        (http(412), Verdict.CHANGED),
        (http(416), Verdict.CHANGED),
        (http(400), Verdict.LASTING),
        (OSError(22, "invalid"), Verdict.LASTING),
        (aiohttp.InvalidURL("x"), Verdict.LASTING),
    ],
)
def test_what_cannot_pass_is_not_tried_again(error, kind):
    clock = FakeClock()
    with pytest.raises(GaveUpError) as caught:
        call(Retries(clock=clock), failing(error))
    assert (caught.value.kind, caught.value.attempts, clock.sleeps) == (kind, 1, [])


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is(status):
    assert verdict(http(status)) is Verdict.PASSING


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("x"),
        TimeoutError("x"),
        asyncio.TimeoutError(),
        ShortBodyError("x"),
        EOFError(),
        OSError(16, "SlowDown"),
    ],
)
def test_broken_connections_may_pass(error):
    assert verdict(error) is Verdict.PASSING


def caused(error, cause):
    error.__cause__ = cause
    return error


def test_a_missing_file_that_was_a_failing_server_may_pass():
    assert verdict(caused(FileNotFoundError("x"), http(503))) is Verdict.PASSING
    assert verdict(caused(FileNotFoundError("x"), http(404))) is Verdict.MISSING


class Boto(OSError):
    def __init__(self, code, status):
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (caused(PermissionError("x"), Boto("ExpiredToken", 400)), Verdict.DENIED),
        (caused(OSError(22, "x"), Boto("InvalidToken", 400)), Verdict.DENIED),
        (caused(OSError(16, "x"), Boto("SlowDown", 503)), Verdict.PASSING),
        (caused(OSError(22, "x"), Boto("PreconditionFailed", 412)), Verdict.CHANGED),
        (OSError("Forbidden: b/o"), Verdict.DENIED),
        (http(401), Verdict.DENIED),
    ],
)
def test_codes_of_the_causes_count(error, kind):
    assert verdict(error) is kind


def test_credentials_are_made_anew_once_in_a_call():
    made = []
    assert call(Retries(clock=FakeClock()), failing(http(403)), lambda: made.append(1)) == 7
    assert made == [1]
    with pytest.raises(GaveUpError) as caught:
        call(Retries(clock=FakeClock()), failing(http(403), http(403)), lambda: made.append(2))
    assert (made, caught.value.kind, caught.value.attempts) == ([1, 2], Verdict.DENIED, 2)


def test_other_errors_pass_through_at_once():
    for error in (KeyError("x"), ReadError("x")):
        clock = FakeClock()
        with pytest.raises(type(error)):
            call(Retries(clock=clock), failing(error))
        assert not clock.sleeps


@pytest.mark.parametrize("wrong", [{"give_up_after": -1}, {"first": "1"}, {"longest": float("inf")}, {"first": True}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=rf"Retries: {next(iter(wrong))} must be a number of seconds"):
        Retries(**wrong)


def test_it_pickles():
    assert pickle.loads(pickle.dumps(Retries(5))) == Retries(5)
