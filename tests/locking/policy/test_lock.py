"""`locking.lock` under a policy that does not change."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockTimeout, lock, locks, policy
from locking.refresh import clock
from locking.testing.calls import in_thread
from tests.locking.scripted import PATH, ScriptedBackend


@pytest.fixture(autouse=True)
def backend(settings, monkeypatch) -> ScriptedBackend:
    """Provide one backend, and a policy that needs no database."""
    settings.LOCKS = {"only": {"BACKEND": PATH, "TTL": 30, "TIMEOUT": 0.02}}

    def in_force(max_age: float = 1.0, timeout: float | None = None) -> policy.Policy:
        return policy.Policy(backend="only", mode="unchecked", epoch=3, read_at=clock())

    monkeypatch.setattr(policy, "current", in_force)
    return locks["only"]


def test_lease_carries_epoch_and_mode_of_the_policy(backend) -> None:
    held = lock("a")
    with held as lease, lock("a") as inner:
        assert inner is lease
        assert (lease.count, lease.mode, lease.fence) == (2, "unchecked", (3, lease.token))
    assert held.lease is None
    with backend.lock("a") as direct:
        assert direct.fence == (0, direct.token)


@pytest.mark.parametrize("is_active", [True, False], ids=["active backend", "named backend"])
def test_waits_are_those_of_the_lock_or_of_the_backend(backend, is_active: bool) -> None:
    make = lock if is_active else backend.lock
    held = make("a")
    with ThreadPoolExecutor(1) as pool, backend.lock("a"):
        assert held.locked()
        assert in_thread(held.acquire, blocking=False) is False
        assert in_thread(make("a", timeout=0.01).acquire) is False
        for busy, seconds in ((make("a"), "0.02 s"), (make("a", timeout=0.01), "0.01 s")):
            with pytest.raises(LockTimeout, match=seconds):
                in_thread(busy.__enter__)
        waiter = pool.submit(lambda: held.acquire() and held.release() is None)
        until(lambda: len(backend.backend.times("acquire")) > 5, "the wait")
    assert waiter.result(WAIT_TIMEOUT) is True
    assert not held.locked()


def test_interrupt_after_the_grant_releases_it(backend, monkeypatch) -> None:
    """Such as Ctrl-C or Celery's soft time limit before the policy is checked again."""
    reads = iter([policy.current()])

    def interrupted(max_age: float = 1.0, timeout: float | None = None):
        for read in reads:
            return read
        raise KeyboardInterrupt

    monkeypatch.setattr(policy, "current", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock("a").acquire()
    assert len(backend.backend.times("acquire")) == 1, "the lock was not acquired"
    assert not backend.inspect()
    assert not backend.held


def test_released_lease_is_not_entered_again(backend) -> None:
    """The thread acquired it directly and by the policy, and released it in this order."""
    direct = backend.lock("a")
    direct.acquire()
    held = lock("a")
    held.acquire()
    assert held.lease.fence == (3, direct.lease.token)
    direct.release()
    direct.release()
    assert held.lease is None
    with held as lease:
        assert lease.count == 1
