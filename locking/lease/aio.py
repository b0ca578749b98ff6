"""Threads that wait for asyncio callers.

Each wait has a thread of its own, because waits in asyncio's default executor could occupy every
thread of it, including the one that the release needs.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from locking.backends.base import Claim
from locking.exceptions import LockError
from locking.lease.lease import Lease

T = TypeVar("T")


async def run_in_thread(call: Callable[[], T]) -> T:
    """Return `call()`, run in a new thread; cancelling the await does not stop the call."""
    return await asyncio.shield(_start(call))


async def enter_in_thread(claim: Claim, call: Callable[[], Lease | None]) -> Lease | None:
    """Return the lease of `call()`; cancelling the await withdraws the claim or releases it."""
    entering = _start(call)
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        claim.cancel()
        with suppress(LockError):
            lease = await _finish(entering)
            if lease is not None:
                await _finish(_start(lease.release))
        raise


async def _finish(future: asyncio.Future[T]) -> T:
    """Return the result of `future`, even if the task is cancelled again meanwhile."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()


def _start(call: Callable[[], T]) -> asyncio.Future[T]:
    future = Future[T]()
    future.set_running_or_notify_cancel()  # from here on, it cannot be cancelled

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the task
            future.set_exception(error)

    threading.Thread(target=run, name="lock-wait", daemon=True).start()
    return asyncio.wrap_future(future)
