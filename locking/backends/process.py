"""A lock inside one process (REQUIREMENTS L2): it excludes threads, but not other processes."""

import threading
from collections import deque
from dataclasses import dataclass, field

from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token


@dataclass(slots=True)
class _Waiter:
    claim: Claim
    woken: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Owned:
    """The holder and the waiters of a name; exists only while the name is held."""

    owner: str
    token: int
    queue: deque[_Waiter] = field(default_factory=deque)


class ProcessBackend(Backend):
    """First come, first served among the threads of a process; a release grants to the next."""

    capabilities = Capabilities(
        summary=gettext_noop("One process only: two of them oversell."),
        exclusion="process",
        fair=True,
        session_bound=True,
        wakes_waiters=True,
    )

    def reset_after_fork(self) -> None:
        """Start without held locks, also in a forked child."""
        super().reset_after_fork()
        self._guard = threading.Lock()
        self._owned: dict[str, _Owned] = {}

    def __init__(self, alias: str, **settings: object) -> None:
        super().__init__(alias, **settings)  # type: ignore[arg-type]
        self.reset_after_fork()

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock, or join the queue."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None:
                self._owned[claim.name] = owned = _Owned(claim.owner, clock_token())
                return Grant(owned.token, float("inf"))
            if timeout <= 0:
                return None
            waiter = _Waiter(claim)
            owned.queue.append(waiter)
        claim.interrupt = waiter.woken.set
        try:
            if not claim.cancelled.is_set():
                waiter.woken.wait(min(timeout, threading.TIMEOUT_MAX))
        except BaseException:
            if self._withdraw(waiter) is not None:
                self.release(claim, 0)
            raise
        token = self._withdraw(waiter)
        return None if token is None else Grant(token, float("inf"))

    def _withdraw(self, waiter: _Waiter) -> int | None:
        """Leave the queue; return the token if a release granted the lock meanwhile."""
        with self._guard:
            owned = self._owned.get(waiter.claim.name)
            if owned is not None and owned.owner == waiter.claim.owner:
                return owned.token
            if owned is not None and waiter in owned.queue:
                owned.queue.remove(waiter)
            return None

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock and grant it to the next waiter."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None or owned.owner != claim.owner:
                raise claim.lost()
            self._grant_next(claim.name, owned)

    def _grant_next(self, name: str, owned: _Owned) -> None:
        if not owned.queue:
            del self._owned[name]
            return
        waiter = owned.queue.popleft()
        owned.owner, owned.token = waiter.claim.owner, clock_token()
        waiter.woken.set()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Return infinity: a grant lasts as long as the process."""
        with self._guard:
            owned = self._owned.get(claim.name)
            if owned is None or owned.owner != claim.owner:
                raise claim.lost()
        return float("inf")

    def inspect(self) -> list[Held]:
        """Return the locks of this process."""
        with self._guard:
            return [
                Held(name=name, owner=owned.owner, token=owned.token, waiters=len(owned.queue))
                for name, owned in self._owned.items()
            ]

    def probe(self) -> None:
        """Do nothing: there is no server."""

    def break_lock(self, name: str) -> bool:
        """Grant the lock to the next waiter; the holder's release raises LockLost."""
        with self._guard:
            owned = self._owned.get(name)
            if owned is None:
                return False
            self._grant_next(name, owned)
            return True
