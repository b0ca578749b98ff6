"""Interrupt Redis for a moment during a direct sale; measure the time until purchases resume.

Redis keeps its data, so a lock whose release was lost would stay held for its ttl.
"""

import time
from functools import partial
from statistics import median

from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import emit
from loadtest.resilience.shop import Reply, Shop, load, store_responds
from loadtest.resilience.verdicts import TIMEOUT, Report, next_purchase

WAYS = ("pause", "stop", "kill", "cut")
"""CLIENT PAUSE, SIGSTOP, SIGKILL with a restart, connections cut and refused."""
DURATIONS = (0.2, 0.5, 1.0, 3.0)
MAX_RESUME = 0.5
"""Seconds from the first reply of Redis to the next purchase."""
BUYERS = 8
PING_TIMEOUT = 0.1
MAX_MISSED = 5


def interrupt_redis(shop: Shop, port: int, rounds: int) -> tuple[list[Report], list[Reply]]:
    """Interrupt Redis `rounds` times in each way and for each duration, in one sale."""
    with load(shop.buy, BUYERS, pause=0.02) as replies:
        rows = [
            _interrupt(do, seconds, rounds, port, replies) for do in WAYS for seconds in DURATIONS
        ]
    return rows, replies


def _interrupt(do: str, seconds: float, rounds: int, port: int, replies: list[Reply]) -> Report:
    times: list[float] = []
    missed = 0
    while len(times) < rounds:
        next_purchase(replies, time.monotonic())
        returned = wait_for_return(do, seconds, port)
        if returned is not None:
            times.append(next_purchase(replies, returned) - returned)
        elif (missed := missed + 1) > rounds + MAX_MISSED:
            raise FaultFailed(f"redis {do} for {seconds:g} s was not seen {missed} times")
    return {
        "do": do,
        "seconds": seconds,
        "rounds": rounds,
        "median": round(median(times), 3),
        "max": round(max(times), 3),
        "ok": max(times) <= MAX_RESUME,
    }


def wait_for_return(do: str, seconds: float, port: int) -> float | None:
    """Interrupt Redis; return the time of its first reply, or None if it was not seen down."""
    emit("fault", do=do, store="redis", seconds=seconds)
    given_up = time.monotonic() + seconds + 2
    while store_responds(port, PING_TIMEOUT):
        if time.monotonic() > given_up:
            return None
        time.sleep(0.005)
    down = time.monotonic() - PING_TIMEOUT
    until(partial(store_responds, port, PING_TIMEOUT), "Redis being up", TIMEOUT)
    returned = time.monotonic()
    # A shorter time means that a busy machine delayed a reply before the interruption began.
    return returned if returned - down > 0.8 * seconds else None
