"""A process that executes the commands of the public contract, for one test after the other."""

import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import environ
from django.db import connections

from devservers.faults.worker import WorkerProcess
from locking.exceptions import LockError, LockTimeout
from locking.handler import create
from locking.lease import TakenOver
from locking.testing.process import Commands, OtherProcess

WORK_SECONDS = 0.001
"""How long each holder keeps a lock, the same for every backend."""
CONTEND_TIMEOUT = 10.0


class LockWorker(WorkerProcess):
    """The parent's side."""

    def __init__(self) -> None:
        super().__init__(f"{__name__}:{LockCommands.__name__}")

    def configure(self, conf: Mapping[str, Any], databases: Mapping[str, str]) -> None:
        """Replace the backend by one of this entry; `databases` adds aliases with their URLs."""
        self.call("configure", conf=dict(conf), databases=dict(databases))

    def is_intact(self) -> bool:
        """Return True unless a test has left a command, a reply or a lock behind."""
        tag = uuid.uuid4().hex
        self.send("retire", tag=tag)
        return not self.is_silent(5) and self.receive() == {"tag": tag, "held": []}


class Borrowed(OtherProcess):
    """The process of the public contract, in a worker that lives on."""

    def __init__(self, worker: LockWorker) -> None:
        self._worker = worker
        self.pause, self.resume, self.kill = worker.pause, worker.resume, worker.kill  # type: ignore[method-assign]

    def send(self, do: str, *args: Any) -> None:
        given = [str(value) if isinstance(value, Path) else value for value in args]
        self._worker.send("contract", command=do, args=given)

    def receive(self) -> Any:
        return self._worker.receive()["result"]


class LockCommands:
    """The child's side."""

    ERRORS = (LockError,)

    def __init__(self) -> None:
        self.commands: Commands | None = None

    def configure(self, conf: dict[str, Any], databases: dict[str, str]) -> dict[str, Any]:
        self._close()
        added = {alias: environ.Env.db_url_config(url) for alias, url in databases.items()}
        for alias in added:
            with suppress(AttributeError):  # unless it was connected, to another server
                del connections[alias]
        connections.settings.update(
            connections.configure_settings({**connections.settings, **added})
        )
        self.store = create("worker", conf)
        self.commands = Commands(self.store)
        return {"ok": True}

    def _close(self) -> list[str]:
        """Close the backend; return the names of locks that were not released."""
        if self.commands is None:
            return []
        self.store.close()
        held, self.commands = list(self.commands.held), None
        return held

    def retire(self, tag: str) -> dict[str, Any]:
        return {"tag": tag, "held": self._close()}

    def contract(self, command: str, args: list[Any]) -> dict[str, Any]:
        """Execute a command of `OtherProcess`."""
        if command == "count":
            args[0] = Path(args[0])
        return {"result": getattr(self.commands, command)(*args)}

    def take_over(self, ticket: dict[str, Any], ttl: float) -> dict[str, Any]:
        lock = TakenOver(self.store, ticket, ttl=ttl)
        lock.acquire()
        self.commands.held[lock.name] = lock
        return {"token": lock.lease.token}

    def contend(self, name: str, threads: int, until: float) -> dict[str, Any]:
        """Acquire and release in many threads until a monotonic time.

        Return the grants of each thread, and the longest wait in seconds.
        """
        grants, waits = [0] * threads, [0.0] * threads

        def work(number: int) -> None:
            while (started := time.monotonic()) < until:
                try:
                    with self.store.lock(name, timeout=CONTEND_TIMEOUT):
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
