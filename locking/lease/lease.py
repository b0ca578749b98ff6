"""Grants in force, and the operations of their holders.

A lease is in one of these states:

    HELD --- release ---> RELEASED, or UNCONFIRMED without a reply of the store
      |----- hand_over -> HANDED_OVER
      `----- mark_lost -> LOST

Before the grant there is only a `Claim`, which the lease keeps. Only HELD has ways out, so each end
happens once, whichever thread is first. A lost lease stays the caller's until its release.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any, TypeAlias

from locking import fork, metrics
from locking.backends.base import Backend
from locking.caller import current_caller, sync_to_async_call
from locking.claims import Claim, Grant
from locking.exceptions import LockError, LockLost, LockMisuse, LockUnavailable
from locking.fork import after_fork_in_child
from locking.lease.scope import CancelScope
from locking.lease.steps import Steps, arun, run
from locking.lease.watchdog import Renewer
from locking.names import check_ttl
from locking.threads import start_thread

logger = logging.getLogger("locking")

OnLost: TypeAlias = "Callable[[Lease], object] | None"
Ticket: TypeAlias = dict[str, Any]
"""A lease that was handed over, in values that JSON can represent."""


class State(Enum):
    """The state of a grant."""

    HELD = "held"
    LOST = "lost"
    """It ended before its release: expired, broken or taken over by another holder."""
    HANDED_OVER = "handed over"
    """Another process may continue it; here its release changes nothing."""
    RELEASED = "released"
    UNCONFIRMED = "unconfirmed"
    """It was released, but no reply was received: it lasts for its ttl at most."""


class LeaseTable:
    """The leases of one backend in this process, by name and caller, and who renews them."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._reset()
        after_fork_in_child(self._reset)

    def _reset(self) -> None:
        """Start without leases, also in a forked child: the parent holds its own."""
        self.held: dict[tuple[str, object], Lease] = {}
        """The newest lease of each name and caller until its release, also if it is lost."""
        self.entering: set[tuple[str, object]] = set()
        """The names and tasks that wait for a grant."""
        self.renewer = Renewer(self.backend.alias)

    def leases_of(self, caller: object) -> Iterator[Lease]:
        """Yield the caller's leases, also those that a newer one hides, which comes first."""
        for (_, owner), newest in list(self.held.items()):
            lease: Lease | None = newest if owner == caller else None
            while lease is not None:
                yield lease
                lease = lease.previous

    def add(self, lease: Lease) -> None:
        """Make it the caller's lease. It hides one that is lost, or may not be entered again."""
        key = lease.name, lease.claim.caller
        lease.previous = self.held.get(key)
        self.held[key] = lease

    def discard(self, lease: Lease) -> None:
        """Remove the lease, and nothing else, from the caller's leases of that name."""
        key = (lease.name, lease.claim.caller)
        newer = self.held.get(key)
        if newer is lease:
            if lease.previous is not None and not lease.claim.is_abandoned:
                self.held[key] = lease.previous
            else:
                self.held.pop(key, None)
            return
        while newer is not None:  # it has none if the watchdog and the holder both discard it
            if newer.previous is lease:
                newer.previous = lease.previous
            newer = newer.previous


