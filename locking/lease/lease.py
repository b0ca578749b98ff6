"""Grants in force, and the operations of their holders."""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from locking import metrics
from locking.backends.base import Backend, Claim, Grant
from locking.exceptions import LockError, LockLost, LockMisuse
from locking.fork import RenewedLock
from locking.lease.scope import CancelScope
from locking.lease.watchdog import renewer_of
from locking.types import check_ttl, current_caller, sync_to_async_call

logger = logging.getLogger("locking")

OnLost: TypeAlias = "Callable[[Lease], object] | None"
Ticket: TypeAlias = dict[str, Any]
"""A lease that was handed over, in values that JSON can represent."""

_marking = RenewedLock()


class Lease:
    """A granted lock as its holder sees it, until it is released or lost."""

    count = 1
    """Acquisitions by the holder that are not yet released."""
    renew_at = math.inf
    """Monotonic time of the next renewal."""
    is_renewed = False
    """True if the watchdog extends the grant."""
    hold_until = math.inf
    """Monotonic time at which the lease ends even if it is renewed."""
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
    handed_over = False  # if True, the release leaves the grant alone
    _marked_lost = False

    def __init__(self, backend: Backend, claim: Claim, grant: Grant, on_lost: OnLost) -> None:
        self.backend = backend
        self.renewer = backend.renewer or renewer_of(backend)
        self.claim = claim
        self.name = claim.name
        self.owner = claim.owner
        """Name of the holder in the store: host:process:thread:secret."""
        self.token = grant.token
        """Number that grows with every grant of this name."""
        claim.token = grant.token
        claim.deadline = grant.deadline
        claim.report_lost = self.mark_lost
        self.granted_at = time.monotonic()
        self.on_lost = on_lost
        if isinstance(claim.caller, weakref.ref):
            self.sync_call = sync_to_async_call()

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
        """True if the grant ended before its release: expired, broken or taken over."""
        return self._marked_lost or time.monotonic() >= self.deadline

    @property
    def is_held(self) -> bool:
        """True until the holder releases it; False in a forked child."""
        lease = self.backend.held.get((self.name, self.claim.caller))
        while lease is not None and lease is not self:
            lease = lease.previous
        return lease is self

    def check(self) -> None:
        """Raise LockLost if the lease is lost.

        The process may pause right after the check, so writes need the fence as well.
        """
        if self.lost:
            raise LockLost(f"{self.name!r} is no longer held by {self.owner}.")

    def enter_again(self) -> bool:
        """Count one more acquisition by the holder; return False if the lease is lost.

        Also if another call of `sync_to_async` acquired it, see `sync_call`.
        """
        if not self._may_enter_again():
            return False
        try:
            self._set_count(self.count + 1)
        except LockLost:
            return False
        self.count += 1
        return True

    async def aenter_again(self) -> bool:
        """Count one more acquisition by the task that holds it; see `enter_again`."""
        if not self._may_enter_again():
            return False
        self.count += 1
        try:
            await self._aset_count(self.count)
        except BaseException as error:  # the recorded depth is for people, so it may be too high
            self.count -= 1
            if isinstance(error, LockLost):
                return False
            raise
        return True

    def _may_enter_again(self) -> bool:
        is_same_call = self.sync_call is None or self.sync_call is sync_to_async_call()
        return is_same_call and not self.lost

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost; the lock of a later holder is not touched.
        """
        if self.handed_over:
            self.discard()
            return
        if self.count > 1:
            self.count -= 1
            if not self.lost:
                self._set_count(self.count)
            return
        known_lost = self._end()
        try:
            self.backend.release(self.claim, self.token)
        except LockLost:
            self.mark_lost()
            raise
        self._report_release(known_lost)

    async def arelease(self) -> None:
        """Undo one acquisition of a task; see `release`. Cancelling the task does not stop it."""
        if self.handed_over:
            self.discard()
            return
        if self.count > 1:
            self.count -= 1
            if not self.lost:
                await self._aset_count(self.count)
            return
        known_lost = self._end()
        try:
            await self.backend.arelease(self.claim, self.token)
        except LockLost:
            self.mark_lost()
            raise
        self._report_release(known_lost)

    def _end(self) -> bool:
        """End the lease before its release in the store; return True if it was lost before."""
        self.forget()
        self.claim.report_lost = None  # a cycle of references would wait for the garbage collector
        now = time.monotonic()
        metrics.released(self.backend.alias, self.name, now - self.granted_at)
        known_lost = self._marked_lost or now >= self.deadline
        if self.claim.trace is not None:
            self.claim.trace.ended(lost=known_lost)
        return known_lost

    def _report_release(self, known_lost: bool) -> None:
        if known_lost:
            self.mark_lost()
            raise LockLost(f"{self.name!r} was lost before its release by {self.owner}.")
        self.log(logging.DEBUG, "lock released")

    def give_up(self, reason: str) -> None:
        """Mark the lease as lost, and free the lock in the store for the next holder."""
        if self.handed_over:
            return
        self.renewer.remove(self)
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
            raise LockMisuse(f"{self.backend.alias!r} cannot hand over a lease, unlike database.")
        if self.claim.slots is not None:
            raise LockMisuse(f"{self.name!r} is shared: only a plain lock can be handed over.")
        if self.count > 1:
            raise LockMisuse(f"{self.name!r} was acquired again: hand over the outermost block's.")
        self.check()
        self.renew()
        self._set_count(0)
        self._end()
        self.handed_over = self._marked_lost = True
        self.backend.held[self.name, self.claim.caller] = self  # for the release of its block
        ticket: Ticket = {"backend": self.backend.alias, "name": self.name, "owner": self.owner}
        ticket |= {"token": self.token, "ttl": self.claim.ttl}
        return ticket | {"policy": [self.epoch, self.mode]}

    def extend(self, ttl: float) -> None:
        """Move the deadline to `ttl` seconds from now, and renew for this ttl from now on."""
        check_ttl(ttl)
        self.check()
        self.claim.ttl = ttl
        self.renew()

    def schedule(self) -> None:
        """Set the time of the next renewal, a third of the ttl from now."""
        self.renew_at = self.hold_until
        if self.is_renewed:
            self.renew_at = min(time.monotonic() + self.claim.ttl / 3, self.hold_until)

    def renew(self) -> None:
        """Extend the grant by its ttl; mark the lease lost if the store says so."""
        try:
            ttl = None
            while ttl != self.claim.ttl:  # the watchdog and the holder may extend at once
                ttl = self.claim.ttl
                self.claim.deadline = self.backend.extend(self.claim, self.token, ttl)
        except LockLost:
            if self.is_held:  # else the holder released it during the request
                self.mark_lost()
            raise
        self.schedule()
        self.renewer.reschedule(self)

    def _set_count(self, count: int) -> None:
        try:
            self.backend.set_depth(self.claim, self.token, count)
        except LockLost:
            self.mark_lost()
            raise

    async def _aset_count(self, count: int) -> None:
        try:
            await self.backend.aset_depth(self.claim, self.token, count)
        except LockLost:
            self.mark_lost()
            raise

    def mark_lost(self) -> None:
        """Record the loss, and call `on_lost` the first time. An abandoned lease is discarded.

        The callback runs in the holder's thread if the holder notices the loss, else in a new one.
        """
        if self.claim.is_abandoned:  # there is no holder left to release it
            self.discard()
        with _marking:  # the watchdog and the holder may notice the loss at once
            if self._marked_lost:
                return
            self._marked_lost = True
        metrics.lost(self.backend.alias, self.name)
        if self.claim.trace is not None:
            self.claim.trace.ended(lost=True)
        self.log(logging.WARNING, "lock lost")
        if self.scope is not None:
            self.scope.cancel()
        if self.on_lost is None:
            return
        if current_caller() == self.claim.caller:
            self._call_on_lost()
            return
        try:
            threading.Thread(target=self._call_on_lost, name="lock-on-lost", daemon=True).start()
        except RuntimeError:
            self.log(logging.ERROR, "on_lost not called: no thread can be started")

    def _call_on_lost(self) -> None:
        assert self.on_lost is not None
        try:
            self.on_lost(self)
        except (Exception, SystemExit):  # noqa: BLE001 - must not stop the caller
            self.log(logging.ERROR, "on_lost failed", exc_info=True)

    def forget(self) -> None:
        """Drop the lease in this process, without freeing the lock in the store."""
        self.renewer.remove(self)
        self.discard()

    def discard(self) -> None:
        """Remove the lease from the backend's list without freeing the lock in the store."""
        held, key = self.backend.held, (self.name, self.claim.caller)
        newer = held.get(key)
        if newer is self:
            if self.previous is not None and not self.claim.is_abandoned:
                held[key] = self.previous
            else:
                held.pop(key, None)
            return
        while newer is not None:  # it has none if the watchdog and the holder both discard it
            if newer.previous is self:
                newer.previous = self.previous
            newer = newer.previous

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
        return f"<Lease {self.name!r} token={self.token} owner={self.owner} lost={self.lost}>"
