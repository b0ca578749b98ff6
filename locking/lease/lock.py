"""Locks on one name of one backend.

    with locks["redis"].lock("report:42", timeout=2) as lease:
        lease.token     # grows with every grant; pass it to the guarded resource

`acquire` behaves like threading.Lock.acquire: it waits forever unless a timeout is given, and
returns a bool. The `with` statement waits for the lock's or the backend's timeout and raises
LockTimeout. Threads and tasks may share a lock object: each one holds a lease of its own, and may
acquire again what it holds.

The caller is the thread or task that calls a method, not the task in which asyncio later runs the
coroutine. The asyncio methods are therefore plain functions that return a coroutine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal, TypedDict, Unpack

from locking import metrics
from locking.backends.base import Backend, Claim, Grant
from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable
from locking.lease import tracing
from locking.lease.commit import refuse_in_transaction, release_at_commit
from locking.lease.lease import Lease, OnLost, logger
from locking.lease.scope import CancelScope
from locking.types import check_name, check_timeout, check_ttl, check_wait, current_caller


class LockOptions(TypedDict, total=False):
    """The options of a lock; None takes the backend's setting."""

    ttl: float | None
    """Seconds a grant lasts unless extended."""
    timeout: float | None
    """Seconds for which the `with` statement waits."""
    renew: bool
    """True if the watchdog extends the grant every third of its ttl while it is held."""
    on_lost: OnLost
    """Called once with the lease when its loss is noticed, perhaps in a thread of its own."""
    reentrant: bool
    """True if its holder may acquire it again; else the holder waits like any other caller."""
    max_hold: float | None
    """Seconds after which the lease is lost and the lock free, even if the holder still runs."""
    until: Literal["block", "commit"] | None
    """What ends a `with` block's hold: its end, or that of the default database's transaction.
    None is the end of the block, and refuses to acquire inside a transaction."""
    cancel_on_loss: bool
    """True if `async with` cancels its task when the lease is lost, and then raises LockLost."""


