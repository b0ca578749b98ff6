"""`locking.lock` under a policy that does not change."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockLost, LockMisuse, LockTimeout, lock, locks, policy
from locking.refresh import clock
from locking.testing.calls import passes_in_child
from tests.locking.calls import acquired
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
    with lock("a") as lease:
        assert lease.mode == "unchecked"
        assert lease.fence == (3, lease.token)
    with backend.lock("a") as direct:
        assert direct.fence == (0, direct.token)


def test_waits_are_those_of_a_lock(backend) -> None:
    held = lock("a")
    assert not held.locked()
    with ThreadPoolExecutor(1) as other:
        other.submit(held.acquire).result(WAIT_TIMEOUT)
        assert held.locked()
        assert held.acquire(blocking=False) is False
        assert held.acquire(timeout=0.01) is False
        assert lock("a", timeout=0.01).acquire() is False
        with pytest.raises(LockTimeout, match=r"0\.02 s"), lock("a"):
            pass
        with pytest.raises(LockTimeout, match=r"0\.01 s"), lock("a", timeout=0.01):
            pass
        with ThreadPoolExecutor(1) as third:
            waiter = third.submit(held.acquire)
            other.submit(held.release).result(WAIT_TIMEOUT)
            assert waiter.result(WAIT_TIMEOUT) is True
            third.submit(held.release).result(WAIT_TIMEOUT)


def test_reentry_ends_with_the_last_release(backend) -> None:
    held = lock("a")
    with held as outer, lock("a") as inner:
        assert inner is outer
        assert outer.count == 2
    assert held.lease is None
    assert not backend.inspect()


def test_options_are_passed_to_the_backend(backend) -> None:
    lost = []
    held = lock("a", ttl=60, renew=False, on_lost=lost.append)
    lease = acquired(held)
    assert 59 < lease.remaining <= 60
    held.extend()
    held.extend(90)
    assert 89 < lease.remaining <= 90
    backend.break_lock("a")
    with pytest.raises(LockLost):
        held.release()
    assert lost == [lease]
    assert held.lease is None


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: lock(""),
        lambda: lock("a", timeout=-1),
        lambda: lock("a", ttl=0).acquire(),
        lambda: lock("a").acquire(timeout=-1),
        lambda: lock("a").acquire(blocking=False, timeout=1),
        lambda: lock("a").release(),
        lambda: lock("a").extend(),
    ],
)
def test_misuse_leaves_nothing_held(backend, misuse) -> None:
    with pytest.raises(LockMisuse):
        misuse()
    assert not backend.inspect()


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


def test_forked_child_does_not_hold_its_parents_locks(backend) -> None:
    held = lock("a")

    def holds_nothing() -> bool:
        mine = held.lease is not None
        with pytest.raises(LockMisuse):
            held.release()
        took = held.acquire(timeout=1)  # it is free in the memory of the child
        return not mine and took and held.lease is not lease

    with held as lease:
        assert passes_in_child(holds_nothing)
        lease.check()


def test_released_lease_is_not_entered_again(backend) -> None:
    """The thread acquired it directly and by the policy, and released it in this order."""
    direct = backend.lock("a")
    direct.acquire()
    held = lock("a")
    held.acquire()
    direct.release()
    direct.release()
    assert held.lease is None
    with held as lease:
        assert lease.count == 1
