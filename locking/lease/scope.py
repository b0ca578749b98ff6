"""Cancel the block of an `async with` when its lease is lost, like `asyncio.timeout` does."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class CancelScope:
    """Cancels the task that created it, at most once, until it is closed."""

    def __init__(self, depth: int) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.depth = depth
        """Acquisitions of the lease at the start of the block."""
        self._task = task
        self._loop = task.get_loop()
        self._cancelling = task.cancelling()
        self._is_open = True
        self._has_cancelled = False

    def cancel(self) -> None:
        """Cancel the task; callable from any thread."""
        with suppress(RuntimeError):  # the event loop has ended, and the task with it
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._is_open and not self._has_cancelled:
            self._has_cancelled = True
            self._task.cancel("The lock was lost.")

    def close(self, error: BaseException | None) -> bool:
        """End the scope; return True if `error` is its cancellation and no other one."""
        self._is_open = False
        if not self._has_cancelled:
            return False
        is_only_one = self._task.uncancel() <= self._cancelling
        return is_only_one and isinstance(error, asyncio.CancelledError)
