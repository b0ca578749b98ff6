"""Several locks at once, and one lease in several processes, on every backend."""

import asyncio
import json

import pytest

from locking import LockLost, LockMisuse, LockTimeout
from locking.lease import LockStore, TakenOver
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import needs
from tests.locking.backends.contract_ends import Ends
from tests.locking.lock_worker import LockWorker

ROUNDS = 20


class Several(Ends):
    """The part about `all_of` and `hand_over`."""

    @needs(lambda can: can.hands_over and can.exclusion == "machines")
    def test_another_process_continues_the_lease(
        self, locks: LockStore, name: str, worker: LockWorker
    ) -> None:
        lock = locks.lock(name, ttl=30)
        lock.acquire(timeout=5)
        lease = lock.lease
        ticket = json.loads(json.dumps(lease.hand_over()))
        assert not in_thread(locks.lock(name).acquire, False), "it was free meanwhile"
        taken = worker.call("take_over", ticket=ticket, ttl=self.TTL)
        assert taken["ok"]
        assert taken["owner"] != lease.owner
        assert taken["token"] > lease.token
        with pytest.raises(LockLost):
            lease.check()
        lock.release()
        with pytest.raises(LockMisuse):
            lock.release()
        with pytest.raises(LockLost):
            TakenOver(locks, ticket).acquire()
        (held,) = [held for held in locks.inspect() if held.name == name]
        assert (held.owner, held.count) == (taken["owner"], 1)
        assert not in_thread(locks.lock(name).acquire, timeout=self.TTL * 1.5)
        assert worker.lease(name) == {"ok": True, "lost": False, "token": taken["token"]}
        assert worker.release(name) == {"ok": True}
        assert acquire_and_release(locks, name)

    @needs(lambda can: can.hands_over and can.exclusion == "machines")
    def test_new_holder_renews_and_its_crash_frees_the_lock(
        self, locks: LockStore, name: str, worker: LockWorker
    ) -> None:
        with locks.lock(name, ttl=30, timeout=5) as lease:
            worker.call("take_over", ticket=lease.hand_over(), ttl=self.TTL)
        for _ in range(3):
            with pytest.raises(LockTimeout), locks.lock(name, timeout=self.TTL / 2):
                pass
        assert not worker.lease(name)["lost"]
        worker.kill()
        assert acquire_and_release(locks, name)

    @needs(lambda can: can.hands_over)
    def test_lease_that_is_not_continued_ends_with_its_ttl(
        self, locks: LockStore, name: str
    ) -> None:
        with locks.lock(name, ttl=self.TTL, timeout=5) as lease:
            ticket = lease.hand_over()
        assert not locks.lock(name).acquire(blocking=False)
        assert acquire_and_release(locks, name)
        with pytest.raises(LockLost):
            TakenOver(locks, ticket).acquire()

    @needs(lambda can: can.hands_over)
    def test_task_hands_over_and_continues(self, locks: LockStore, name: str) -> None:
        async def main() -> None:
            async with locks.lock(name, timeout=5) as lease:
                ticket = await asyncio.to_thread(lease.hand_over)
            async with TakenOver(locks, ticket) as taken:
                assert taken.token > lease.token
                assert locks.lock(name).locked()
            assert not locks.lock(name).locked()

        asyncio.run(main())

    @needs(lambda can: not can.hands_over)
    def test_backend_without_hand_over_refuses_it(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="cannot hand over a lease"):
                lease.hand_over()
            assert not lease.lost
