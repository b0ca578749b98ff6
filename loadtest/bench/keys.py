"""`manage.py lab bench keys`: that a form counts once, and what that adds to a purchase.

Purchases of a direct sale through `shop.purchase.service`, as the view calls it, without
the HTTP around it: what the keys add is a larger share of that. What they add is the unique index
on customer and key, so every second half of a round does without (docs/adr/0006). `main` measures
on private stores, the rest makes the report.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from decimal import Decimal
from functools import partial
from statistics import median
from typing import Any

from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone
from rich.box import SIMPLE_HEAD
from rich.table import Table

from inventory.models import Product
from loadtest.load.director import versions
from loadtest.load.events import say
from loadtest.load.process_pool import ProcessPool, StartGate
from loadtest.load.stores import Stores
from locking import locks
from shop.administration.audit import audit_sale
from shop.errors import Overloaded
from shop.models import Order, Sale, User
from shop.purchase import service
from shop.sales.queries import create_sale

PROCESSES, THREADS = 4, 13
SENDS = 50
BUYERS = 1000
ALONE = 400
"""Purchases one after the other, in one thread."""
MOST_ADDED = 0.15

Form = tuple[int, str]
"""Customer and key."""
Row = dict[str, Any]


def _sale(product: Product, forms: int) -> Sale:
    now, day = timezone.now(), timedelta(days=1)
    sale = create_sale(
        product=product,
        slug=f"keys-{Sale.objects.count()}",
        price=product.price,
        quantity=forms,
        opens_at=now - day,
        closes_at=now + day,
        limit_per_customer=forms,
    )
    return Sale.objects.select_related("product", "stock").get(pk=sale.pk)  # as the shop knows it


def _send(sale: Sale, form: Form) -> str:
    """Until it is decided; the answer."""
    customer, key = form
    while True:
        try:
            outcome = service.buy(
                customer_id=customer,
                sale=sale,
                quantity=1,
                key=f"{sale.slug}:{key}",
                is_first=True,  # as a ticket says
            )
        except Overloaded:
            continue
        return json.dumps([outcome.status, outcome.url, outcome.receipt])


def _at_once(product: Product, forms: Sequence[Form]) -> Row:
    """All forms in a new sale, from several processes: how long they took, what came of them."""
    sale = _sale(product, len(forms))
    gate = StartGate(PROCESSES)
    connections.close_all()  # the crew forks
    locks.close()

    def work(number: int) -> tuple[float, float, list[str]]:
        with ThreadPoolExecutor(THREADS) as pool:
            began = gate()
            answers = list(pool.map(partial(_send, sale), forms[number::PROCESSES]))
        return began, time.monotonic(), answers

    with ProcessPool(work, PROCESSES) as pool:
        results = pool.results()
    seconds = max(ended for _, ended, _ in results) - results[0][0]
    answers = {answer for _, _, answers in results for answer in answers}
    found = _books(sale, len(forms), len(answers))
    return {**found, "ms": round(1000 * seconds / len(forms), 4)}


def _books(sale: Sale, sent: int, answers: int) -> Row:
    orders = Order.objects.filter(sale=sale).count()
    breaches = audit_sale(sale=sale).breaches
    return {"sent": sent, "answers": answers, "orders": orders, "breaches": breaches}


@contextmanager
def _unguarded() -> Iterator[None]:
    """The orders' table without what makes a key unique."""
    (unique,) = (one for one in Order._meta.constraints if one.name == "one_order_per_key")
    with connection.schema_editor() as editor:
        editor.remove_constraint(Order, unique)
    try:
        yield
    finally:
        Order.objects.all().delete()  # the unguarded ones may not fit under it
        with connection.schema_editor() as editor:
            editor.add_constraint(Order, unique)


def _alone(product: Product, buyers: Sequence[int]) -> Row:
    """One buyer after the other: how long the middle one took."""
    sale, took = _sale(product, len(buyers)), []
    for buyer in buyers:
        began = time.perf_counter()
        _send(sale, (buyer, "key"))
        took.append(time.perf_counter() - began)
    return {**_books(sale, len(buyers), len(buyers)), "ms": round(1000 * median(took), 4)}


