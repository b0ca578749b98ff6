"""`locking.lock`: a lock in the backend that the policy holds at the moment of the acquire."""

from __future__ import annotations

import time
from contextlib import suppress

from locking import policy
from locking.exceptions import LockError
from locking.handler import locks
from locking.lease import Lease, Lock
from locking.lease.lock import BaseLock
from locking.types import current_caller

DRAIN_PAUSE = 0.05
"""Seconds between two reads of a policy that is draining."""


class PolicyLock(BaseLock):
    """A lock whose backend is chosen when it is acquired.

    While the policy is draining, the caller waits for the new backend. A caller that already holds
    a lock the drain is waiting for may still acquire; otherwise both would wait forever.
    """

    @property
    def lease(self) -> Lease | None:
        """The caller's lease, or None if it holds none under any policy."""
        key = (self.name, current_caller())
        for backend in locks.opened():
            lease = backend.held.get(key)
            if lease is not None and lease.epoch:
                return lease
        return None

    def _lock(self, alias: str) -> Lock:
        return locks[alias].lock(self.name, ttl=self.ttl, renew=self.renew, on_lost=self.on_lost)

    def _grant(self, wait: float) -> Lease | None:
        deadline = time.monotonic() + wait
        while True:
            active = policy.current()
            if not active.draining or _drain_waits_for_caller(active):
                lock = self._lock(active.backend)
                lease = lock._enter(max(0.0, deadline - time.monotonic()))
                if lease is None or _keep(lease, active):
                    return lease
            if time.monotonic() >= deadline:
                policy.finish_overdue_switch()
                return None
            time.sleep(min(DRAIN_PAUSE, max(0.0, deadline - time.monotonic())))
            policy.current(max_age=DRAIN_PAUSE)

    def locked(self) -> bool:
        """Return whether any caller holds the lock in the active backend."""
        return self._lock(policy.current().backend).locked()

    def _with_timeout(self) -> float:
        return locks[policy.current().backend].timeout if self.timeout is None else self.timeout


def _keep(lease: Lease, asked: policy.Policy) -> bool:
    """Return whether the policy is still the one `asked` under; release the lease if not."""
    is_kept = False
    try:
        now = policy.current()
        is_young = time.monotonic() - now.read_at < policy.MAX_AGE  # the read may have been slow
        is_over = now.draining and not _drain_waits_for_caller(asked)
        is_kept = is_young and now.epoch == asked.epoch and not is_over
    finally:
        if not is_kept:
            with suppress(LockError):
                lease.release()
    if is_kept:
        lease.epoch, lease.strategy = asked.epoch, asked.strategy
    return is_kept


def _drain_waits_for_caller(active: policy.Policy) -> bool:
    caller, backend = current_caller(), locks[active.backend]
    return backend.capabilities.lists_holders and any(
        lease.claim.caller is caller and lease.epoch == active.epoch and not lease.lost
        for lease in list(backend.held.values())
    )


lock = PolicyLock
"""The lock of the active backend: `with lock("sale:42", timeout=2) as lease: ...`."""
