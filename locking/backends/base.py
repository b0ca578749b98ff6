"""The interface of a lock backend, and the capabilities that it declares.

A backend implements five methods on a store: `acquire`, `release`, `extend`, `inspect` and `probe`.
`locking.lease` adds owners, re-entry, time limits, renewal, errors and metrics. Each backend
declares its `Capabilities` once; docs, admin and the contract tests read them from there.
"""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Unpack

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop

from locking.backends.aio import HelperThread, acquire_in_thread
from locking.backends.options import Option, problems
from locking.exceptions import LockLost, LockMisuse
from locking.fork import RenewedLock, after_fork_in_child
from locking.types import current_caller, new_owner

if TYPE_CHECKING:
    from locking.lease import AllOf, Lease, Lock, LockOptions, ReadWriteLock, Semaphore
    from locking.lease.tracing import LockTrace
    from locking.lease.watchdog import Renewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The properties of REQUIREMENTS L14; a contract test proves each."""

    summary: str
    """One line for the reader who chooses a backend."""
    exclusion: Literal["none", "process", "machines"]
    """The scope of mutual exclusion while leases are honoured."""
    reentrant: bool = True
    """The thread or task that holds the lock may acquire it again."""
    counts_in_store: bool = False
    """The store records the depth of re-entry."""
    fair: bool = False
    """Waiters acquire the lock in the order of their arrival."""
    expires: bool = False
    """A grant ends after its ttl."""
    session_bound: bool = False
    """A grant ends with the holder's session in the store."""
    fencing: bool = False
    """Tokens grow over all processes, so the guarded resource can refuse a stale holder."""
    tokens_outlive_failover: bool = False
    """Tokens also grow after a failover to a server that lacks the latest grants."""
    survives_minority: bool = False
    """Locks can be acquired while a minority of the nodes is down."""
    hands_over: bool = False
    """A lease may be handed to another process; see `Backend.set_depth`."""
    wakes_waiters: bool = False
    """The store wakes a waiter, which does not poll."""
    lists_holders: bool = False
    """`inspect()` returns the holders of all processes, not only of this one."""
    shared: bool = False
    """Has semaphores and read-write locks, which are granted in order of arrival."""


PROPERTIES = {
    "reentrant": gettext_noop("reentrant"),
    "counts_in_store": gettext_noop("re-entry count in store"),
    "fair": gettext_noop("fair"),
    "expires": gettext_noop("expires"),
    "session_bound": gettext_noop("ends with session"),
    "fencing": gettext_noop("fencing token"),
    "tokens_outlive_failover": gettext_noop("token outlives a failover"),
    "survives_minority": gettext_noop("survives loss of a minority"),
    "hands_over": gettext_noop("hands over leases"),
    "wakes_waiters": gettext_noop("wakes waiters"),
    "lists_holders": gettext_noop("lists holders"),
    "shared": gettext_noop("semaphore, read-write lock"),
}
"""The boolean capabilities and their titles."""


