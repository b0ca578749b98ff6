"""A rush while the shop is restarted."""

import time
from threading import Thread
from typing import Any

from loadtest.endure.judging import Report, verdict
from loadtest.endure.shop import Shop
from loadtest.purchase.client import HUNG_UP
from loadtest.rush import Rush, rush


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
    cut = kinds.get(HUNG_UP, {"count": 0})["count"]
    if len(done) < 2 or not cut:
        breaches.append(f"{len(done)} restarts, {cut} connections cut by them")
    return verdict(breaches, restarts=len(done), **report)
