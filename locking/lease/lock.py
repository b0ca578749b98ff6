"""Locks on one name of one backend.

    with locks["redis"].lock("sale:42", timeout=2) as lease:
        lease.token     # grows with every grant; pass it to the guarded resource

`acquire` behaves like threading.Lock.acquire: it waits forever unless a timeout is given, and
returns a bool. The `with` statement waits for the lock's or the backend's timeout and raises
LockTimeout. Threads and tasks may share a lock object: each one holds a lease of its own, and may
acquire again what it holds.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TypedDict, Unpack

from locking import metrics
from locking.backends.base import Backend, Claim
from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable
from locking.lease.aio import enter_in_thread, run_in_thread
from locking.lease.lease import Lease, OnLost, logger
from locking.types import check_name, check_timeout, check_ttl, check_wait, current_caller
from locking.watchdog import watchdog


class LockOptions(TypedDict, total=False):
    """The options of a lock; None takes the backend's setting."""

    ttl: float | None
    """Seconds a grant lasts unless extended."""
    timeout: float | None
    """Seconds for which the `with` statement waits."""
    renew: bool
    """Whether the watchdog extends the grant every third of its ttl while it is held."""
    on_lost: OnLost
    """Called once with the lease when its loss is noticed."""


class BaseLock(ABC):
    """The operations of a lock that are the same for every way of choosing the backend."""

    def __init__(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        on_lost: OnLost = None,
    ) -> None:
        check_name(name)
        check_timeout(timeout)
        self.name = name
        self.ttl = ttl
        self.timeout = timeout
        self.renew = renew
        self.on_lost = on_lost

    @property
    @abstractmethod
    def lease(self) -> Lease | None:
        """The caller's lease, or None if it holds none."""

    @abstractmethod
    def _grant(self, wait: float) -> Lease | None:
        """Return a new lease, or None if the lock stayed held for `wait` seconds."""

    @abstractmethod
    def _with_timeout(self) -> float:
        """Return the seconds for which a `with` statement waits."""

    def _own(self) -> Lease:
        lease = self.lease
        if lease is None:
            raise LockMisuse(f"{self.name!r} is not held by this thread or task: acquire it first.")
        return lease

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; return False if it stayed held.

        Wait for `timeout` seconds, by default the lock's timeout, else forever. Raise
        LockUnavailable if the store does not reply, LockLost if the caller's own lease was lost.
        """
        return self._enter(check_wait(blocking, timeout, self.timeout)) is not None

    def _enter(self, wait: float) -> Lease | None:
        lease = self.lease
        if lease is None:
            return self._grant(wait)
        lease.enter_again()
        return lease

    def extend(self, ttl: float | None = None) -> None:
        """Move the deadline to `ttl` seconds from now (default: the lock's ttl)."""
        lease = self._own()
        if ttl is None:
            ttl = lease.backend.ttl if self.ttl is None else self.ttl
        lease.extend(ttl)

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost, LockMisuse if the caller holds none.
        """
        self._own().release()

    def __enter__(self) -> Lease:
        timeout = self._with_timeout()
        lease = self._enter(timeout)
        if lease is None:
            raise self._timed_out(timeout)
        return lease

    def _timed_out(self, timeout: float) -> LockTimeout:
        return LockTimeout(f"{self.name!r} was still held by another caller after {timeout:g} s.")

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.release()
        except LockError:
            if error is None:  # else the error of the block is the one to raise
                raise
            logger.warning("lock not released cleanly", exc_info=True)


class Lock(BaseLock):
    """A lock on one name in one backend."""

    ttl: float

    def __init__(self, backend: Backend, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.backend = backend
        self.ttl = backend.ttl if self.ttl is None else self.ttl
        check_ttl(self.ttl)

    @property
    def lease(self) -> Lease | None:
        """The caller's lease, or None if it holds none."""
        return self.backend.held.get((self.name, current_caller()))

    def _grant(self, wait: float) -> Lease | None:
        claim = Claim(name=self.name, ttl=self.ttl, caller=current_caller())
        return self._grant_claim(claim, wait)

    def _grant_claim(self, claim: Claim, wait: float) -> Lease | None:
        alias, started = self.backend.alias, time.monotonic()
        try:
            grant = self.backend.acquire(claim, wait)
        except LockUnavailable:
            metrics.not_acquired(alias, self.name, "unavailable")
            raise
        waited = time.monotonic() - started
        if grant is None:
            metrics.not_acquired(alias, self.name, "timeout")
            return None
        lease = Lease(self.backend, claim, grant, self.on_lost)
        self.backend.held[(self.name, claim.caller)] = lease
        try:
            metrics.acquired(alias, self.name, waited)
            if self.renew and self.backend.capabilities.expires:
                watchdog.add(lease)
            lease.log(logging.DEBUG, "lock acquired")
        except BaseException:  # from a signal handler, or because no thread can be started
            watchdog.remove(lease)
            lease.discard()
            with suppress(LockError):
                self.backend.release(claim, grant.token)
            raise
        return lease

    def locked(self) -> bool:
        """Return whether any caller that this process can see holds the lock."""
        mine = [lease.name for lease in list(self.backend.held.values()) if not lease.lost]
        return self.name in mine or self.name in {held.name for held in self.backend.inspect()}

    def _with_timeout(self) -> float:
        return self.backend.timeout if self.timeout is None else self.timeout

    async def aacquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock without blocking the event loop; see `acquire`.

        Cancelling the task withdraws the claim; a grant that arrives meanwhile is released.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        lease = self.lease
        claim = Claim(name=self.name, ttl=self.ttl)

        def enter() -> Lease | None:
            if lease is None:
                return self._grant_claim(claim, wait)
            lease.enter_again()
            return lease

        return await enter_in_thread(claim, enter) is not None

    async def arelease(self) -> None:
        """Release the lock without blocking the event loop; see `release`."""
        await run_in_thread(self._own().release)

    async def __aenter__(self) -> Lease:
        timeout = self._with_timeout()
        if not await self.aacquire(timeout=timeout):
            raise self._timed_out(timeout)
        return self._own()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            await self.arelease()
        except LockError:
            if error is None:
                raise
            logger.warning("lock not released cleanly", exc_info=True)


Backend.lock_class = Lock
