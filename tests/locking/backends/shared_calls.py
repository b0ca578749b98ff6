"""Holders of shared locks in other processes, and what their holds overlapped."""

import json
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from devservers.base import injected_faults
from devservers.faults.waiting import WAIT_TIMEOUT
from locking.handler import create
from locking.lease import Lock, LockStore
from locking.testing.process import Commands, OtherProcess
from tests.locking.lock_worker import LockCommands, LockWorker

Interval = tuple[float, float]
KINDS = ("semaphore", "read", "write")


def lock_of(locks: LockStore, kind: str, name: str, slots: int = 3, **options: Any) -> Lock:
    """Return the lock of a kind: semaphore, read or write."""
    if kind == "semaphore":
        return locks.semaphore(name, slots, **options)
    return getattr(locks.read_write(name), kind)(**options)


def most_at_once(intervals: Iterable[Interval]) -> int:
    """Return the largest number of intervals that share a moment."""
    events = [(start, 1) for start, _ in intervals] + [(end, -1) for _, end in intervals]
    most = inside = 0
    for _, step in sorted(events):  # an end before a start of the same time
        inside += step
        most = max(most, inside)
    return most


def overlap(one: Iterable[Interval], other: Iterable[Interval]) -> bool:
    """Return whether an interval of one kind overlaps one of the other kind."""
    return any(a < d and c < b for a, b in one for c, d in other)


class SharedWorker(LockWorker):
    """A process that takes shared locks on request."""

    commands = "tests.locking.backends.shared_calls:SharedCommands"


class Borrowed(OtherProcess):
    """The process of the public contract, borrowed: its commands in a worker that lives on."""

    def __init__(self, worker: SharedWorker) -> None:
        self._worker = worker

    def send(self, do: str, *args: Any) -> None:
        given = [str(value) if isinstance(value, Path) else value for value in args]
        self._worker.send("contract", command=do, args=given)

    def receive(self) -> Any:
        return self._worker.receive()["result"]

    def kill(self) -> None:
        self._worker.kill()


class SharedCommands(LockCommands):
    """The child's side."""

    def configure(
        self, conf: dict[str, Any], databases: dict[str, str] | None = None
    ) -> dict[str, Any]:
        reply = super().configure(conf, databases)
        self._contract = Commands(self.backend)
        self._contract.held = self.held
        return reply

    def contract(self, command: str, args: list[Any]) -> dict[str, Any]:
        """Execute a command of `OtherProcess`."""
        if command == "count":
            args[0] = Path(args[0])
        return {"result": getattr(self._contract, command)(*args)}

    def take(
        self, kind: str, name: str, slots: int = 3, timeout: float = 0, ttl: float | None = None
    ) -> dict[str, Any]:
        """Acquire a lock and keep it."""
        lock = lock_of(self.backend, kind, name, slots, ttl=ttl)
        if not lock.acquire(timeout=timeout):
            return {"ok": False}
        self.held[name] = lock
        return {"ok": True, "token": lock.lease.token}

    def work(self, threads: list[str], name: str, slots: int, times: int) -> dict[str, Any]:
        """Hold the lock `times` in a thread for each kind; return the intervals by kind."""
        found: dict[str, list[Interval]] = {kind: [] for kind in KINDS}

        def hold(kind: str) -> None:
            for _ in range(times):
                with lock_of(self.backend, kind, name, slots, timeout=WAIT_TIMEOUT * 2):
                    start = time.monotonic()
                    time.sleep(random.uniform(0, 0.01))  # the work that the lock is for
                    found[kind].append((start, time.monotonic()))

        running = [threading.Thread(target=hold, args=[kind]) for kind in threads]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return found


def kill_holders(
    conf: Mapping[str, Any], name: str, *, kills: int, slots: int, ttl: float, log: Path
) -> list[Interval]:
    """Kill as many holders of a semaphore, twice as many processes as slots at a time.

    Return the times from each grant to the kill.
    """

    def hold_and_die() -> None:
        locks = create("killed", conf)
        with locks.semaphore(name, slots, ttl=ttl, timeout=WAIT_TIMEOUT * 3):
            start = time.monotonic()
            time.sleep(random.uniform(0, 0.02))  # the work in which it is killed
            with log.open("a") as file:
                file.write(json.dumps([start, time.monotonic()]) + "\n")
                file.flush()
                os.kill(os.getpid(), signal.SIGKILL)

    running: list[int] = []
    for _ in range(kills):
        if len(running) == 2 * slots:
            _wait_for_kill(running.pop(0))
        running.append(_forked(hold_and_die))
    for pid in running:
        _wait_for_kill(pid)
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


def _wait_for_kill(pid: int) -> None:
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1]), "a holder ended before it was killed"
    injected_faults["killed holder"] += 1


def _forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001 - the parent reports that the child was not killed
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid
