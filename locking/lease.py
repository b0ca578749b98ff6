"""What a caller holds: a `Lock` to ask with, and the `Lease` that a grant gives.

    with locks["redis"].lock("sale:42", timeout=2) as lease:
        lease.token     # grows with every grant; hand it to what the lock guards

`acquire` is threading's: it waits for ever unless told, and says True or False. The `with`
statement waits the lock's `timeout` and raises instead. A lock object may be shared: each
thread (or asyncio task) holds for itself and may take again what it holds.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING

from locking import metrics
from locking.arguments import check_name, check_timeout, check_ttl, check_wait
from locking.backends.base import Backend, Claim, Grant
from locking.exceptions import LockError, LockLost, LockMisuse, LockTimeout, LockUnavailable
from locking.owner import context, new_owner
from locking.watchdog import watchdog

if TYPE_CHECKING:
    from locking.policy import Policy

logger = logging.getLogger("locking")

_marking = threading.Lock()


class Lease:
    """A grant in force. `lost` and `check()` tell the holder when it is not in force any more."""

    __slots__ = (
        "_gone",
        "backend",
        "claim",
        "context",
        "count",
        "deadline",
        "granted_at",
        "on_lost",
        "policy",
        "renew_at",
        "token",
    )

    def __init__(
        self,
        backend: Backend,
        claim: Claim,
        grant: Grant,
        context: object,
        on_lost: Callable[[Lease], object] | None,
    ) -> None:
        self.backend = backend
        self.claim = claim
        self.token = grant.token
        self.deadline = grant.deadline
        """Monotonic time at which the grant ends unrenewed; inf where nothing ends it."""
        self.context = context
        self.count = 1
        self.granted_at = time.monotonic()
        self.renew_at = self.granted_at + claim.ttl / 3
        self.on_lost = on_lost
        self.policy: Policy | None = None
        """The policy under which it was granted, where `locking.lock` granted it."""
        self._gone = False

    @property
    def name(self) -> str:
        """What is locked."""
        return self.claim.name

    @property
    def owner(self) -> str:
        """Who holds it: host:process:thread:secret."""
        return self.claim.owner

    @property
    def fence(self) -> tuple[int, int]:
        """Policy epoch and token: grows over switches of the backend too."""
        return (self.policy.epoch if self.policy else 0, self.token)

    @property
    def remaining(self) -> float:
        """Seconds until the grant ends unrenewed; never negative."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def lost(self) -> bool:
        """True once the grant has ended without the holder's doing."""
        return self._gone or time.monotonic() >= self.deadline

    def check(self) -> None:
        """Raise LockLost when `lost`. A pause may still follow: what is written needs the fence."""
        if self.lost:
            raise LockLost(f"{self.name!r} is no longer held by {self.owner}.")

    @property
    def orphaned(self) -> bool:
        """True when the thread or task that holds it has ended without releasing it."""
        if isinstance(self.context, threading.Thread):
            return not self.context.is_alive()
        return isinstance(self.context, asyncio.Task) and self.context.done()

    @property
    def is_held(self) -> bool:
        """Whether its holder has not released it; a forked child holds nothing of its parent's."""
        return self.backend.held.get((self.name, self.context)) is self

    def forget(self) -> None:
        """Take it off this process's list of what it holds."""
        if self.is_held:  # the watchdog and the holder may both be here
            self.backend.held.pop((self.name, self.context), None)

    def mark_lost(self) -> None:
        """For backends and the watchdog: the store says that it is gone."""
        with _marking:  # the watchdog and the holder may find out together
            if self._gone:
                return
            self._gone = True
        metrics.lost(self)
        self.log(logging.WARNING, "lock lost")
        if self.on_lost is not None:
            try:
                self.on_lost(self)
            except Exception:  # noqa: BLE001 - told, and the holder goes on
                self.log(logging.ERROR, "on_lost failed", exc_info=True)

    def log(self, level: int, what: str, *, exc_info: bool = False) -> None:
        """One line that names the lease, as text and as fields for a structured handler."""
        if not logger.isEnabledFor(level):
            return
        fields = {
            "lock_name": self.name,
            "lock_owner": self.owner,
            "lock_token": self.token,
            "lock_backend": self.backend.alias,
        }
        line = "%s name=%r owner=%s token=%d backend=%s"
        logger.log(level, line, what, *fields.values(), exc_info=exc_info, extra=fields)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} token={self.token} owner={self.owner} lost={self.lost}>"


