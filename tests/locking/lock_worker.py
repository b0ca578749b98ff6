"""The other processes of the contract, forked from one that has started Django already."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import environ
from django.db import connections

from devservers.base import injected_faults
from devservers.faults.waiting import until
from devservers.process import is_stopped
from locking.exceptions import LockTimeout
from locking.handler import create
from locking.lease import TakenOver
from locking.testing.process import Commands, OtherProcess

WORK_SECONDS = 0.001
"""How long each holder keeps a lock, the same for every backend."""
CONTEND_TIMEOUT = 10.0

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["tests.locking.preload"])


class LockWorker(OtherProcess):
    """Starting it takes milliseconds; its faults count as injected."""

    def __init__(self, conf: Mapping[str, Any], databases: Mapping[str, str]) -> None:
        self._pipe, theirs = _forking.Pipe()
        self._process = _forking.Process(target=_serve, args=(theirs, conf, databases), daemon=True)
        self._process.start()
        theirs.close()

    def pause(self) -> None:
        injected_faults["LockWorker stopped"] += 1
        pid = self._process.pid or 0
        os.kill(pid, signal.SIGSTOP)
        until(lambda: is_stopped(pid), "a stopped process")

    def kill(self) -> None:
        injected_faults["LockWorker killed"] += 1
        self.close()

    def close(self) -> None:
        super().kill()


class LockCommands(Commands):
    """The child's side."""

    def take_over(self, ticket: dict[str, Any], ttl: float) -> int:
        """Continue a lease that was handed over; return the new token."""
        lock = TakenOver(self._store, ticket, ttl=ttl)
        assert lock.acquire()
        self.held[lock.name] = lock
        return lock.lease.token

    def contend(self, name: str, threads: int, until: float) -> tuple[list[int], float]:
        """Acquire and release in many threads until a monotonic time.

        Return the grants of each thread, and the longest wait in seconds.
        """
        grants, waits = [0] * threads, [0.0] * threads

        def work(number: int) -> None:
            while (started := time.monotonic()) < until:
                try:
                    with self._store.lock(name, timeout=CONTEND_TIMEOUT):
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
        return grants, max(waits)


def _serve(pipe: Connection, conf: Mapping[str, Any], databases: Mapping[str, str]) -> None:
    added = {alias: environ.Env.db_url_config(url) for alias, url in databases.items()}
    connections.settings.update(connections.configure_settings({**connections.settings, **added}))
    commands = LockCommands(create("worker", conf))
    while True:  # until the other end is closed
        do, args = pipe.recv()
        pipe.send(getattr(commands, do)(*args))
