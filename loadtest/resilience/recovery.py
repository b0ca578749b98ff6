"""Each store is struck while people buy under the lock that it keeps: when can they buy again?"""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from django.db import connections

from loadtest.faults.waiting import until
from loadtest.load.events import say
from loadtest.resilience.judging import PATIENCE, Report, bought, statuses, sums, verdict
from loadtest.resilience.shop import Shop, Told, answers, crowd, fetch
from locking import locks, policy

DOWN = 1.0
"""Seconds for which a killed store stays away."""


class Blow(NamedTuple):
    """What befalls a store, and the seconds to the next purchase that are allowed.

    They count from the first answer of a store that was away; where ZooKeeper's leader is struck,
    from then on, since the others help themselves. The lease comes on top where a lock was held.
    """

    store: str
    do: str
    within: float


BLOWS = (
    Blow("redis", "kill", 1.0),
    Blow("database", "kill", 3.0),
    Blow("zookeeper", "kill", 3.0),
    Blow("zookeeper", "stop", 6.0),
    Blow("zookeeper", "cut off", 8.0),
)


def recovery(asked: dict[str, Any]) -> Report:
    """Strike every blow, and count the seconds."""
    rows: list[Report] = []
    with Shop(stock=100_000, beats=2) as shop, crowd(shop.buy, 4, pause=0.05) as told:
        for blow in BLOWS:
            connections.close_all()  # ours was struck, too
            policy.switch(backend=blow.store, reason="lab endure recovery")
            _purchase(told, time.monotonic())
            lease = locks[blow.store].ttl if locks[blow.store].inspect() else 0.0
            locks.close()
            if blow.store == "zookeeper":
                seconds, seen = _leader_struck(blow, asked["nodes"], told)
            else:
                seconds, seen = _server_killed(blow, asked["ports"][blow.store], told)
            rows.append(
                {
                    **blow._asdict(),
                    "seen": seen,
                    "seconds": round(seconds, 2),
                    "lease_held": lease,
                    "ok": seconds <= blow.within + lease,
                }
            )
    late = [
        "{store} {do}: {seconds} s, {within:g} s were allowed".format(**row)
        for row in rows
        if not row["ok"]
    ]
    return verdict([*late, *sums(shop, told)], blows=rows, answers=statuses(told))


def _purchase(told: list[Told], since: float, seen: float = 0.0) -> float:
    """When the first purchase ended that began after `since`, not before `seen`."""

    def ends() -> list[float]:
        return [end for end in bought(told, since) if end > seen]

    return min(until(ends, "a purchase", PATIENCE))


def _server_killed(blow: Blow, port: int, told: list[Told]) -> tuple[float, str]:
    say("strike", do=blow.do, store=blow.store, seconds=DOWN)
    until(lambda: not answers(port), f"{blow.store} being down", PATIENCE)
    until(partial(answers, port), f"{blow.store} being up", PATIENCE)
    healed = time.monotonic()
    return _purchase(told, healed) - healed, "did not answer, then did again"


def _leader_struck(blow: Blow, ports: Sequence[int], told: list[Told]) -> tuple[float, str]:
    old = until(lambda: [port for port in ports if _says(port, b"Mode: leader")], "a leader")[0]
    others = [port for port in ports if port != old]
    struck = time.monotonic()
    say("strike", do=blow.do, store=blow.store, seconds=0)
    new = until(lambda: [one for one in others if _says(one, b"Mode: leader")], "another leader")
    seen = time.monotonic()
    back = _purchase(told, struck, seen)
    say("strike", do="heal", store=blow.store, seconds=0)
    until(lambda: all(_says(port, b"Mode:") for port in ports), "all nodes serving", PATIENCE)
    nodes = f"node {ports.index(old) + 1} led, then node {ports.index(new[0]) + 1}"
    return back - struck, f"{nodes}, seen after {seen - struck:.2f} s"


def _says(port: int, what: bytes) -> bool:
    return what in fetch(port, b"srvr")[1]
