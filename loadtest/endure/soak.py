"""Hours of mixed load in miniature: does anything grow?"""

import time
from typing import Any

import redis
from django.conf import settings
from django.db import connection

from loadtest.endure.judging import PATIENCE, Report, statuses, sums, verdict
from loadtest.endure.shop import Shop, crowd, weight
from loadtest.faults import until

FLAT = 0.05


def soak(asked: dict[str, Any]) -> Report:
    """Mixed load at half of what the shop can do: does anything grow?"""
    with Shop(stock=1_000_000) as shop:
        with crowd(shop.buy, 4) as told:  # how much it can do
            began = time.monotonic()
            time.sleep(min(10.0, asked["seconds"] / 6))
            rate = len(told) / (time.monotonic() - began)
        pause = 2 * 4 / max(rate, 1.0)
        warm = asked["seconds"] / 3
        samples: list[Report] = []
        with crowd(shop.buy, 4, pause=pause) as told, crowd(shop.browse, 4, pause=pause) as seen:
            began = time.monotonic()
            while (at := time.monotonic() - began) < asked["seconds"]:
                if at >= warm:
                    samples.append({"at": round(at), **weight(shop.pids()), **_left()})
                time.sleep(max(0.5, asked["seconds"] / 60))
        until(lambda: _left()["locks"] == 0, "all locks being given back", PATIENCE)
        end = {**weight(shop.pids()), **_left()}
    third = max(1, len(samples) // 3)
    breaches = []
    grew = {}
    for what in ("kb", "threads", "descriptors", "keys"):
        first = sorted(one[what] for one in samples[:third])[third // 2]
        last = sorted(one[what] for one in samples[-third:])[third // 2]
        grew[what] = {"from": first, "to": last}
        if last > first * (1 + FLAT) + (0 if what == "kb" else 2):
            breaches.append(f"{what} grew from {first} to {last}")
    told_all = [*told, *seen]
    breaches += sums(shop, told_all)
    return verdict(
        breaches, per_second=round(rate, 1), answers=statuses(told_all), grew=grew, end=end
    )


def _left() -> dict[str, int]:
    """Keys of Redis and rows that only a lock or a form under way may have."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        keys = client.dbsize()
        locks = len(client.keys("lock:*}"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM locking_lockrow WHERE owner <> ''")
        (rows,) = cursor.fetchone()
    return {"keys": keys, "locks": locks + rows}
