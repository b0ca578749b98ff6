"""Store errors in the log: one line per second and message, without traceback."""

from __future__ import annotations

import logging

import pytest
from django.conf import settings
from django.db import OperationalError, ProgrammingError

from locking import LockLost, LockMisuse
from shop.platform import logs
from shop.platform.logs import ExpectedErrors

REFUSED = OperationalError(1040, "Too many connections")


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    return clock


def logged(log: ExpectedErrors, message: str, *args: object, error: object = None) -> str:
    """Return the line that is logged, or an empty text."""
    exc_info = (type(error), error, None) if isinstance(error, Exception) else None
    record = logging.LogRecord("shop", logging.WARNING, "", 0, message, args, exc_info)
    return logging.Formatter().format(record) if log.filter(record) else ""


def test_repeated_store_errors_are_counted(clock: Clock) -> None:
    log, lines = ExpectedErrors(), {}
    for clock.now in (0.0, 0.1, 0.2, 0.9, 1.5, 1.6, 3.0, 5.0):
        if line := logged(log, "Request failed (%s)", REFUSED):
            lines[clock.now] = line.removeprefix(f"Request failed ({REFUSED})")
    more = " [{} more since the last line]"
    assert lines == {0.0: "", 1.5: more.format(3), 3.0: more.format(1), 5.0: ""}


def test_503_responses_are_counted(clock: Clock) -> None:
    log = ExpectedErrors()

    def respond(status: int) -> bool:
        line = {"name": "django.request", "msg": "%s: %s", "args": ("...", "/")}
        return log.filter(logging.makeLogRecord({**line, "status_code": status}))

    assert [respond(503), respond(503), respond(500), respond(500)] == [True, False, True, True]


def test_messages_are_counted_apart(clock: Clock) -> None:
    log = ExpectedErrors()
    assert logged(log, "Request failed (%s)", REFUSED)
    assert logged(log, "Purchase failed (%s)", REFUSED)
    assert not logged(log, "Purchase failed (%s)", OperationalError(1203, "another error"))


def test_traceback_of_a_store_error_becomes_a_line() -> None:
    line = logged(ExpectedErrors(), "Build of %r failed", "home:en", error=REFUSED)
    assert line == f"Build of 'home:en' failed: {REFUSED!r}"


def test_other_errors_keep_their_traceback_and_are_never_omitted(clock: Clock) -> None:
    log = ExpectedErrors()
    for error in (KeyError("x"), LockMisuse("x")):
        for _ in range(3):
            line = logged(log, "Bug: %s", LockLost("y"), error=error)
            assert f"{type(error).__name__}: " in line


def test_refused_statement_keeps_its_traceback_once_per_second(clock: Clock) -> None:
    """The schema does not fit, or the shop has sent a wrong statement: the traceback tells."""
    log, error = ExpectedErrors(), ProgrammingError("relation does not exist")
    lines = [logged(log, "Request failed", error=error) for _ in range(3)]
    assert lines[0].endswith("ProgrammingError: relation does not exist")
    assert lines[0].startswith("Request failed\n")
    assert lines[1:] == ["", ""]


def test_console_uses_the_filter() -> None:
    handlers = logging.getLogger().handlers
    filters = [some for handler in handlers for some in handler.filters]
    assert settings.LOGGING["handlers"]["console"]["filters"] == ["expected_errors"]
    assert any(isinstance(some, ExpectedErrors) for some in filters)
