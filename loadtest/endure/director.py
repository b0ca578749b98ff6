"""`lab endure`: recovery, slow stores, restarts and a soak, each with its verdict.

Asked with {"what", "ports", ...}; the parent kills the stores and holds up what goes to them when
it hears "strike", for this process may not own them.
"""

import time
from collections import Counter
from collections.abc import Callable
from threading import Thread
from typing import Any

import redis
from django.conf import settings
from django.db import connection

from loadtest.endure.shop import Shop, Told, answers, crowd, weight
from loadtest.purchase.client import HUNG_UP
from loadtest.rush import Rush, rush
from loadtest.telling import say
from shop.audit import audit_sale

RECOVERY = {"redis": 1.0, "database": 3.0}
"""Seconds from the server's first answer to the first purchase."""
DOWN = 1.0
SLOW, WITHIN, HEALED = 0.2, 2.0, 3.0
PHASE = 6.0
"""Seconds of each phase of the slow store."""
BOUGHT = (201, 303)
PATIENCE = 60.0
FLAT = 0.05
Report = dict[str, Any]


def main(asked: dict[str, Any]) -> None:
    """Do what is asked, and report."""
    report = WHAT[asked["what"]](asked)
    say("report", report={"what": asked["what"], **report})


def _until(condition: Callable[..., object], what: str, *args: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition(*args):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come true in {PATIENCE:g} s")
        time.sleep(0.01)


def _verdict(breaches: list[str], **facts: Any) -> Report:
    return {**facts, "breaches": breaches, "verdict": "failed" if breaches else "ok"}


def _is_silent(port: int) -> bool:
    return not answers(port)


def _bought(told: list[Told], since: float) -> list[float]:
    """When purchases ended that began later."""
    return [one.ended for one in told if one.began > since and one.status in BOUGHT]


def _statuses(told: list[Told]) -> dict[str, int]:
    return {str(status): n for status, n in sorted(Counter(one.status for one in told).items())}


def _sums(shop: Shop, told: list[Told]) -> list[str]:
    """What is wrong with the books and the answers when all is over."""
    audit = audit_sale(sale=shop.sale)
    won = sum(one.status in BOUGHT for one in told)
    breaches = list(audit.breaches)
    if audit.held + audit.sold < won:
        breaches.append(f"{won} were told that they had bought, {audit.held + audit.sold} have")
    odd = sorted({one.status for one in told if one.status >= 500} - {503})
    return breaches + [f"an answer was {status}" for status in odd]


# --- (b) recovery -----------------------------------------------------------------------------


def recovery(asked: dict[str, Any]) -> Report:
    """Each store is killed and comes back while people buy: the seconds to the next purchase."""
    took: dict[str, float] = {}
    with (
        Shop(stock=100_000) as shop,
        crowd(shop.buy, 4, pause=0.05) as told,
    ):
        for store in RECOVERY:
            port = asked["ports"][store]
            _until(_bought, "purchases", told, time.monotonic())
            say("strike", do="kill", store=store, seconds=DOWN)
            _until(_is_silent, f"{store} being down", port)
            _until(answers, f"{store} being up", port)
            healed = time.monotonic()
            _until(_bought, "a purchase", told, healed)
            took[store] = round(min(_bought(told, healed)) - healed, 2)
    breaches = [
        f"{store} took {took[store]} s, {limit:g} s were allowed"
        for store, limit in RECOVERY.items()
        if took[store] > limit
    ]
    return _verdict([*breaches, *_sums(shop, told)], seconds=took, answers=_statuses(told))


# --- (c) a slow store -------------------------------------------------------------------------


def slow(asked: dict[str, Any]) -> Report:
    """200 ms more to each message of a store, then nothing at all, then as before."""
    phases: list[Report] = []
    breaches: list[str] = []
    everything: list[Told] = []
    with Shop(stock=100_000) as shop:
        before = weight(shop.pids())["threads"]
        for store in ("redis", "database"):
            with crowd(shop.browse, 3, pause=0.05) as seen, crowd(shop.buy, 6, pause=0.05) as told:
                _until(_bought, "a purchase", told, 0.0)
                for fault in ("slow", "silent"):
                    say("strike", do=fault, store=store, seconds=SLOW)
                    began, most = time.monotonic(), 0
                    while time.monotonic() < began + PHASE:
                        most = max(most, weight(shop.pids())["threads"])
                        time.sleep(0.2)
                    phases.append({"store": store, "fault": fault, "began": began, "threads": most})
                say("strike", do="heal", store=store, seconds=0)
                healed = time.monotonic()
                _until(_bought, "a purchase after it", told, healed)
                back = min(_bought(told, healed))
            everything += told
            if back - healed > HEALED:
                breaches.append(f"{store}: normal after {back - healed:.1f} s")
            for phase in phases[-2:]:
                end = phase["began"] + PHASE
                mine = [one for one in told if phase["began"] <= one.began < end]
                looks = [one for one in seen if phase["began"] <= one.began < end]
                phase |= {
                    "browsing": _statuses(looks),
                    "browsing_slowest": round(max((one.seconds for one in looks), default=0), 2),
                    "buying": _statuses(mine),
                    "buying_slowest": round(max((one.seconds for one in mine), default=0), 2),
                    "back_after": round(back - healed, 2),
                }
                where = f"{store} {phase['fault']}"
                if not looks or any(one.status != 200 for one in looks):
                    breaches.append(f"{where}: browsing was told {phase['browsing']}")
                if phase["fault"] == "silent":
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
    return _verdict([*breaches, *_sums(shop, everything)], phases=phases, threads=threads)


# --- (a) restarts -----------------------------------------------------------------------------


def restarts(asked: dict[str, Any]) -> Report:
    """A rush of `attempts` while web and worker are each restarted twice."""
    with Shop(stock=1) as shop:
        done: list[float] = []
        aim = Rush(
            host="127.0.0.1",
            port=shop.web.port,
            attempts=asked["attempts"],
            stock=asked["stock"],
            buyers=2 * asked["stock"],
            processes=2,
            connections=25,
            hang_ups=True,
        )
        over = False
        progress = {"rush": 0}

        def restart() -> None:
            for share in (0.002, 0.3):  # the first while most pieces are still to be had
                while progress["rush"] < share * aim.attempts and not over:
                    time.sleep(0.02)
                if not over:
                    shop.web.restart()
                    shop.worker.restart()
                    done.append(time.monotonic())

        def hear(what: str, now: int, of: int) -> None:
            progress[what] = now

        restarting = Thread(target=restart)
        restarting.start()
        try:
            report = rush(aim, hear)
        finally:
            over = True
            restarting.join()
    kinds = report["answers"]
    odd = [kind for kind in kinds if kind.isdigit() and kind[0] == "5" and kind != "503"]
    breaches = [] if report["verdict"] == "ok" else [report["why"]]
    breaches += [f"{kinds[kind]['count']} answers were {kind}" for kind in odd]
    if report["orders"] != asked["stock"]:
        breaches.append(f"{report['orders']} orders of {asked['stock']}")
    if len(done) < 2 or HUNG_UP not in kinds:
        breaches.append(f"{len(done)} restarts, {kinds.get(HUNG_UP, 0)} connections cut by them")
    return _verdict(breaches, restarts=len(done), **report)


# --- (d) soak ---------------------------------------------------------------------------------


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
        _until(lambda: _left()["locks"] == 0, "all locks being given back")
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
    breaches += _sums(shop, told_all)
    return _verdict(
        breaches, per_second=round(rate, 1), answers=_statuses(told_all), grew=grew, end=end
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


WHAT = {"recovery": recovery, "slow": slow, "restarts": restarts, "soak": soak}
