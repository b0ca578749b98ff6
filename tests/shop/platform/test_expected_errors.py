"""Store errors in the log: one line per second and message, without traceback."""

from __future__ import annotations

import logging

import pytest
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
    assert logged(log, "Purchase failed (%s)", REFUSED), "another message"


@pytest.mark.parametrize(
    ("error", "lines", "has_traceback"),
    [
        (REFUSED, 1, False),
        # The schema does not fit, or the shop has sent a wrong statement: the traceback tells.
        (ProgrammingError("relation does not exist"), 1, True),
        (KeyError("x"), 3, True),
        (LockMisuse("x"), 3, True),
    ],
    ids=repr,
)
def test_only_store_errors_are_shortened_and_omitted(clock, error, lines, has_traceback) -> None:
    log = ExpectedErrors()
    found = [logged(log, "Failed: %s", LockLost("y"), error=error) for _ in range(3)]
    assert [bool(line) for line in found] == [True] * lines + [False] * (3 - lines)
    assert ("\n" in found[0]) is has_traceback
    assert type(error).__name__ in found[0]