class BaseLock(ABC):
    """The operations of a lock that are the same for every way of choosing the backend."""

    _acquired: list[Lease] = []
    """What `acquire` took. On the class for `__del__`, which also runs after wrong arguments."""

    def __init__(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        on_lost: OnLost = None,
        reentrant: bool = True,
        max_hold: float | None = None,
        until: Literal["block", "commit"] | None = None,
        cancel_on_loss: bool = False,
    ) -> None:
        self._acquired = []
        check_name(name)
        check_timeout(timeout)
        if max_hold is not None:
            check_ttl(max_hold)
        self.name = name
        self.ttl = ttl
        self.timeout = timeout
        self.renew = renew
        self.on_lost = on_lost
        self.reentrant = reentrant
        self.max_hold = max_hold
        if until not in (None, "block", "commit"):
            raise LockMisuse(f'Invalid until {until!r}: give "block" or "commit".')
        self.until = until
        self.cancel_on_loss = cancel_on_loss

    def __del__(self) -> None:
        for lease in self._acquired:  # by `acquire`; a `with` statement keeps the lock object
            lease.renewer.left_behind.put(lease)  # without waiting: any code may run right now

    @property
    def lease(self) -> Lease | None:
        """The caller's lease, or None if it holds none."""
        return self._lease_of(current_caller())

    @abstractmethod
    def _lease_of(self, caller: object) -> Lease | None:
        """Return the caller's lease, or None if it holds none."""

    @abstractmethod
    def _grant(self, caller: object, wait: float) -> Lease | Claim:
        """Return a new lease, or the claim if the lock stayed held for `wait` seconds."""

    @abstractmethod
    async def _agrant(self, caller: object, wait: float) -> Lease | Claim:
        """Return a new lease of a task; see `_grant`."""

    @abstractmethod
    def _with_timeout(self) -> float:
        """Return the seconds for which a `with` statement waits."""

    def _own(self, caller: object) -> Lease:
        lease = self._lease_of(caller)
        if lease is None:
            raise LockMisuse(f"{self.name!r} is not held by this thread or task: acquire it first.")
        return lease

    def _given_up(self, caller: object) -> Lease:
        lease = self._own(caller)
        if lease in self._acquired:
            self._acquired.remove(lease)
        return lease

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; return False if it stayed held.

        Wait for `timeout` seconds, by default the lock's timeout, else forever. Raise
        LockUnavailable if the store does not reply.
        """
        lease = self._enter(check_wait(blocking, timeout, self.timeout))
        if isinstance(lease, Claim):
            return False
        self._acquired.append(lease)
        return True

    def _enter(self, wait: float) -> Lease | Claim:
        caller = current_caller()
        lease = self._lease_of(caller) if self.reentrant else None
        if lease is not None and lease.enter_again():
            return lease
        if self.until is None:
            refuse_in_transaction(self.name)
        return self._grant(caller, wait)

    def extend(self, ttl: float | None = None) -> None:
        """Move the deadline to `ttl` seconds from now (default: the lock's ttl)."""
        lease = self._own(current_caller())
        if ttl is None:
            ttl = lease.backend.ttl if self.ttl is None else self.ttl
        lease.extend(ttl)

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost, LockMisuse if the caller holds none.
        """
        self._given_up(current_caller()).release()

    def __enter__(self) -> Lease:
        timeout = self._with_timeout()
        lease = self._enter(timeout)
        if isinstance(lease, Claim):
            raise timed_out(lease, timeout)
        return lease

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if self.until != "commit" or not release_at_commit(self._own(current_caller())):
                self.release()
        except LockError:
            if error is None:  # else the error of the block is the one to raise
                raise
            logger.warning("Lock %s not released cleanly", self.name, exc_info=True)

    def aacquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> Coroutine[object, object, bool]:
        """Acquire the lock without blocking the event loop; see `acquire`.

        Cancelling the await leaves no trace: neither a waiter nor a grant without a holder.
        """
        return self._aacquire(current_caller(), check_wait(blocking, timeout, self.timeout))

    async def _aacquire(self, caller: object, wait: float) -> bool:
        lease = await self._aenter(caller, wait)
        if isinstance(lease, Claim):
            return False
        self._acquired.append(lease)
        return True

    async def _aenter(self, caller: object, wait: float) -> Lease | Claim:
        lease = self._lease_of(caller) if self.reentrant else None
        if lease is not None and await lease.aenter_again():
            return lease
        return await self._agrant(caller, wait)

    def arelease(self) -> Coroutine[object, object, None]:
        """Release the lock without blocking the event loop; see `release`."""
        return self._arelease(current_caller())

    async def _arelease(self, caller: object) -> None:
        await self._given_up(caller).arelease()

    def __aenter__(self) -> Coroutine[object, object, Lease]:
        return self._aenter_block(current_caller())

    async def _aenter_block(self, caller: object) -> Lease:
        timeout = await self._awith_timeout()
        lease = await self._aenter(caller, timeout)
        if isinstance(lease, Claim):
            raise timed_out(lease, timeout)
        self._open_scope(lease, caller)
        return lease

    def _open_scope(self, lease: Lease, caller: object) -> None:
        if self.cancel_on_loss and lease.scope is None and caller is asyncio.current_task():
            lease.scope = CancelScope(lease.count)
            if lease.lost:
                lease.scope.cancel()

    async def _awith_timeout(self) -> float:
        """Return the seconds for which an `async with` statement waits."""
        return self._with_timeout()

    def __aexit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> Coroutine[object, object, None]:
        return self._aexit_block(current_caller(), kind, error, traceback)

    async def _aexit_block(
        self, caller: object, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        is_cancelled_by_loss = False
        try:
            lease = self._own(caller)
            scope = lease.scope
            if scope is not None and scope.depth == lease.count:
                lease.scope = None
                is_cancelled_by_loss = scope.close(error)
            await lease.arelease()
        except LockError:
            if error is None or is_cancelled_by_loss:
                raise
            logger.warning("Lock %s not released cleanly", self.name, exc_info=True)


def timed_out(claim: Claim, timeout: float) -> LockTimeout:
    """Return the error of a wait that ended without a grant."""
    text = f"{claim.name!r} was still held by another caller after {timeout:g} s"
    if (holder := claim.holder) is None:
        return LockTimeout(f"{text}.")
    text, since = f"{text}: {holder.owner}", None
    if holder.since is not None:
        since = datetime.fromtimestamp(holder.since, UTC)
        text += f" since {since:%Y-%m-%d %H:%M:%S} UTC"
    return LockTimeout(f"{text}.", holder=holder.owner, since=since)


class Lock(BaseLock):
    """A lock on one name in one backend."""

    ttl: float
    owner = ""  # that of a grant to continue

    def __init__(self, backend: Backend, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.backend = backend
        self.ttl = backend.ttl if self.ttl is None else self.ttl
        check_ttl(self.ttl)

    def _lease_of(self, caller: object) -> Lease | None:
        return self.backend.held.get((self.name, caller))

    def _grant(self, caller: object, wait: float) -> Lease | Claim:
        claim = self._claim(caller)
        started = time.monotonic()
        try:
            grant = self._request(claim, wait)
        except BaseException as error:
            self._failed(claim, error)
            raise
        try:
            return self._hold(claim, grant, started)
        except BaseException:  # from a signal handler, or because no thread can be started
            with suppress(LockError):
                self.backend.release(claim, claim.token)
            raise

    async def _agrant(self, caller: object, wait: float) -> Lease | Claim:
        key = (self.name, caller)
        if key in self.backend.entering and self.reentrant:
            raise LockMisuse(
                f"This task is acquiring {self.name!r} already: await one acquire first."
            )
        claim = self._claim(caller)
        started = time.monotonic()
        self.backend.entering.add(key)
        try:
            grant = await self._arequest(claim, wait)
        except BaseException as error:
            self._failed(claim, error)
            raise
        finally:
            self.backend.entering.discard(key)
        try:
            return self._hold(claim, grant, started)
        except BaseException:
            with suppress(LockError):
                await self.backend.arelease(claim, claim.token)
            raise

    def _request(self, claim: Claim, wait: float) -> Grant | None:
        return self.backend.acquire(claim, wait)

    async def _arequest(self, claim: Claim, wait: float) -> Grant | None:
        return await self.backend.aacquire(claim, wait)

    def _claim(self, caller: object) -> Claim:
        claim = Claim(name=self.name, ttl=self.ttl, owner=self.owner, caller=caller)
        tracing.begin(self.backend.alias, claim)
        if self.owner:  # the store knows it without the context of this wait
            claim.owner = self.owner
        return claim

    def _failed(self, claim: Claim, error: BaseException) -> None:
        is_unavailable = isinstance(error, LockUnavailable)
        if is_unavailable:
            metrics.not_acquired(self.backend.alias, self.name, "unavailable")
        if claim.trace is not None:
            claim.trace.waited(claim, "unavailable" if is_unavailable else "interrupted")

    def _hold(self, claim: Claim, grant: Grant | None, started: float) -> Lease | Claim:
        """Return the lease of a grant, now the caller's, and see to its renewal and its end.

        Without a grant, return the claim.
        """
        backend = self.backend
        if grant is None:
            metrics.not_acquired(backend.alias, self.name, "timeout")
            if claim.trace is not None:
                claim.trace.waited(claim, "timeout")
            return claim
        lease = Lease(backend, claim, grant, self.on_lost)
        try:
            key = self.name, claim.caller
            # Not None if it is lost, or if its holder may not enter again.
            lease.previous = backend.held.get(key)
            backend.held[key] = lease
            metrics.acquired(backend.alias, self.name, lease.granted_at - started)
            if claim.trace is not None:
                claim.trace.waited(claim, "acquired")
            if self.max_hold is not None:
                lease.hold_until = lease.granted_at + self.max_hold
            lease.is_renewed = self.renew and backend.capabilities.expires
            lease.schedule()
            if backend.capabilities.exclusion != "none":
                lease.renewer.add(lease)
            lease.log(logging.DEBUG, "lock acquired")
        except BaseException:
            lease.forget()
            raise
        return lease

    def locked(self) -> bool:
        """Return whether any caller that this process can see holds the lock."""
        mine = [lease.name for lease in list(self.backend.held.values()) if not lease.lost]
        return self.name in mine or self.name in {held.name for held in self.backend.inspect()}

    def _with_timeout(self) -> float:
        return self.backend.timeout if self.timeout is None else self.timeout


Backend.lock_class = Lock