class LazyEvent:
    """A threading.Event for one waiting thread; it allocates nothing until that thread waits.

    It is based on a lock, because a signal can interrupt Event.wait (Python code) half-way.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate: threading.Lock | None = None

    def is_set(self) -> bool:
        """Return True after `set`."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake the waiting thread."""
        self._is_set = True
        if self._gate is not None:
            with suppress(RuntimeError):  # it was released already
                self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; return True if the event is set."""
        if self._gate is None:
            gate = threading.Lock()
            gate.acquire()
            self._gate = gate
        if not self._is_set:  # checked after the lock exists: an earlier `set` did not see it
            self._gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        return self._is_set


_interrupting = RenewedLock()

READER, WRITER = 0, -1
"""The `slots` of a claim that shares the lock with any number of others, or with no other one."""


class Claim:
    """A caller's request for the lock `name`, and the state of its grant."""

    interrupt: Callable[[], None] | None = None
    """Set by a backend while it waits in a place that `cancelled` alone cannot wake."""
    token = 0
    deadline = math.inf
    """Monotonic time at which the grant ends; a backend with sessions moves it itself."""
    holder: Held | None = None
    """Set at the end of a wait without a grant, if the store names the holder by the way."""
    slots: int | None = None
    """Most holders of a semaphore, READER or WRITER; None for a plain lock."""
    trace: LockTrace | None = None
    """The spans of the wait and the hold, if they are traced; `holder` is then set meanwhile."""
    report_lost: Callable[[], None] | None = None
    """Set while the lock is held. A backend that learns of the grant's end calls it."""

    def __init__(self, *, name: str, ttl: float, owner: str = "", caller: object = None) -> None:
        self.name = name
        self.ttl = ttl
        """Seconds for which a grant lasts unless it is extended."""
        self.owner = owner or new_owner()
        self.caller = caller or current_caller()
        """The thread or asyncio task that asks; see `current_caller`."""
        self.cancelled = LazyEvent()

    def cancel(self) -> None:
        """End the wait of another thread: it leaves the queue and returns None."""
        self.cancelled.set()
        with _interrupting:  # else the wait may end now, and its connection serve another claim
            interrupt = self.interrupt
            if interrupt is not None:
                interrupt()

    def end_wait(self) -> None:
        """Reset `interrupt`; afterwards `cancel` no longer reaches the place of the wait."""
        with _interrupting:
            self.interrupt = None

    @property
    def is_abandoned(self) -> bool:
        """True if the thread or task that asked has ended."""
        if isinstance(self.caller, threading.Thread):
            return not self.caller.is_alive()
        if isinstance(self.caller, weakref.ref):
            return self.caller() is None
        return isinstance(self.caller, asyncio.Task) and self.caller.done()

    def lost(self) -> LockLost:
        """Return the error for a claim that the store does not know as the holder."""
        return LockLost(f"{self.name!r} is not held by {self.owner}.")


def other_slots(claim: Claim, slots: int) -> LockMisuse:
    """Return the error for a claim on a semaphore that others hold with that number of slots."""
    return LockMisuse(
        f"{claim.name!r} is held with slots={slots}, not {claim.slots}: all callers must give the "
        "same number. To change it, let all holders release first."
    )


