"""The measurements of one lock. Times are monotonic seconds, the same clock in all processes."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from devservers.process_pool import PoolFailed, ProcessPool, StartGate, shared_time
from loadtest.bench.locks.systems import Handle, System
from loadtest.bench.services import Requests, Usage
from loadtest.kernel.report import summary
from loadtest.load.verdict import percentile

TTL = 10.0
SHORT_TTL = 2.0
HOLD = 0.002
WAIT = 20.0
CONTENDERS = 8
SLICES = 10
SLICE_SECONDS = 0.06
QUEUE_UP = 0.3
"""Seconds that a waiter needs to join the queue."""
LONG_WAIT = 5.0
LONG_TTL = 30.0
"""So long that the watchdog does not renew it meanwhile."""


class Turn(NamedTuple):
    """The times of one acquisition: request, grant, begin of the release."""

    asked: float
    granted: float
    releasing: float


def figures(turns: Sequence[Sequence[Turn]], cpu: float, requests: Usage) -> dict[str, float]:
    """Return the figures of contenders with these turns, CPU seconds and requests.

    A hand-off lasts from a release to the next grant. `jain` is Jain's fairness index: 1 if all had
    equally many turns, 1/n if one had all of them.
    """
    grants = sorted(chain.from_iterable(turns), key=attrgetter("granted"))
    hand_offs = [after.granted - before.releasing for before, after in pairwise(grants)]
    shares = [len(own) for own in turns]
    return {
        "hand_off_ms_p50": percentile(hand_offs, 0.5) * 1000,
        "hand_off_ms_p99": percentile(hand_offs, 0.99) * 1000,
        "worst_wait_ms": max(turn.granted - turn.asked for turn in grants) * 1000,
        "jain": sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares)),
        "commands": requests.commands / len(grants),
        "round_trips": requests.reads / len(grants),
        "contended_cpu_us": cpu / len(grants) * 1e6,
    }


def ready(system: System, name: str, ttl: float = TTL) -> Handle:
    """Return a handle with open connections; raise PoolFailed if a free lock is not granted."""
    handle = system.open(name, ttl)
    if not handle.acquire(WAIT):
        raise PoolFailed(f"{system.name} did not grant a free lock")
    handle.release()
    return handle


def _turn(handle: Handle) -> Turn:
    asked = time.monotonic()
    if not handle.acquire(WAIT):
        raise PoolFailed(f"no grant within {WAIT:g} s")
    granted = time.monotonic()
    time.sleep(HOLD)
    releasing = time.monotonic()
    handle.release()
    return Turn(asked, granted, releasing)


def uncontended(systems: Sequence[System], name: str) -> dict[str, dict[str, Any]]:
    """Return acquire-release pairs per second in one thread, and CPU microseconds per pair.

    The systems alternate in many short slices, so that other load affects all of them equally. One
    that fails has the reason as `failed` instead.
    """

    def work(number: int) -> dict[str, dict[str, Any]]:
        slices: dict[str, list[dict[str, float]]] = {one.name: [] for one in systems}
        handles, failed = dict[str, Handle](), dict[str, dict[str, str]]()
        for _ in range(SLICES):
            for system in (one for one in systems if one.name not in failed):
                try:
                    if system.name not in handles:
                        handles[system.name] = ready(system, name)
                    slices[system.name].append(_slice(handles[system.name]))
                except Exception as error:  # noqa: BLE001 - whichever: the others go on
                    failed[system.name] = {"failed": repr(error)}
        return {one: summary(rows) for one, rows in slices.items()} | failed

    with ProcessPool(work) as pool:
        found: dict[str, dict[str, Any]] = pool.results()[0]
    return found


def _slice(handle: Handle) -> dict[str, float]:
    """Acquire and release again and again for a moment."""
    pairs, cpu, started = 0, time.process_time(), time.monotonic()
    while (now := time.monotonic()) < started + SLICE_SECONDS:
        if not handle.acquire(WAIT):
            raise PoolFailed("a free lock was not granted")
        handle.release()
        pairs += 1
    cost = (time.process_time() - cpu) / pairs * 1e6
    return {"pairs_per_second": pairs / (now - started), "pair_cpu_us": cost}


def waves(system: System, name: str, times: int) -> list[float]:
    """Return the seconds until every contender has held the lock once, for each wave."""
    gate = StartGate(CONTENDERS)

    def work(number: int) -> list[tuple[float, float]]:
        handle = ready(system, name)
        seen = []
        for _ in range(times):
            began = gate()
            _turn(handle)
            seen.append((began, time.monotonic()))
        return seen

    with ProcessPool(work, CONTENDERS) as pool:
        results = pool.results()
    return [max(end for _, end in wave) - wave[0][0] for wave in zip(*results, strict=True)]


def hammer(
    system: System, name: str, seconds: float, requests: Requests, threads: int = 1
) -> dict[str, float]:
    """Let CONTENDERS processes of `threads` threads each acquire the lock again and again.

    The CPU is that of the processes, including their start.
    """
    gate = StartGate(CONTENDERS * threads + 1)

    def contend(number: int) -> list[Turn]:
        handle, turns = ready(system, name), []
        end = gate() + seconds
        while time.monotonic() < end:
            turns.append(_turn(handle))
        return turns

    def work(number: int) -> tuple[list[list[Turn]], float]:
        cpu = time.process_time()
        with ThreadPoolExecutor(threads) as pool:
            turns = list(pool.map(contend, range(threads)))
        return turns, time.process_time() - cpu

    with ProcessPool(work, CONTENDERS) as pool:
        gate()
        before = requests()
        results = pool.results()
        after = requests()
    turns = [own for process, _ in results for own in process]
    return figures(turns, sum(cpu for _, cpu in results), after.since(before))


@contextmanager
def _held(
    system: System, name: str, ttl: float, wait: Callable[[Handle], object]
) -> Iterator[tuple[ProcessPool, ProcessPool, Any]]:
    """Let one process hold the lock and another call `wait`; yield them and the grant's time."""
    gate = StartGate(3)
    granted_at = shared_time()

    def hold(number: int) -> None:
        handle = ready(system, name, ttl)
        gate()
        handle.acquire(WAIT)
        granted_at.value = time.monotonic()
        gate()
        threading.Event().wait()

    def follow(number: int) -> object:
        handle = ready(system, name, ttl)
        gate()
        gate()
        return wait(handle)

    with ProcessPool(hold) as holder, ProcessPool(follow) as waiter:
        gate()
        gate()
        yield holder, waiter, granted_at


