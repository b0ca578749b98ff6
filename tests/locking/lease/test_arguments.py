"""Times that are no numbers are refused where they are given, with a message."""

from __future__ import annotations

import pytest

from locking import LockMisuse, lock, locks, single_flight
from locking.idempotency.views import idempotent
from locking.jobs.run_once import run_once

BAD_TIMES = {
    "ttl": lambda: locks["process"].lock("a", ttl="5"),
    "timeout": lambda: lock("a", timeout="5"),
    "max_hold": lambda: lock("a", max_hold="5"),
    "wait of acquire": lambda: locks["process"].lock("a").acquire(timeout="5"),
    "ttl of a build": lambda: single_flight.get_or_build("a:b", lambda: 1, ttl="5"),
    "stale": lambda: single_flight.get_or_build("a:b", lambda: 1, ttl=5, stale="5"),
    "ttl of a job": lambda: run_once(ttl="5"),
    "backoff": lambda: run_once(backoff="5"),
    "wait of a view": lambda: idempotent(wait="5"),
}


@pytest.mark.parametrize("name", BAD_TIMES)
def test_time_given_as_text_is_refused(name: str) -> None:
    with pytest.raises(LockMisuse, match=r"'5'"):
        BAD_TIMES[name]()
