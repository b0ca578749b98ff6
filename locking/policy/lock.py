"""`locking.lock`: a lock in the backend that the policy holds at the moment of the acquire."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import Unpack

from locking import policy
from locking.backends.base import Claim
from locking.exceptions import LockError, LockMisuse
from locking.handler import locks
from locking.lease import AllOf, Lease, Lock, LockOptions, TakenOver
from locking.lease.lease import Ticket
from locking.lease.lock import BaseLock
from locking.policy import active
from locking.refresh import clock

DRAIN_PAUSE = 0.05
"""Seconds between two reads of a policy that is draining."""
TICKET_KEYS = {"backend", "name", "owner", "token", "ttl", "policy"}
LAST_READ = 0.05
"""Seconds that a caller whose time is over still waits for a read of the policy."""


class PolicyLock(BaseLock):
    """A lock whose backend is chosen when it is acquired.

    During a switch the caller waits until the switch is announced to all processes and the old
    backend has no holder of this name any more; then the new backend grants.
    """

    @classmethod
    def all_of(cls, names: Iterable[str], **options: Unpack[LockOptions]) -> AllOf:
        """Return a lock on all of the names: it is acquired on all of them or on none."""
        return AllOf(partial(cls, **options), names)

    @classmethod
    def take_over(cls, ticket: Ticket, **options: Unpack[LockOptions]) -> Lock:
        """Return a lock that continues a lease; its `with` raises LockLost if that has ended."""
        if not isinstance(ticket, dict) or not ticket.keys() >= TICKET_KEYS:
            raise LockMisuse(f"Invalid ticket {ticket!r:.40}: give what hand_over() returned.")
        return TakenOver(locks[ticket["backend"]], ticket, **options)

    def _lease_of(self, caller: object) -> Lease | None:
        key = (self.name, caller)
        for backend in locks.opened():
            lease = backend.held.get(key)
            if lease is not None and lease.epoch:
                return lease
        return None

    def _lock(self, alias: str) -> Lock:
        return locks[alias].lock(
            self.name,
            ttl=self.ttl,
            renew=self.renew,
            on_lost=self.on_lost,
            reentrant=self.reentrant,
            max_hold=self.max_hold,
            until=self.until,
        )

    def _grant(self, caller: object, wait: float) -> Lease | Claim:
        deadline = time.monotonic() + wait
        seen = policy.current(timeout=_read_timeout(deadline, wait))
        while True:
            if seen.grants(self.name):
                lease = self._lock(seen.backend)._enter(max(0.0, deadline - time.monotonic()))
                if isinstance(lease, Claim) or _keep(lease, seen, _read_timeout(deadline, wait)):
                    return lease
            policy.finish_overdue_switch(seen)
            left = deadline - time.monotonic()
            if left <= 0:
                return Claim(name=self.name, ttl=wait, caller=caller)
            time.sleep(min(DRAIN_PAUSE, left))
            seen = policy.current(DRAIN_PAUSE, timeout=_read_timeout(deadline, wait))

    async def _agrant(self, caller: object, wait: float) -> Lease | Claim:
        """Return a new lease of a task; see `_grant`."""
        deadline, max_age = time.monotonic() + wait, None
        while True:
            timeout = _read_timeout(deadline, wait)
            seen = await active.acurrent(max_age, timeout=timeout)
            if seen.grants(self.name):
                lock = self._lock(seen.backend)
                lease = await lock._aenter(caller, max(0.0, deadline - time.monotonic()))
                if isinstance(lease, Claim) or await _akeep(
                    lease, seen, _read_timeout(deadline, wait)
                ):
                    return lease
            policy.finish_overdue_switch(seen)
            left = deadline - time.monotonic()
            if left <= 0:
                return Claim(name=self.name, ttl=wait, caller=caller)
            await asyncio.sleep(min(DRAIN_PAUSE, left))
            max_age = DRAIN_PAUSE

    def locked(self) -> bool:
        """Return whether any caller holds the lock in the active backend."""
        return self._lock(policy.current().backend).locked()

    def _with_timeout(self) -> float:
        return locks[policy.current().backend].timeout if self.timeout is None else self.timeout

    async def _awith_timeout(self) -> float:
        if self.timeout is not None:
            return self.timeout
        return locks[(await active.acurrent()).backend].timeout


def _read_timeout(deadline: float, wait: float) -> float | None:
    """Return the seconds that a caller waits for the policy; None if it waits for no holder."""
    return max(LAST_READ, deadline - time.monotonic()) if 0 < wait < math.inf else None


def _keep(lease: Lease, asked: policy.Policy, timeout: float | None) -> bool:
    """Return whether the policy still grants as it did when `asked`; release the lease if not."""
    is_kept = False
    try:
        is_kept = _is_current(policy.current(timeout=timeout), asked, lease)
    finally:
        if not is_kept:
            with suppress(LockError):
                lease.release()
    return is_kept


async def _akeep(lease: Lease, asked: policy.Policy, timeout: float | None) -> bool:
    """Return whether the policy still grants as it did when `asked`; see `_keep`."""
    is_kept = False
    try:
        is_kept = _is_current(await active.acurrent(timeout=timeout), asked, lease)
    finally:
        if not is_kept:
            with suppress(LockError):
                await lease.arelease()
    return is_kept


def _is_current(now: policy.Policy, asked: policy.Policy, lease: Lease) -> bool:
    """Return whether the policy still grants as when `asked`, and then mark the lease with it."""
    is_young = clock() - now.read_at < active.MAX_AGE  # the read may have been slow
    if not is_young or now.epoch != asked.epoch or not now.grants(lease.name):
        return False
    lease.epoch, lease.mode = asked.epoch, asked.mode
    return True


lock = PolicyLock
"""The lock of the active backend: `with lock("report:42", timeout=2) as lease: ...`."""