class Grant(NamedTuple):
    """An acquired lock: a fencing token, and the monotonic time at which it ends unrenewed."""

    token: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A held lock as `inspect()` sees it. Values that the store does not record are None."""

    name: str
    owner: str
    token: int | None = None
    since: float | None = None
    """Unix time of the grant, on the clock that the token is made of."""
    expires_in: float | None = None
    """Seconds until the grant ends unrenewed."""
    count: int | None = None
    waiters: int | None = None


class Backend(ABC):
    """Base class of all backends; thread-safe, one instance per alias and process.

    Connections are opened on first use and abandoned in a forked child, so a backend that was
    created before `fork` works in both processes.
    """

    capabilities: ClassVar[Capabilities]
    known_options: ClassVar[Mapping[str, Option]] = {}
    """The keys of OPTIONS that the backend accepts."""
    lock_class: ClassVar[type[Lock]]
    """Set by `locking.lease`, which imports the backends and not the other way round."""
    all_of_class: ClassVar[type[AllOf]]
    semaphore_class: ClassVar[type[Semaphore]]
    read_write_class: ClassVar[type[ReadWriteLock]]
    renewer: Renewer | None = None
    """Renews the leases of this process; see `locking.lease.watchdog.renewer_of`."""

    def __init__(
        self,
        alias: str,
        *,
        location: str | list[str] = "",
        ttl: float = 6.0,
        timeout: float = 2.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.alias = alias
        self.location = location
        self.ttl = ttl
        self.timeout = timeout
        given = options or {}
        self.options = {
            name: given.get(name, option.default) for name, option in self.known_options.items()
        }
        self.held: dict[tuple[str, object], Lease] = {}
        """The leases of this process, by name and thread or task."""
        self.entering: set[tuple[str, object]] = set()
        """The names and tasks that wait for a grant."""
        self.helper = HelperThread(f"lock-helper-{alias}")
        """Runs the calls of asyncio tasks that do not wait."""
        after_fork_in_child(self.reset_after_fork)

    def lock(self, name: str, **options: Unpack[LockOptions]) -> Lock:
        """Return a lock on `name`; see `locking.lease.LockOptions`."""
        return self.lock_class(self, name, **options)

    def all_of(self, names: Iterable[str], **options: Unpack[LockOptions]) -> AllOf:
        """Return a lock on all of the names: it is acquired on all of them or on none."""
        return self.all_of_class(partial(self.lock, **options), names)

    def semaphore(self, name: str, slots: int, **options: Unpack[LockOptions]) -> Semaphore:
        """Return a lock that up to `slots` callers hold at once; all callers give one number."""
        return self.semaphore_class(self, name, slots, **options)

    def read_write(self, name: str) -> ReadWriteLock:
        """Return a lock that many readers or one writer hold; see its `read` and `write`."""
        return self.read_write_class(self, name)

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Return the mistakes in this backend's settings, without asking its store."""
        return [
            Error(f"LOCKS[{alias!r}] {text}", id=f"locking.{number}")
            for number, text in problems(cls.known_options, conf.get("OPTIONS"))
        ]

    @classmethod
    def check_store(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Return what makes the store unfit for locks; nothing if it does not respond.

        `manage.py check` and the commands that run it ask the store.
        """
        return []

    @abstractmethod
    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, waiting up to `timeout` seconds (0 tries once, inf waits forever).

        Returns None when it stayed held, or when `claim.cancelled` was set. In both cases, and
        after any exception that interrupts the wait, the claim leaves no trace in the store. It
        sets `claim.holder` if the store's replies name the holder. Raises LockUnavailable when the
        store does not answer within bounded time.
        """

    @abstractmethod
    def release(self, claim: Claim, token: int) -> None:
        """Release the lock if `claim.owner` holds it, else raise LockLost and change nothing."""

    @abstractmethod
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant to `ttl` seconds from now; return the new monotonic deadline.

        Raises LockLost when `claim.owner` does not hold the lock, LockUnavailable when the store
        does not answer.
        """

    @abstractmethod
    def inspect(self) -> list[Held]:
        """Return the held locks; those of all processes if `lists_holders` is declared."""

    @abstractmethod
    def probe(self) -> None:
        """Check that the store answers; raise LockUnavailable within bounded time."""

    def set_depth(  # noqa: B027
        self, claim: Claim, token: int, depth: int, only_if: int | None = None
    ) -> None:
        """Record the depth of re-entry if the store keeps it; raise LockLost.

        `hands_over` requires that the depth is kept, and not changed unless it is `only_if`.
        """

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock for an asyncio task; cancelling the task leaves no trace.

        By default one task per name and event loop waits in a thread, and the others for it.
        """
        return await acquire_in_thread(self, claim, timeout)

    async def arelease(self, claim: Claim, token: int) -> None:
        """Release the lock for an asyncio task, even if the task is cancelled meanwhile."""
        await self.helper.run(lambda: self.release(claim, token))

    async def aset_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Record the depth of re-entry for an asyncio task."""
        await self.helper.run(lambda: self.set_depth(claim, token, depth))

    def break_lock(self, name: str) -> bool:
        """Release `name` without its holder, for operators; return False if it was not held."""
        raise LockMisuse(f"{self.alias} locks cannot be broken by an operator.")

    def raise_token_floor(self, name: str, token: int) -> None:  # noqa: B027
        """Keep tokens of later grants of `name` above `token`, which another process has seen.

        Only a store that can lose its data needs this (see the redis backend).
        """

    def close(self) -> None:  # noqa: B027
        """Close this process's connections. The backend opens new ones when it is used again."""

    def reset_after_fork(self) -> None:
        """Drop the parent's leases and connections in a forked child, without any message."""
        self.held.clear()
        self.entering.clear()
        vars(self).pop("renewer", None)
