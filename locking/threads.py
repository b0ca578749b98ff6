"""Threads that run calls and hand their results to futures."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

from locking.fork import after_fork_in_child

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
        self._put(lambda: _complete(future, call))
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Return `call()`, run in the thread; cancelling the await does not stop the call."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def answer() -> None:
            # `asyncio.wrap_future` does the same by way of a second future and its lock.
            settle: Callable[[], None]
            try:
                settle = partial(reply.set_result, call())
            except BaseException as error:  # noqa: BLE001 - raised again in the task
                settle = partial(reply.set_exception, error)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, reply, settle)

        self._put(answer)
        return await reply

    def _put(self, call: Call) -> None:
        if not self._is_running:
            with self._guard:
                if not self._is_running:
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
                    self._is_running = True
        self._calls.put(call)

    def _run(self) -> None:
        while True:
            self._calls.get()()


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


def _settle(reply: asyncio.Future[T], settle: Callable[[], None]) -> None:
    if not reply.done():  # its task was cancelled otherwise
        settle()
