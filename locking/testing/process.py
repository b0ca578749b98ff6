"""Another process with the same backend, which takes locks on request."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import django

from locking.exceptions import LockError

if TYPE_CHECKING:
    from locking.lease import Lock, LockStore

REPLY_TIMEOUT = 120.0


class OtherProcess:
    """A process that executes the methods of `Commands`; `kill` ends it as a crash does."""

    def __init__(self, conf: Mapping[str, Any]) -> None:
        self._start(multiprocessing.get_context("spawn"), _serve, conf)

    def _start(self, context: Any, serve: Callable[..., None], *args: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *args), daemon=True)
        self._process.start()
        theirs.close()

    def call(self, do: str, *args: Any) -> Any:
        """Return the result of a command."""
        self.send(do, *args)
        return self.receive()

    def send(self, do: str, *args: Any) -> None:
        """Send a command without waiting for its result."""
        self._pipe.send((do, args))

    def receive(self) -> Any:
        """Return the result of a command that was sent."""
        assert self._pipe.poll(REPLY_TIMEOUT), "the other process does not respond"
        return self._pipe.recv()

    def pause(self) -> None:
        """Stop the process with SIGSTOP, so that it renews no lease; return when it has stopped."""
        pid = self._process.pid or 0
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Continue the process."""
        os.kill(self._process.pid or 0, signal.SIGCONT)

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


class Commands:
    """The commands that the process executes; `held` has its locks by name."""

    def __init__(self, locks: "LockStore") -> None:
        from locking.testing.calls import lock_for  # after django.setup()

        self._store, self._lock_for = locks, lock_for
        self.held: dict[str, Lock] = {}

    def acquire(
        self, name: str, timeout: float, ttl: float | None, slots: int | None = None
    ) -> tuple[str, int] | None:
        """Return owner and token of the grant."""
        lock = self._lock_for(self._store, name, slots, ttl=ttl)
        if not lock.acquire(timeout=timeout) or lock.lease is None:
            return None
        self.held[name] = lock
        return lock.lease.owner, lock.lease.token

    def is_lost(self, name: str) -> bool:
        """Return whether the process knows that it lost a lock."""
        lease = self.held[name].lease
        return lease is None or lease.lost

    def release(self, name: str) -> str:
        """Release a lock that `acquire` took; return the name of the error, if there is one."""
        try:
            self.held.pop(name).release()
        except LockError as error:
            return type(error).__name__
        return ""

    def count(self, file: Path, name: str, times: int, slots: int | None = None) -> list[int]:
        """Add 1 to the number in a file under the lock, in steps; return the tokens."""
        tokens = []
        for _ in range(times):
            with self._lock_for(self._store, name, slots, timeout=REPLY_TIMEOUT) as lease:
                tokens.append(lease.token)
                with file.open("r+") as opened:
                    number = int(opened.read())
                    time.sleep(0.001)  # makes an unguarded race visible
                    opened.seek(0)
                    opened.write(f"{number + 1:08d}")
        return tokens


def _serve(pipe: Connection, conf: Mapping[str, Any]) -> None:
    django.setup()
    from locking.handler import create  # after django.setup()

    commands = Commands(create("other", conf))
    while True:  # until the other end is closed
        do, args = pipe.recv()
        pipe.send(getattr(commands, do)(*args))