class Lease:
    """A granted lock as its holder sees it, until it is released or lost."""

    state = State.HELD
    count = 1
    """Acquisitions by the holder that are not yet released."""
    renew_at = math.inf
    """Monotonic time of the next renewal."""
    sync_call: object = None
    """The call of sync_to_async that acquired it. Only that call may enter again, because a task
    and its children look the same in such calls."""
    previous: Lease | None = None
    """The lease that this one hides from its holder until the release."""
    epoch = 0
    """Epoch of the policy that chose the backend; 0 if the caller named the backend."""
    mode = ""
    """Mode of that policy."""
    scope: CancelScope | None = None
    """The block to cancel when the loss is noticed."""
    waits_for_commit = False
    """True if the end of a transaction releases it."""

    def __init__(
        self,
        table: LeaseTable,
        claim: Claim,
        grant: Grant,
        *,
        on_lost: OnLost = None,
        is_renewed: bool = False,
        max_hold: float | None = None,
    ) -> None:
        self.table = table
        self.backend = table.backend
        self.claim = claim
        self.name = claim.name
        self.owner = claim.owner
        """Name of the holder in the store: host:process:thread:secret."""
        self.token = grant.token
        """Number that grows with every grant of this name."""
        claim.token = grant.token
        claim.deadline = grant.deadline
        self.granted_at = time.monotonic()
        self.on_lost = on_lost
        self.is_renewed = is_renewed
        """True if the watchdog extends the grant."""
        self.hold_until = math.inf if max_hold is None else self.granted_at + max_hold
        """Monotonic time at which the lease ends even if it is renewed."""
        self._process = fork.generation
        self._endings = [self.state]
        """Empty once the lease has ended: `pop` lets one of several threads end it."""
        if isinstance(claim.caller, weakref.ref):
            self.sync_call = sync_to_async_call()
        claim.report_lost = self.mark_lost  # the last line: another thread may call it at once

    @property
    def fence(self) -> tuple[int, int]:
        """Policy epoch and token: grows with every grant, also when the backend is switched."""
        return (self.epoch, self.token)

    @property
    def deadline(self) -> float:
        """Monotonic time at which the grant ends unless it is extended; may be inf."""
        return min(self.claim.deadline, self.hold_until)

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def lost(self) -> bool:
        """True if the grant ended before its release: expired, broken, taken or handed over."""
        if self.state is State.HELD:  # a forked child cannot learn of the end
            return time.monotonic() >= self.deadline or self._process != fork.generation
        return self.state in (State.LOST, State.HANDED_OVER)

    @property
    def is_unreleased(self) -> bool:
        """True until the holder releases it, also if it is lost; False in a forked child."""
        return self in self.table.leases_of(self.claim.caller)

    def check(self) -> None:
        """Raise LockLost if the lease is lost or released.

        The process may pause right after the check, so writes need the fence as well.
        """
        if self.lost or self.state is not State.HELD:
            raise self.claim.lost()

    def enter_again(self) -> Steps[bool]:
        """Count one more acquisition by the holder; return False if the lease is lost.

        Also if another call of `sync_to_async` acquired it, see `sync_call`.
        """
        is_same_call = self.sync_call is None or self.sync_call is sync_to_async_call()
        if self.lost or not is_same_call:
            return False
        self.count += 1
        try:
            yield from self._record_depth()
        except BaseException as error:  # the recorded depth is for people, so it may be too high
            self.count -= 1
            if isinstance(error, LockLost):
                return False
            raise
        return True

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost; the lock of a later holder is not touched. An inner
        release of a lost lease raises it only if it is the first to notice.
        """
        run(self.leave())

    async def arelease(self) -> None:
        """Undo one acquisition of a task; see `release`. Cancelling the task does not stop it."""
        await arun(self.leave())

    def leave(self) -> Steps[None]:
        """Undo one acquisition; see `release`."""
        if self.state is State.HANDED_OVER or self._process != fork.generation:
            self.table.discard(self)
            return
        if self.count > 1:
            self.count -= 1
            if not self.lost:
                yield from self._record_depth()
            return
        known_lost = self.lost
        try:
            try:
                self._end()
            finally:  # also after an interrupt
                yield self.backend.release, self.backend.arelease, (self.claim, self.token)
        except BaseException as error:
            if known_lost or isinstance(error, LockLost):
                self.mark_lost()
            self._become(State.UNCONFIRMED)
            if known_lost and isinstance(error, LockUnavailable):
                raise self.claim.lost() from error
            raise
        if known_lost:
            self.mark_lost()
            raise self.claim.lost()
        self._become(State.RELEASED)
        self.log(logging.DEBUG, "lock released")

    def _end(self) -> None:
        """Drop the lease before its release in the store."""
        self.forget()
        self.claim.report_lost = None  # a cycle of references would wait for the garbage collector
        metrics.released(self.backend.alias, self.name, time.monotonic() - self.granted_at)

    def give_up(self, reason: str) -> None:
        """Mark the lease as lost, and free the lock in the store for the next holder."""
        if self.state is State.HANDED_OVER:
            return
        self.table.renewer.remove(self)
        self.log(logging.WARNING, reason)
        self.mark_lost()
        try:
            self.backend.release(self.claim, self.token)
        except LockError as error:
            self.log(logging.WARNING, f"lock not released ({error})")

    def hand_over(self) -> Ticket:
        """Return a ticket with which another process continues as the holder.

        Here the lease is then lost, and its release changes nothing. The lock is free after another
        ttl, unless `lock.take_over(ticket)` continues it. Raise LockMisuse if the store cannot.
        """
        if not self.backend.capabilities.hands_over:
            raise self.backend.no_hand_over()
        if self.claim.slots is not None:
            raise LockMisuse(f"{self.name!r} is shared: only a plain lock can be handed over.")
        if self.count > 1:
            raise LockMisuse(f"{self.name!r} was acquired again: hand over the outermost block's.")
        self.check()
        self.renew()
        run(self._record_depth(0))
        self._end()
        self._become(State.HANDED_OVER)
        self.table.add(self)  # for the release of its block
        ticket: Ticket = {"backend": self.backend.alias, "name": self.name, "owner": self.owner}
        ticket |= {"token": self.token, "ttl": self.claim.ttl}
        return ticket | {"policy": [self.epoch, self.mode]}

    def extend(self, ttl: float) -> None:
        """Move the deadline to `ttl` seconds from now, and renew for this ttl from now on."""
        check_ttl(ttl)
        self.check()
        before, self.claim.ttl = self.claim.ttl, ttl
        try:
            self.renew()
        except LockError:  # the watchdog must renew what may still end by the earlier ttl
            self.claim.ttl = before
            raise

    def schedule(self) -> None:
        """Set the time of the next renewal, a third of the ttl from now."""
        self.renew_at = self.hold_until
        if self.is_renewed:
            self.renew_at = min(time.monotonic() + self.claim.ttl / 3, self.hold_until)

    def renew(self) -> None:
        """Extend the grant to its ttl from now; mark the lease lost and raise LockLost if it is."""
        try:
            ttl = None
            while ttl != self.claim.ttl:  # the watchdog and the holder may extend at once
                ttl = self.claim.ttl
                self.claim.deadline = self.backend.extend(self.claim, self.token, ttl)
        except LockLost:
            if self.is_unreleased:  # else the holder released it during the request
                self.mark_lost()
            raise
        self.schedule()
        self.table.renewer.reschedule(self)

    def _record_depth(self, depth: int | None = None) -> Steps[None]:
        args = self.claim, self.token, self.count if depth is None else depth
        try:
            yield self.backend.set_depth, self.backend.aset_depth, args
        except LockLost:
            self.mark_lost()
            raise

    def mark_lost(self) -> None:
        """Record the loss, and call `on_lost` the first time. An abandoned lease is discarded.

        Any thread may call it; the holder's block runs on, unless its scope is cancelled. The
        callback runs in the holder's thread if the holder notices the loss, else in a new one.
        """
        if self.claim.is_abandoned:  # there is no holder left to release it
            self.table.discard(self)
        if not self._become(State.LOST):
            return
        metrics.lost(self.backend.alias, self.name)
        self.log(logging.WARNING, "lock lost")
        if self.scope is not None:
            self.scope.cancel()
        if self.on_lost is None:
            return
        if current_caller() == self.claim.caller:
            self._call_on_lost(self.on_lost)
            return
        try:
            start_thread(partial(self._call_on_lost, self.on_lost))
        except RuntimeError:
            self.log(logging.ERROR, "on_lost not called: no thread can be started")

    def _call_on_lost(self, on_lost: Callable[[Lease], object]) -> None:
        try:
            on_lost(self)
        except Exception:  # noqa: BLE001 - must not stop the caller
            self.log(logging.ERROR, "on_lost failed", exc_info=True)

    def _become(self, state: State) -> bool:
        """End the lease in this state; return False if it has ended before."""
        try:
            self._endings.pop()
        except IndexError:
            return False
        self.state = state
        return True

    def forget(self) -> None:
        """Drop the lease in this process, without freeing the lock in the store."""
        self.table.discard(self)
        self.table.renewer.remove(self)

    def log(self, level: int, event: str, *, exc_info: bool = False) -> None:
        """Log `event` with the lease's name, owner, token and backend, as text and as fields."""
        if not logger.isEnabledFor(level):
            return
        fields = {
            "lock_name": self.name,
            "lock_owner": self.owner,
            "lock_token": self.token,
            "lock_backend": self.backend.alias,
        }
        line = "%s name=%r owner=%s token=%d backend=%s"
        logger.log(level, line, event, *fields.values(), exc_info=exc_info, extra=fields)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token} owner={self.owner} {self.state.value}>"
