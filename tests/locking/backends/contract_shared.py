"""The contract of semaphores and read-write locks, for backends that declare `shared`."""

from pathlib import Path
from typing import Any

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost
from locking.claims import READER, WRITER, Claim
from locking.lease import LockStore
from locking.testing.calls import in_thread
from locking.testing.contract_base import granted, needs
from tests.locking.backends.contract_processes import OtherProcesses, StartWorker
from tests.locking.backends.shared_calls import (
    KINDS,
    kill_holders,
    lock_of,
    most_at_once,
    overlap,
)

SLOTS = 3
shared = needs(lambda can: can.shared)


def claim_on(locks: LockStore, name: str, slots: int, ttl: float = 30) -> Claim:
    """Return a claim of a new owner on a semaphore or a read-write lock."""
    prefix = "semaphore" if slots > 0 else "read-write"
    claim = Claim(name=f"{prefix}:{name}", ttl=ttl)
    claim.slots = slots
    return claim


def passed(locks: LockStore, kind: str, name: str, timeout: float = 0, slots: int = SLOTS) -> bool:
    """Return whether another thread gets the lock, which it releases."""

    def take() -> bool:
        lock = lock_of(locks, kind, name, slots)
        if not lock.acquire(timeout=timeout):
            return False
        lock.release()
        return True

    return in_thread(take)


