"""Other processes, forked from one that has started Django already."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import environ
from django.db import connections

from devservers.base import injected_faults
from devservers.faults.waiting import until
from devservers.process import is_stopped
from locking.exceptions import LockError, LockTimeout
from locking.handler import create
from locking.lease import TakenOver
from locking.testing.process import Commands, OtherProcess

WORK_SECONDS = 0.001
"""How long each holder keeps a lock, the same for every backend."""
CONTEND_TIMEOUT = 10.0

_forking = multiprocessing.get_context("forkserver")
_forking.set_forkserver_preload(["tests.locking.preload"])


class Forked(OtherProcess):
    """A process that executes the methods of what `make` returns; its faults count as injected.

    An error of a lock becomes a reply with its class and message.
    """

    def __init__(
        self, make: Callable[..., object], *args: Any, databases: Mapping[str, str]
    ) -> None:
        self._start(_forking, _serve, databases, make, args)

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def pause(self) -> None:
        injected_faults["process stopped"] += 1
        os.kill(self.pid, signal.SIGSTOP)
        until(lambda: is_stopped(self.pid), "a stopped process")

    def kill(self) -> None:
        injected_faults["process killed"] += 1
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


def lock_commands(conf: Mapping[str, Any]) -> LockCommands:
    return LockCommands(create("worker", conf))


def _serve(
    pipe: Connection, databases: Mapping[str, str], make: Callable[..., object], args: Any
) -> None:
    for alias, url in databases.items():
        entry, before = environ.Env.db_url_config(url), connections.settings.get(alias, {})
        options = before if before.get("ENGINE") == entry["ENGINE"] else {}
        added = connections.configure_settings({"default": {}, alias: {**options, **entry}})
        connections.settings[alias] = added[alias]
        with suppress(AttributeError):  # unless Django has asked for the alias already
            del connections[alias]
    commands = make(*args)
    while True:  # until the other end is closed
        do, args = pipe.recv()
        try:
            reply = getattr(commands, do)(*args)
        except LockError as error:
            reply = {"error": type(error).__name__, "message": str(error)}
        pipe.send(reply)
