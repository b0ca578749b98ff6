"""Slow a store down, then stop its replies; measure who is served, and how soon."""

import time
from typing import Any

from devservers.faults.injectors import Disturb
from devservers.faults.waiting import until
from loadtest.bench.purchase.web import THREADS
from loadtest.kernel.topology import Stores
from loadtest.resilience.shop import (
    TIMEOUT,
    Reply,
    Report,
    Shop,
    breaches_of,
    load,
    next_purchase,
    resources,
    statuses,
    verdict,
)

MAX_ANSWER, MAX_OF_BOTH, MAX_RECOVERY = 2.0, 2.5, 3.0
"""Seconds until every response during a fault; if the request meets the next fault as well; until
the first purchase after them."""
PHASE_SECONDS = 6.0
CLIENTS = 4 * THREADS
HELPERS = 3
"""Threads that a process may start once a store fails: for two circuit breakers and for releases
that are repeated. Threads that pile up with the requests would be many more."""


def main(_asked: dict[str, Any], stores: Stores) -> Report:
    """Delay every message of a store by 200 ms, then stop its replies, then recover it."""
    phases: list[Report] = []
    breaches: list[str] = []
    all_replies: list[Reply] = []
    with Shop(stock=100_000) as shop:
        with load(shop.browse, CLIENTS) as views:  # starts every thread of the web server
            until(lambda: len(views) > 5 * CLIENTS, "the warm-up", TIMEOUT)
        before = _threads(shop)
        for store in ("redis", "database"):
            with load(shop.browse, 3, pause=0.05) as views, load(shop.buy, 6, pause=0.05) as buys:
                next_purchase(buys, 0.0)
                for how in ("slow", "silent"):
                    fault = Disturb([stores.proxies[store]], how)
                    fault.inject()
                    if not fault.injected:
                        breaches.append(f"{store} {how}: no connection was hit")
                    phases.append(_phase(shop, store, how))
                fault.recover()
                recovered = time.monotonic()
                back_after = next_purchase(buys, recovered) - recovered
            all_replies += buys
            if back_after > MAX_RECOVERY:
                breaches.append(f"{store}: normal after {back_after:.1f} s")
            for phase in phases[-2:]:
                breaches += judge(phase, views, buys, before, HELPERS * len(shop.processes()))
                phase["back_after"] = round(back_after, 2)
        after = _threads(shop)
    threads = {"before": before, "after": after}
    breaches += breaches_of(shop, all_replies)
    return verdict(breaches, phases=phases, threads=threads)


def _threads(shop: Shop) -> int:
    return resources(shop.processes().values())["threads"]


def _phase(shop: Shop, store: str, fault: str) -> Report:
    """Count the shop's threads while a fault lasts."""
    began, most = time.monotonic(), 0
    while time.monotonic() < began + PHASE_SECONDS:
        most = max(most, _threads(shop))
        time.sleep(0.2)
    return {"store": store, "fault": fault, "began": began, "threads": most}


def judge(
    phase: Report, views: list[Reply], buys: list[Reply], threads: int, allowed: int
) -> list[str]:
    """Add the answers of the phase to its report; return its breaches."""
    began, is_first = phase.pop("began"), phase["fault"] == "slow"
    ends = began + PHASE_SECONDS
    # With the requests that the first fault found under way; the second one's belong to the first.
    since = 0.0 if is_first else began
    name = f"{phase['store']} {phase['fault']}"
    breaches = []
    for what, some in (("browsing", views), ("buying", buys)):
        met = [one for one in some if began <= one.ended and since <= one.began < ends]
        # A purchase that succeeded after the recovery had waited too long as well.
        both = [one for one in met if is_first and one.ended >= ends]
        phase[what] = statuses(met)
        for figure, limit, replies in (
            ("slowest", MAX_ANSWER, [one for one in met if one not in both]),
            ("slowest_of_both", MAX_OF_BOTH, both),
        ):
            seconds = round(max((one.seconds for one in replies), default=0), 2)
            phase[f"{what}_{figure}"] = seconds
            if seconds > limit:
                breaches.append(f"{name}: {what} took up to {seconds} s")
    if set(phase["browsing"]) != {"200"}:
        breaches.append(f"{name}: browsing got {phase['browsing']}")
    if phase["threads"] > threads + allowed:
        breaches.append(f"{name}: {phase['threads']} threads, {threads} before")
    return breaches
