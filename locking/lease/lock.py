"""The interface of all locks (`Lock`), and a lock in one named backend (`StoreLock`).

    with locks["redis"].lock("report:42", timeout=2) as lease:
        lease.token     # grows with every grant; pass it to the guarded resource

`acquire` behaves like threading.Lock.acquire: it waits forever unless a timeout is given, and
returns a bool. The `with` statement waits for the lock's or the backend's timeout and raises
LockTimeout. A lock object holds nothing itself: each thread and task has a lease of its own, and
may acquire again what it holds, through any object with that name.

The caller is the thread or task that calls a method, not the task in which asyncio later runs the
coroutine. The asyncio methods are therefore plain functions that return a coroutine.

What waits for a store is written once for threads and tasks, as a generator: see `steps`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from typing import Literal, TypedDict, Unpack

from locking import metrics
from locking.caller import current_caller
from locking.claims import Claim, Grant
from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable
from locking.lease.commit import refuse_in_transaction, release_at_commit
from locking.lease.lease import Lease, LeaseTable, OnLost, logger
from locking.lease.scope import CancelScope
from locking.lease.steps import Call, Steps, arun, run
from locking.names import check_name, check_timeout, check_ttl, check_wait


class LockOptions(TypedDict, total=False):
    """The options of a lock. For `ttl` and `timeout`, None takes the backend's setting."""

    ttl: float | None
    """Seconds a grant lasts unless extended."""
    timeout: float | None
    """Seconds for which the `with` statement waits."""
    renew: bool
    """True if the watchdog extends the grant every third of its ttl while it is held."""
    on_lost: OnLost
    """Called once with the lease when its loss is noticed: in the holder's thread or task if that
    notices it, else in a new thread. Without `renew`, an expiry is noticed at the release."""
    reentrant: bool
    """True if its holder may acquire it again; else the holder waits like any other caller."""
    max_hold: float | None
    """Seconds after which the lease is lost and the lock free, even if the holder still runs."""
    until: Literal["block", "commit"] | None
    """A `with` block holds until its end ("block"), or that of the default database's transaction
    ("commit"). None is "block", but refuses to acquire inside a transaction."""
    cancel_on_loss: bool
    """True if `async with` cancels its task when the lease is lost, and then raises LockLost."""


