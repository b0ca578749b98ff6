"""The interface of a lock backend, and the capabilities that it declares.

A backend implements five methods on a store: `acquire`, `release`, `extend`, `inspect` and `probe`.
The package `locking.lease` adds owners, re-entry, time limits, renewal, errors and metrics. Each
backend declares its `Capabilities` once; docs, admin and the contract tests read them from there.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from django.core.checks import CheckMessage, Error

from locking.backends.options import Option, problems
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockError, LockMisuse
from locking.fork import after_fork_in_child
from locking.threads import HelperThread, start_thread

T = TypeVar("T")


class Backend(ABC):
    """Base class of all backends; thread-safe, one instance per alias and process.

    Connections are opened on first use and abandoned in a forked child, so a backend that was
    created before `fork` works in both processes.
    """

    capabilities: ClassVar[Capabilities]
    known_options: ClassVar[Mapping[str, Option]] = {}
    """The keys of OPTIONS that the backend accepts."""

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
        self.helper = HelperThread(f"lock-helper-{alias}")
        """Runs the calls of tasks that do not wait: a silent store delays none of another one."""
        self._turns = WeakValueDictionary[tuple[object, str], asyncio.Lock]()
        """By event loop and name: held by the task that waits in the store."""
        after_fork_in_child(self.reset_after_fork)

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
        store does not reply within bounded time.
        """

    @abstractmethod
    def release(self, claim: Claim, token: int) -> None:
        """Release the lock if `claim.owner` holds it, else raise LockLost and change nothing."""

    @abstractmethod
    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Extend the grant to `ttl` seconds from now; return the new monotonic deadline.

        Raises LockLost when `claim.owner` does not hold the lock, LockUnavailable when the store
        does not reply.
        """

    @abstractmethod
    def inspect(self) -> list[Held]:
        """Return the held locks; those of all processes if `lists_holders` is declared."""

    def holders(self, name: str) -> list[Held]:
        """Return the holders of one name; a store can do better than to list all."""
        return [held for held in self.inspect() if held.name == name]

    @abstractmethod
    def probe(self) -> None:
        """Check that the store replies; raise LockUnavailable within bounded time."""

    def nodes_down(self) -> list[str]:
        """Return the nodes that serve no lock now; needed from a store that survives a minority."""
        return []

    def set_depth(self, claim: Claim, token: int, depth: int) -> None:  # noqa: B027
        """Record the depth of re-entry if the store keeps it; raise LockLost."""

    def take_over(self, claim: Claim, owner: str, token: int) -> Grant:
        """Continue, as `claim.owner`, the grant `token` that `owner` handed over at depth 0.

        The grant then has the new owner, a higher token, depth 1, and lasts `claim.ttl` seconds
        from now. Raise LockLost unless `owner` holds the lock with that token and depth 0. A second
        call of the same claim, after a lost reply, returns its grant.
        """
        raise self.no_hand_over()

    def no_hand_over(self) -> LockMisuse:
        """Return the error for a store that cannot hand over a lease."""
        return LockMisuse(f"{self.alias!r} cannot hand over a lease: use database or redis.")

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock for an asyncio task; cancelling the task leaves no trace.

        By default a wait needs a thread, because it may last for ever. Of all tasks of an event
        loop that wait for one name, only the first one waits in the store.
        """
        if timeout <= 0:
            return await self.granted(claim, self.helper.submit(partial(self._for_task, claim, 0)))
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        turn = self._turns.setdefault((loop, claim.name), asyncio.Lock())
        try:
            async with asyncio.timeout(None if timeout == math.inf else timeout):
                await turn.acquire()
        except TimeoutError:
            return None
        try:
            left = max(0.0, until - loop.time())
            return await self.granted(claim, start_thread(partial(self._for_task, claim, left)))
        finally:
            turn.release()

    def _for_task(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock for a task, unless its event loop is closed by then."""
        grant = self.acquire(claim, timeout)
        if grant is not None and claim.is_abandoned:
            self.release(claim, grant.token)
            return None
        return grant

    async def granted(self, claim: Claim, wait: Future[Grant | None]) -> Grant | None:
        """Return the outcome of a call for a task; if that is cancelled, release what it gets."""
        entering = asyncio.wrap_future(wait)
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            claim.cancel()
            with suppress(LockError):
                if (grant := await _finish(entering)) is not None:
                    release = self.helper.submit(lambda: self.release(claim, grant.token))
                    await _finish(asyncio.wrap_future(release))
            raise

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

    def reset_after_fork(self) -> None:  # noqa: B027
        """Drop the parent's connections in a forked child, without any message."""


async def _finish(future: asyncio.Future[T]) -> T:
    """Return the result of `future`, even if the task is cancelled again meanwhile."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()
