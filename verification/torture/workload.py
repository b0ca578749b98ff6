"""The workloads of a torture run: threads that use locks, and record what they were told.

It records at the interface of the library, so that the judges see what a program sees. The owner in
the history is one acquisition by one thread, with its re-entries.
"""

import asyncio
import itertools
import queue
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.db import connections

from loadtest.kernel.history import Recorder, nanoseconds
from locking import LockLost, LockUnavailable
from locking import locks as handler
from locking.lease import Lease, Lock, State, TakenOver
from locking.policy.lock import PolicyLock
from verification.torture.catalogue import ALIAS
from verification.torture.plan import MANY

THREADS, SLOTS = 2, 2
"""Threads of a process, and the holders of a semaphore."""
TIMEOUTS = (0, 0.05, 0.5, 2.0)
HOLDS = (*[0.0] * 27, 0.001, 0.005, 0.02)
LONG_HOLD, LONG_HOLD_EVERY = 1.5, 15.0
"""Seconds of some holds, more than a lease, which the watchdog renews; and the longest time until
the next one of a process."""
SWITCH_HOLDS = (0.05, 0.1, 0.2)
"""The same while the policy is switched: processes that see it at different times shall meet."""
SWITCH_HOLD, SWITCH_HOLD_SHARE = 3.0, 0.05
"""Some of these, for which the switch waits."""
LONGER = 3.0
"""Ttl of some of these locks, in seconds: more than that of the others."""
UNAVAILABLE_PAUSE = 0.02
TASKS = 4
"""Tasks of an event loop for each thread of the other workloads."""
EPOCH = 1 << 64
"""Factor of the epoch in the recorded token of a policy's lock: both grow together."""
Hold = tuple[Lock, str, Lease]
"""A lock, its owner in the history, and its lease."""


