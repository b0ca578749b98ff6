"""Restart a whole shop under HTTP load."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from threading import Event
from typing import Any

from django.db.models import Count, Sum

from devservers import Server
from devservers.faults.waiting import FaultFailed, until
from loadtest.kernel.topology import Stores
from loadtest.load.http.client import DISCONNECTED
from loadtest.load.http.load import SENDING, HttpLoad, run_http_load
from loadtest.resilience.shop import TIMEOUT, Report, Shop, in_threads, verdict
from locking.models import JobRun

TASK, EVERY = "shop.tasks.expire_unpaid_orders", 5
"""A scheduled job, and its interval in seconds."""


def main(asked: dict[str, Any], _stores: Stores) -> Report:
    """Send `attempts` purchases while web, worker, consumer and both beats restart twice."""
    with Shop(stock=1, beats=2) as shop:
        done: list[float] = []
        began = time.time()
        plan = HttpLoad(
            host="127.0.0.1",
            port=shop.web.port,
            attempts=asked["attempts"],
            stock=asked["stock"],
            buyers=2 * asked["stock"],
            processes=2,
            connections=25,
        )
        progress = {SENDING: 0}

        def restart(over: Event) -> None:
            for share in (0.002, 0.3):  # the first while most units are unsold
                while progress[SENDING] < share * plan.attempts and not over.is_set():
                    over.wait(0.02)
                if not over.is_set():
                    _restart(shop.servers)
                    done.append(time.monotonic())

        with in_threads(restart, 1):
            report = run_http_load(plan, lambda what, now, of: progress.update({what: now}))
        with suppress(FaultFailed):
            until(lambda: not _missed(began), "the end of all jobs", TIMEOUT)
        missed = _missed(began)
    jobs = JobRun.objects.filter(task=TASK)
    counts = jobs.aggregate(runs=Count("pk"), turned_away=Sum("duplicates"))
    kinds = report["answers"]
    wrong = [kind for kind in kinds if kind.isdigit() and kind[0] == "5" and kind != "503"]
    breaches = [] if report["verdict"] == "ok" else [report["why"]]
    breaches += [f"{kinds[kind]['count']} responses were {kind}" for kind in wrong]
    if report["orders"] != asked["stock"]:
        breaches.append(f"{report['orders']} orders of {asked['stock']}")
    cut = kinds.get(DISCONNECTED, {"count": 0})["count"]
    if len(done) < 2 or not cut:
        breaches.append(f"{len(done)} restarts, {cut} connections cut by them")
    breaches += [f"{TASK} was not run for {when:%H:%M:%S}" for when in missed]
    if not counts["turned_away"]:
        breaches.append("no scheduled time was sent twice: the second beat sent nothing")
    return verdict(breaches, restarts=len(done), jobs=counts, **report)


def _restart(servers: Sequence[Server]) -> None:
    """Restart all servers at once; wait only for the first."""
    for server in servers:
        server.wait_ready()
    for server in servers:
        server.request_stop()
    for server in servers:
        server.terminate()
        server.launch()
    servers[0].wait_ready()


def _missed(began: float) -> list[datetime]:
    """Return the scheduled times since `began` for which the job was not run."""
    numbers = range(int(began // EVERY) + 1, int((time.time() - 1) // EVERY) + 1)
    due = [datetime.fromtimestamp(number * EVERY, UTC) for number in numbers]
    done = JobRun.objects.filter(task=TASK, state=JobRun.State.DONE)
    return sorted({*due} - {*done.values_list("scheduled_for", flat=True)})
