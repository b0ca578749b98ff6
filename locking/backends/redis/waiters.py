"""The asyncio tasks of an event loop that wait for Redis locks."""

from __future__ import annotations

import asyncio
import time

from locking.backends.redis.scripts import MAX_SLEEP, RECHECK_DELAY
from locking.claims import Claim

Message = tuple[int, int]
"""Token (0: try again) and time of a grant, in ticks."""


class Waiter:
    """A claim that waits for a message from Redis, or to be woken without one."""

    __slots__ = ("_future", "_is_woken", "_message", "claim", "entry", "is_recheck")

    def __init__(self, claim: Claim, entry: str) -> None:
        self.claim = claim
        self.entry = entry
        """The entry in Redis's queue."""
        self.is_recheck = False
        """True if it was woken to ask whether the present grant has ended."""
        self._message: Message | None = None
        self._is_woken = False
        self._future: asyncio.Future[None] | None = None

    def wake(self, message: Message | None = None) -> None:
        """End the present wait, or the next one."""
        self._message = message or self._message
        self._is_woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> Message | None:
        """Return the message, or None if woken without one."""
        if not self._is_woken:
            self._future = asyncio.get_running_loop().create_future()
            try:
                await self._future
            finally:
                self._future = None
        message, self._message, self._is_woken = self._message, None, False
        return message


class _Queue:
    """The waiters for one name, in the order of their arrival."""

    __slots__ = ("due", "timer", "waiters")

    def __init__(self) -> None:
        self.waiters: dict[Waiter, None] = {}
        self.due = 0.0
        self.timer: asyncio.TimerHandle | None = None


class Waiters:
    """All waiters of an event loop; finds the one that a message is for.

    Only the first waiter of a name asks again when the present grant should have ended: its script
    serves the whole queue in Redis.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._by_owner: dict[str, Waiter] = {}
        self._queues: dict[str, _Queue] = {}

    def add(self, waiter: Waiter) -> None:
        """Let messages and rechecks find the waiter."""
        self._by_owner[waiter.claim.owner] = waiter
        self._queues.setdefault(waiter.claim.name, _Queue()).waiters[waiter] = None

    def remove(self, waiter: Waiter) -> None:
        """Forget the waiter; another one asks again in its place."""
        claim = waiter.claim
        self._by_owner.pop(claim.owner, None)
        queue = self._queues[claim.name]
        queue.waiters.pop(waiter, None)
        if not queue.waiters:
            del self._queues[claim.name]
            if queue.timer is not None:
                queue.timer.cancel()
        elif queue.timer is None:
            self.recheck_at(claim.name, time.monotonic() + RECHECK_DELAY)

    def deliver(self, text: str) -> None:
        """Wake the waiter that a message is for, unless it is gone."""
        token, ticks, owner = text.split(" ", 2)
        waiter = self._by_owner.get(owner)
        if waiter is not None:
            waiter.wake((int(token), int(ticks)))

    def recheck_at(self, name: str, when: float) -> None:
        """Let the first waiter of the name ask again at this monotonic time, or before."""
        queue = self._queues[name]
        if queue.timer is not None:
            if queue.due <= when:
                return
            queue.timer.cancel()
        queue.due = when
        pause = min(max(0.0, when - time.monotonic()), MAX_SLEEP)
        queue.timer = self._loop.call_later(pause, self._recheck, name, queue)

    def _recheck(self, name: str, queue: _Queue) -> None:
        queue.timer = None
        first = next(iter(queue.waiters))
        first.is_recheck = True
        first.wake()

    def rejoin(self, name: str) -> None:
        """Let all waiters of the name ask again, in their order: Redis has lost its queue."""
        for waiter in list(self._queues[name].waiters):
            waiter.wake()

    def rejoin_all(self) -> None:
        """Let all waiters ask again, because the connection was lost."""
        for waiter in list(self._by_owner.values()):
            waiter.wake()