def killed_holder(system: System, name: str) -> float:
    """Return the seconds from the end of a killed holder's lease or session to the next grant.

    Negative if the service dropped the holder earlier: a session's timeout counts from its last
    message, before the kill.
    """

    def follow(handle: Handle) -> float:
        if not handle.acquire(WAIT):
            raise PoolFailed(f"no grant within {WAIT:g} s after the holder was killed")
        return time.monotonic()

    with _held(system, name, SHORT_TTL, follow) as (holder, waiter, granted_at):
        time.sleep(QUEUE_UP)
        killed_at = time.monotonic()
        holder.kill()
        next_at = float(waiter.results()[0])
    if system.session is None:
        return next_at - float(granted_at.value + SHORT_TTL)
    return next_at - (killed_at + system.session)


def patient_waiter(system: System, name: str, requests: Requests) -> Usage:
    """Return the requests of a waiter that has queued up, in `LONG_WAIT` seconds without a release.

    Those with which it has joined the queue, in the first `QUEUE_UP` seconds, do not count.
    """

    def wait(handle: Handle) -> None:
        if handle.acquire(LONG_WAIT):
            raise PoolFailed("a held lock was granted")

    with _held(system, name, LONG_TTL, wait) as (_holder, waiter, _granted_at):
        time.sleep(QUEUE_UP)
        before = requests()
        waiter.results()
        return requests().since(before)
