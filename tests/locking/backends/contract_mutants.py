"""Wrong backends in memory, each with the tests of the contract that must reject it.

Each differs from a correct backend in one method. `test_contract_mutants` runs them.
"""

import asyncio
import math
import time

from locking.claims import READER, WRITER, Claim, Grant
from locking.exceptions import LockUnavailable
from locking.testing.contract import Contract
from tests.locking.backends import memory_store
from tests.locking.backends.memory_store import (
    MemoryBackend,
    MemoryDriver,
    Row,
    SessionBackend,
    SessionDriver,
)


class ExtendNeverLost(MemoryBackend):
    rejected_by = ("test_expired_claim_cannot_change_its_successor",)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        return time.monotonic() + ttl


class AcquirePromisesTenfold(MemoryBackend):
    rejected_by = ("test_extended_grant_lasts_longer",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        grant = super().acquire(claim, timeout)
        return grant and grant._replace(deadline=grant.deadline + 9 * claim.ttl)


class GrantLastsATenth(MemoryBackend):
    rejected_by = ("test_inspect_lists_held_locks",)

    def grant(self, claim: Claim, row: Row) -> Grant:
        grant = super().grant(claim, row)
        row.ends[claim.owner] -= 0.9 * claim.ttl
        return grant


class ExtendPromisesTenfold(MemoryBackend):
    rejected_by = ("test_extended_grant_lasts_longer",)

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        return super().extend(claim, token, ttl / 10) + 0.9 * ttl


class ReleaseIgnoresTheOwner(MemoryBackend):
    rejected_by = ("test_other_claims_cannot_change_the_grant",)

    def release(self, claim: Claim, token: int) -> None:
        self.break_lock(claim.name)


class ReleaseWakesNoOne(MemoryBackend):
    rejected_by = ("test_release_wakes_the_waiter_also_after_a_fork",)

    def release(self, claim: Claim, token: int) -> None:
        row = self.row(claim.name)
        self.held(claim, row)
        self.drop(row, claim.owner)


class TokenStaysEqual(MemoryBackend):
    rejected_by = ("test_tokens_grow_with_every_grant",)

    def token(self) -> int:
        return 1


class TryWaits(MemoryBackend):
    rejected_by = ("test_held_lock_is_refused_at_once",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        return super().acquire(claim, timeout or 1)


class TasksAreNotWoken(MemoryBackend):
    rejected_by = ("test_task_that_waits_gives_up_or_gets_the_lock",)

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        grant = self.acquire(claim, 0)
        await asyncio.sleep(0 if grant else min(timeout, 60))
        return grant


class TasksWaitTooLong(MemoryBackend):
    rejected_by = ("test_task_that_waits_gives_up_or_gets_the_lock",)

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        return await super().aacquire(claim, math.inf if timeout else 0)


class CancelledWaitIsGranted(MemoryBackend):
    rejected_by = ("test_cancelled_wait_leaves_no_trace",)

    def is_cancelled(self, claim: Claim) -> bool:
        return False


class NamesFoldCase(MemoryBackend):
    rejected_by = ("test_names_are_not_patterns",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        claim.name = claim.name.lower()
        return super().acquire(claim, timeout)


class BreakDoesNothing(MemoryBackend):
    rejected_by = ("test_broken_lock_is_lost_by_its_holder",)

    def break_lock(self, name: str) -> bool:
        return bool(self.row(name).holders)


class Polls(MemoryBackend):
    """Declares that waiters are woken, but asks every 50 ms."""

    rejected_by = ("test_waiter_sends_no_requests_while_it_waits",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        until = time.monotonic() + timeout
        while (grant := super().acquire(claim, 0)) is None and time.monotonic() < until:
            time.sleep(0.05)
        return grant


class LastComesFirst(MemoryBackend):
    rejected_by = "test_fair_lock_is_granted_in_order", "test_slot_is_granted_in_order"

    def first(self, queue: list[Claim]) -> Claim:
        return queue[-1]


class PlaceIsNotKept(MemoryBackend):
    """A waiter leaves its place in the queue when it has waited for its own ttl."""

    rejected_by = ("test_waiter_keeps_its_place_beyond_its_ttl",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        until = time.monotonic() + timeout
        while True:
            left = max(0.0, until - time.monotonic())
            grant = super().acquire(claim, min(left, claim.ttl))
            if grant or left <= claim.ttl:
                return grant


class FaultForgetsTokens(MemoryBackend):
    rejected_by = "test_tokens_grow_through_a_restart", "test_tokens_grow_through_a_failover"

    def token(self) -> int:
        rows = memory_store.server.rows.values()
        return (
            max((held.token or 0 for row in rows for held in row.holders.values()), default=0) + 1
        )


class HandOverLowersTheToken(MemoryBackend):
    rejected_by = ("test_handed_over_lease_has_one_holder",)

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        return super().take_over(claim, owner, token)._replace(token=token - 1)


class HandOverKeepsTheGiver(MemoryBackend):
    rejected_by = ("test_handed_over_lease_has_one_holder",)

    def drop(self, row: Row, owner: str) -> None:
        """Leave the giver its lock."""


class StopsWithAMinority(MemoryBackend):
    rejected_by = ("test_minority_that_is_down_stops_no_lock",)

    def token(self) -> int:
        if memory_store.server.has_majority_only:
            raise LockUnavailable("a node is down")
        return super().token()


class WaitsForAStoppedStore(MemoryBackend):
    rejected_by = ("test_stopped_store_fails_in_bounded_time",)

    def probe(self) -> None:
        while memory_store.server.is_paused:
            time.sleep(1)
            if memory_store.server.is_paused:
                return  # as if the store were well


class LeaseFollowsTheClock(MemoryBackend):
    rejected_by = ("test_clock_set_back_does_not_prolong_a_lease",)

    def is_over(self, end: float) -> bool:
        return end <= time.monotonic() + memory_store.server.clock_offset


class LossOfTheSessionIsSilent(SessionBackend):
    rejected_by = ("test_end_of_the_session_is_the_loss_of_the_lock",)

    def session_ended(self, owner: str) -> None:
        """Report nothing."""


class SessionFollowsTheClock(SessionBackend):
    rejected_by = ("test_clock_set_ahead_ends_no_session",)

    def is_over(self, end: float) -> bool:
        return memory_store.server.clock_offset > 0


class OneSlotTooMany(MemoryBackend):
    rejected_by = ("test_semaphore_has_as_many_holders_as_slots",)

    def fits(self, row: Row, claim: Claim) -> bool:
        return (
            len(row.holders) <= claim.slots if (claim.slots or 0) > 0 else super().fits(row, claim)
        )


class SlotStaysTakenAfterExpiry(MemoryBackend):
    rejected_by = ("test_expired_holder_frees_its_slot_only",)

    def is_over(self, end: float) -> bool:
        return False


class WritersStarve(MemoryBackend):
    """A reader passes a writer that waits."""

    rejected_by = ("test_waiting_writer_goes_before_later_readers",)

    def first(self, queue: list[Claim]) -> Claim:
        return next((one for one in queue if one.slots == READER), queue[0])


class WriterDoesNotWaitForReaders(MemoryBackend):
    rejected_by = ("test_readers_share_and_a_writer_excludes",)

    def fits(self, row: Row, claim: Claim) -> bool:
        return (claim.slots == WRITER == -1 and row.slots == READER) or super().fits(row, claim)


class WriterThatGaveUpKeepsReadersOut(MemoryBackend):
    rejected_by = ("test_writer_that_gives_up_lets_readers_in",)

    def first(self, queue: list[Claim]) -> Claim:
        self.gone = [*getattr(self, "gone", []), *(one for one in queue if one.slots == WRITER)]
        return self.gone[0] if self.gone else queue[0]


class AnyNumberOfSlots(MemoryBackend):
    rejected_by = ("test_other_number_of_slots_is_refused",)

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        self.row(claim.name).slots = claim.slots
        return super().acquire(claim, timeout)


MUTANTS = [one for one in list(globals().values()) if hasattr(one, "rejected_by")]


def suite(backend: type[MemoryBackend]) -> type[Contract]:
    """Return the contract for a backend."""
    driver = SessionDriver if issubclass(backend, SessionBackend) else MemoryDriver
    path = f"{backend.__module__}.{backend.__name__}"
    return type(f"Test{backend.__name__}", (Contract,), {"path": path, "Driver": driver})


globals().update(
    (f"Test{one.__name__}", suite(one)) for one in (*MUTANTS, MemoryBackend, SessionBackend)
)
