"""A process of a torture run: what it does at the request of the runner."""

import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections

from loadtest.kernel.history import Recorder
from loadtest.kernel.topology import create_tables
from locking import LockError, LockLost, LockUnavailable, policy
from locking import locks as handler
from locking.lease import Lock
from locking.policy.lock import PolicyLock
from verification.torture import stock
from verification.torture.catalogue import ALIAS
from verification.torture.plan import Terms
from verification.torture.workload import SLOTS, UNAVAILABLE_PAUSE, Work


class Commands:
    """The child's side: a method for each request."""

    ERRORS = (LockError,)
    """A switch may meet another one, or lose the connection of its own transaction."""

    def __init__(self) -> None:
        self.recorder: Recorder | None = None

    def create_tables(self) -> dict[str, Any]:
        """Create all tables."""
        create_tables()
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

    def activate(self, *, alias: str, mode: str) -> dict[str, Any]:
        """Set the policy without a drain: no process is working yet."""
        policy.switch(backend=alias, mode=mode, reason="torture", force=True)
        return {"ok": True}

    def switch(self, *, alias: str, mode: str) -> dict[str, Any]:
        """Switch the policy as an operator does; without a mode, to the same."""
        row = policy.switch(backend=alias, mode=mode, reason="torture")
        return {"ok": True, "epoch": row.epoch}

    def open_sales(self, *, names: list[str], terms: list[Any]) -> dict[str, Any]:
        """Set the policy, and open the sales of a shop."""
        assert self.recorder is not None
        asked = Terms(*terms)
        self.activate(alias=asked.lock, mode=asked.strategy)
        stock.open_sales(self.recorder.folder, names, asked)
        return {"ok": True}

    def work(self, *, kind: str, **options: Any) -> dict[str, Any]:
        """Use the locks, or serve customers, until `end`; return what happened, counted."""
        assert self.recorder is not None
        work = (stock.Shopping if kind == "stock" else Work)(self.recorder, kind=kind, **options)
        work.run()
        return {"counts": dict(work.counts), "errors": work.errors[:3]}

    def probe(self, *, names: list[str], kind: str, timeout: float) -> dict[str, Any]:
        """Acquire and release each lock alone, within `timeout` seconds in all."""
        end, missing = time.monotonic() + timeout, []
        for name in names:
            lock = _exclusive(kind, name)
            while (left := end - time.monotonic()) > 0:
                with suppress(LockUnavailable, LockLost):
                    if lock.acquire(timeout=left):
                        lock.release()
                        break
                time.sleep(UNAVAILABLE_PAUSE)
            else:
                missing.append(name)
        return {"missing": missing}

    def probe_sales(self, *, names: list[str], timeout: float) -> dict[str, Any]:
        """Buy a unit of each sale that has one left, and return the sales as they are then."""
        wrong = {name: stock.probe(name, time.monotonic() + timeout) for name in names}
        missing = [f"{name}: {what}" for name, what in wrong.items() if what]
        return {"missing": missing, "sales": {name: stock.facts(name) for name in names}}

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


def _exclusive(kind: str, name: str) -> Lock:
    backend = handler[ALIAS]
    if kind == "semaphore":
        return backend.semaphore(name, SLOTS)
    if kind == "read-write":
        return backend.read_write(name).write()
    return PolicyLock(name) if kind == "switch" else backend.lock(name)
