"""Run the benchmark of a purchase: interleaved rounds of every line, each followed by an audit.

The arguments are {"rounds": N, "seconds": S, "burst": S, "buyers": N, "offered": N, "attempts": N};
the events are progress, and the rounds of each line.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

from django.db import connection
from django.utils.text import slugify

from devservers.faults.worker import emit
from inventory.models import WriteStrategy
from loadtest.bench.purchase import burst
from loadtest.bench.purchase.measure import Figures, breaches, figures, run_load
from loadtest.bench.purchase.web import THREADS, WebServer
from loadtest.bench.services import redis_cpu_us, requests_of
from loadtest.kernel.topology import Stores
from loadtest.load.http.buyers import Buyer, requests, sign_in
from loadtest.load.sale import open_sale
from locking import policy
from shop.models import Order, Sale
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest

BUY = "/sales/{}/buy/"
WARM_UP = 0.3
"""Seconds of load on a new server before the first measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    name: str
    path: str = BUY
    backend: str = "redis"
    connections: int = 50
    wanted: str = "ok"
    """The kind of answer that is counted; empty: every kind."""
    sells: bool = True
    """False: the sale is sold out, and the same buyers send their forms again and again."""
    keeps_ledger: bool = True
    fulfilment: str = Sale.Fulfilment.DIRECT
    strategy: str = WriteStrategy.CONDITIONAL


REFERENCE = Line(name="reference", path="/reference/{}/buy/", keeps_ledger=False)
DIRECT = Line(name="direct")
CROWDED = Line(name="direct, 1,000 buyers", connections=1000)
SOLD_OUT = Line(name="sold out", wanted="sold_out", sells=False)
EMPTY = Line(name="empty view", path="/empty/", sells=False)
CONDITIONAL = Line(name="conditional, no lock", backend="none")
EMBEDDED = Line(name="SQLite")
QUEUED = Line(name="queued", fulfilment=Sale.Fulfilment.QUEUED)
SEEN = Line(name="queued, orders written and seen")
# Lines with the same backend are adjacent: workers may use the old one for a second.
LINES = {
    "mysql": (REFERENCE, DIRECT, CROWDED, SOLD_OUT, EMPTY, CONDITIONAL),
    "postgresql": (replace(DIRECT, name="direct, PostgreSQL"),),
    "sqlite": (EMBEDDED,),
}
ATTEMPTS = Line(name="attempts", connections=200, wanted="")
ATTEMPT_LINES = (
    *(replace(ATTEMPTS, name=f"attempts, {one}", strategy=one) for one in WriteStrategy.values),
    replace(ATTEMPTS, name="attempts, queued", fulfilment=Sale.Fulfilment.QUEUED),
)
ATTEMPTS_PER_UNIT = 100
ATTEMPTS_TIMEOUT = 300.0
"""Seconds after which unanswered attempts count as failed."""
PROCESSES = {"mysql": 2, "postgresql": 2, "sqlite": 4}


def main(asked: dict[str, Any], _stores: Stores) -> None:
    """Measure the lines of the database that the environment names."""
    buyers, is_main = sign_in(asked["buyers"] + 1), connection.vendor == "mysql"
    prepared = max(round(asked["burst"] * asked["offered"]), asked["attempts"] + 1)
    many = sign_in(prepared, "burst") if is_main else []
    steps = asked["rounds"] + 1 + is_main

    with WebServer(PROCESSES[connection.vendor]) as web:

        def start(line: Line, step: int) -> None:
            emit("progress", system=line.name, step=step, of=steps)
            activate(line)

        def end(line: Line, figures: Figures) -> None:
            server = f"gunicorn gthread {web.processes} x {THREADS}"
            about = {"server": server, "connections": line.connections}
            emit("round", line=line.name, round=figures, **about)

        for number in range(asked["rounds"] + 1):
            for line in LINES[connection.vendor]:
                start(line, number + 1)
                sale = sale_of(line, number, buyers)
                seconds = asked["seconds"] if number else WARM_UP
                measured = _measure(web, line, sale, buyers, seconds)
                if number:
                    end(line, measured)
            if number and is_main:
                start(QUEUED, number + 1)
                sale = sale_of(QUEUED, number, many)
                with burst.consumer(sale):
                    path = BUY.format(sale.slug)
                    accepted, seen = burst.measure(web, sale, path, many, asked["burst"])
                end(QUEUED, accepted)
                end(SEEN, seen)
        for line in ATTEMPT_LINES if is_main else ():
            start(line, steps)
            end(line, _attempts(web, line, many[: asked["attempts"] + 1]))


def _attempts(web: WebServer, line: Line, buyers: Sequence[Buyer]) -> Figures:
    """Send one attempt of each buyer for a hundredth as many units, until all are answered."""
    units = max(1, len(buyers) // ATTEMPTS_PER_UNIT)
    sale = sale_of(line, 0, buyers, units)
    with ExitStack() as stack:
        if sale.is_queued:
            stack.enter_context(burst.consumer(sale))
        measured = _measure(web, line, sale, buyers, ATTEMPTS_TIMEOUT)
    attempts, answered = len(buyers) - 1, sum(measured["answers"].values())
    orders = Order.objects.filter(sale=sale).count()
    if answered != attempts:
        measured["breaches"].append(f"{answered} of {attempts} attempts answered")
    if orders != units:
        measured["breaches"].append(f"{orders} orders for {units} units")
    return measured | {"pieces": units, "orders": orders}


def activate(line: Line) -> None:
    """Switch to the lock and the write strategy of a line."""
    now = policy.current()
    if (now.backend, now.mode) != (line.backend, line.strategy):
        policy.switch(backend=line.backend, mode=line.strategy, reason="lab bench", force=True)
        time.sleep(policy.MAX_AGE)


def sale_of(line: Line, number: int, buyers: Sequence[Buyer], units: int | None = None) -> Sale:
    """Open a sale of `units`, or one per buyer; for a line that does not sell, sell it out."""
    sale = open_sale(
        f"{slugify(line.name)}-{number}",
        (units or len(buyers)) if line.sells else 1,
        fulfilment=line.fulfilment,
    )
    if not line.sells:
        place_order(
            PurchaseRequest(customer_id=buyers[-1].user.pk, sale=sale, quantity=1, key=sale.slug)
        )
    return sale


def _measure(
    web: WebServer, line: Line, sale: Sale, buyers: Sequence[Buyer], seconds: float
) -> Figures:
    forms = requests(buyers[:-1], line.path.format(sale.slug), sale)
    sent = forms if line.sells else cycle(forms)
    before = _store_costs()
    heard, cpu = run_load(web, sent, connections_open=line.connections, seconds=seconds)
    after = _store_costs()
    measured = figures(heard, cpu, wanted=line.wanted)
    every = max(1, len(heard.replies))
    measured |= {name: round((after[name] - before[name]) / every, 2) for name in after}
    bought = measured["answers"].get("ok", 0) if line.sells else 1
    return measured | {"breaches": [*breaches(sale, bought, keeps_ledger=line.keeps_ledger)]}


def _store_costs() -> dict[str, float]:
    """Return the counters of the stores since their start."""
    found = {"redis_trips": requests_of("redis")().reads, "redis_cpu_us": redis_cpu_us()}
    if connection.vendor == "mysql":
        found["queries"] = requests_of("mysql")().reads
    return found
