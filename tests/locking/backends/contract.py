"""The contract of every backend of the library: the public one, and the tests of leases on it.

`none` is the control, which must fail to exclude.
"""

import math
from collections.abc import Callable

import pytest

from locking import LockMisuse
from locking.lease import LockStore
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import needs
from tests.locking.backends.contract_several import Several
from tests.locking.backends.contract_shared_order import SharedOrder


class CountsRequests:
    """The part for stores that count requests, with a fixture `requests` that returns the count."""

    @needs(lambda can: can.wakes_waiters)
    def test_waiter_sends_no_requests_while_it_waits(
        self, locks: LockStore, name: str, requests: Callable[[], int]
    ) -> None:
        with locks.lock(name, timeout=5, ttl=60):
            before = requests()
            assert not in_thread(locks.lock(name).acquire, timeout=1.5)
            assert requests() - before <= 3, "more than to join and to leave the queue"


class Contract(Several, SharedOrder):
    """All tests, with those of `contract_ends`, `contract_several` and `contract_shared_order`."""

    @pytest.mark.faults(row=24, fired="re-entry")
    def test_holder_can_enter_again(self, locks: LockStore, name: str) -> None:
        assert locks.capabilities.reentrant
        with locks.lock(name, timeout=5) as lease:
            with locks.lock(name, timeout=5) as again:
                assert again is lease
                assert lease.count == 2
                if locks.capabilities.counts_in_store:
                    assert [h.count for h in locks.inspect() if h.name == name] == [2]
            assert not lease.lost
            got = in_thread(acquire_and_release, locks, name, 0)
            assert got is (locks.capabilities.exclusion == "none"), "the inner release freed it"
            if locks.capabilities.counts_in_store:
                assert [h.count for h in locks.inspect() if h.name == name] == [1]
        assert not locks.lock(name).locked()

    @pytest.mark.faults(row=24, fired="foreign and double release")
    def test_release_without_lock_is_misuse(self, locks: LockStore, name: str) -> None:
        lock = locks.lock(name)
        with pytest.raises(LockMisuse):
            lock.release()
        lock.acquire(timeout=5)
        with pytest.raises(LockMisuse):
            in_thread(lock.release)
        lock.lease.check()
        lock.release()
        with pytest.raises(LockMisuse):
            lock.release()

    @pytest.mark.parametrize("bad", ["", "x" * 300, "line\nbreak", "nul\0"])
    def test_bad_name_is_refused(self, locks: LockStore, bad: str) -> None:
        with pytest.raises(LockMisuse):
            locks.lock(bad)

    def test_bad_times_are_refused(self, locks: LockStore, name: str) -> None:
        for ttl in (0, -1, 1e16, math.inf, math.nan):
            with pytest.raises(LockMisuse):
                locks.lock(name, ttl=ttl)
        for timeout in (-1, math.nan):
            with pytest.raises(LockMisuse):
                locks.lock(name).acquire(timeout=timeout)
        with pytest.raises(LockMisuse):
            locks.lock(name).acquire(blocking=False, timeout=1)
        assert name not in {held.name for held in locks.inspect()}
