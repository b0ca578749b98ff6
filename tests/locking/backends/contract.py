"""The contract of every backend of the library: the public one, and the tests of leases on it.

`none` is the control, which must fail to exclude.
"""

from collections.abc import Callable

import pytest

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
