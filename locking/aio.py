"""The waits of asyncio callers, carried by threads of their own.

Not asyncio's default executor: sixty waiters there would leave no thread for the release that they
wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from locking.exceptions import LockError

if TYPE_CHECKING:
    from locking.backends.base import Claim
    from locking.lease import Lease

T = TypeVar("T")


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Await `call(*args)` in a thread of its own; a cancelled await leaves the call to finish."""
    return await asyncio.shield(_start(call, *args))


async def enter_in_thread(
    claim: Claim, call: Callable[..., Lease | None], *args: Any
) -> Lease | None:
    """Await a grant or a re-entry; cancelling the task withdraws it, or gives back what came."""
    from locking.lease import release

    entering = _start(call, *args)
    try:
        return await asyncio.shield(entering)
    except asyncio.CancelledError:
        claim.cancel()
        with suppress(LockError):
            lease = await _outlast(entering)
            if lease is not None:
                await _outlast(_start(release, lease))
        raise


async def _outlast(future: asyncio.Future[T]) -> T:
    """The result, however often the task is cancelled meanwhile."""
    while not future.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return future.result()


def _start(call: Callable[..., T], *args: Any) -> asyncio.Future[T]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = call(*args)
        except BaseException as caught:  # noqa: BLE001 - carried over to the task
            error = caught
        loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="lock-wait", daemon=True).start()
    return future
