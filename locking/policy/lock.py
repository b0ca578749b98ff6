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
from locking.claims import Claim
from locking.conf import has_policy
from locking.exceptions import LockError, LockMisuse
from locking.handler import locks
from locking.lease import AllOf, Lease, Lock, LockOptions, StoreLock, TakenOver
from locking.lease.lease import Ticket
from locking.lease.steps import Call, Steps
from locking.policy import active
from locking.refresh import clock

DRAIN_PAUSE = 0.05
"""Seconds between two reads of a policy that is draining."""
TICKET_KEYS = {"backend", "name", "owner", "token", "ttl", "policy"}
"""The keys of what `Lease.hand_over` returns."""
LAST_READ = 0.05
"""Seconds that a caller whose time is over still waits for a read of the policy."""


class PolicyLock(Lock):
    """A lock whose backend is chosen when it is acquired.

    Without LOCK_POLICY it is the first backend of LOCKS, and no policy is read or switched. During
    a switch the caller waits until the switch is announced to all processes and the old
    backend has no holder of this name any more; then the new backend grants.
    """

    @classmethod
    def all_of(cls, names: Iterable[str], **options: Unpack[LockOptions]) -> AllOf:
        """Return a lock on all of the names: it is acquired on all of them or on none."""
        return AllOf(partial(cls, **options), names)

    @classmethod
    def take_over(cls, ticket: Ticket, **options: Unpack[LockOptions]) -> TakenOver:
        """Return a lock that continues a lease; its `with` raises LockLost if that has ended."""
        if not isinstance(ticket, dict) or not ticket.keys() >= TICKET_KEYS:
            raise LockMisuse(f"Invalid ticket {ticket!r:.40}: give what hand_over() returned.")
        return locks[ticket["backend"]].take_over(ticket, **options)

    def lease_of(self, caller: object) -> Lease | None:
        """Return the caller's lease; after a forced switch that of the newest policy."""
        key = self.name, caller
        if not has_policy():
            return locks[policy.current().backend].held.get(key)
        found = (store.held.get(key) for store in locks.opened())
        chosen = [lease for lease in found if lease is not None and lease.epoch]
        return max(chosen, key=lambda lease: (not lease.lost, lease.epoch), default=None)

    def _lock(self, alias: str) -> StoreLock:
        """Return the store's lock with the same name and options."""
        return locks[alias].lock(**vars(self))

    def grant(self, caller: object, wait: float) -> Steps[Lease | Claim]:
        """Return a new lease, or a claim if none was granted for `wait` seconds.

        A lease counts only if the policy, read again after the grant, is still the same.
        """
        deadline, max_age = time.monotonic() + wait, None
        while True:
            seen = yield _read(max_age, _read_timeout(deadline, wait))
            if seen.grants(self.name):
                left = max(0.0, deadline - time.monotonic())
                lease = yield from self._lock(seen.backend).enter(caller, left)
                if isinstance(lease, Claim):
                    return lease
                if (yield from _keep(lease, seen, _read_timeout(deadline, wait))):
                    return lease
            policy.finish_overdue_switch(seen)
            left = deadline - time.monotonic()
            if left <= 0:  # of this claim, only the name is used: by the error
                return Claim(name=self.name, ttl=wait, caller=caller)
            pause = min(DRAIN_PAUSE, left)
            yield time.sleep, asyncio.sleep, (pause,)
            max_age = DRAIN_PAUSE

    def holder_names(self) -> set[str]:
        """Ask the backend that grants it, or that still holds it in a switch, for its owners."""
        seen = policy.current()
        if not seen.grants(self.name):
            seen = policy.current(0.0)  # by now, the new backend may grant it
        alias = seen.backend if seen.grants(self.name) else seen.old
        return self._lock(alias).holder_names()

    def patience(self) -> Steps[float]:
        """Return the lock's timeout, or that of the active backend."""
        if self.timeout is not None:
            return self.timeout
        seen = yield _read(None, None)
        return locks[seen.backend].timeout


def _read(max_age: float | None, timeout: float | None) -> Call:
    return policy.current, active.acurrent, (max_age, timeout)


def _read_timeout(deadline: float, wait: float) -> float | None:
    """Return the seconds that a caller waits for the policy; None if it waits for no holder."""
    return max(LAST_READ, deadline - time.monotonic()) if 0 < wait < math.inf else None


def _keep(lease: Lease, asked: policy.Policy, timeout: float | None) -> Steps[bool]:
    """Mark the lease with the policy and return True; release it if another one grants by now."""
    is_kept = False
    try:
        now: policy.Policy = yield _read(None, timeout)
        is_young = clock() - now.read_at < active.MAX_AGE  # the read may have been slow
        is_kept = is_young and now.epoch == asked.epoch and now.grants(lease.name)
    finally:
        if is_kept:
            lease.epoch, lease.mode = asked.epoch, asked.mode
        else:
            with suppress(LockError):
                yield from lease.leave()
    return is_kept


lock = PolicyLock
"""The lock of the active backend: `with lock("report:42", timeout=2) as lease: ...`."""
