"""Several locks at once: all of them or none.

    with locks["redis"].all_of(["account:7", "account:4"], timeout=2) as leases: ...

Callers that name the same locks in another order cannot deadlock: all acquire them sorted by name.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial

from locking.backends.base import Backend, Claim
from locking.exceptions import LockError, LockMisuse
from locking.lease.lease import Lease
from locking.lease.lock import BaseLock, timed_out
from locking.types import current_caller


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

    def __init__(self, make: Callable[[str], BaseLock], names: Iterable[str]) -> None:
        given = [] if isinstance(names, str) else sorted(names)
        if not given:
            raise LockMisuse(f"Invalid names {names!r:.40}: give a list of at least one name.")
        if repeated := [name for name in given if given.count(name) > 1]:
            raise LockMisuse(f"{repeated[0]!r} is named twice: give each name once.")
        self._locks = [make(name) for name in given]

    def __enter__(self) -> Leases:
        timeout = self._locks[0]._with_timeout()
        deadline, leases = time.monotonic() + timeout, Leases()
        with ExitStack() as undo:
            for lock in self._locks:
                lease = lock._enter(max(0.0, deadline - time.monotonic()))
                if isinstance(lease, Claim):
                    raise timed_out(lease, timeout)
                leases[lock.name] = lease
                undo.callback(_release, lease)
            leases.check()
            undo.pop_all()
        return leases

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        stack = ExitStack()
        for lock in self._locks:
            stack.push(lock.__exit__)
        stack.__exit__(type(error) if error else None, error, None)

    def __aenter__(self) -> Coroutine[object, object, Leases]:
        return self._aenter_block(current_caller())

    async def _aenter_block(self, caller: object) -> Leases:
        timeout = await self._locks[0]._awith_timeout()
        deadline, leases = time.monotonic() + timeout, Leases()
        async with AsyncExitStack() as undo:
            for lock in self._locks:
                lease = await lock._aenter(caller, max(0.0, deadline - time.monotonic()))
                if isinstance(lease, Claim):
                    raise timed_out(lease, timeout)
                leases[lock.name] = lease
                undo.push_async_callback(_arelease, lease)
            leases.check()
            undo.pop_all()
        for lock in self._locks:
            lock._open_scope(leases[lock.name], caller)
        return leases

    def __aexit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> Coroutine[object, object, object]:
        stack = AsyncExitStack()
        for lock in self._locks:
            stack.push_async_exit(partial(lock._aexit_block, current_caller()))
        return stack.__aexit__(type(error) if error else None, error, None)


def _release(lease: Lease) -> None:
    with suppress(LockError):
        lease.release()


async def _arelease(lease: Lease) -> None:
    with suppress(LockError):
        await lease.arelease()


Backend.all_of_class = AllOf
