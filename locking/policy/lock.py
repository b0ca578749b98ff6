"""`locking.lock`: a lock in the backend that the policy holds at the moment of the acquire."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from locking import policy
from locking.exceptions import LockError
from locking.handler import locks
from locking.lease import Lease, Lock
from locking.lease.lock import BaseLock
from locking.types import check_name, check_timeout, check_wait, current_caller

DRAIN_PAUSE = 0.05
"""Seconds between two reads of a policy that is draining."""


class PolicyLock(BaseLock):
    """A lock whose backend is chosen when it is acquired.

    The arguments are those of `locking.Lock`.
    """

    def __init__(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> None:
        check_name(name)
        check_timeout(timeout)
        self.name = name
        self.ttl = ttl
        self.timeout = timeout
        self.renew = renew
        self.on_lost = on_lost

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

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock as `Lock.acquire` does, in the active backend.

        While the policy is draining, the caller waits for the new backend. A caller that already
        holds a lock the drain is waiting for may still acquire; otherwise both would wait forever.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        lease = self.lease
        if lease is not None:
            lease.enter_again()
            return True
        deadline = time.monotonic() + wait
        while True:
            active = policy.current()
            if not active.draining or _drain_waits_for_caller(active):
                lock = self._lock(active.backend)
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    return False
                if self._keep(lock, active):
                    return True
            if time.monotonic() >= deadline:
                policy.finish_overdue_switch()
                return False
            time.sleep(min(DRAIN_PAUSE, max(0.0, deadline - time.monotonic())))
            policy.current(max_age=DRAIN_PAUSE)

    def _keep(self, lock: Lock, asked: policy.Policy) -> bool:
        """Return whether the policy is still the one `asked` under; release the grant if not."""
        try:
            now = policy.current()
        except BaseException:
            with suppress(LockError):
                lock.release()
            raise
        lease = lock.lease
        assert lease is not None
        is_young = time.monotonic() - now.read_at < policy.MAX_AGE  # the read may have been slow
        is_over = now.draining and not _drain_waits_for_caller(asked)
        if is_young and now.epoch == asked.epoch and not is_over:
            lease.epoch = asked.epoch
            lease.strategy = asked.strategy
            return True
        with suppress(LockError):
            lock.release()
        return False

    def extend(self, ttl: float | None = None) -> None:
        """Move the deadline to `ttl` seconds from now (default: the lock's ttl)."""
        lease = self._own()
        default = lease.backend.ttl if self.ttl is None else self.ttl
        lease.extend(default if ttl is None else ttl)

    def locked(self) -> bool:
        """Return whether any caller holds the lock in the active backend."""
        return self._lock(policy.current().backend).locked()

    def _with_timeout(self) -> float:
        return locks[policy.current().backend].timeout if self.timeout is None else self.timeout


def _drain_waits_for_caller(active: policy.Policy) -> bool:
    caller, backend = current_caller(), locks[active.backend]
    return backend.capabilities.lists_holders and any(
        lease.claim.caller is caller and lease.epoch == active.epoch and not lease.lost
        for lease in list(backend.held.values())
    )


lock = PolicyLock
"""The lock of the active backend: `with lock("sale:42", timeout=2) as lease: ...`."""
