"""A process that acquires, writes and releases on request, and records what happens to it."""

import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from django.conf import settings

from devservers.faults.waiting import FaultFailed, until
from loadtest.bench.survival.libraries import LEASE, LIBRARIES
from loadtest.kernel.history import Recorder

NOTICE = 1.0
"""Seconds in which a holder may learn of its loss by itself."""
QUEUE_LEASE = 60.0


class Resource:
    """A row that remembers the newest token of its writers and refuses an older one."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "resource.sqlite3"
        with closing(sqlite3.connect(self._file, timeout=10)) as database, database:
            database.execute("CREATE TABLE IF NOT EXISTS resource (token INTEGER)")
            database.execute(
                "INSERT INTO resource SELECT 0 WHERE NOT EXISTS (SELECT * FROM resource)"
            )

    def write(self, token: int | None) -> bool:
        """Write; without a token there is nothing to compare, so the write is accepted."""
        sql = "UPDATE resource SET token = max(token, :token) WHERE token <= :token"
        with closing(sqlite3.connect(self._file, timeout=10)) as database, database:
            return token is None or database.execute(sql, {"token": token}).rowcount == 1


class Commands:
    """The child's side of `WorkerProcess`: a method for each request."""

    ERRORS = (Exception,)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        if "zookeeper" in settings.LOCKS:
            settings.LOCKS["zookeeper"]["SESSION_TIMEOUT"] = LEASE

    def open(self, folder: str, actor: str, library: str, name: str) -> dict[str, Any]:
        """Open a handle, with its connections, on a lock that is used for one run."""
        if self.recorder is not None:
            self.recorder.close()
        self.resource, self.recorder = Resource(Path(folder)), Recorder(Path(folder), actor)
        self.note, self.name, self.actor = self.recorder.note, name, actor
        self.handle = LIBRARIES[library].open(name, LEASE)
        return {"ok": True}

    def warm(self) -> dict[str, Any]:
        """Take the free lock once, so that the connection is used and its scripts are loaded."""
        if not self.handle.acquire(LEASE):
            raise FaultFailed("a free lock was not granted")
        self.handle.release()
        return {"ok": True}

    def acquire(self, wait: float) -> dict[str, Any]:
        """Acquire the lock within `wait` seconds."""
        assert self.recorder is not None
        with self.recorder.operation("acquire", name=self.name, owner=self.actor) as result:
            granted = bool(self.handle.acquire(wait))
            if granted:
                result |= {"token": self.handle.token() or 0, "deadline": None}
            else:
                result["type"] = "fail"
        return {"granted": granted}

    def write(self) -> dict[str, Any]:
        """Write to the resource that the lock guards, with the token if the library gives one."""
        token = self.handle.token()
        is_accepted = self.resource.write(token)
        self.note("write", "ok" if is_accepted else "fail", token=token)
        return {"ok": is_accepted}

    def notice(self) -> dict[str, Any]:
        """Record how the holder learns of a loss: by itself, else by asking."""
        if self.handle.is_lost is not None:
            try:
                until(self.handle.is_lost, "the loss", NOTICE)
                self.note("lost", name=self.name, owner=self.actor)
            except FaultFailed:
                pass
        if self.handle.is_owned is not None:
            try:
                is_owned = bool(self.handle.is_owned())
            except Exception as error:  # of any library
                self.note("asked", error=type(error).__name__)
            else:
                self.note("asked", "ok" if is_owned else "fail")
        return {"ok": True}

    def release(self) -> dict[str, Any]:
        """Release the lock."""
        assert self.recorder is not None
        with self.recorder.operation("release", name=self.name, owner=self.actor) as result:
            if self.handle.release() is False:
                result["type"] = "fail"
        return {"ok": True}

    def queue(self, library: str, first: int, step: int, of: int) -> dict[str, Any]:
        """Open the handles of some waiters, each for a thread of its own."""
        self.numbers = range(first, of, step)
        self.threads = ThreadPoolExecutor(len(self.numbers))
        opener = LIBRARIES[library].open
        self.handles = dict(
            zip(
                self.numbers,
                self.threads.map(lambda number: opener(self.name, QUEUE_LEASE), self.numbers),
                strict=True,
            )
        )
        return {"ok": True}

    def line_up(self, start: float, gap: float, wait: float, hold: float) -> dict[str, Any]:
        """Let the waiters arrive one after another, take their turns and leave."""
        assert self.recorder is not None
        operation = self.recorder.operation

        def take_turn(number: int) -> None:
            given, handle = {"name": self.name, "owner": f"waiter {number}"}, self.handles[number]
            time.sleep(max(0.0, start + gap * number - time.monotonic()))
            with operation("acquire", **given) as result:
                if not handle.acquire(wait):
                    result["type"] = "fail"
                    return
                result |= {"token": handle.token() or 0, "deadline": None}
            time.sleep(hold)
            with operation("release", **given):
                handle.release()

        turns = [self.threads.submit(take_turn, number) for number in self.numbers]
        errors = [type(turn.exception()).__name__ for turn in turns if turn.exception()]
        self.handles.clear()
        self.threads.shutdown()
        return {"errors": errors}
