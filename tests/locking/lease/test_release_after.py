"""A lock that a thread keeps after its release, until a condition is confirmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from devservers import Redis
from devservers.faults.waiting import until
from locking import LockTimeout, locks
from locking.backends.base import Backend

TTL = 0.3
NAME = "kept"


@pytest.fixture
def redis(settings, redis_server: Redis) -> Iterator[Backend]:
    settings.LOCKS = {**settings.LOCKS, "redis": {**settings.LOCKS["redis"], "TTL": TTL}}
    yield locks["redis"]
    locks.close()


def test_release_returns_and_the_lock_is_kept(redis: Backend) -> None:
    """Past its ttl, and also from the caller that released it, at any depth of re-entry."""
    confirmed, calls = threading.Event(), []

    def confirm() -> bool:
        calls.append(threading.current_thread())
        return confirmed.is_set()

    with redis.lock(NAME) as lease, redis.lock(NAME):
        lease.release_after(confirm)
        assert not calls
    assert redis.lock(NAME).lease is None
    with pytest.raises(LockTimeout), redis.lock(NAME, timeout=2 * TTL):
        pass
    assert redis.lock(NAME).locked()
    confirmed.set()
    with redis.lock(NAME, timeout=10):
        assert not lease.is_held
    assert threading.current_thread() not in calls


def test_error_of_the_condition_keeps_the_lock(redis: Backend, caplog) -> None:
    outcomes = iter([OSError("no route"), OSError("no route"), OSError("refused")])

    def confirm() -> bool:
        for error in outcomes:
            raise error
        return True

    with redis.lock(NAME) as lease:
        lease.release_after(confirm)
    with redis.lock(NAME, timeout=10):
        pass
    assert caplog.text.count("lock still kept (no route)") == 1, "logged only when it changes"
    assert caplog.text.count("lock still kept (refused)") == 1


def test_lost_lease_is_given_up(redis: Backend) -> None:
    """No thread can keep a lock that the store has granted to the next holder."""
    asked = threading.Event()

    def never() -> bool:
        asked.set()
        return False

    with redis.lock(NAME) as lease:
        lease.release_after(never)
    assert asked.wait(10)
    assert redis.break_lock(NAME)
    until(lambda: not lease.is_held, "the loss")
    assert lease.lost
    with redis.lock(NAME, timeout=10):
        pass
