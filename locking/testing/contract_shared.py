"""The contract of semaphores and read-write locks, for backends that declare `shared`."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from locking.claims import READER, WRITER
from locking.exceptions import LockLost, LockMisuse
from locking.lease import LockStore
from locking.testing.calls import WAIT_TIMEOUT, in_thread, until
from locking.testing.contract_base import ContractBase, claim_on, granted, needs

shared = needs(lambda can: can.shared)


class Shared(ContractBase):
    """The number of holders, their order, and the ends of a hold or a wait."""

    def passes(self, locks: LockStore, name: str, slots: int, timeout: float = 0) -> bool:
        """Return whether another caller gets the lock, which it releases."""
        claim = claim_on(locks, name, slots)
        grant = locks.backend.acquire(claim, timeout)
        if grant is not None:
            locks.backend.release(claim, grant.token)
        return grant is not None

    @shared
    def test_semaphore_has_as_many_holders_as_slots(self, locks: LockStore, name: str) -> None:
        claims = [claim_on(locks, name, 2) for _ in range(2)]
        grants = {claim.owner: granted(locks, claim).token for claim in claims}
        assert not self.passes(locks, name, 2)
        seen = locks.backend.holders(claims[0].name)
        assert {held.owner: held.token for held in seen} == grants
        locks.backend.release(claims[0], grants[claims[0].owner])
        assert self.passes(locks, name, 2)
        locks.backend.release(claims[1], grants[claims[1].owner])

    @shared
    def test_readers_share_and_a_writer_excludes(self, locks: LockStore, name: str) -> None:
        with locks.read_write(name).read(timeout=5):
            assert self.passes(locks, name, READER)
            assert not self.passes(locks, name, WRITER)
        with locks.read_write(name).write(timeout=5):
            assert not self.passes(locks, name, READER)
            assert not self.passes(locks, name, WRITER)

    @needs(lambda can: can.shared and can.expires)
    def test_expired_holder_frees_its_slot_only(self, locks: LockStore, name: str) -> None:
        old, kept, new = (claim_on(locks, name, 2, ttl=ttl) for ttl in (0.3, 5, 30))
        first, second = granted(locks, old), granted(locks, kept)
        locks.backend.extend(kept, second.token, 30)
        third = granted(locks, new)
        assert third.token > first.token
        with pytest.raises(LockLost):
            locks.backend.extend(old, first.token, 30)
        with pytest.raises(LockLost):
            locks.backend.release(old, first.token)
        assert not self.passes(locks, name, 2), "the extended slot was granted again"
        locks.backend.release(kept, second.token)
        locks.backend.release(new, third.token)

    @shared
    @pytest.mark.parametrize("kinds", [[1] * 5, [WRITER, READER, WRITER]])
    def test_slot_is_granted_in_order(self, locks: LockStore, name: str, kinds: list[int]) -> None:
        assert self.served(locks, name, kinds) == [*range(len(kinds))]

    @shared
    def test_waiting_writer_goes_before_later_readers(self, locks: LockStore, name: str) -> None:
        with ThreadPoolExecutor(2) as pool, locks.read_write(name).read(timeout=5):
            order = self.queue(locks, name, [WRITER, READER], pool)
            assert not self.passes(locks, name, READER)
            assert not order, "a reader overtook a writer"
        assert order == [0, 1]

    @shared
    @pytest.mark.parametrize("how", ["cancelled", "timed out"])
    def test_writer_that_gives_up_lets_readers_in(
        self, locks: LockStore, name: str, how: str
    ) -> None:
        writer = claim_on(locks, name, WRITER)
        timeout = WAIT_TIMEOUT * 2 if how == "cancelled" else 3.0
        with ThreadPoolExecutor(2) as pool, locks.read_write(name).read(timeout=5):
            waiting = pool.submit(locks.backend.acquire, writer, timeout)
            until(lambda: self.waiting(locks, writer.name) == 1, "the writer waiting")
            reader = pool.submit(self.passes, locks, name, READER, WAIT_TIMEOUT)
            until(lambda: self.waiting(locks, writer.name) == 2, "the reader waiting")
            if how == "cancelled":
                writer.cancel()
            assert waiting.result(WAIT_TIMEOUT) is None
            assert reader.result(WAIT_TIMEOUT)
            until(lambda: not self.waiting(locks, writer.name), "the queue being empty")

    @needs(lambda can: can.shared and can.lists_holders)
    def test_other_number_of_slots_is_refused(self, locks: LockStore, name: str) -> None:
        with locks.semaphore(name, 2, timeout=5) as lease:
            with pytest.raises(LockMisuse, match="slots=2"):
                in_thread(locks.semaphore(name, 3).acquire, timeout=0)
            lease.check()
        assert self.passes(locks, name, 3, 5)
