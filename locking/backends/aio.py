"""Calls of blocking backends on behalf of asyncio tasks.

Calls that do not wait share one thread per backend, so that a store that does not respond delays no
calls of another one. Waits need a thread each, because one of them may last for ever; but of all
tasks of an event loop that wait for one name, only the first one waits in the store, in the order
of their arrival.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from locking.exceptions import LockError
from locking.fork import after_fork_in_child

if TYPE_CHECKING:
    from locking.backends.base import Backend, Claim, Grant

T = TypeVar("T")

Call = Callable[[], object]


class HelperThread:
    """One thread that runs the calls of all tasks in their order. It starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Start without a thread; also in a forked child."""
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._guard = threading.Lock()
        self._is_running = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` in the thread; the result cannot be cancelled."""
        future = Future[T]()
        future.set_running_or_notify_cancel()
        with self._guard:
            if not self._is_running:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
                self._is_running = True
        self._calls.put(lambda: _complete(future, call))
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Return `call()`, run in the thread; cancelling the await does not stop the call."""
        return await asyncio.shield(asyncio.wrap_future(self.submit(call)))

    def _run(self) -> None:
        while True:
            self._calls.get()()


_turns: weakref.WeakValueDictionary[tuple[object, ...], asyncio.Lock] = (
    weakref.WeakValueDictionary()
)
"""By event loop, backend and name: held by the task that waits in the store."""


async def acquire_in_thread(backend: Backend, claim: Claim, timeout: float) -> Grant | None:
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


async def _acquire(backend: Backend, claim: Claim, wait: Future[Grant | None]) -> Grant | None:
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


def start_thread(call: Callable[[], T]) -> Future[T]:
    """Run `call` in a new thread; the result cannot be cancelled."""
    future = Future[T]()
    future.set_running_or_notify_cancel()  # from here on, it cannot be cancelled
    run = threading.Thread(target=_complete, args=(future, call), name="lock-wait", daemon=True)
    run.start()
    return future


def _complete(future: Future[T], call: Callable[[], T]) -> None:
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again in the task
        future.set_exception(error)
