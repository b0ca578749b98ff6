"""Run mixed load on a whole shop for a while, and search for figures that grow.

There are five cycles; in each, every backend guards the stock for a third of the time. The figures
of the second cycle, after the warm-up, are compared with those of the last. The web server must not
replace its workers meanwhile (max_requests): that would hide leaks.
"""

import os
import random
import re
import time
from collections import Counter
from statistics import median
from typing import Any

import redis
from django.conf import settings
from django.db import connection

from devservers import HOST
from devservers.faults.waiting import FaultFailed, until
from devservers.faults.worker import emit
from loadtest.bench.services import mntr
from loadtest.kernel.topology import Stores
from loadtest.load.http.buyers import get
from loadtest.resilience.shop import (
    TIMEOUT,
    Report,
    Shop,
    fetch,
    ledger_breaches,
    resources,
    verdict,
)
from locking import locks, policy
from locking.models import LockPolicyChange
from shop.models import Sale
from verification.visitors import Visitors

BACKENDS = ("redis", "zookeeper", "database")
CYCLES, WARM = 5, 1
VISITORS = 12
FLAT, SLACK = 0.05, 3
"""A figure is flat if it grew by at most 5 %; for everything but memory, three more are allowed."""
GROWS = {
    "rows: shop_order": "orders",
    "rows: shop_payment": "one for each try to pay",
    "rows: shop_customerquota": "one for each customer of a sale",
    "rows: inventory_stockmovement": "the ledger",
    "rows: locking_idempotencykey": "stored responses, kept for a day",
    "rows: locking_jobrun": "the history of jobs, kept for two days",
    "rows: locking_lockpolicychange": "the history of switches",
    "rows: locking_lockrow": "one for each name, until an hour after its last use",
    "rows: shop_tokenrevocation": "sign-outs, deleted once a day",
}
"""Figures that the load increases, and why that is no leak."""
Figures = dict[str, float]


def main(asked: dict[str, Any], stores: Stores) -> Report:
    """Run mixed load for `seconds`; growth is a breach."""
    seconds: float = asked["seconds"]
    zookeeper = stores.servers["zookeeper"].port
    phases = BACKENDS * CYCLES
    with Shop(stock=1_000_000, beats=2, buyers=max(100, asked["seconds"])) as shop:
        sales = [shop.sale, shop.open_sale("queued", 1_000_000, fulfilment=Sale.Fulfilment.QUEUED)]
        visitors = Visitors(shop, sales, asked["seed"])
        visitors.order(random.Random(), sales[1])  # its order shows that the consumer has started
        samples: list[list[Figures]] = [[] for _ in range(CYCLES)]
        with visitors.running(VISITORS):
            for number, backend in enumerate(phases):
                emit("progress", system=backend, step=number + 1, of=len(phases))
                policy.switch(backend=backend, reason="verify soak")  # under load
                locks.close()
                ends = time.monotonic() + seconds / len(phases)
                while True:
                    samples[number // len(BACKENDS)].append(_figures(shop, zookeeper))
                    if time.monotonic() > ends:
                        break
                    time.sleep(max(0.5, seconds / 200))
        leaks = leaks_in(zookeeper)
    breaches, grew = growth(samples[WARM], samples[-1])
    ledger = [one for sale in sales for one in ledger_breaches(sale, visitors.ordered[sale.pk])]
    return verdict(
        breaches + visitors.unexpected[:10] + ledger + leaks,
        growth=[
            {"figure": name, **values, "reason": GROWS.get(name, "")}
            for name, values in grew.items()
            if values["from"] != values["to"]
        ],
        seed=asked["seed"],
        visits=visitors.visits,
        answers=dict(sorted(visitors.answers.items())),
        in_force=list(LockPolicyChange.objects.values_list("to_backend", flat=True)),
    )


def _figures(shop: Shop, zookeeper: int) -> Figures:
    """Return every figure that should not grow, by name."""
    seen: Figures = {}
    for name, pid in shop.processes().items():
        seen |= {f"{name}: {what}": value for what, value in resources([pid]).items()}
        seen[f"{name}: pid"] = pid
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        space: dict[str, int] = client.info("keyspace")["db0"]
        seen["keys: without expiry"] = space["keys"] - space["expires"]
        seen |= Counter(f"keys: {_kind(key)}" for key in client.scan_iter(count=5000))
        seen["redis: connections"] = client.info("clients")["connected_clients"]
        seen["broker: messages"] = client.llen("celery") + client.hlen("unacked")
    counters = mntr(f"{HOST}:{zookeeper}")
    for what in ("znode_count", "watch_count", "ephemerals_count", "num_alive_connections"):
        seen[f"zookeeper: {what}"] = int(counters[f"zk_{what}"])
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names(cursor):
            cursor.execute(f"SELECT COUNT(*) FROM {table}")  # noqa: S608 - of the schema
            seen[f"rows: {table}"] = cursor.fetchone()[0]
        cursor.execute("SHOW STATUS LIKE 'Threads_connected'")
        seen["database: connections"] = int(cursor.fetchone()[1])
    for server in (shop.web, shop.worker, shop.consumer):
        lines = fetch(server.port, get("/metrics"))[1].count(b"\n")
        seen[f"{server.name}: lines of /metrics"] = lines
        seen[f"{server.name}: files of metrics"] = len(os.listdir(server.folder / "metrics"))
    return seen


def _kind(key: bytes) -> str:
    """Return the pattern of a key: numbers and identifiers replaced by *."""
    return re.sub(r"[0-9A-Za-z]{32,}|[0-9a-f-]{16,}|\d+", "*", key.decode())


def locks_held(zookeeper: int) -> int:
    """Return the number of locks that are held or waited for in all stores."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        held: int = len(client.keys("lock:*}"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM locking_lockrow WHERE owner <> ''")
        rows: int = cursor.fetchone()[0]
    return held + rows + int(mntr(f"{HOST}:{zookeeper}")["zk_ephemerals_count"])


def leaks_in(zookeeper: int) -> list[str]:
    """Return the breach that locks are still held when no visitor is left, if they are."""
    try:
        until(lambda: not locks_held(zookeeper), "the release of all locks", TIMEOUT)
    except FaultFailed:
        return [f"{locks_held(zookeeper)} locks are held or waited for, and no visitor is left"]
    return []


def growth(first: list[Figures], last: list[Figures]) -> tuple[list[str], dict[str, Any]]:
    """Return the figures that grew without a known reason, and all figures before and after."""
    breaches, grew = [], {}
    for name in sorted({*first[-1], *last[-1]}):
        a, b = ([one.get(name, 0) for one in some] for some in (first, last))
        if name.endswith(": pid"):
            if {*a} != {*b}:
                breaches.append(f"{name.removesuffix(': pid')} was replaced by another process")
            continue
        # The median: a short peak is no leak, and a leak does not shrink again.
        before, after = median(a), median(b)
        grew[name] = {"from": before, "to": after}
        slack = 0 if name.endswith(": kb") else SLACK
        if after > before * (1 + FLAT) + slack and name not in GROWS:
            breaches.append(f"{name}: {before:g} grew to {after:g}")
    return breaches, grew
