"""Fail each store while buyers buy under its lock; measure the time to the next purchase.

Redis is only interrupted for a moment, during a direct sale. It keeps its data, so a lock whose
release was lost would stay held for its ttl.
"""

import time
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from django.db import connections

from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import emit
from loadtest.resilience.shop import (
    TIMEOUT,
    Reply,
    Report,
    Shop,
    breaches_of,
    fetch,
    load,
    next_purchase,
    statuses,
    store_responds,
    verdict,
)
from locking import locks, policy

DOWN_SECONDS = 1.0
"""Seconds for which a killed store stays down."""
WAYS = ("pause", "stop", "kill", "cut")
"""CLIENT PAUSE, SIGSTOP, SIGKILL with a restart, connections cut and refused."""
DURATIONS = (0.2, 0.5, 1.0, 3.0)
MAX_RESUME = 0.5
"""Seconds from the first reply of Redis to the next purchase."""
BUYERS = 8
PING_TIMEOUT = 0.1
MAX_MISSED = 5


class StoreFault(NamedTuple):
    """A fault of a store, and the seconds that are allowed until the next purchase.

    They count from the first reply of a store that was down; for a fault of ZooKeeper's leader,
    from the fault, since the other nodes elect a new one. A lease that was held is added.
    """

    store: str
    do: str
    within: float


FAULTS = (
    StoreFault("database", "kill", 3.0),
    StoreFault("zookeeper", "kill", 3.0),
    StoreFault("zookeeper", "stop", 6.0),
    StoreFault("zookeeper", "cut off", 8.0),
)


def main(asked: dict[str, Any]) -> Report:
    """Inject every fault and measure the recovery."""
    with Shop(stock=1_000_000, beats=2) as shop:
        with load(shop.buy, BUYERS, pause=0.02) as replies:
            interruptions = [
                _interrupt(do, seconds, asked["rounds"], asked["ports"]["redis"], replies)
                for do in WAYS
                for seconds in DURATIONS
            ]
        with load(shop.buy, 4, pause=0.05) as more:
            rows = [_fail(fault, asked, more) for fault in FAULTS]
    late = [
        "{store} {do}: {seconds} s, {within:g} s were allowed".format(**row)
        for row in rows
        if not row["ok"]
    ]
    late += [
        f"redis {row['do']} for {row['seconds']} s: {row['max']} s, {MAX_RESUME} s were allowed"
        for row in interruptions
        if not row["ok"]
    ]
    replies += more
    breaches = [*late, *breaches_of(shop, replies)]
    return verdict(breaches, interruptions=interruptions, blows=rows, answers=statuses(replies))


def _fail(fault: StoreFault, asked: dict[str, Any], replies: list[Reply]) -> Report:
    connections.close_all()  # the last fault broke this process's connections too
    policy.switch(backend=fault.store, reason="lab endure recovery")
    next_purchase(replies, time.monotonic())
    lease = locks[fault.store].ttl if locks[fault.store].inspect() else 0.0
    locks.close()
    if fault.store == "zookeeper":
        seconds, seen = _fail_leader(fault, asked["nodes"], replies)
    else:
        seconds, seen = _kill_server(fault, asked["ports"][fault.store], replies)
    return {
        **fault._asdict(),
        "seen": seen,
        "seconds": round(seconds, 2),
        "lease_held": lease,
        "ok": seconds <= fault.within + lease,
    }


def _kill_server(fault: StoreFault, port: int, replies: list[Reply]) -> tuple[float, str]:
    emit("fault", do=fault.do, store=fault.store, seconds=DOWN_SECONDS)
    until(lambda: not store_responds(port), f"{fault.store} being down", TIMEOUT)
    until(partial(store_responds, port), f"{fault.store} being up", TIMEOUT)
    recovered = time.monotonic()
    return next_purchase(replies, recovered) - recovered, "did not answer, then did again"


def _fail_leader(
    fault: StoreFault, ports: Sequence[int], replies: list[Reply]
) -> tuple[float, str]:
    old = until(lambda: [port for port in ports if _has_mode(port, b"leader")], "a leader")[0]
    others = [port for port in ports if port != old]
    injected = time.monotonic()
    emit("fault", do=fault.do, store=fault.store, seconds=0)
    new = until(lambda: [one for one in others if _has_mode(one, b"leader")], "another leader")
    elected = time.monotonic()
    bought = next_purchase(replies, injected, elected)
    emit("fault", do="recover", store=fault.store, seconds=0)
    until(lambda: all(_has_mode(port, b"") for port in ports), "all nodes serving", TIMEOUT)
    nodes = f"node {ports.index(old) + 1} led, then node {ports.index(new[0]) + 1}"
    return bought - injected, f"{nodes}, seen after {elected - injected:.2f} s"


def _has_mode(port: int, mode: bytes) -> bool:
    return b"Mode: " + mode in fetch(port, b"srvr")[1]


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
