"""Queued sales under a burst: what is accepted, what is durable, and when buyers see their orders.

While the crowd buys, a few more buyers do what a browser does: they send the form, then poll the
ticket until it leads to an order. A consumer runs beside the web server, as a Celery worker starts
it, and shares the machine with it.
"""

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any

from django.db import connections

from devservers import HOST
from devservers.process import with_parent_death_signal
from loadtest.bench.purchase.web import Web
from loadtest.bench.services import redis_cpu_us
from loadtest.load.http_buyers import Buyer, requests
from loadtest.load.http_client import Heard, drive
from loadtest.load.process_pool import ProcessPool
from loadtest.load.verdict import percentile
from locking import locks
from shop.administration.audit import audit_sale
from shop.models import Order, RejectedReservation, Sale
from shop.reservations import reconciliation as loading

CONNECTIONS = 50
MOST_A_SECOND = 2500
"""Buyers that are kept ready for each second of a burst."""
WATCHERS = 3
LOOK = 0.1
"""Seconds between two looks of a watcher at his ticket."""
PATIENCE = 60.0


@contextmanager
def consumer() -> Iterator[None]:
    """One process that writes orders, as beside a Celery worker."""
    process = subprocess.Popen(
        with_parent_death_signal([sys.executable, "-m", "django", "consume_orders"])
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@dataclass
class Watchers:
    """Buyers who look at their tickets; `waits` are seconds from the form to the order."""

    port: int
    path: str
    sale: Sale
    buyers: Iterator[Buyer]
    waits: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        """Buy and wait, one buyer after the other."""
        while not self.over.is_set():
            try:
                self.buy()
            except (OSError, KeyError, ValueError) as error:
                self.failures.append(repr(error))

    def buy(self) -> None:
        """Send one form and wait for its order."""
        buyer = next(self.buyers)
        line = HTTPConnection(HOST, self.port, timeout=PATIENCE)
        headers = {"Cookie": buyer.cookies, "Accept": "application/json"}
        try:
            sent = time.monotonic()
            form = {**headers, "Content-Type": "application/x-www-form-urlencoded"}
            line.request("POST", self.path, buyer.form(self.sale), form)
            ticket = _json(line)["url"]
            while time.monotonic() - sent < PATIENCE:
                line.request("GET", ticket, headers=headers)
                if _json(line)["status"] == "won":
                    self.waits.append(time.monotonic() - sent)
                    return
                time.sleep(LOOK)
            raise TimeoutError(f"no order behind {ticket}")
        finally:
            line.close()


def _json(line: HTTPConnection) -> dict[str, Any]:
    return dict(json.loads(line.getresponse().read()))


def measure(
    web: Web, sale: Sale, path: str, buyers: Sequence[Buyer], seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was accepted, and what was durable and seen; each as the numbers of a line."""
    loading.load(sale=sale)
    with consumer():
        return _measure(web, sale, path, buyers, seconds)


def _measure(
    web: Web, sale: Sale, path: str, buyers: Sequence[Buyer], seconds: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    watched = max(100, len(buyers) // 20)
    forms = requests(buyers[watched:], path, sale)
    connections.close_all()
    locks.close()

    def work(_: int) -> Heard:
        return drive(web.port, forms, connections=CONNECTIONS, seconds=seconds)

    watchers = Watchers(web.port, path, sale, iter(buyers[:watched]))
    watchers.buy()  # the consumer has started when this order is there
    warm = len(watchers.waits)
    threads = [threading.Thread(target=watchers.watch) for _ in range(WATCHERS)]
    cpu, of_redis = web.cpu(), redis_cpu_us()
    with ProcessPool(work) as pool:
        began = time.monotonic()
        for thread in threads:
            thread.start()
        time.sleep(max(0.0, began + seconds - time.monotonic()))
        durable = Order.objects.filter(sale=sale).count()
        watchers.over.set()
        heard: Heard = pool.results()[0]
        cpu = web.cpu() - cpu
        for thread in threads:
            thread.join()
    answered = [one.heard - one.sent for one in heard.answers if one.kind == "ok"]
    waits = watchers.waits[warm:]
    found = [*breaches(sale, len(answered) + len(watchers.waits)), *watchers.failures]
    of_redis = redis_cpu_us() - of_redis  # until the last order is written
    lasted = heard.ended - heard.began
    in_time = sum(one.heard <= heard.ended for one in heard.answers if one.kind == "ok")
    accepted = {
        "per_second": round(in_time / lasted, 1),
        **_percentiles(answered),
        "worker_cpu_ms": round(cpu / max(1, len(heard.answers)) * 1000, 3),
        "redis_cpu_us": round(of_redis / max(1, len(heard.answers)), 2),
        "driver_cores": round(heard.cpu / lasted, 3),
        "answers": dict(Counter(one.kind for one in heard.answers)),
        "breaches": found,
    }
    seen = {
        "per_second": round((durable - warm) / seconds, 1),
        **_percentiles(waits),
        "answers": {"seen": len(waits)},
        "breaches": [],
    }
    return accepted, seen


def _percentiles(waits: list[float]) -> dict[str, float]:
    return {f"p{share}_ms": round(percentile(waits, share / 100) * 1000, 2) for share in (50, 99)}


def breaches(sale: Sale, acknowledged: int) -> Iterator[str]:
    """What is wrong when all orders should be written."""
    deadline = time.monotonic() + PATIENCE
    while Order.objects.filter(sale=sale).count() < acknowledged and time.monotonic() < deadline:
        time.sleep(LOOK)
    audit = audit_sale(sale=Sale.objects.get(pk=sale.pk))
    yield from audit.breaches
    if audit.reserved or audit.drift:
        yield f"{audit.reserved} reserved and not written, drift {audit.drift}"
    orders = Order.objects.filter(sale=sale).count()
    if orders != acknowledged:
        yield f"{orders} orders, {acknowledged} acknowledged"
    if aside := RejectedReservation.objects.filter(sale=sale).count():
        yield f"{aside} rejected"
