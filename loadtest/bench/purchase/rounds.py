"""The measurement itself: interleaved rounds over every line, the books checked after each.

Asked with {"rounds": N, "seconds": S, "burst": S, "buyers": N, "attempts": N}, it tells the
versions, progress, and the rounds of each line.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from importlib.util import find_spec
from itertools import cycle
from typing import Any

from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone
from django.utils.text import slugify

from inventory.models import Product
from loadtest.bench.purchase import burst
from loadtest.bench.purchase.web import Granian, Web
from loadtest.bench.services import redis_cpu_us, requests_of
from loadtest.load.director import versions
from loadtest.load.events import say
from loadtest.load.http_buyers import Buyer, requests, sign_in
from loadtest.load.http_client import Heard, drive
from loadtest.load.process_pool import TIMEOUT, ProcessPool
from loadtest.load.verdict import percentile
from locking import locks, policy
from locking.models import WriteStrategy
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from shop.purchase.place_order import place_order
from shop.reservations import reconciliation as loading
from shop.sales.queries import create_sale

BUY = "/sales/{}/buy/"
OPEN_FOR = timedelta(days=1)
WARM_UP = 0.3
"""Seconds for which a new server is used before it is measured."""
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table."""

    name: str
    path: str = BUY
    backend: str = "redis"
    connections: int = 50
    wanted: str = "ok"
    """The kind of answer that is counted; empty: every one."""
    sells: bool = True
    """Whether there is something to buy; else the same buyers ask again and again."""
    keeps_ledger: bool = True
    fulfilment: str = Sale.Fulfilment.DIRECT
    strategy: str = WriteStrategy.CONDITIONAL
    server: str = "gunicorn"


REFERENCE = Line(name="reference", path="/reference/{}/buy/", keeps_ledger=False)
DIRECT = Line(name="direct")
DIRECT_GRANIAN = Line(name="direct, granian", server="granian")
CROWDED = Line(name="direct, 1,000 buyers", connections=1000)
SOLD_OUT = Line(name="sold out", wanted="sold_out", sells=False)
EMPTY = Line(name="empty view", path="/empty/", sells=False)
CONDITIONAL = Line(name="conditional, no lock", backend="none")
EMBEDDED = Line(name="SQLite")
QUEUED = Line(name="queued", fulfilment=Sale.Fulfilment.QUEUED)
SEEN = Line(name="queued, orders written and seen")
# On gunicorn for all of --burst, on granian for a third of it.
BURSTS = (
    (QUEUED, SEEN, 1),
    (
        replace(QUEUED, name="queued, granian", server="granian"),
        replace(SEEN, name="queued, granian, written and seen", server="granian"),
        3,
    ),
)
# Those with the same backend stand together: workers may know the old one for a second.
LINES = {
    "mysql": (REFERENCE, DIRECT, DIRECT_GRANIAN, CROWDED, SOLD_OUT, EMPTY, CONDITIONAL),
    "sqlite": (EMBEDDED,),
}
RUSH = Line(name="attempts", connections=200, wanted="")
RUSHES = (
    *(replace(RUSH, name=f"attempts, {one}", strategy=one) for one in WriteStrategy.values),
    replace(RUSH, name="attempts, queued", fulfilment=Sale.Fulfilment.QUEUED),
)
ATTEMPTS_A_PIECE = 100
RUSH_SECONDS = 300.0
"""After which a rush that is not over counts as broken."""
PROCESSES = {"mysql": 2, "sqlite": 4}


def main(asked: dict[str, Any]) -> None:
    """Measure the lines of the database that the environment names."""
    call_command("migrate", verbosity=0, interactive=False)
    say("versions", versions=versions())
    buyers = sign_in(asked["buyers"] + 1)
    product = Product.objects.create(slug="bench", name="Bench product", price=Decimal(1))
    found: dict[Line, list[Numbers]] = {}
    is_main = connection.vendor == "mysql"
    many: list[Buyer] = []
    if is_main:
        wanted = max(round(asked["burst"] * burst.MOST_A_SECOND), asked["attempts"] + 1)
        many = sign_in(wanted, "burst")
    steps = asked["rounds"] + 1 + is_main
    with ExitStack() as stack:
        processes = PROCESSES[connection.vendor]
        webs = {"gunicorn": stack.enter_context(Web(processes))}
        if is_main and find_spec("granian"):
            webs["granian"] = stack.enter_context(Granian(processes))
        lines = [line for line in LINES[connection.vendor] if line.server in webs]
        bursts = [pair for pair in BURSTS if is_main and pair[0].server in webs]
        for number in range(asked["rounds"] + 1):
            for line in lines:
                say("progress", system=line.name, step=number + 1, of=steps)
                _enforce(line)
                sale = _sale(product, line, number, buyers)
                seconds = asked["seconds"] if number else WARM_UP
                numbers = _measure(webs[line.server], line, sale, buyers, seconds)
                if number:
                    found.setdefault(line, []).append(numbers)
            for line, seen, part in bursts if number else ():
                say("progress", system=line.name, step=number + 1, of=steps)
                _enforce(line)
                sale, web = _sale(product, line, number, many), webs[line.server]
                seconds = asked["burst"] / part
                both = burst.measure(web, sale, BUY.format(sale.slug), many, seconds)
                for each, numbers in zip((line, seen), both, strict=True):
                    found.setdefault(each, []).append(numbers)
        for line in RUSHES if is_main else ():
            say("progress", system=line.name, step=steps, of=steps)
            _enforce(line)
            rushed = many[: asked["attempts"] + 1]
            found[line] = [_rush(webs[line.server], line, product, rushed)]
        for line, rounds in found.items():
            about = {"server": webs[line.server].about, "connections": line.connections}
            say("line", line=line.name, **about, rounds=rounds)


