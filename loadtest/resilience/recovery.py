"""Fail each store while buyers buy under its lock; measure the time to the next purchase."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from devservers.faults.waiting import until
from devservers.faults.worker import emit
from loadtest.resilience.interruptions import MAX_RESUME, interrupt_redis
from loadtest.resilience.shop import Reply, Shop, fetch, load, store_responds
from loadtest.resilience.verdicts import (
    TIMEOUT,
    Report,
    ledger_breaches,
    next_purchase,
    statuses,
    verdict,
)
from locking import locks, policy

DOWN_SECONDS = 1.0
"""Seconds for which a killed store stays down."""


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


def recovery(asked: dict[str, Any]) -> Report:
    """Inject every fault and measure the recovery."""
    with Shop(stock=1_000_000, beats=2) as shop:
        interruptions, replies = interrupt_redis(shop, asked["ports"]["redis"], asked["rounds"])
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
    breaches = [*late, *ledger_breaches(shop, replies)]
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
