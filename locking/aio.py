"""The waits of asyncio callers, carried by threads of their own.

Not asyncio's default executor: sixty waiters there would leave no thread for the release that they
wait for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from locking.backends.base import Claim
    from locking.lease import Lease

T = TypeVar("T")


async def run_in_thread(call: Callable[..., T], *args: Any) -> T:
    """Await `call(*args)` in a thread of its own; a cancelled await leaves the call to finish."""
    return await asyncio.shield(_start(call, *args))


async def claim_in_thread(
    call: Callable[..., Lease | None], claim: Claim, *args: Any
) -> Lease | None:
    """Await a claim; cancelling the task withdraws it, and a grant that came too late is freed."""
    from locking.lease import release

    future = _start(call, claim, *args)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        claim.cancel()
        lease = await asyncio.shield(future)
        if lease is not None:
            await run_in_thread(release, lease)
        raise


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