def _rush(web: Web, line: Line, product: Product, buyers: Sequence[Buyer]) -> Numbers:
    """One attempt of each buyer, until all are answered, for few pieces."""
    pieces = max(1, len(buyers) // ATTEMPTS_A_PIECE)
    sale = _sale(product, line, 0, buyers, pieces)
    with ExitStack() as stack:
        if sale.is_queued:
            loading.load(sale=sale)
            stack.enter_context(burst.consumer())
        numbers = _measure(web, line, sale, buyers, RUSH_SECONDS)
    attempts, answered = len(buyers) - 1, sum(numbers["answers"].values())
    orders = Order.objects.filter(sale=sale).count()
    if answered != attempts:
        numbers["breaches"].append(f"{answered} of {attempts} attempts answered")
    if orders != pieces:
        numbers["breaches"].append(f"{orders} orders for {pieces} pieces")
    return numbers | {"pieces": pieces, "orders": orders}


def _enforce(line: Line) -> None:
    now = policy.current()
    if (now.backend, now.strategy) != (line.backend, line.strategy):
        policy.switch(
            backend=line.backend,
            strategy=line.strategy,
            reason="lab bench purchase",
            force=True,
        )
        time.sleep(policy.MAX_AGE)


def _sale(
    product: Product, line: Line, number: int, buyers: Sequence[Buyer], pieces: int | None = None
) -> Sale:
    """A new sale, with `pieces` or one for everybody, or just sold out to the last buyer."""
    now = timezone.now()
    sale = create_sale(
        product=product,
        slug=f"{slugify(line.name)}-{number}",
        price=product.price,
        quantity=(pieces or len(buyers)) if line.sells else 1,
        opens_at=now - OPEN_FOR,
        closes_at=now + OPEN_FOR,
        fulfilment=line.fulfilment,
    )
    if not line.sells:
        place_order(customer=buyers[-1].user, sale=sale, quantity=1, key=sale.slug)
    return sale


def _measure(web: Web, line: Line, sale: Sale, buyers: Sequence[Buyer], seconds: float) -> Numbers:
    attempts = requests(buyers[:-1], line.path.format(sale.slug), sale)
    sent = attempts if line.sells else cycle(attempts)
    # The driver forks: it must not inherit what two of them could talk through.
    connections.close_all()
    locks.close()

    def work(_: int) -> Heard:
        return drive(web.port, sent, connections=line.connections, seconds=seconds)

    before, cpu = _asked(), web.cpu()
    with ProcessPool(work) as pool:
        heard: Heard = pool.results(timeout=seconds + TIMEOUT)[0]
    cpu, after = web.cpu() - cpu, _asked()
    lasted = heard.ended - heard.began
    wanted = [one for one in heard.answers if line.wanted in ("", one.kind)]
    waits = [one.heard - one.sent for one in wanted]
    every = max(1, len(heard.answers))
    kinds = Counter(one.kind for one in heard.answers)
    return {
        "per_second": round(sum(one.heard <= heard.ended for one in wanted) / lasted, 1),
        **{f"p{share}_ms": round(percentile(waits, share / 100) * 1000, 2) for share in (50, 99)},
        "worker_cpu_ms": round(cpu / every * 1000, 3),
        "driver_cores": round(heard.cpu / (heard.answers[-1].heard - heard.began), 3),
        **{name: round((after[name] - before[name]) / every, 2) for name in after},
        "answers": dict(kinds),
        "breaches": list(_breaches(line, sale, kinds["ok"])),
    }


def _asked() -> dict[str, float]:
    """What the stores have been asked since their start."""
    found = {"redis_trips": requests_of("redis")().reads, "redis_cpu_us": redis_cpu_us()}
    if connection.vendor == "mysql":
        found["queries"] = requests_of("mysql")().reads
    return found


def _breaches(line: Line, sale: Sale, acknowledged: int) -> Iterator[str]:
    if sale.is_queued:
        yield from burst.breaches(sale, acknowledged)
        return
    audit = audit_sale(sale=sale)
    if line.keeps_ledger:
        yield from audit.breaches
    elif audit.initial != audit.available + audit.held:
        yield f"{audit.initial} initial != {audit.available} available + {audit.held} held"
    orders = Order.objects.filter(sale=sale).count()
    if orders != (acknowledged if line.sells else 1):
        yield f"{orders} orders, {acknowledged} acknowledged"
