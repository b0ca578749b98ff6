"""What a backend declares, what it is asked for, and what it grants."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from locking.caller import current_caller, new_owner
from locking.exceptions import LockLost, LockMisuse
from locking.fork import ForkSafeLock


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The promises of a backend; a test of the contract proves each."""

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
    """A lease may be handed to another process; see `Backend.take_over`."""
    wakes_waiters: bool = False
    """The store wakes a waiter, which does not poll."""
    lists_holders: bool = False
    """`inspect()` returns the holders of all processes, not only of this one."""
    shared: bool = False
    """Has semaphores and read-write locks, which are granted in order of arrival."""


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


_interrupting = ForkSafeLock()

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
    report_lost: Callable[[], None] | None = None
    """Set while the lock is held. A backend that learns of the grant's end, as from its session,
    calls it. Redis tells nothing: the watchdog finds out by a renewal or at the deadline."""

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
        """True if the thread or task that asked has ended, or a task's event loop is closed."""
        if isinstance(self.caller, threading.Thread):
            return not self.caller.is_alive()
        if isinstance(self.caller, weakref.ref):
            return self.caller() is None
        if isinstance(self.caller, asyncio.Task):
            return self.caller.done() or self.caller.get_loop().is_closed()
        return False

    def lost(self) -> LockLost:
        """Return the error to raise if the store does not know the claim as the holder."""
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

    @property
    def process(self) -> str:
        """Return the host and process id of the owner, or the id of a unique task's message."""
        return ":".join(self.owner.split(":")[:2]).partition("/")[0]
