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

from django.db import connections

from locking.fork import after_fork_in_child

T = TypeVar("T")

Calls = SimpleQueue[Callable[[], object] | None]
"""What a thread is to do; None ends it."""


class HelperThread:
    """One thread that runs calls in their order. It starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.reset()
        after_fork_in_child(self.reset)

    def reset(self) -> None:
        """Start without a thread; also in a forked child."""
        self._guard = threading.Lock()
        self._calls: Calls | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run `call` in the thread; the result cannot be cancelled."""
        future = Future[T]()
        future.set_running_or_notify_cancel()  # from here on, it cannot be cancelled
        self._put(partial(_complete, future, call))
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

    def end(self) -> None:
        """End the thread after the calls so far; the next call starts another one."""
        with self._guard:
            if self._calls is not None:
                self._calls.put(None)
                self._calls = None

    def _put(self, call: Callable[[], object]) -> None:
        with self._guard:
            if self._calls is None:
                calls = Calls()
                threading.Thread(target=_run, args=[calls], name=self._name, daemon=True).start()
                self._calls = calls
            self._calls.put(call)


def _run(calls: Calls) -> None:
    while (call := calls.get()) is not None:
        call()
    connections.close_all()  # those of this thread


def start_thread(call: Callable[[], T]) -> Future[T]:
    """Run `call` in a new thread; the result cannot be cancelled."""
    future = Future[T]()
    future.set_running_or_notify_cancel()
    run = threading.Thread(target=_complete, args=(future, call), name="lock-call", daemon=True)
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