def _round(product: Product, buyers: Sequence[int]) -> Iterator[tuple[str, Row]]:
    one_form, forms = [(buyers[0], "same")] * SENDS, [(buyer, "key") for buyer in buyers]
    yield "one form", _at_once(product, one_form)
    for way in ("with", "without"):
        with nullcontext() if way == "with" else _unguarded():
            yield f"alone, {way}", _alone(product, buyers[:ALONE])
            yield f"crowd, {way}", _at_once(product, forms)


def main(asked: Row) -> None:
    """Measure `asked["rounds"]` rounds."""
    call_command("migrate", verbosity=0, interactive=False)
    say("versions", versions=versions())
    product = Product.objects.create(slug="bench", name="Bench product", price=Decimal(1))
    User.objects.bulk_create(User(username=f"buyer-{n}") for n in range(asked["buyers"]))
    buyers = list(User.objects.values_list("pk", flat=True))
    for number in range(asked["rounds"] + 1):
        about = {"system": "keys", "step": number + 1, "of": asked["rounds"] + 1}
        say("progress", **about)
        for line, row in _round(product, buyers):
            if number:  # the first warms the stores up
                say("round", line=line, round=row)


def bench(asked: Row, progress: Callable[[Row], object]) -> Row:
    """The report of {"rounds"} and, if others are wanted, {"buyers"}; `progress` hears all."""
    asked, measured = {"buyers": BUYERS, **asked}, dict[str, list[Row]]()
    with Stores("mariadb", ["redis"]) as stores:
        report: Row = {"settings": asked, "missing": stores.missing, "versions": {}}
        for event in stores.direct("keys", asked) if not stores.missing else ():
            progress(event)
            if event["event"] == "versions":
                report["versions"] = event["versions"]
            elif event["event"] == "round":
                measured.setdefault(event["line"], []).append(event["round"])
    report["lines"] = [
        {"line": line, "ms": median(one["ms"] for one in done), "rounds": done}
        for line, done in measured.items()
    ]
    report["targets"] = [] if report["missing"] else list(_targets(measured))
    return report


def _targets(measured: dict[str, list[Row]]) -> Iterator[Row]:
    """What issue 5 asks."""

    def counts(line: str, name: str) -> set[int]:
        return {one[name] for one in measured[line]}

    one = counts("one form", "orders") == counts("one form", "answers") == {1}
    yield {"target": f"{SENDS} sends of one form: one order, equal answers", "met": one}
    (sent,) = counts("crowd, with", "sent")
    every = counts("crowd, with", "orders") == counts("crowd, with", "answers") == {sent}
    yield {"target": f"{sent} keys at once: {sent} orders", "met": every}
    for name in ("alone", "crowd"):
        pairs = zip(measured[f"{name}, with"], measured[f"{name}, without"], strict=True)
        added = median(mine["ms"] / theirs["ms"] for mine, theirs in pairs) - 1
        target = f"{name}: the keys add at most {MOST_ADDED:.0%} of the time ({added:+.1%})"
        yield {"target": target, "added": round(added, 4), "met": added <= MOST_ADDED}


def is_sound(report: Row) -> bool:
    """Whether all was measured, the books are right and what no machine's speed changes is met."""
    rounds = [one for row in report["lines"] for one in row["rounds"]]
    met = all(target["met"] for target in report["targets"] if "added" not in target)
    return not report["missing"] and met and not any(one["breaches"] for one in rounds)


def tables(report: Row) -> Iterator[Table]:
    """The measurements."""
    table = Table("keys", "sends", "answers", "orders", "ms a send", box=SIMPLE_HEAD)
    for row in report["lines"]:
        last = row["rounds"][-1]
        counts = (str(last[name]) for name in ("sent", "answers", "orders"))
        table.add_row(row["line"], *counts, f"{row['ms']:.3f}")
    yield table


def remarks(report: Row) -> list[str]:
    """What it was measured on, and what could not be had."""
    found = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    return [found, *(f"{store}: {why}" for store, why in report["missing"].items())]
