"""Several locks at once: all of them or none.

    with locks["redis"].all_of(["account:7", "account:4"], timeout=2) as leases: ...

Callers that name the same locks in another order cannot deadlock: all acquire them sorted by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress

from locking.caller import current_caller
from locking.claims import Claim
from locking.exceptions import LockError, LockMisuse
from locking.lease.lease import Lease
from locking.lease.lock import Lock, timed_out
from locking.lease.steps import Steps, arun, run


class Leases(dict[str, Lease]):
    """The leases of all names; if one of them is lost, all count as lost."""

    @property
    def lost(self) -> bool:
        """True if a lease is lost; the holder may then no longer rely on any of them."""
        return any(lease.lost for lease in self.values())

    def check(self) -> None:
        """Raise LockLost if a lease is lost; it names the first one."""
        for lease in self.values():
            lease.check()


class AllOf:
    """Locks on several names, acquired sorted by name and released in reverse order.

    One deadline bounds all waits, and a lock is renewed while its holder waits for the next one.
    Raises LockTimeout if one of them stayed held, LockLost if one ended during the wait for
    another; none of them is then held. `on_lost` is called with each lease that is lost.
    """

    def __init__(self, make: Callable[[str], Lock], names: Iterable[str]) -> None:
        given = [] if isinstance(names, str) else sorted(set(names))
        if not given:
            raise LockMisuse(f"Invalid names {names!r:.40}: give a list of at least one name.")
        self._locks = [make(name) for name in given]

    def __enter__(self) -> Leases:
        return run(self._begin(current_caller()))

    def __aenter__(self) -> Coroutine[object, object, Leases]:
        return self._abegin(current_caller())

    async def _abegin(self, caller: object) -> Leases:
        leases = await arun(self._begin(caller))
        for lock in self._locks:
            lock.open_scope(leases[lock.name], caller)
        return leases

    def _begin(self, caller: object) -> Steps[Leases]:
        timeout = yield from self._locks[0].patience()
        deadline, leases = time.monotonic() + timeout, Leases()
        try:
            for lock in self._locks:
                left = max(0.0, deadline - time.monotonic())
                lease = yield from lock.enter(caller, left)
                if isinstance(lease, Claim):
                    raise timed_out(lease, timeout)
                leases[lock.name] = lease
            leases.check()
        except BaseException:
            yield from _leave(reversed(leases.values()))
            raise
        return leases

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run(self._finish(current_caller(), error))

    def __aexit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> Coroutine[object, object, None]:
        return arun(self._finish(current_caller(), error))

    def _finish(self, caller: object, error: BaseException | None) -> Steps[None]:
        raised = error
        for lock in reversed(self._locks):
            try:
                yield from lock.finish(caller, raised)
            except BaseException as one:  # noqa: BLE001 - raised after the others are released
                raised = one
        if raised is not None and raised is not error:
            raise raised


def _leave(leases: Iterable[Lease]) -> Steps[None]:
    """Leave them all; raise an interrupt of one after that."""
    interrupt: BaseException | None = None
    for lease in leases:
        try:
            with suppress(LockError):
                yield from lease.leave()
        except BaseException as one:  # noqa: BLE001 - raised below
            interrupt = one
    if interrupt is not None:
        raise interrupt
