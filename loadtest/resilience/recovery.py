"""Fail each store while buyers buy under its lock; measure the time to the next purchase.

Redis is only interrupted for a moment, during a direct sale. It keeps its data, so a lock whose
release was lost would stay held for its ttl.
"""

import time
from statistics import median
from typing import Any, cast

from django.db import connections

from devservers.faults.ensemble import FailLeader, LeaderFailure, Partitioned
from devservers.faults.injectors import Disturb
from devservers.faults.waiting import FaultFailed
from loadtest.kernel.topology import Stores
from loadtest.resilience.shop import (
    TIMEOUT,
    Reply,
    Report,
    Shop,
    breaches_of,
    load,
    next_purchase,
    statuses,
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
FAULTS = (
    ("database", "kill", 3.0),
    ("zookeeper", "kill", 3.0),
    ("zookeeper", "stop", 6.0),
    ("zookeeper", "cut off", 8.0),
)
"""Stores, their faults, and the seconds that are allowed until the next purchase.

They count from the first reply of a store that was down; for a fault of ZooKeeper's leader, from
the fault, since the other nodes elect a new one. A lease that was held is added.
"""


def main(asked: dict[str, Any], stores: Stores) -> Report:
    """Inject every fault and measure the recovery."""
    with Shop(stock=1_000_000, beats=2) as shop:
        with load(shop.buy, BUYERS, pause=0.02) as replies:
            interruptions = [
                _interruptions(do, seconds, asked["rounds"], stores, replies)
                for do in WAYS
                for seconds in DURATIONS
            ]
        with load(shop.buy, 4, pause=0.05) as more:
            rows = [_fail(*fault, stores, more) for fault in FAULTS]
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


def _fail(store: str, do: str, within: float, stores: Stores, replies: list[Reply]) -> Report:
    connections.close_all()  # the last fault broke this process's connections too
    policy.switch(backend=store, reason="lab endure recovery")
    next_purchase(replies, time.monotonic())
    lease = locks[store].ttl if locks[store].inspect() else 0.0
    locks.close()
    since = time.monotonic()
    if store == "zookeeper":
        ensemble = cast(Partitioned, stores.zookeeper)
        leader = FailLeader(ensemble, cast(LeaderFailure, do))
        leader.inject()
        elected = time.monotonic()
        bought = next_purchase(replies, since, elected)
        leader.recover()
        seen = f"{leader.proof}, seen after {elected - since:.2f} s"
    else:
        seen = Disturb([stores.servers[store]], do).last(DOWN_SECONDS)
        since = time.monotonic()
        bought = next_purchase(replies, since)
    return {
        **{"store": store, "do": do, "within": within},
        "seen": seen,
        "seconds": round(bought - since, 2),
        "lease_held": lease,
        "ok": bool(seen) and bought - since <= within + lease,
    }


def _interruptions(
    do: str, seconds: float, rounds: int, stores: Stores, replies: list[Reply]
) -> Report:
    times: list[float] = []
    for _ in range(rounds):
        next_purchase(replies, time.monotonic())
        if not _interrupt(do, seconds, stores):
            raise FaultFailed(f"redis {do} for {seconds:g} s had no effect")
        returned = time.monotonic()
        times.append(next_purchase(replies, returned) - returned)
    return {
        "do": do,
        "seconds": seconds,
        "rounds": rounds,
        "median": round(median(times), 3),
        "max": round(max(times), 3),
        "ok": max(times) <= MAX_RESUME,
    }


def _interrupt(do: str, seconds: float, stores: Stores) -> bool:
    """Interrupt Redis until it replies again; return False if that had no effect."""
    began, proof = time.monotonic(), "clients paused"
    if do == "pause":
        stores.redis.pause_clients(seconds)
    else:
        target = stores.proxies["redis"] if do == "cut" else stores.redis
        proof = Disturb([target], do).last(seconds)
    stores.redis.wait_ready(TIMEOUT)
    return bool(proof) and time.monotonic() - began > 0.8 * seconds
