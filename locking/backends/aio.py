"""Calls of blocking backends on behalf of asyncio tasks.

Calls that do not wait share one thread per backend, so that a store that does not respond delays no
calls of another one. Waits need a thread each, because one of them may last for ever; but of all
tasks of an event loop that wait for one name, only the first one waits in the store, in the order
of their arrival.
"""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, TypeVar

from locking.claims import Claim, Grant
from locking.exceptions import LockError
from locking.threads import HelperThread, start_thread

T = TypeVar("T")


class Blocking(Protocol):
    """A backend whose calls block a thread."""

    helper: HelperThread

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Acquire the lock; see `Backend.acquire`."""

    def release(self, claim: Claim, token: int) -> None:
        """Release the lock; see `Backend.release`."""


_turns: weakref.WeakValueDictionary[tuple[object, ...], asyncio.Lock] = (
    weakref.WeakValueDictionary()
)
"""By event loop, backend and name: held by the task that waits in the store."""


async def acquire_in_thread(backend: Blocking, claim: Claim, timeout: float) -> Grant | None:
    """Return the result of `backend.acquire`; cancelling the await leaves no trace in the store."""
    loop = asyncio.get_running_loop()
    if timeout <= 0:
        return await _acquire(
            backend, claim, backend.helper.submit(lambda: backend.acquire(claim, 0))
        )
    until = loop.time() + timeout
    turn = _turns.setdefault((loop, backend, claim.name), asyncio.Lock())
    try:
        async with asyncio.timeout(None if timeout == float("inf") else timeout):
            await turn.acquire()
    except TimeoutError:
        return None
    try:
        left = max(0.0, until - loop.time())
        return await _acquire(backend, claim, start_thread(lambda: backend.acquire(claim, left)))
    finally:
        turn.release()


async def _acquire(backend: Blocking, claim: Claim, wait: Future[Grant | None]) -> Grant | None:
    entering = asyncio.wrap_future(wait)
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        claim.cancel()
        with suppress(LockError):
            grant = await _finish(entering)
            if grant is not None:
                release = backend.helper.submit(lambda: backend.release(claim, grant.token))
                await _finish(asyncio.wrap_future(release))
        raise


async def _finish(future: asyncio.Future[T]) -> T:
    """Return the result of `future`, even if the task is cancelled again meanwhile."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()
