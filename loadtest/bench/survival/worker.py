"""A process that acquires, writes and releases on request, and records what happens to it."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from devservers.faults.waiting import FaultFailed, until
from loadtest.bench.locks.systems import Handle
from loadtest.bench.survival.libraries import LEASE, LIBRARIES
from loadtest.kernel.history import Recorder
from shop.models import User

NOTICE = 1.0
"""Seconds in which a holder may learn of its loss by itself."""
DONE = {"ok": True}


class Commands:
    """The child's side of `WorkerProcess`: a method for each request."""

    ERRORS = (Exception,)
    handle: Handle
    awaited: Any
    recorder: Recorder

    def open(
        self, folder: str, actor: str, library: str, name: str, lease: float
    ) -> dict[str, Any]:
        """Open a handle on a lock that is used for one run."""
        if "zookeeper" in settings.LOCKS:
            settings.LOCKS["zookeeper"].setdefault("OPTIONS", {})["SESSION_TIMEOUT"] = LEASE
        self.recorder = Recorder(Path(folder), actor)
        self.owner = {"name": name, "owner": actor}
        self.handle = LIBRARIES[library].open(name, lease)
        return DONE

    def warm(self) -> dict[str, Any]:
        """Take the free lock once, so that its connections are open and its scripts loaded."""
        if not self.handle.acquire(LEASE):
            raise FaultFailed("a free lock was not granted")
        self.handle.release()
        return DONE

    def acquire(self, wait: float) -> dict[str, Any]:
        """Acquire the lock within `wait` seconds."""
        return {"granted": self._acquire(self.handle, wait, self.owner)}

    def _acquire(self, handle: Handle, wait: float, owner: dict[str, str]) -> bool:
        with self.recorder.operation("acquire", **owner) as result:
            granted = bool(handle.acquire(wait))
            result["type"] = "ok" if granted else "fail"
            if granted:
                result |= {"token": handle.token() or 0, "deadline": None}
        return granted

    def write(self) -> dict[str, Any]:
        """Record a write to what the lock guards, with the token if there is one."""
        self.recorder.note("write", token=self.handle.token())
        return DONE

    def notice(self, within: float = NOTICE) -> dict[str, Any]:
        """Record if the holder is told of its loss, and what it is told when it asks."""
        if self.handle.is_lost is not None:
            with suppress(FaultFailed):
                until(self.handle.is_lost, "the loss", within)
                self.recorder.note("lost", **self.owner)
        if self.handle.is_owned is not None:
            with self.recorder.operation("asked") as result:
                result["type"] = "ok" if self.handle.is_owned() else "fail"
        return DONE

    def release(self) -> dict[str, Any]:
        """Release the lock."""
        with self.recorder.operation("release", **self.owner) as result:
            result["type"] = "fail" if self.handle.release() is False else "ok"
        return DONE

    def begin(self, library: str, lease: float) -> dict[str, Any]:
        """Begin a transaction, and open the library's handle for use inside it."""
        self.transaction = transaction.atomic()
        self.transaction.__enter__()
        self.handle = LIBRARIES[library].open_inside(self.owner["name"], lease)
        return DONE

    def insert(self) -> dict[str, Any]:
        """Insert the row that the lock guards."""
        User.objects.create(username=self.owner["name"])
        return DONE

    def commit(self) -> dict[str, Any]:
        """Commit the transaction."""
        self.transaction.__exit__(None, None, None)
        return DONE

    def read(self) -> dict[str, Any]:
        """Record if the row is there."""
        found = User.objects.filter(username=self.owner["name"]).exists()
        self.recorder.note("read", found=found)
        return DONE

    def open_async(self, library: str, lease: float) -> dict[str, Any]:
        """Open the asyncio lock of the library, on an event loop in a thread."""
        opener, self.loop = LIBRARIES[library].open_async, asyncio.new_event_loop()
        assert not isinstance(opener, str)
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.awaited = opener(self.owner["name"], lease)
        return DONE

    def attempt(self, limit: float) -> dict[str, Any]:
        """Use the lock in a task whose acquire is cancelled after `limit` seconds."""
        return asyncio.run_coroutine_threadsafe(self._attempt(limit), self.loop).result()

    async def _attempt(self, limit: float) -> dict[str, Any]:
        started, granted = time.monotonic(), None
        with suppress(TimeoutError):
            async with asyncio.timeout(limit):
                granted = bool(await self.awaited.acquire())
        took = time.monotonic() - started
        if granted:
            await self.awaited.release()
        elif granted is None:
            self.recorder.note("cancelled")
        return {**DONE, "cancelled": granted is None, "seconds": took}

    def queue(self, library: str, first: int, step: int, of: int, lease: float) -> dict[str, Any]:
        """Open the handles of some waiters, each for a thread of its own."""
        opener, numbers = LIBRARIES[library].open, range(first, of, step)
        self.threads = ThreadPoolExecutor(len(numbers))
        opened = self.threads.map(lambda _: opener(self.owner["name"], lease), numbers)
        self.handles = dict(zip(numbers, opened, strict=True))
        return DONE

    def line_up(self, start: float, gap: float, wait: float, hold: float) -> dict[str, Any]:
        """Let the waiters arrive one after another, take their turns and leave."""

        def take_turn(number: int) -> None:
            owner, handle = {**self.owner, "owner": f"waiter {number}"}, self.handles[number]
            time.sleep(max(0.0, start + gap * number - time.monotonic()))
            if self._acquire(handle, wait, owner):
                time.sleep(hold)
                with self.recorder.operation("release", **owner):
                    handle.release()

        for turn in [self.threads.submit(take_turn, number) for number in self.handles]:
            turn.exception()  # it is in the record
        self.threads.shutdown()
        self.handles.clear()
        return DONE
