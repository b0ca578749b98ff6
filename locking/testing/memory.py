"""Locks in memory for the tests of a project.

    with locks_in_memory() as clock:                        # every alias of settings.LOCKS
        with pytest.raises(LockLost), lock("invoice:42"):
            clock.advance(60)
        with held_elsewhere("invoice:42"), pytest.raises(LockTimeout), lock("invoice:42"):
            ...                                             # the wait costs no time

A lease ends when the test advances the clock, and not in real time.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from django.test.utils import override_settings

from locking.backends.process import ProcessBackend
from locking.claims import Claim, Grant, Held
from locking.conf import lock_settings
from locking.exceptions import LockLost, LockMisuse
from locking.handler import locks
from locking.lease import Lease
from locking.lease.steps import run

ELSEWHERE = object()
"""The caller that stands for another process."""


class VirtualClock:
    """The time of leases in memory; it stands still until it is advanced."""

    def __init__(self) -> None:
        self.now = 0.0

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. A lease ends after its ttl in total, because nothing renews it."""
        self.now += seconds
        for store in locks.opened():
            if isinstance(store.backend, InMemoryBackend):
                for lease in list(store.held.values()):
                    lease.hold_until -= seconds
                    if lease.lost or store.backend.has_ended(lease.owner):
                        lease.give_up("lock lost: the test advanced the clock")


class InMemoryBackend(ProcessBackend):
    """The backend `process` with leases, which end on one clock for all backends."""

    capabilities = replace(ProcessBackend.capabilities, summary="In memory, for tests.")
    clock = VirtualClock()
    """In `locks_in_memory`, that of the block."""

    def __init__(self, alias: str, **settings: object) -> None:
        super().__init__(alias, **settings)
        self._ends: dict[str, float] = {}
        self.elsewhere: set[str] = set()
        """Names that `held_elsewhere` holds."""

    def _join(self, claim: Claim, timeout: float) -> Any:
        """Do not wait for a holder that only this thread could end."""
        self._ends[claim.owner] = self.clock.now + claim.ttl
        if claim.name in self.elsewhere:
            if timeout == math.inf:
                raise LockMisuse(f"{claim.name!r} is held elsewhere: this wait would never end.")
            timeout = 0.0
        return super()._join(claim, timeout)

    def _withdraw(self, claim: Claim) -> Grant | None:
        """Begin the ttl of a grant after a wait."""
        grant = super()._withdraw(claim)
        self._ends[claim.owner] = self.clock.now + claim.ttl
        return grant

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Move the end on the virtual clock; in real time a lease never ends."""
        deadline = super().extend(claim, token, ttl)
        self._ends[claim.owner] = self.clock.now + ttl
        return deadline

    def inspect(self) -> list[Held]:
        """Return the locks with the seconds until the clock ends their leases."""
        ends = {owner: end - self.clock.now for owner, end in self._ends.items()}
        return [replace(held, expires_in=ends[held.owner]) for held in super().inspect()]

    def has_ended(self, owner: str) -> bool:
        """Return whether the ttl of this holder is over."""
        return self._ends[owner] <= self.clock.now


@contextmanager
def locks_in_memory() -> Iterator[VirtualClock]:
    """Replace every backend of settings.LOCKS by one in memory; return their clock."""
    from locking import policy  # needs the apps

    clock = VirtualClock()
    entries = {
        alias: {key: conf[key] for key in ("TTL", "TIMEOUT") if key in conf}
        | {"BACKEND": f"{__name__}.{InMemoryBackend.__name__}"}
        for alias, conf in lock_settings().items()
    }
    with override_settings(LOCKS=entries), patch.object(InMemoryBackend, "clock", clock):
        policy.invalidate()
        try:
            yield clock
        finally:
            policy.invalidate()


@contextmanager
def held_elsewhere(name: str, alias: str | None = None) -> Iterator[None]:
    """Hold a lock in memory as another process does; a wait for it ends at once, without it.

    Without an alias, the lock is held in the backend that the policy has in force.
    """
    from locking import policy  # needs the apps

    store = locks[alias or policy.current().backend]
    assert isinstance(store.backend, InMemoryBackend)
    lease = run(store.lock(name, renew=False).grant(ELSEWHERE, 0))
    assert isinstance(lease, Lease), f"{name!r} is held already"
    store.backend.elsewhere.add(name)
    try:
        yield
    finally:
        store.backend.elsewhere.discard(name)
        with suppress(LockLost):
            lease.release()
