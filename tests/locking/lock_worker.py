"""A process that takes locks on request: to be killed, paused, or raced against.

with LockWorker(conf) as other:
    other.acquire("sale:1", timeout=0)      # -> {"ok": True, "owner": ..., "token": ...}
    other.kill()                            # SIGKILL while it holds the lock
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import environ
from django.db import connections

from devservers.faults.worker import WorkerProcess
from locking.exceptions import LockError, LockTimeout
from locking.handler import create
from locking.lease import Lock, LockStore, TakenOver
from locking.names import ReservedName

WORK_SECONDS = 0.001
"""How long each holder keeps a lock, the same for every backend."""
CONTEND_TIMEOUT = 10.0


class LockWorker(WorkerProcess):
    """A process with one backend, which is created from a LOCKS entry."""

    commands = "tests.locking.lock_worker:LockCommands"

    def __init__(self, conf: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> None:
        super().__init__(self.commands, env)
        if conf:
            self.configure(conf)

    def configure(
        self, conf: Mapping[str, Any], databases: Mapping[str, str] | None = None
    ) -> None:
        """Replace the backend by one of this entry; `databases` adds aliases with their URLs."""
        self.call("configure", conf=dict(conf), databases=dict(databases or {}))

    def acquire(self, name: str, **options: Any) -> dict[str, Any]:
        """Acquire a lock; options: timeout, ttl, renew."""
        return self.call("acquire", name=name, **options)

    def release(self, name: str) -> dict[str, Any]:
        return self.call("release", name=name)

    def lease(self, name: str) -> dict[str, Any]:
        """Return what the holder believes of its lease."""
        return self.call("lease", name=name)

    def queue_up(self, name: str, size: int, ttl: float) -> None:
        """Start `size` threads that wait for a lock and release it at once."""
        self.call("queue_up", name=name, size=size, ttl=ttl)

    def contend(self, name: str, *, threads: int, until: float) -> None:
        """Start acquiring and releasing in many threads until a monotonic time.

        The reply holds the grants of each thread, and the longest wait in seconds.
        """
        self.send("contend", name=name, threads=threads, until=until)


class LockCommands:
    """The child's side."""

    ERRORS = (LockError,)

    def __init__(self) -> None:
        self.held: dict[str, Lock] = {}
        self.backend: LockStore | None = None

    def configure(
        self, conf: dict[str, Any], databases: dict[str, str] | None = None
    ) -> dict[str, Any]:
        if self.backend is not None:
            self.backend.close()
        added = {alias: environ.Env.db_url_config(url) for alias, url in (databases or {}).items()}
        for alias in added:
            with suppress(AttributeError):  # unless it was connected, to another server
                del connections[alias]
        connections.settings.update(
            connections.configure_settings({**connections.settings, **added})
        )
        self.backend = create("worker", conf)
        return {"ok": True}

    def retire(self, tag: str) -> dict[str, Any]:
        """Close the backend; return the names of locks that were not released."""
        if self.backend is not None:
            self.backend.close()
            self.backend = None
        return {"tag": tag, "held": list(self.held)}

    def acquire(
        self, name: str, timeout: float | None = None, ttl: float | None = None, renew: bool = True
    ) -> dict[str, Any]:
        lock = self.backend.lock(ReservedName(name), ttl=ttl, renew=renew)
        if not lock.acquire(timeout=timeout):
            return {"ok": False}
        self.held[name] = lock
        return {"ok": True, "owner": lock.lease.owner, "token": lock.lease.token}

    def release(self, name: str) -> dict[str, Any]:
        self.held.pop(name).release()
        return {"ok": True}

    def take_over(self, ticket: dict[str, Any], ttl: float) -> dict[str, Any]:
        lock = TakenOver(self.backend, ticket, ttl=ttl)
        lock.acquire()
        self.held[lock.name] = lock
        return {"ok": True, "owner": lock.lease.owner, "token": lock.lease.token}

    def lease(self, name: str) -> dict[str, Any]:
        lease = self.held[name].lease
        return {"ok": True, "lost": lease.lost, "token": lease.token}

    def queue_up(self, name: str, size: int, ttl: float) -> dict[str, Any]:
        def enter(lock: Lock) -> None:
            with lock:
                pass

        for _ in range(size):
            lock = self.backend.lock(name, ttl=ttl, timeout=60)
            threading.Thread(target=enter, args=[lock], daemon=True).start()
        return {"ok": True}

    def contend(self, name: str, threads: int, until: float) -> dict[str, Any]:
        grants, waits = [0] * threads, [0.0] * threads

        def work(number: int) -> None:
            while (started := time.monotonic()) < until:
                try:
                    with self.backend.lock(name, timeout=CONTEND_TIMEOUT):
                        waits[number] = max(waits[number], time.monotonic() - started)
                        grants[number] += 1
                        time.sleep(WORK_SECONDS)
                except LockTimeout:
                    waits[number] = time.monotonic() - started

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return {"grants": grants, "longest": max(waits)}
