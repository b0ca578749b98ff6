"""Several locks at once, and one lease in several processes, on every backend."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT
from locking import LockLost, LockMisuse, LockTimeout
from locking.lease import LockStore, TakenOver
from locking.testing.calls import acquire_and_release, in_thread
from locking.testing.contract_base import needs
from tests.locking.backends.contract_ends import Ends
from tests.locking.lock_worker import LockWorker

ROUNDS = 20


class Several(Ends):
    """The part about `all_of` and `hand_over`."""

    @needs(lambda can: can.exclusion != "none")
    def test_all_of_holds_all_names_or_none(self, locks: LockStore, name: str) -> None:
        names = [f"{name}-{part}" for part in "cab"]

        def attempt() -> list[str]:
            try:
                with locks.all_of(names, timeout=0.2) as leases:
                    leases.check()
                    return list(leases)
            except LockTimeout as error:
                return [str(error)]

        with locks.lock(f"{name}-b", timeout=5):
            (refusal,) = in_thread(attempt)
            assert f"{name}-b" in refusal
            for free in names[:2]:
                with locks.lock(free, timeout=5):
                    pass
        assert in_thread(attempt) == sorted(names)
        with locks.all_of(names, timeout=5):
            for held in names:
                assert not in_thread(locks.lock(held).acquire, False)
        for free in names:
            assert not locks.lock(free).locked()

    @needs(lambda can: can.exclusion != "none")
    def test_all_of_in_opposite_orders_never_deadlocks(self, locks: LockStore, name: str) -> None:
        pair = [f"{name}-1", f"{name}-2"]
        inside: list[int] = []

        def work(names: list[str]) -> int:
            for _ in range(ROUNDS):
                with locks.all_of(names, timeout=WAIT_TIMEOUT):
                    inside.append(1)
                    assert sum(inside) == 1, "two holders at once"
                    inside.pop()
            return ROUNDS

        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(work, names) for names in (pair, pair[::-1])]
            assert [one.result(WAIT_TIMEOUT * 2) for one in done] == [ROUNDS, ROUNDS]

    @needs(lambda can: can.exclusion != "none")
    def test_tasks_hold_all_names_or_none(self, locks: LockStore, name: str) -> None:
        names = [f"{name}-b", f"{name}-a"]

        async def attempt() -> list[str]:
            async with locks.all_of(names, timeout=0.2) as leases:
                return list(leases)

        async def main() -> list[str]:
            async with locks.lock(names[0], timeout=5):
                with pytest.raises(LockTimeout, match=names[0]):
                    await asyncio.create_task(attempt())
                async with locks.lock(names[1], timeout=5):
                    pass
            return await asyncio.create_task(attempt())

        assert asyncio.run(main()) == sorted(names)
        assert not any(locks.lock(one).locked() for one in names)

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