@dataclass(eq=False)
class Lock(ABC):
    """A lock on one name; how its backend is chosen is left to the subclass."""

    name: str
    _: KW_ONLY  # see LockOptions
    ttl: float | None = None
    timeout: float | None = None
    renew: bool = True
    on_lost: OnLost = None
    reentrant: bool = True
    max_hold: float | None = None
    until: Literal["block", "commit"] | None = None
    cancel_on_loss: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        check_timeout(self.timeout)
        for seconds in (self.ttl, self.max_hold):
            if seconds is not None:
                check_ttl(seconds)
        if self.until not in (None, "block", "commit"):
            raise LockMisuse(f'Invalid until {self.until!r}: give "block" or "commit".')

    @abstractmethod
    def lease_of(self, caller: object) -> Lease | None:
        """Return the caller's lease, or None if it holds none."""

    @abstractmethod
    def holder_names(self) -> set[str]:
        """Ask the store for the owners of this name."""

    @abstractmethod
    def grant(self, caller: object, wait: float) -> Steps[Lease | Claim]:
        """Return a new lease, or the claim if the lock stayed held for `wait` seconds.

        The claim then stands for the refusal; its `holder`, if known, is for the error message.
        """

    @abstractmethod
    def patience(self) -> Steps[float]:
        """Return the seconds for which a `with` statement waits."""

    @property
    def lease(self) -> Lease | None:
        """The caller's lease, or None if it holds none."""
        return self.lease_of(current_caller())

    def locked(self) -> bool:
        """Return whether anyone that this process can see holds the lock; wait for a reply."""
        return bool(self.holder_names())

    def owned(self) -> bool:
        """Return whether the caller holds the lock, and the store says so, too."""
        lease = self.lease
        return lease is not None and not lease.lost and lease.owner in self.holder_names()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock; return False if it stayed held.

        Wait for `timeout` seconds (default: the lock's timeout; without one, forever). Raise
        LockUnavailable if the store does not reply.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        return isinstance(run(self.enter(current_caller(), wait)), Lease)

    def aacquire(
        self, blocking: bool = True, timeout: float | None = None
    ) -> Coroutine[object, object, bool]:
        """Acquire the lock without blocking the event loop; see `acquire`.

        Cancelling the await leaves no trace: neither a waiter nor a grant without a holder.
        """
        wait = check_wait(blocking, timeout, self.timeout)
        return self._aacquire(self.enter(current_caller(), wait))

    async def _aacquire(self, steps: Steps[Lease | Claim]) -> bool:
        return isinstance(await arun(steps), Lease)

    def try_acquire(self) -> Lease | None:
        """Return a lease, to be released by its `release`, or None if the lock is held."""
        lease = run(self.enter(current_caller(), 0))
        return lease if isinstance(lease, Lease) else None

    def enter(self, caller: object, wait: float) -> Steps[Lease | Claim]:
        """Enter the caller's lease again, or return a new one or the claim; see `grant`."""
        lease = self.lease_of(caller) if self.reentrant else None
        if lease is not None and (yield from lease.enter_again()):
            return lease
        if isinstance(caller, asyncio.Task):  # Django's transactions are those of threads
            if self.until == "commit":
                raise LockMisuse('until="commit" needs a thread: a task has no transaction.')
        elif self.until is None:
            refuse_in_transaction(self.name)
        return (yield from self.grant(caller, wait))

    def extend(self, ttl: float | None = None) -> None:
        """Move the deadline to `ttl` seconds from now (default: the lock's ttl)."""
        lease = self._own(current_caller())
        if ttl is None:
            ttl = lease.backend.ttl if self.ttl is None else self.ttl
        lease.extend(ttl)

    def _own(self, caller: object) -> Lease:
        lease = self.lease_of(caller)
        if lease is None:
            raise LockMisuse(f"{self.name!r} is not held by this thread or task: acquire it first.")
        return lease

    def release(self) -> None:
        """Undo one acquisition; the last release frees the lock.

        Raise LockLost if the lease was lost, LockMisuse if the caller holds none.
        """
        self._own(current_caller()).release()

    def arelease(self) -> Coroutine[object, object, None]:
        """Release the lock without blocking the event loop; see `release`."""
        return self._own(current_caller()).arelease()

    def __enter__(self) -> Lease:
        return run(self._begin(current_caller()))

    def __aenter__(self) -> Coroutine[object, object, Lease]:
        return self._abegin(current_caller())

    async def _abegin(self, caller: object) -> Lease:
        lease = await arun(self._begin(caller))
        self.open_scope(lease, caller)
        return lease

    def _begin(self, caller: object) -> Steps[Lease]:
        timeout = yield from self.patience()
        lease = yield from self.enter(caller, timeout)
        if isinstance(lease, Claim):
            raise timed_out(lease, timeout)
        return lease

    def open_scope(self, lease: Lease, caller: object) -> None:
        """Cancel this task when the lease is lost, if that was asked for."""
        if self.cancel_on_loss and lease.scope is None and caller is asyncio.current_task():
            lease.scope = CancelScope(lease.count)
            if lease.lost:
                lease.scope.cancel()

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run(self.finish(current_caller(), error))

    def __aexit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> Coroutine[object, object, None]:
        return arun(self.finish(current_caller(), error))

    def finish(self, caller: object, error: BaseException | None) -> Steps[None]:
        """End a block that raised `error` or nothing; raise LockLost in place of success.

        A release without a reply is only logged, and an error of the block takes precedence.
        """
        is_cancelled_by_loss = False
        try:
            lease = self._own(caller)
            scope = lease.scope
            if scope is not None and scope.depth == lease.count:
                lease.scope = None
                is_cancelled_by_loss = scope.close(error)
            if self.until == "commit" and release_at_commit(lease):
                if error is None:
                    lease.check()  # raised now, it rolls the transaction back
                return
            yield from lease.leave()
        except LockUnavailable:  # the block has done its work, and the grant ends with its ttl
            logger.warning("Lock %s not released: no reply", self.name, exc_info=True)
        except LockError:
            if error is None or is_cancelled_by_loss:
                raise  # else the error of the block is the one to raise
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


class StoreLock(Lock):
    """A lock on one name in one backend."""

    ttl: float
    owner = ""  # that of a grant to continue

    def __init__(self, table: LeaseTable, name: str, **options: Unpack[LockOptions]) -> None:
        super().__init__(name, **options)
        self.table = table
        self.backend = table.backend
        self.ttl = self.backend.ttl if self.ttl is None else self.ttl

    def lease_of(self, caller: object) -> Lease | None:
        """Return the caller's lease, or None if it holds none."""
        return self.table.held.get((self.name, caller))

    def holder_names(self) -> set[str]:
        """Ask the store for the owners of this name."""
        return {held.owner for held in self.backend.holders(self.name)}

    def patience(self) -> Steps[float]:
        """Return the lock's timeout, or that of the backend."""
        return self.backend.timeout if self.timeout is None else self.timeout
        yield  # a body without calls

    def grant(self, caller: object, wait: float) -> Steps[Lease | Claim]:
        """Return a new lease, or the claim if the lock stayed held for `wait` seconds."""
        key, entering = (self.name, caller), self.table.entering
        if key in entering and self.reentrant and isinstance(caller, asyncio.Task):
            raise LockMisuse(
                f"This task is acquiring {self.name!r} already: await one acquire first."
            )
        claim = self.claim(caller)
        started = time.monotonic()
        entering.add(key)
        try:
            grant = yield self.request(claim, wait)
            return self.hold(claim, grant, started)
        except LockUnavailable:
            metrics.not_acquired(self.backend.alias, self.name, "unavailable")
            raise
        except (LockError, asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:  # from a signal handler, or no thread can be started
            for lease in list(self.table.leases_of(caller)):
                if lease.claim is claim:
                    lease.forget()
            with suppress(LockError):  # it may have been granted
                yield self.backend.release, self.backend.arelease, (claim, claim.token)
            raise
        finally:
            entering.discard(key)

    def request(self, claim: Claim, wait: float) -> Call:
        """Return the call whose result is a grant, or None."""
        backend = self.backend
        return backend.acquire, backend.aacquire, (claim, wait)

    def claim(self, caller: object) -> Claim:
        """Return a new claim of the caller on this lock."""
        return Claim(name=self.name, ttl=self.ttl, owner=self.owner, caller=caller)

    def hold(self, claim: Claim, grant: Grant | None, started: float) -> Lease | Claim:
        """Return the lease of a grant, now the caller's, and see to its renewal and its end.

        Without a grant, return the claim.
        """
        backend = self.backend
        if grant is None:
            metrics.not_acquired(backend.alias, self.name, "timeout")
            return claim
        lease = Lease(
            self.table,
            claim,
            grant,
            on_lost=self.on_lost,
            is_renewed=self.renew and backend.capabilities.expires,
            max_hold=self.max_hold,
        )
        self.table.add(lease)
        metrics.acquired(backend.alias, self.name, lease.granted_at - started)
        lease.schedule()
        if backend.capabilities.exclusion != "none":
            self.table.renewer.add(lease)
        lease.log(logging.DEBUG, "lock acquired")
        return lease