class Work:
    """The threads of one process in one run."""

    threads = THREADS

    def __init__(
        self, recorder: Recorder, *, kind: str, names: list[str], end: float, seed: str
    ) -> None:
        self.recorder, self.kind, self.names, self.end = recorder, kind, names, end
        self._seeds = [random.Random(f"{seed} {number}") for number in range(self.threads)]
        first_hold = random.Random(seed).uniform(0, LONG_HOLD_EVERY)
        self._long_hold_at = time.monotonic() + first_hold
        self.backend = handler[ALIAS]
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._serial = itertools.count(1)
        self._tickets: queue.Queue[tuple[str, Any]] = queue.Queue()

    def run(self) -> None:
        """Use the locks until the end."""
        if self.kind == "asyncio":
            asyncio.run(self._tasks())
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                list(pool.map(self._repeat, self._seeds))

    def _repeat(self, rng: random.Random) -> None:
        use: Callable[[random.Random], object] = getattr(self, self.kind.replace("-", "_"))
        try:
            while time.monotonic() < self.end:
                with self.expected_errors():
                    use(rng)
        finally:
            connections.close_all()

    @contextmanager
    def expected_errors(self) -> Iterator[None]:
        """Count the errors of an unavailable store or a lost lock; any other ends the work."""
        try:
            yield
        except LockUnavailable:
            self.counts["unavailable"] += 1
            time.sleep(UNAVAILABLE_PAUSE)
        except LockLost:
            self.counts["lost"] += 1
        except Exception:  # noqa: BLE001 - whichever it is, the library does not promise it
            self.fail()

    def fail(self) -> None:
        """Keep the error that is being handled, and end the work."""
        self.errors.append(traceback.format_exc(limit=-6))
        self.end = 0.0

    # --- recording ---

    def owner(self) -> str:
        """Return a new owner."""
        return f"{self.recorder.actor} #{next(self._serial)}"

    @contextmanager
    def acquiring(self, owner: str, name: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """Record an attempt to acquire; `granted` completes the result."""
        asked = {"name": name, "owner": owner, "backend": ALIAS, **fields}
        with self.recorder.operation("acquire", **asked) as result:
            result["type"] = "fail"
            yield result

    def granted(self, result: dict[str, Any], lease: Lease | None) -> Lease:
        """Complete the record of a grant."""
        assert lease is not None
        token = lease.epoch * EPOCH + lease.token
        result |= {"type": "ok", "token": token, "deadline": nanoseconds(lease.deadline)}
        self.counts["grants"] += 1
        return lease

    @contextmanager
    def releasing(self, owner: str, lease: Lease) -> Iterator[None]:
        """Record the release, and before it the deadline that the watchdog has reached."""
        if (deadline := nanoseconds(lease.deadline)) is not None:
            self.recorder.note("renew", "ok", name=lease.name, owner=owner, deadline=deadline)
        with self.recorder.operation("release", name=lease.name, owner=owner) as result:
            yield
            # Of the releases of a lost lock, only the outermost raises an error.
            if lease.is_unreleased and lease.lost and lease.state is not State.HANDED_OVER:
                result |= {"type": "fail", "error": "LockLost"}

    def acquire(self, lock: Lock, timeout: float, **fields: Any) -> Hold | None:
        """Acquire and record."""
        owner = self.owner()
        with self.acquiring(owner, lock.name, **fields) as result:
            if lock.acquire(timeout=timeout):
                return lock, owner, self.granted(result, lock.lease)
        self.counts["timeouts"] += 1
        return None

    def release(self, lock: Lock, owner: str, lease: Lease) -> None:
        """Release and record."""
        with self.releasing(owner, lease):
            lock.release()

    def hold(self, lock: Lock, rng: random.Random, **fields: Any) -> None:
        """Acquire, work for a while, release."""
        if held := self.acquire(lock, rng.choice(TIMEOUTS), **fields):
            time.sleep(self.seconds(rng))
            self.release(*held)

    def seconds(self, rng: random.Random) -> float:
        """Return the seconds of a hold."""
        if self.kind == "switch":
            is_long = len(self.names) < MANY and rng.random() < SWITCH_HOLD_SHARE
            return SWITCH_HOLD if is_long else rng.choice(SWITCH_HOLDS)
        if (now := time.monotonic()) < self._long_hold_at:
            return rng.choice(HOLDS)
        self._long_hold_at = now + LONG_HOLD + rng.uniform(0, LONG_HOLD_EVERY)
        return LONG_HOLD

    # --- workloads ---

    def mutex(self, rng: random.Random) -> None:
        """Hold a lock, sometimes without a watchdog."""
        self.hold(self.backend.lock(rng.choice(self.names), renew=rng.random() < 0.7), rng)

    def semaphore(self, rng: random.Random) -> None:
        """Hold one of the slots."""
        self.hold(self.backend.semaphore(rng.choice(self.names), SLOTS), rng)

    def read_write(self, rng: random.Random) -> None:
        """Hold a lock as a reader or as the writer."""
        lock = self.backend.read_write(rng.choice(self.names))
        if rng.random() < 0.3:
            self.hold(lock.write(), rng, mode="write")
        else:
            self.hold(lock.read(), rng, mode="read")

    def reentrant(self, rng: random.Random) -> None:
        """Acquire a lock up to three times, and release it as often."""
        lock, held = self.backend.lock(rng.choice(self.names)), list[tuple[str, Lease]]()
        try:
            for _ in range(rng.randint(1, 3)):
                before = held[-1] if held else None
                with self.acquiring(before[0] if before else self.owner(), lock.name) as result:
                    if not lock.acquire(timeout=rng.choice(TIMEOUTS)):
                        break
                    lease = self.granted(result, lock.lease)
                    # If that one is lost, this is no re-entry.
                    is_inner = before is not None and lease is before[1]
                    self.counts["re-entries"] += is_inner
                    result["owner"] = before[0] if before and is_inner else self.owner()
                    held.append((result["owner"], lease))
                time.sleep(self.seconds(rng))
        finally:
            for owner, lease in reversed(held):
                with self.expected_errors():
                    self.release(lock, owner, lease)

    def hand_over(self, rng: random.Random) -> None:
        """Acquire and hand over, or continue what another thread handed over, perhaps twice."""
        with suppress(queue.Empty):
            owner, ticket = self._tickets.get_nowait()
            lock = TakenOver(self.backend, ticket)
            with self.acquiring(owner, lock.name) as result:
                lock.acquire()
                lease = self.granted(result, lock.lease)
            self.counts["continued"] += 1
            time.sleep(self.seconds(rng))
            return self.release(lock, owner, lease)
        mine = self.backend.lock(rng.choice(self.names))
        if held := self.acquire(mine, rng.choice(TIMEOUTS)):
            try:
                with self.releasing(*held[1:]):
                    ticket = held[2].hand_over()
                    self.counts["hand-overs"] += 1
            finally:
                with suppress(LockLost):
                    mine.release()
            for _ in range(rng.choice((1, 1, 2))):
                self._tickets.put((self.owner(), ticket))
        return None

    def switch(self, rng: random.Random) -> None:
        """Hold the lock of the policy."""
        # A restarted master of RedLock waits for the default ttl only.
        ttls = (None,) if "RESTART_DELAY" in settings.LOCKS[ALIAS]["OPTIONS"] else (None, LONGER)
        renew, ttl = rng.random() < 0.7, rng.choice(ttls)
        self.hold(PolicyLock(rng.choice(self.names), renew=renew, ttl=ttl), rng)

    async def _tasks(self) -> None:
        each = [random.Random(rng.random()) for rng in self._seeds for _ in range(TASKS)]
        await asyncio.gather(*(self._task(rng) for rng in each))

    async def _task(self, rng: random.Random) -> None:
        while time.monotonic() < self.end:
            with self.expected_errors():
                await self._hold_in_task(rng)
            await asyncio.sleep(0)

    async def _hold_in_task(self, rng: random.Random) -> None:
        lock, owner = self.backend.lock(rng.choice(self.names)), self.owner()
        timeout, patience = rng.choice(TIMEOUTS), rng.choice((0.01, 0.1, 5.0))
        lease = None
        with suppress(TimeoutError), self.acquiring(owner, lock.name) as result:
            if await asyncio.wait_for(lock.aacquire(timeout=timeout), patience):
                lease = self.granted(result, lock.lease)
        if lease is None:
            assert lock.lease is None, "a cancelled acquire left a lease"
            self.counts["cancelled"] += 1
            return
        await asyncio.sleep(self.seconds(rng))
        with self.releasing(owner, lease):
            await lock.arelease()
