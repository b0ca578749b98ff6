"""What a backend must do, and what it declares about itself.

A backend is five methods over a store (`acquire`, `release`, `extend`, `inspect`, `probe`); owners,
re-entry, time limits, renewal, errors' wording and metrics are the business of `locking.lease`.
Each declares its `Capabilities` once: docs, admin and the contract tests all read them from there.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from django.core.checks import CheckMessage
from django.utils.translation import gettext_noop

from locking.exceptions import LockLost, LockMisuse
from locking.fork import after_fork_in_child

if TYPE_CHECKING:
    from locking.lease import Lease, Lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """The properties of REQUIREMENTS L14, each proved by a contract test."""

    summary: str
    """One line for people who choose."""
    exclusion: Literal["none", "process", "machines"]
    """How far mutual exclusion reaches while leases are honoured."""
    reentrant: bool = True
    """The thread (or task) that holds the lock may take it again."""
    counts_in_store: bool = False
    """The re-entry count can be read in the store."""
    fair: bool = False
    """Waiters are served in the order in which they came."""
    expires: bool = False
    """A grant ends by itself after its ttl."""
    session_bound: bool = False
    """A grant ends with the holder's session at the service."""
    fencing: bool = False
    """Tokens grow over all processes, so that the guarded resource can refuse a stale holder."""
    survives_minority: bool = False
    """Keeps granting while a minority of its nodes is down."""
    wakes_waiters: bool = False
    """The store wakes a waiter; nobody polls."""
    lists_holders: bool = False
    """`inspect()` sees the holders of every process, not only of this one."""


PROPERTIES = {
    "reentrant": gettext_noop("reentrant"),
    "counts_in_store": gettext_noop("count in store"),
    "fair": gettext_noop("fair"),
    "expires": gettext_noop("expires"),
    "session_bound": gettext_noop("ends with session"),
    "fencing": gettext_noop("fencing token"),
    "survives_minority": gettext_noop("survives a minority down"),
    "wakes_waiters": gettext_noop("wakes waiters"),
    "lists_holders": gettext_noop("lists holders"),
}
"""The boolean capabilities and their titles."""


class Flag:
    """What a threading.Event does for one waiter, but it costs nothing until somebody waits.

    A bare lock rather than an Event, whose wait in Python code can be left half done by a signal.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._is_set = False
        self._gate: threading.Lock | None = None

    def is_set(self) -> bool:
        """Whether `set` was called."""
        return self._is_set

    def set(self) -> None:
        """Set it for good and wake whoever waits."""
        self._is_set = True
        if self._gate is not None:
            with suppress(RuntimeError):  # it was open already
                self._gate.release()

    def wait(self, timeout: float) -> bool:
        """Wait for it, at most `timeout` seconds; whether it is set. For one thread at a time."""
        if self._gate is None:
            gate = threading.Lock()
            gate.acquire()
            self._gate = gate
        if not self._is_set:  # looked at after the gate is there: a `set` before saw none
            self._gate.acquire(timeout=min(max(timeout, 0.0), threading.TIMEOUT_MAX))
        return self._is_set


@dataclass(slots=True, kw_only=True, eq=False)
class Claim:
    """One attempt to own `name`: who asks, and for how long an unrenewed grant shall live."""

    name: str
    owner: str
    ttl: float
    cancelled: Flag = field(default_factory=Flag)
    interrupt: Callable[[], None] | None = None
    """Set by a backend while it waits in a place that `cancelled` alone cannot wake."""

    def cancel(self) -> None:
        """Make the wait of another thread end soon; it then withdraws and returns None."""
        self.cancelled.set()
        interrupt = self.interrupt  # the wait may be over at any moment, and this be None
        if interrupt is not None:
            interrupt()

    def lost(self) -> LockLost:
        """What its owner is told when the store does not know it as the holder."""
        return LockLost(f"{self.name!r} is not held by {self.owner}.")


@dataclass(frozen=True, slots=True)
class Grant:
    """The store's yes: a fencing token, and the monotonic time at which it ends unrenewed."""

    token: int
    deadline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One lock as `inspect()` sees it. None where the store cannot tell."""

    name: str
    owner: str
    token: int | None = None
    expires_in: float | None = None
    """Seconds until the grant ends unrenewed."""
    count: int | None = None
    waiters: int | None = None


class Backend(ABC):
    """Base of all backends; thread-safe, one instance per alias and process.

    Clients are opened on first use and forgotten in a forked child, so a backend made before
    `fork` works on both sides of it.
    """

    capabilities: ClassVar[Capabilities]

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
        self.options = dict(options or {})
        self.held: dict[tuple[str, object], Lease] = {}
        """What this process holds, by name and thread or task."""
        after_fork_in_child(self.reset_after_fork)

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        renew: bool = True,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> Lock:
        """A lock on `name`; see `locking.lease.Lock`."""
        from locking.lease import Lock

        return Lock(self, name, ttl=ttl, timeout=timeout, renew=renew, on_lost=on_lost)

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """System checks of this backend's own settings."""
        return []

    @abstractmethod
    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Take the lock, waiting up to `timeout` seconds (0 tries once, inf waits for ever).

        Returns None when it stayed held, or when `claim.cancelled` was set, and then leaves no
        trace in the store. That holds for any exception that interrupts the wait, too.
        Raises LockUnavailable when the store does not answer within bounded time.
        """

    @abstractmethod
    def release(self, claim: Claim, token: int) -> None:
        """Free the lock if `claim.owner` still has it, else raise LockLost and change nothing."""

    @abstractmethod
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Let the grant live `ttl` seconds from now; returns the new monotonic deadline.

        Raises LockLost when `claim.owner` no longer has it, LockUnavailable when nobody answers.
        """

    @abstractmethod
    def inspect(self) -> list[Held]:
        """What is held now; over all processes where `lists_holders` is declared."""

    @abstractmethod
    def probe(self) -> None:
        """Ask the store for a sign of life; raises LockUnavailable within bounded time."""

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:  # noqa: B027
        """Record that the holder is `count` deep; raises LockLost. Where the store keeps counts."""

    def break_lock(self, name: str) -> bool:
        """Take `name` away from whoever holds it; False when nobody did. For operators."""
        raise LockMisuse(f"{self.alias} locks cannot be broken from outside.")

    def raise_token_floor(self, name: str, token: int) -> None:  # noqa: B027
        """Be told of a token seen elsewhere: later grants of `name` must be above it.

        Only a store that can lose its memory needs this (see the redis backend).
        """

    def close(self) -> None:  # noqa: B027
        """Close this process's clients. The backend opens them again when it is used again."""

    def reset_after_fork(self) -> None:
        """In a forked child: drop the parent's clients without talking to anybody."""
        self.held.clear()
