"""A lock inside one process: it excludes threads, but not other processes."""

import asyncio
import math
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from django.utils.translation import gettext_noop

from locking.backends.base import Backend
from locking.backends.clock_tokens import clock_time, clock_token
from locking.claims import Capabilities, Claim, Grant, Held


@dataclass(slots=True)
class _Waiter:
    """A claim that waits, in a thread or a task."""

    claim: Claim
    woken: Future[None] = field(default_factory=Future)

    def wake(self) -> None:
        """End the wait, from any thread."""
        with suppress(InvalidStateError):  # it was cancelled, too
            self.woken.set_result(None)


@dataclass(slots=True)
class _Owned:
    """The holder and the waiters of a name; exists only while the name is held."""

    claim: Claim
    token: int
    queue: deque[_Waiter] = field(default_factory=deque)

    def held(self, name: str) -> Held:
        """Return the entry of `inspect`."""
        return Held(
            name=name,
            owner=self.claim.owner,
            token=self.token,
            since=clock_time(self.token),
            waiters=len(self.queue),
        )


class ProcessBackend(Backend):
    """First come, first served among the threads of a process; a release grants to the next."""

    capabilities = Capabilities(
        summary=gettext_noop("One process only: a second process gets the same lock."),
        exclusion="process",
        fair=True,
        session_bound=True,
        wakes_waiters=True,
    )

    def reset_after_fork(self) -> None:
        """Start without held locks, also in a forked child."""
        self._guard = threading.Lock()
        self._owned: dict[str, _Owned] = {}

    def __init__(self, alias: str, **settings: object) -> None:
        super().__init__(alias, **settings)  # type: ignore[arg-type]
        self.reset_after_fork()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or join the queue."""
        try:
            waiter = self._join(claim, timeout)
            if not isinstance(waiter, _Waiter):
                return waiter
            claim.interrupt = waiter.wake
            if not claim.cancelled.is_set():
                with suppress(TimeoutError):
                    waiter.woken.result(min(timeout, threading.TIMEOUT_MAX))
            return self._withdraw(claim)
        except BaseException:
            self._undo(claim)
            raise

    async def aacquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or join the queue as a task, which needs no thread."""
        try:
            waiter = self._join(claim, timeout)
            if not isinstance(waiter, _Waiter):
                return waiter
            woken = asyncio.wrap_future(waiter.woken)
            await asyncio.wait([woken], timeout=timeout if timeout < math.inf else None)
            return self._withdraw(claim)
        except BaseException:
            self._undo(claim)
            raise

    async def arelease(self, claim: Claim, token: int) -> None:
        """Release the lock and grant it to the next waiter."""
        self.release(claim, token)

    async def aset_depth(self, claim: Claim, token: int, depth: int) -> None:
        """Do nothing: the depth is kept with the lease."""

    def _join(self, claim: Claim, timeout: float) -> Grant | _Waiter | None:
        """Return a grant, or the entry of the queue to wait in; None without a timeout."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None:
                token = clock_token()
                self._owned[claim.name] = _Owned(claim, token)
                return Grant(token, math.inf)
            if timeout <= 0:
                claim.holder = owned.held(claim.name)
                return None
            waiter = _Waiter(claim)
            owned.queue.append(waiter)
            return waiter

    def _undo(self, claim: Claim) -> None:
        if self._withdraw(claim) is not None:
            self.release(claim, 0)

    def _withdraw(self, claim: Claim) -> Grant | None:
        """Leave the queue; return the grant if a release granted the lock meanwhile."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None:
                return None
            if owned.claim.owner == claim.owner:
                return Grant(owned.token, math.inf)
            claim.holder = owned.held(claim.name)
            owned.queue = deque(each for each in owned.queue if each.claim is not claim)
            return None

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock and grant it to the next waiter."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None or owned.claim.owner != claim.owner:
                raise claim.lost()
            self._grant_next(claim.name, owned)

    def _grant_next(self, name: str, owned: _Owned) -> None:
        while owned.queue:
            waiter = owned.queue.popleft()
            waiter.wake()
            if not waiter.claim.is_abandoned:
                owned.claim, owned.token = waiter.claim, clock_token()
                return
        del self._owned[name]

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Return infinity: a grant lasts as long as the process."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None or owned.claim.owner != claim.owner:
                raise claim.lost()
        return float("inf")

    def inspect(self) -> list[Held]:
        """Return the locks of this process."""
        with self._guard:
            return [owned.held(name) for name, owned in self._owned.items()]

    def probe(self) -> None:
        """Do nothing: there is no server."""

    def break_lock(self, name: str) -> bool:
        """Grant the lock to the next waiter; tell the holder."""
        with self._guard:
            owned = self._owned.get(name)
            if owned is None:
                return False
            report_lost = owned.claim.report_lost
            self._grant_next(name, owned)
        if report_lost:
            report_lost()
        return True
