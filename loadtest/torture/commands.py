"""A process of a torture run: what it does at the request of the runner."""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.db import DatabaseError, connections

from loadtest.history.recorder import Recorder
from loadtest.torture.plan import SLOTS
from loadtest.torture.workload import ALIAS, UNAVAILABLE_PAUSE, Work
from locking import LockError, LockLost, LockUnavailable, policy
from locking import locks as handler
from locking.backends.base import Backend
from locking.lease.lock import BaseLock
from locking.models import LockPolicy
from locking.policy.lock import PolicyLock


class Commands:
    """The child's side: a method for each request."""

    ERRORS = (LockError, DatabaseError)
    """A switch may meet another one, or lose the connection of its own transaction."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def migrate(self, *, apps: list[str]) -> dict[str, Any]:
        """Create the tables of these apps, by default of all."""
        call_command("migrate", *apps, verbosity=0, interactive=False)
        return {"ok": True}

    def open(self, *, folder: str, actor: str, locks: dict[str, Any], port: int | None) -> Any:
        """Take the settings of one run: the locks, and the port of the database's server."""
        self._close()
        settings.LOCKS.update(locks)
        if port is not None:
            connections.settings["default"]["PORT"] = port
        self.recorder = Recorder(Path(folder), actor)
        policy.invalidate()
        return {"ok": True, "resources": resources()}

    def activate(self, *, alias: str) -> dict[str, Any]:
        """Set the policy without a drain: no process is working yet."""
        row, _ = LockPolicy.objects.get_or_create(pk=1, defaults={"backend": alias})
        values = {"backend": alias, "mode": row.mode or "conditional", "still_held": None}
        values |= {"state": LockPolicy.State.STEADY, "next_backend": "", "next_mode": ""}
        LockPolicy.objects.filter(pk=1).update(epoch=row.epoch + 1, **values)
        policy.invalidate()
        return {"ok": True}

    def switch(self, *, alias: str) -> dict[str, Any]:
        """Switch the policy as an operator does."""
        row = policy.switch(backend=alias, reason="torture")
        return {"ok": True, "epoch": row.epoch}

    def work(self, *, kind: str, names: list[str], threads: int, end: float, seed: str) -> Any:
        """Use the locks until the monotonic time `end`; return what happened, counted."""
        assert self.recorder is not None
        work = self.workload(kind)(self.recorder, kind, names, end, random.Random(seed))
        seeds = [random.Random(f"{seed} {number}") for number in range(threads)]
        if kind == "asyncio":
            asyncio.run(work.tasks(seeds))
        else:
            run: Callable[[random.Random], object] = getattr(work, kind.replace("-", "_"))
            running = [threading.Thread(target=work.repeat, args=(run, rng)) for rng in seeds]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()
        return {"counts": dict(work.counts), "errors": work.errors[:3]}

    def workload(self, kind: str) -> type[Work]:
        """Return the class of a workload."""
        return Work

    def probe(self, *, names: list[str], kind: str, timeout: float) -> dict[str, Any]:
        """Acquire and release each lock alone, within `timeout` seconds in all."""
        started, missing = time.monotonic(), []
        backend = handler[ALIAS]
        for name in names:
            lock = _exclusive(kind, backend, name)
            while (left := started + timeout - time.monotonic()) > 0:
                with suppress(LockUnavailable, LockLost):
                    if lock.acquire(timeout=left):
                        lock.release()
                        break
                time.sleep(UNAVAILABLE_PAUSE)
            else:
                missing.append(name)
        return {"missing": missing, "seconds": time.monotonic() - started}

    def leftovers(self, *, run: str, threads: int, timeout: float) -> dict[str, Any]:
        """Return the locks that this process or the store still has of a run, and its resources.

        Wait up to `timeout` seconds for the last of them to go, and for all but `threads` threads.
        """
        held = [name for one in handler.opened() for name, _ in one.held if run in name]
        listed, end = ["no reply of the store"], time.monotonic() + timeout
        while listed and time.monotonic() < end:
            with suppress(LockUnavailable):
                found = [lock.name for one in handler.opened() for lock in one.inspect()]
                listed = [name for name in found if run in name]
            time.sleep(UNAVAILABLE_PAUSE)
        self._close()
        while threading.active_count() > threads and time.monotonic() < end + timeout:
            time.sleep(UNAVAILABLE_PAUSE)
        names = [thread.name for thread in threading.enumerate()]
        return {"held": held, "listed": listed, "resources": resources(), "threads": names}

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None
        handler.close()
        connections.close_all()


def resources() -> dict[str, int]:
    """Return the open descriptors and the threads of this process."""
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads": threading.active_count()}


def _exclusive(kind: str, backend: Backend, name: str) -> BaseLock:
    if kind == "semaphore":
        return backend.semaphore(name, SLOTS)
    if kind == "read-write":
        return backend.read_write(name).write()
    return PolicyLock(name) if kind == "switch" else backend.lock(name)
