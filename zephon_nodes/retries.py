"""Trying again: which failures of a store pass by themselves, and how long to wait before the next attempt.

Outages of stores last minutes, and a whole cluster notices them at once. So the waits grow up to half a minute, every
process waits another time, and giving up is a matter of minutes, not of attempts. What can't pass is raised at once:
a missing file, a refusal, a file that has changed. A refusal may mean that credentials have expired, so once in a call
they are made anew.
"""

from __future__ import annotations

import asyncio
import enum
import errno
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from zephon_nodes.errors import ConfigError, ReadError
from zephon_nodes.hashing import key, mix

T = TypeVar("T")
_log = logging.getLogger(__name__)


class Clock(Protocol):
    """Where time comes from; tests have one that doesn't wait."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The real one."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class ShortBodyError(OSError):
    """Fewer bytes came than the store had announced."""


class GaveUpError(Exception):
    """No attempt worked. ``kind``: why no more were made; its ``__cause__`` is the last failure."""

    def __init__(self, kind: Verdict, attempts: int, seconds: float) -> None:
        super().__init__(f"gave up after {attempts} attempts")
        self.kind, self.attempts, self.seconds = kind, attempts, seconds


class Verdict(enum.Enum):
    """What a failure means."""

    PASSING = "passing"
    DENIED = "denied"
    MISSING = "missing"
    CHANGED = "changed"
    LASTING = "lasting"


@dataclass(frozen=True)
class Retries:
    """How a store is asked again.

    ``give_up_after``: seconds from the first attempt on. ``first``, ``longest``: of the waits between attempts, which
    double and are shortened by up to a half, by chance. A ``Retry-After`` of the server is kept to if it is longer, up
    to ``longest``. ``clock``: for tests. The default survives an outage of ten minutes; less gives up earlier on a
    store that is gone for good.

    >>> Retries(give_up_after=3600).longest
    30.0
    """

    give_up_after: float = 600.0
    first: float = 0.5
    longest: float = 30.0
    clock: Clock = field(default_factory=SystemClock, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("give_up_after", "first", "longest"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
                raise ConfigError(f"Retries: {name} must be a number of seconds, 0 or more; got {value!r}")

    def call(self, what: str, work: Callable[[], T], refresh: Callable[[], None], shown: Callable[[object], str]) -> T:
        """What ``work`` gives. Each failure that is followed by another attempt is logged once.

        ``what``: for the log. ``refresh``: makes credentials anew. ``shown``: text of an error, without secrets.
        Raises ``GaveUpError`` when another attempt is of no use, or too late. A ``ReadError`` passes through.
        """
        began, attempts, refreshed = self.clock.now(), 0, False
        while True:
            attempts += 1
            try:
                return work()
            except ReadError:
                raise
            except store_errors() as error:
                kind, wait = verdict(error), self.wait(attempts, what, error)
                if kind is Verdict.DENIED and not refreshed:
                    refreshed = True
                    _log.warning(
                        "%s: attempt %d was refused (%s); credentials are made anew", what, attempts, shown(error)
                    )
                    refresh()
                    continue
                spent = self.clock.now() - began
                if kind is not Verdict.PASSING or spent + wait > self.give_up_after:
                    raise GaveUpError(kind, attempts, spent) from error
                _log.warning("%s: attempt %d failed (%s); the next is in %.1f s", what, attempts, shown(error), wait)
            self.clock.sleep(wait)

    def wait(self, attempts: int, what: str, error: BaseException | None = None) -> float:
        """Seconds to wait after a number of attempts."""
        full = min(self.longest, self.first * 2.0 ** min(attempts - 1, 60))
        chance = mix(key("retry", what, os.getpid(), attempts)) / 2.0**64
        asked = min(self.longest, _retry_after(error))
        return max(full * (0.5 + 0.5 * chance), asked)


def store_errors() -> tuple[type[Exception], ...]:
    """The exceptions by which a store says that it failed. Those of some libraries aren't OSErrors, nor are time-outs before 3.11."""
    known = (
        *(("aiohttp", "ClientError"), ("botocore.exceptions", "BotoCoreError"), ("botocore.exceptions", "ClientError")),
        *(("azure.core.exceptions", "AzureError"), ("gcsfs.retry", "HttpError"), ("gcsfs.retry", "ChecksumError")),
        *(("google.api_core.exceptions", "GoogleAPIError"),),
        *(("google.auth.exceptions", "GoogleAuthError"), ("httpx", "HTTPError")),
    )
    found = [getattr(sys.modules.get(module), name, None) for module, name in known]
    return (OSError, asyncio.TimeoutError, EOFError, *(each for each in found if each is not None))