class Lock:
    """A lock on one name in one backend.

    ttl: seconds a grant lives unrenewed. timeout: seconds that the `with` statement waits. renew:
    let the watchdog extend the grant every third of its ttl while it is held. on_lost: called once
    with the lease when it is found lost. What is None comes from the backend's settings.
    """

    def __init__(
        self,
        backend: Backend,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> None:
        check_name(name)
        self.backend = backend
        self.name = name
        self.ttl = backend.ttl if ttl is None else ttl
        check_ttl(self.ttl)
        check_timeout(timeout)
        self.timeout = timeout
        self.renew = renew
        self.on_lost = on_lost

    @property
    def lease(self) -> Lease | None:
        """The caller's lease, while it has one."""
        return self.backend.held.get((self.name, context()))

    def _own(self) -> Lease:
        lease = self.lease
        if lease is None:
            raise LockMisuse(f"{self.name!r} is not held by this thread or task: acquire it first.")
        return lease

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Take the lock; True when it was taken.

        Waits `timeout` seconds, else those given to the lock, else for ever. Raises LockUnavailable
        when the store does not answer, LockLost when the caller's own earlier grant was lost.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        me = context()
        lease = self.backend.held.get((self.name, me))
        if lease is not None:
            self._enter_again(lease)
            return True
        claim = self._new_claim()
        return self._claim(claim, wait, me) is not None

    def _new_claim(self) -> Claim:
        return Claim(name=self.name, owner=new_owner(), ttl=self.ttl)

    def _claim(self, claim: Claim, wait: float, me: object) -> Lease | None:
        started = time.monotonic()
        try:
            grant = self.backend.acquire(claim, wait)
        except LockUnavailable:
            metrics.unavailable(self.backend, self.name)
            raise
        waited = time.monotonic() - started
        if grant is None:
            metrics.timed_out(self.backend, self.name)
            return None
        lease = Lease(self.backend, claim, grant, me, self.on_lost)
        self.backend.held[(self.name, me)] = lease
        try:
            metrics.acquired(self.backend, self.name, waited)
            if self.renew and self.backend.capabilities.expires:
                watchdog.add(lease)
            lease.log(logging.DEBUG, "lock acquired")
        except BaseException:  # of a signal handler, or there are no more threads
            watchdog.remove(lease)
            lease.forget()
            with suppress(LockError):
                self.backend.release(claim, grant.token)
            raise
        return lease

    def _enter_again(self, lease: Lease) -> Lease:
        lease.check()
        try:
            self.backend.set_depth(lease.claim, lease.token, lease.count + 1)
        except LockLost:
            lease.mark_lost()
            raise
        lease.count += 1
        return lease

    def release(self) -> None:
        """Leave the lock, freeing it when it was entered once.

        Raises LockLost when it was lost before, and leaves the successor's lock alone; LockMisuse
        when the caller does not hold it.
        """
        release(self._own())

    def extend(self, ttl: float | None = None) -> None:
        """Let the grant live `ttl` seconds from now (the lock's own ttl by default)."""
        lease = self._own()
        ttl = self.ttl if ttl is None else ttl
        check_ttl(ttl)
        lease.check()
        lease.claim.ttl = ttl
        extend(lease)

    def locked(self) -> bool:
        """True while anybody holds it, as far as this process can see."""
        mine = [lease.name for lease in list(self.backend.held.values()) if not lease.lost]
        return self.name in mine or self.name in {held.name for held in self.backend.inspect()}

    def __enter__(self) -> Lease:
        wait = self.backend.timeout if self.timeout is None else self.timeout
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

    async def aacquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """`acquire` for asyncio: the task waits, the event loop does not.

        Cancelling the task withdraws the claim; a grant that came at that moment is given back.
        """
        from locking.aio import enter_in_thread

        wait = check_wait(blocking, timeout, self.timeout)
        me = context()
        lease = self.backend.held.get((self.name, me))
        claim = self._new_claim()
        if lease is not None:
            return await enter_in_thread(claim, self._enter_again, lease) is not None
        return await enter_in_thread(claim, self._claim, claim, wait, me) is not None

    async def arelease(self) -> None:
        """`release` for asyncio."""
        from locking.aio import run_in_thread

        await run_in_thread(release, self._own())

    async def __aenter__(self) -> Lease:
        wait = self.backend.timeout if self.timeout is None else self.timeout
        if not await self.aacquire(timeout=wait):
            raise LockTimeout(f"{self.name!r} stayed held for {wait:g} s.")
        return self._own()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.arelease()
        except LockError:
            if error is None:
                raise
            logger.warning("lock not released cleanly", exc_info=True)


def extend(lease: Lease) -> None:
    """Renew a lease for its ttl, and mark it when it turns out to be lost."""
    try:
        ttl = None
        while ttl != lease.claim.ttl:  # the watchdog and the holder may ask for different ones
            ttl = lease.claim.ttl
            lease.deadline = lease.backend.extend(lease.claim, lease.token, ttl)
    except LockLost:
        if lease.is_held:  # else its holder released it while the store was asked
            lease.mark_lost()
        raise
    lease.renew_at = time.monotonic() + lease.claim.ttl / 3
    watchdog.look_again(lease)


def release(lease: Lease) -> None:
    """Give a lease back: one level of it, or the lock itself at the last."""
    if lease.count > 1:
        lease.count -= 1
        if not lease.lost:
            try:
                lease.backend.set_depth(lease.claim, lease.token, lease.count)
            except LockLost:
                lease.mark_lost()
                raise
        return
    watchdog.remove(lease)
    lease.forget()
    known_lost = lease.lost
    metrics.released(lease)
    try:
        lease.backend.release(lease.claim, lease.token)
    except LockLost:
        lease.mark_lost()
        raise
    if known_lost:
        lease.mark_lost()
        raise LockLost(f"{lease.name!r} was lost before its release by {lease.owner}.")
    lease.log(logging.DEBUG, "lock released")


def leave(release: Callable[[], None], error: BaseException | None) -> None:
    """End of a `with` block: a lost lock is an error, but never hides the block's own."""
    try:
        release()
    except LockError:
        if error is None:
            raise
        logger.warning("lock not released cleanly", exc_info=True)