class SharedLimits(OtherProcesses):
    """How many hold a lock at once, also among processes and after kills."""

    LEASE = 0.5
    """Seconds of a killed holder's lease, where the store has leases."""
    KILLS = 24

    def queued(self, locks: LockStore, name: str) -> int:
        """Return the number of waiters for a shared lock."""
        return next((one.waiters or 0 for one in locks.inspect() if one.name == name), 0)

    @shared
    def test_semaphore_never_has_more_holders_than_slots(
        self, start_worker: StartWorker, name: str
    ) -> None:
        workers = [start_worker() for _ in range(2)]
        for one in workers:
            one.send("work", threads=["semaphore"] * 6, name=name, slots=SLOTS, times=10)
        holds = [tuple(hold) for one in workers for hold in one.receive()["semaphore"]]
        assert len(holds) == 120
        assert most_at_once(holds) == SLOTS

    @shared
    def test_readers_overlap_and_writers_do_not(self, start_worker: StartWorker, name: str) -> None:
        workers = [start_worker() for _ in range(2)]
        for one in workers:
            kinds = ["read"] * 4 + ["write"] * 2
            one.send("work", threads=kinds, name=name, slots=0, times=10)
        found = [one.receive() for one in workers]
        reads, writes = ([hold for one in found for hold in one[kind]] for kind in KINDS[1:])
        assert (len(reads), len(writes)) == (80, 40)
        assert most_at_once(reads) > 1
        assert most_at_once(writes) == 1
        assert not overlap(reads, writes)

    @pytest.mark.faults(row=3)
    @shared
    def test_slots_of_killed_holders_are_free_again(
        self, locks: LockStore, conf: dict[str, Any], name: str, tmp_path: Path
    ) -> None:
        self.kill(locks, conf, name, tmp_path, self.KILLS, SLOTS)

    @pytest.mark.long
    @shared
    def test_slots_of_a_thousand_killed_holders_are_free_again(
        self, locks: LockStore, conf: dict[str, Any], name: str, tmp_path: Path
    ) -> None:
        self.kill(locks, conf, name, tmp_path, kills=1000, slots=10)

    def kill(
        self,
        locks: LockStore,
        conf: dict[str, Any],
        name: str,
        folder: Path,
        kills: int,
        slots: int,
    ) -> None:
        log = folder / "holds"
        holds = kill_holders(conf, name, kills=kills, slots=slots, ttl=self.LEASE, log=log)
        assert len(holds) == kills
        assert most_at_once(holds) <= slots
        claims = [claim_on(locks, name, slots) for _ in range(slots)]
        grants = [granted(locks, claim) for claim in claims]
        assert locks.backend.acquire(claim_on(locks, name, slots), 0) is None
        for claim, grant in zip(claims, grants, strict=True):
            locks.backend.release(claim, grant.token)

    @shared
    def test_killed_waiting_writer_lets_readers_in(
        self, locks: LockStore, start_worker: StartWorker, name: str
    ) -> None:
        writer = start_worker()
        with locks.read_write(name).read(timeout=5):
            writer.send("take", kind="write", name=name, timeout=60)
            until(lambda: self.queued(locks, f"read-write:{name}") == 1, "the writer waiting")
            assert not passed(locks, "read", name)
            writer.kill()
            assert passed(locks, "read", name, WAIT_TIMEOUT)

    @shared
    def test_expired_holder_frees_its_slot_only(self, locks: LockStore, name: str) -> None:
        if not locks.capabilities.expires:
            return
        old = [claim_on(locks, name, 2, ttl=0.3) for _ in range(2)]
        grants = [granted(locks, claim) for claim in old]
        new = [claim_on(locks, name, 2) for _ in range(2)]
        later = [granted(locks, claim) for claim in new]
        assert min(grant.token for grant in later) > max(grant.token for grant in grants)
        for claim, grant in zip(old, grants, strict=True):
            with pytest.raises(LockLost):
                locks.backend.extend(claim, grant.token, 30)
            with pytest.raises(LockLost):
                locks.backend.release(claim, grant.token)
        assert locks.backend.acquire(claim_on(locks, name, 2), 0) is None
        for claim, grant in zip(new, later, strict=True):
            locks.backend.release(claim, grant.token)

    @shared
    def test_extended_slot_lasts_longer(self, locks: LockStore, name: str) -> None:
        if not locks.capabilities.expires:
            return
        claims = [claim_on(locks, name, 2, ttl=0.5) for _ in range(2)]
        first, _ = [granted(locks, claim) for claim in claims]
        locks.backend.extend(claims[0], first.token, 30)
        third = claim_on(locks, name, 2)
        token = granted(locks, third).token  # of the second, which expired
        assert locks.backend.acquire(claim_on(locks, name, 2), 0) is None
        locks.backend.release(claims[0], first.token)
        locks.backend.release(third, token)
        assert passed(locks, "semaphore", name, 5, slots=2)

    @pytest.mark.faults(row=24, fired="foreign and double release")
    @shared
    def test_other_claims_cannot_free_a_slot(self, locks: LockStore, name: str) -> None:
        for slots in (1, READER, WRITER):
            holder, other = (claim_on(locks, name, slots) for _ in range(2))
            grant = granted(locks, holder)
            for _ in range(2):
                with pytest.raises(LockLost):
                    locks.backend.extend(other, grant.token, 60)
                with pytest.raises(LockLost):
                    locks.backend.release(other, grant.token)
            refused = claim_on(locks, name, 1 if slots == 1 else WRITER)
            assert locks.backend.acquire(refused, 0) is None
            locks.backend.release(holder, grant.token)
            with pytest.raises(LockLost):
                locks.backend.release(holder, grant.token)

    @shared
    def test_inspect_lists_every_holder(self, locks: LockStore, name: str) -> None:
        claims = [claim_on(locks, name, 2) for _ in range(2)]
        grants = {claim.owner: granted(locks, claim) for claim in claims}
        seen = [held for held in locks.inspect() if held.name == claims[0].name]
        assert {held.owner: held.token for held in seen} == {
            owner: grant.token for owner, grant in grants.items()
        }
        assert locks.semaphore(name, 2).locked()
        locks.backend.release(claims[0], grants[claims[0].owner].token)
        assert not locks.semaphore(name, 2).locked()
        assert locks.break_lock(claims[0].name)
        with locks.semaphore(name, 2, timeout=5):
            assert passed(locks, "semaphore", name, WAIT_TIMEOUT, slots=2), "the broken slot"
