"""A slow store, then a silent one: who still browses, who is told what, and how soon."""

import time
from functools import partial
from typing import Any

from django.conf import settings

from loadtest.bench.purchase.web import THREADS
from loadtest.faults.waiting import until
from loadtest.load.events import say
from loadtest.resilience.judging import PATIENCE, Report, bought, statuses, sums, verdict
from loadtest.resilience.shop import Shop, Told, crowd, weight

SLOW, WITHIN, HEALED = 0.2, 2.0, 3.0
"""Seconds more each way, so twice as many an answer; until anybody is told; until all is well."""
PHASE = 6.0
"""Seconds of each phase of the slow store."""
CROWD = 4 * THREADS


def slow(asked: dict[str, Any]) -> Report:
    """200 ms more to each message of a store, then nothing at all, then as before."""
    phases: list[Report] = []
    breaches: list[str] = []
    everything: list[Told] = []
    with Shop(stock=100_000) as shop:
        with crowd(shop.browse, CROWD) as seen:  # all threads that there are by default
            until(lambda: len(seen) > 5 * CROWD, "a full house", PATIENCE)
        before = weight(shop.pids())["threads"]
        for store in ("redis", "database"):
            with crowd(shop.browse, 3, pause=0.05) as seen, crowd(shop.buy, 6, pause=0.05) as told:
                until(partial(bought, told, 0.0), "a purchase", PATIENCE)
                for fault in ("slow", "silent"):
                    say("strike", do=fault, store=store, seconds=SLOW)
                    began, most = time.monotonic(), 0
                    while time.monotonic() < began + PHASE:
                        most = max(most, weight(shop.pids())["threads"])
                        time.sleep(0.2)
                    phases.append({"store": store, "fault": fault, "began": began, "threads": most})
                say("strike", do="heal", store=store, seconds=0)
                healed = time.monotonic()
                until(partial(bought, told, healed), "a purchase after it", PATIENCE)
                back = min(bought(told, healed))
            everything += told
            if back - healed > HEALED:
                breaches.append(f"{store}: normal after {back - healed:.1f} s")
            for phase in phases[-2:]:
                end = phase["began"] + PHASE
                mine = [one for one in told if phase["began"] <= one.began < end]
                looks = [one for one in seen if phase["began"] <= one.began < end]
                phase |= {
                    "browsing": statuses(looks),
                    "browsing_slowest": round(max((one.seconds for one in looks), default=0), 2),
                    "buying": statuses(mine),
                    "buying_slowest": round(max((one.seconds for one in mine), default=0), 2),
                    "back_after": round(back - healed, 2),
                }
                where = f"{store} {phase['fault']}"
                if not looks or any(one.status != 200 for one in looks):
                    breaches.append(f"{where}: browsing was told {phase['browsing']}")
                # Also whoever was sold a piece after the healing had waited too long.
                breaches += [
                    f"{where}: {what} took up to {phase[f'{what}_slowest']} s"
                    for what in ("browsing", "buying")
                    if phase[f"{what}_slowest"] > WITHIN
                ]
                if phase["threads"] > before + settings.MAX_WAITING:
                    breaches.append(f"{where}: {phase['threads']} threads of {before}")
        after = weight(shop.pids())["threads"]
    for phase in phases:
        del phase["began"]
    threads = {"before": before, "after": after}
    return verdict([*breaches, *sums(shop, everything)], phases=phases, threads=threads)