_LASTING_CODES = {errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ENAMETOOLONG, errno.ENOSPC, errno.EROFS}
_PASSING_STATUS = {408, 425, 429}
_REFUSING = {"NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"}
_REFUSING |= {"ClientAuthenticationError", "RefreshError", "DefaultCredentialsError"}
_EXPIRED = {"ExpiredToken", "InvalidToken", "TokenRefreshRequired", "RequestTimeTooSkewed", "AuthenticationFailed"}


def verdict(error: BaseException) -> Verdict:
    """What a failure means, by its type, its HTTP status and its code, and those of what caused it.

    fsspec's ``info`` over HTTP calls every failure a missing file, so the cause of one counts more than itself.
    """
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and cause is not None and isinstance(cause, store_errors()):
        return verdict(cause)
    for one in _causes(error):
        found = _by_kind(one) or _by_status(one)
        if found is not None:
            return found
    lasting = isinstance(error, OSError) and error.errno in _LASTING_CODES
    return Verdict.LASTING if lasting or isinstance(error, ValueError) else Verdict.PASSING


def _by_kind(error: BaseException) -> Verdict | None:
    if type(error).__module__ == "aiohttp.http_exceptions":  # an answer cut short; it calls itself status 400
        return Verdict.PASSING
    code = _code(error)
    refused = code in _EXPIRED or type(error).__name__ in _REFUSING
    if refused or isinstance(error, PermissionError) or str(error).startswith("Forbidden"):
        return Verdict.DENIED
    if isinstance(error, (FileNotFoundError, IsADirectoryError, NotADirectoryError)):
        return Verdict.MISSING
    return Verdict.CHANGED if type(error).__name__ == "FileExpired" else None


def _by_status(error: BaseException) -> Verdict | None:
    status = _status(error)
    if status is None or not 400 <= status < 500:
        return None if status is None or status < 500 else Verdict.PASSING
    named = {401: Verdict.DENIED, 403: Verdict.DENIED, 404: Verdict.MISSING, 410: Verdict.MISSING}
    named |= {412: Verdict.CHANGED, 416: Verdict.CHANGED} | dict.fromkeys(_PASSING_STATUS, Verdict.PASSING)
    return named.get(status, Verdict.LASTING)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = 0
    one: BaseException | None = error
    while one is not None and seen < 8:
        yield one
        one, seen = one.__cause__, seen + 1


def _response(error: BaseException) -> Any:
    return getattr(error, "response", None)


def _code(error: BaseException) -> str:
    response = _response(error)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else getattr(error, "error_code", None)
    return str(getattr(code, "value", code))


def _status(error: BaseException) -> int | None:
    response = _response(error)
    found = [next((found for name in ("status", "status_code", "code") if (found := getattr(error, name, None))), None)]
    if isinstance(response, dict):  # botocore
        found.append(response.get("ResponseMetadata", {}).get("HTTPStatusCode"))
    else:
        found.append(getattr(response, "status_code", None))
    return next((one for one in found if type(one) is int and 100 <= one < 600), None)


def _retry_after(error: BaseException | None) -> float:
    headers = getattr(error, "headers", None) or {}
    try:
        return max(0.0, float(headers.get("Retry-After", 0)))
    except (ValueError, AttributeError):  # a date: no clock here can be compared with the server's
        return 0.0
