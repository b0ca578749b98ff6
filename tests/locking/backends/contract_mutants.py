"""Wrong backends in memory, each with the tests of the contract that must reject it.

Each differs from a correct backend in one method. `test_contract_mutants` runs them.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace

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

MUTANTS: dict[type[MemoryBackend], tuple[str, ...]] = {}
"""By wrong backend: the tests that must reject it."""


def mutant(
    method: str, *rejected_by: str, of: type[MemoryBackend] = MemoryBackend
) -> Callable[[Callable[..., object]], type[MemoryBackend]]:
    """Make a function a backend, whose `method` it is."""

    def make(replacement: Callable[..., object]) -> type[MemoryBackend]:
        attributes = {method: replacement, "__module__": __name__}
        made = type(replacement.__name__, (of,), attributes)
        MUTANTS[made] = rejected_by
        return made

    return make


@mutant("extend", "test_expired_claim_cannot_change_its_successor")
def extend_is_never_lost(self: MemoryBackend, claim: Claim, token: int, ttl: float) -> float:
    return time.monotonic() + ttl


@mutant("acquire", "test_extended_grant_lasts_longer")
def acquire_promises_tenfold(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    grant = MemoryBackend.acquire(self, claim, timeout)
    return grant and grant._replace(deadline=grant.deadline + 9 * claim.ttl)


@mutant("grant", "test_inspect_lists_held_locks")
def grant_lasts_a_tenth(self: MemoryBackend, claim: Claim, row: Row) -> Grant:
    grant = MemoryBackend.grant(self, claim, row)
    end = grant.deadline - 0.9 * claim.ttl
    row.holders[claim.owner] = replace(row.holders[claim.owner], expires_in=end)
    return grant


@mutant("extend", "test_extended_grant_lasts_longer")
def extend_promises_tenfold(self: MemoryBackend, claim: Claim, token: int, ttl: float) -> float:
    return MemoryBackend.extend(self, claim, token, ttl / 10) + 0.9 * ttl


@mutant("release", "test_other_claims_cannot_change_the_grant")
def release_ignores_the_owner(self: MemoryBackend, claim: Claim, token: int) -> None:
    self.break_lock(claim.name)


@mutant("release", "test_release_wakes_the_waiter_also_after_a_fork")
def release_wakes_no_one(self: MemoryBackend, claim: Claim, token: int) -> None:
    row = self.row(claim.name)
    self.held(claim, row)
    self.drop(row, claim.owner)


@mutant("token", "test_tokens_grow_with_every_grant")
def token_stays_equal(self: MemoryBackend) -> int:
    return 1


@mutant("acquire", "test_held_lock_is_refused_at_once")
def try_waits(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    return MemoryBackend.acquire(self, claim, timeout or 1)


@mutant("aacquire", "test_task_that_waits_gives_up_or_gets_the_lock")
async def tasks_are_not_woken(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    grant = self.acquire(claim, 0)
    await asyncio.sleep(0 if grant else min(timeout, 60))
    return grant


@mutant("aacquire", "test_task_that_waits_gives_up_or_gets_the_lock")
async def tasks_wait_too_long(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    return await MemoryBackend.aacquire(self, claim, math.inf if timeout else 0)


@mutant("is_cancelled", "test_cancelled_wait_leaves_no_trace")
def cancelled_wait_is_granted(self: MemoryBackend, claim: Claim) -> bool:
    return False


@mutant("acquire", "test_names_are_not_patterns")
def names_fold_case(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    claim.name = claim.name.lower()
    return MemoryBackend.acquire(self, claim, timeout)


@mutant("break_lock", "test_broken_lock_is_lost_by_its_holder")
def break_does_nothing(self: MemoryBackend, name: str) -> bool:
    return bool(self.row(name).holders)


@mutant("acquire", "test_waiter_sends_no_requests_while_it_waits")
def polls(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    """Declares that waiters are woken, but asks every 50 ms."""
    until = time.monotonic() + timeout
    while (grant := MemoryBackend.acquire(self, claim, 0)) is None and time.monotonic() < until:
        time.sleep(0.05)
    return grant


@mutant("first", "test_fair_lock_is_granted_in_order", "test_slot_is_granted_in_order")
def last_comes_first(self: MemoryBackend, queue: list[Claim]) -> Claim:
    return queue[-1]


@mutant("acquire", "test_newcomer_does_not_overtake_a_waiter_when_the_grant_expires")
def try_overtakes(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    if timeout > 0:
        return MemoryBackend.acquire(self, claim, timeout)
    row = self.row(claim.name)
    return None if row.holders else self.grant(claim, row)


@mutant("acquire", "test_waiter_keeps_its_place_beyond_its_ttl")
def place_is_not_kept(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    """A waiter leaves its place in the queue when it has waited for its own ttl."""
    until = time.monotonic() + timeout
    while True:
        left = max(0.0, until - time.monotonic())
        grant = MemoryBackend.acquire(self, claim, min(left, claim.ttl))
        if grant or left <= claim.ttl:
            return grant


@mutant("token", "test_tokens_grow_through_a_restart", "test_tokens_grow_through_a_failover")
def fault_forgets_tokens(self: MemoryBackend) -> int:
    holders = [held for row in self.server.rows.values() for held in row.holders.values()]
    return max((held.token or 0 for held in holders), default=0) + 1


@mutant("take_over", "test_handed_over_lease_has_one_holder")
def hand_over_lowers_the_token(self: MemoryBackend, claim: Claim, owner: str, token: int) -> Grant:
    return MemoryBackend.take_over(self, claim, owner, token)._replace(token=token - 1)


@mutant("drop", "test_handed_over_lease_has_one_holder")
def hand_over_keeps_the_giver(self: MemoryBackend, row: Row, owner: str) -> None:
    """Leave the giver its lock."""


@mutant("token", "test_minority_that_is_down_stops_no_lock")
def stops_with_a_minority(self: MemoryBackend) -> int:
    if self.server.has_majority_only:
        raise LockUnavailable("a node is down")
    return MemoryBackend.token(self)


@mutant("probe", "test_stopped_store_fails_in_bounded_time")
def waits_for_a_stopped_store(self: MemoryBackend) -> None:
    while self.server.is_paused:
        time.sleep(1)
        if self.server.is_paused:
            return  # as if the store were well


@mutant("is_over", "test_clock_set_back_does_not_prolong_a_lease")
def lease_follows_the_clock(self: MemoryBackend, end: float) -> bool:
    return end <= time.monotonic() + memory_store.server.clock_offset


@mutant("session_ended", "test_end_of_the_session_is_the_loss_of_the_lock", of=SessionBackend)
def loss_of_the_session_is_silent(self: SessionBackend, owner: str) -> None:
    """Report nothing."""


@mutant("is_over", "test_clock_set_ahead_ends_no_session", of=SessionBackend)
def session_follows_the_clock(self: SessionBackend, end: float) -> bool:
    return memory_store.server.clock_offset > 0


@mutant("fits", "test_semaphore_has_as_many_holders_as_slots")
def one_slot_too_many(self: MemoryBackend, row: Row, claim: Claim) -> bool:
    slots = claim.slots or 0
    return len(row.holders) <= slots if slots > 0 else MemoryBackend.fits(self, row, claim)


@mutant("is_over", "test_expired_holder_frees_its_slot_only")
def slot_stays_taken_after_expiry(self: MemoryBackend, end: float) -> bool:
    return False


@mutant("first", "test_waiting_writer_goes_before_later_readers")
def writers_starve(self: MemoryBackend, queue: list[Claim]) -> Claim:
    """A reader passes a writer that waits."""
    return next((one for one in queue if one.slots == READER), queue[0])


@mutant("fits", "test_readers_share_and_a_writer_excludes")
def writer_does_not_wait_for_readers(self: MemoryBackend, row: Row, claim: Claim) -> bool:
    passes = claim.slots == WRITER and row.slots == READER
    return passes or MemoryBackend.fits(self, row, claim)


@mutant("first", "test_writer_that_gives_up_lets_readers_in")
def writer_that_gave_up_keeps_readers_out(self: MemoryBackend, queue: list[Claim]) -> Claim:
    self.gone = [*getattr(self, "gone", []), *(one for one in queue if one.slots == WRITER)]
    return self.gone[0] if self.gone else queue[0]


@mutant("acquire", "test_other_number_of_slots_is_refused")
def any_number_of_slots(self: MemoryBackend, claim: Claim, timeout: float) -> Grant | None:
    self.row(claim.name).slots = claim.slots
    return MemoryBackend.acquire(self, claim, timeout)


def suite(backend: type[MemoryBackend]) -> type[Contract]:
    """Return the contract for a backend."""
    driver = SessionDriver if issubclass(backend, SessionBackend) else MemoryDriver
    path = f"{backend.__module__}.{backend.__name__}"
    return type(f"Test_{backend.__name__}", (Contract,), {"path": path, "Driver": driver})


globals().update(
    (f"Test_{one.__name__}", suite(one)) for one in (*MUTANTS, MemoryBackend, SessionBackend)
)
