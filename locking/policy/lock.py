"""`locking.lock`: a lock in whatever backend the policy has in force."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from locking import policy
from locking.arguments import check_name, check_timeout, check_wait
from locking.exceptions import LockError, LockMisuse, LockTimeout
from locking.handler import locks
from locking.lease import Lease, Lock, leave, release
from locking.owner import context

DRAIN_PAUSE = 0.05
"""Seconds between two looks at a policy that is draining."""

_held: dict[tuple[str, object], Lease] = {}
"""What this process holds through the policy: a release goes where the grant came from."""


class PolicyLock:
    """A `Lock` whose backend is chosen at the moment it is acquired."""

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
        """The caller's lease, while it has one."""
        lease = _held.get((self.name, context()))
        return lease if lease is not None and lease.is_held else None

    def _in(self, alias: str) -> Lock:
        return locks[alias].lock(self.name, ttl=self.ttl, renew=self.renew, on_lost=self.on_lost)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """As `Lock.acquire`; while the policy drains, the caller waits for the new backend.

        A caller for whom the drain waits gets what it needs to come to its end.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        lease = self.lease
        if lease is not None:
            return lease.backend.lock(self.name).acquire()
        deadline = time.monotonic() + wait
        while True:
            in_force = policy.current()
            if not in_force.draining or _is_waited_for(in_force):
                lock = self._in(in_force.backend)
                if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
                    return False
                if self._keep(lock, in_force):
                    return True
            if time.monotonic() >= deadline:
                policy.finish_overdue_switch()
                return False
            time.sleep(min(DRAIN_PAUSE, max(0.0, deadline - time.monotonic())))
            policy.current(max_age=DRAIN_PAUSE)

    def _keep(self, lock: Lock, in_force: policy.Policy) -> bool:
        """Whether the policy is the one under which the grant was asked; else give it back."""
        try:
            now = policy.current()
        except BaseException:
            with suppress(LockError):
                lock.release()
            raise
        lease = lock.lease
        assert lease is not None
        is_young = time.monotonic() - now.read_at < policy.MAX_AGE  # the answer may have been slow
        is_over = now.draining and not _is_waited_for(in_force)
        if is_young and now.epoch == in_force.epoch and not is_over:
            lease.policy = in_force
            _held[(self.name, context())] = lease
            return True
        with suppress(LockError):
            lock.release()
        return False

    def release(self) -> None:
        """As `Lock.release`, in the backend that granted it."""
        lease = self._own()
        if lease.count == 1:
            _held.pop((self.name, context()), None)
        release(lease)

    def extend(self, ttl: float | None = None) -> None:
        """As `Lock.extend`, in the backend that granted it."""
        self._own().backend.lock(self.name, ttl=self.ttl).extend(ttl)

    def _own(self) -> Lease:
        lease = self.lease
        if lease is None:
            raise LockMisuse(f"{self.name!r} is not held by this thread or task: acquire it first.")
        return lease

    def locked(self) -> bool:
        """True while anybody holds it in the backend in force."""
        return self._in(policy.current().backend).locked()

    def __enter__(self) -> Lease:
        wait = self.timeout
        if wait is None:
            wait = locks[policy.current().backend].timeout
        if not self.acquire(timeout=wait):
            raise LockTimeout(f"{self.name!r} stayed held for {wait:g} s.")
        return self._own()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self.release, error)


def _is_waited_for(in_force: policy.Policy) -> bool:
    """Whether the caller holds a lock that keeps the drain from its end: else both would wait."""
    me = context()
    return locks[in_force.backend].capabilities.lists_holders and any(
        holder is me and lease.is_held and not lease.lost and lease.fence[0] == in_force.epoch
        for (_, holder), lease in list(_held.items())
    )


lock = PolicyLock
"""The lock in force: `with lock("sale:42", timeout=2) as lease: ...`."""
