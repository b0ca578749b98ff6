"""The fixtures of the contract, and its tests of the end of a grant or a wait."""

import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from typing import Any, TypeVar

import pytest

from locking.claims import Capabilities, Claim, Grant
from locking.conf import backend_class
from locking.exceptions import LockLost, LockMisuse, LockUnavailable
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import (
    WAIT_TIMEOUT,
    acquire_and_release,
    in_thread,
    passes_in_child,
    until,
    within,
)
from locking.testing.process import OtherProcess

Test = TypeVar("Test", bound=Callable[..., object])
Another = Callable[[], OtherProcess]


def needs(declared: Callable[[Capabilities], bool]) -> Callable[[Test], Test]:
    """Restrict a test to backends that declare a capability."""

    def mark(test: Test) -> Test:
        vars(test)["needs"] = declared
        return test

    return mark


def granted(locks: LockStore, claim: Claim) -> Grant:
    """Return the grant of a claim, which must get the lock."""
    grant = locks.backend.acquire(claim, WAIT_TIMEOUT)
    assert grant is not None
    return grant


class ContractBase:
    """Subclasses give `path`, and `location` and `down` where the store is a server."""

    TTL = 1.0
    """A short lease for tests that wait for its end, in seconds."""
    path: str
    """The backend under test, as LOCKS names it."""
    down: str | list[str] = ""
    """A LOCATION without a server."""

    def __init_subclass__(cls) -> None:
        if not hasattr(cls, "path"):
            return
        capabilities = backend_class({"BACKEND": cls.path}).capabilities
        for attribute in dir(cls):
            needed = getattr(getattr(cls, attribute), "needs", None)
            if needed is not None and not needed(capabilities):
                setattr(cls, attribute, None)

    @pytest.fixture
    def location(self) -> str | list[str]:
        return ""

    @pytest.fixture
    def options(self) -> dict[str, Any]:
        return {}

    @pytest.fixture
    def env(self) -> dict[str, str]:
        return {}

    @pytest.fixture
    def conf(self, location: str | list[str], options: dict[str, Any]) -> dict[str, Any]:
        return {"BACKEND": self.path, "LOCATION": location, "OPTIONS": options}

    @pytest.fixture
    def another(self, conf: dict[str, Any], env: dict[str, str]) -> Iterator[Another]:
        """Start other processes with the same backend; they are killed after the test."""
        started: list[OtherProcess] = []

        def start() -> OtherProcess:
            started.append(OtherProcess(conf, env))
            return started[-1]

        yield start
        for process in started:
            process.kill()

    @pytest.fixture
    def locks(self, conf: dict[str, Any]) -> Iterator[LockStore]:
        with closing(create("contract", conf)) as made:
            yield made

    @pytest.fixture
    def name(self) -> str:
        return f"contract:{uuid.uuid4().hex}"

    def waiting(self, locks: LockStore, name: str) -> int | None:
        """Return the number of waiters for `name`; None if the store does not record it."""
        return next((held.waiters for held in locks.inspect() if held.name == name), 0)

    @needs(lambda can: can.exclusion == "machines")
    def test_killed_holder_is_replaced(self, locks: LockStore, another: Another, name: str) -> None:
        can = locks.capabilities
        assert can.expires or can.session_bound
        other = another()
        assert other.call("acquire", name, 5, self.TTL)
        assert not locks.lock(name).acquire(blocking=False)
        other.kill()
        assert acquire_and_release(locks, name)

    @needs(lambda can: can.expires)
    def test_expired_claim_cannot_change_its_successor(self, locks: LockStore, name: str) -> None:
        old, successor = Claim(name=name, ttl=0.3), Claim(name=name, ttl=30)
        expired, grant = granted(locks, old), granted(locks, successor)
        assert grant.token > expired.token
        with pytest.raises(LockLost):
            locks.backend.extend(old, expired.token, 30)
        with pytest.raises(LockLost):
            locks.backend.release(old, expired.token)
        assert locks.backend.acquire(Claim(name=name, ttl=30), 0) is None, (
            "the successor lost its lock"
        )
        locks.backend.release(successor, grant.token)

    @needs(lambda can: can.expires)
    def test_extended_grant_lasts_longer(self, locks: LockStore, name: str) -> None:
        claim = Claim(name=name, ttl=self.TTL)
        grant = granted(locks, claim)
        assert grant.deadline <= time.monotonic() + self.TTL
        extended = locks.backend.extend(claim, grant.token, 30)
        assert grant.deadline + 20 < extended <= time.monotonic() + 30
        until(lambda: time.monotonic() > grant.deadline + 0.1, "the first end passing")
        assert locks.backend.acquire(Claim(name=name, ttl=30), 0) is None
        locks.backend.release(claim, grant.token)

    @needs(lambda can: can.exclusion != "none")
    def test_other_claims_cannot_change_the_grant(self, locks: LockStore, name: str) -> None:
        def held() -> list[tuple[str, int | None]]:
            return [(held.owner, held.count) for held in locks.inspect() if held.name == name]

        holder, other = Claim(name=name, ttl=30), Claim(name=name, ttl=30)
        grant = granted(locks, holder)
        if locks.capabilities.counts_in_store:
            locks.backend.set_depth(holder, grant.token, 3)
            assert held() == [(holder.owner, 3)]
        before = held()
        with pytest.raises(LockLost):
            locks.backend.extend(other, grant.token, 60)
        with pytest.raises(LockLost) if locks.capabilities.counts_in_store else nullcontext():
            locks.backend.set_depth(other, grant.token, 2)
        with pytest.raises(LockLost):
            locks.backend.release(other, grant.token)
        assert held() == before
        locks.backend.release(holder, grant.token)
        with pytest.raises(LockLost):
            locks.backend.release(holder, grant.token)

    @needs(lambda can: can.exclusion != "none")
    @pytest.mark.parametrize("when", ["before", "during"])
    def test_cancelled_wait_leaves_no_trace(self, locks: LockStore, name: str, when: str) -> None:
        claim = Claim(name=name, ttl=30)
        with locks.lock(name, timeout=5), ThreadPoolExecutor(1) as pool:
            if when == "before":
                claim.cancel()
            waiter = pool.submit(locks.backend.acquire, claim, WAIT_TIMEOUT * 2)
            if when == "during":
                until(lambda: self.waiting(locks, name) != 0, "the wait")
                claim.cancel()
            assert waiter.result(WAIT_TIMEOUT) is None
            until(lambda: not self.waiting(locks, name), "the waiter leaving the queue")
        assert acquire_and_release(locks, name, 5)

    def test_lock_works_after_a_fork(self, locks: LockStore, name: str) -> None:
        lock = locks.lock(name, timeout=5)

        def works_in_child() -> bool:
            held_here = lock.lease is not None
            excluded = locks.capabilities.exclusion != "machines" or not lock.acquire(timeout=0.1)
            return not held_here and excluded and acquire_and_release(locks, f"{name}-free", 5)

        with lock as lease:  # opens the client, too
            assert passes_in_child(works_in_child)
            lease.check()

    @needs(lambda can: can.exclusion == "machines")
    def test_unreachable_store_fails_in_bounded_time(self) -> None:
        locks = create("down", {"BACKEND": self.path, "LOCATION": self.down})
        with within(WAIT_TIMEOUT), closing(locks):
            with pytest.raises(LockUnavailable):
                locks.probe()
            with pytest.raises(LockUnavailable):
                locks.lock("contract:down").acquire(timeout=0.5)

    def test_broken_lock_is_lost_by_its_holder(self, locks: LockStore, name: str) -> None:
        lock = locks.lock(name)
        lock.acquire(timeout=5)
        try:
            assert locks.break_lock(name)
        except LockMisuse:  # the backend has no such operation
            lock.release()
            return
        assert not locks.break_lock(f"{name}-unknown")
        free = in_thread(acquire_and_release, locks, name)
        assert free, "a broken lock must be free for others"
        with pytest.raises(LockLost):
            lock.release()
