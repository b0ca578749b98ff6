"""`manage.py lab bench keys`: forms count once, and what that adds to a purchase.

The purchases of a direct sale call `place_order` as the view does, without HTTP, so that
the share of the keys is larger. The keys cost a unique index on customer and key, so every second
half of a round runs without it (docs/adr/0006). `main` measures on private stores, the rest makes
the report.
"""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from statistics import median

from django.core.management import call_command
from django.db import connection, connections

from devservers.faults.worker import emit
from devservers.process_pool import ProcessPool, StartGate
from inventory.management.console import Rows
from loadtest.bench.results import Progress, Row, measure, remarks
from loadtest.load.runner import versions
from loadtest.load.sale import open_sale
from locking import locks
from shop.administration.audit import audit_sale
from shop.errors import Overloaded
from shop.models import Order, Sale, User
from shop.purchase.place_order import place_order
from shop.sales.purchase_request import PurchaseRequest

__all__ = ["bench", "is_sound", "main", "remarks", "table"]

PROCESSES, THREADS = 4, 13
SENDS = 50
BUYERS = 1000
ALONE = 400
"""Purchases one after the other, in one thread."""
MAX_ADDED = 0.15

Form = tuple[int, str]
"""Customer and key."""


def _open_sale(forms: int) -> Sale:
    sale = open_sale(f"keys-{Sale.objects.count()}", forms, limit_per_customer=forms)
    return Sale.objects.select_related("product", "stock").get(pk=sale.pk)  # as the view loads it


def _send(sale: Sale, form: Form) -> str:
    """Send a form until the shop decides about it; return the answer."""
    customer, key = form
    while True:
        try:
            outcome = place_order(
                PurchaseRequest(
                    customer_id=customer,
                    sale=sale,
                    quantity=1,
                    key=f"{sale.slug}:{key}",
                    is_first=True,  # as a purchase token states
                )
            )
        except Overloaded:
            continue
        return json.dumps([outcome.status, outcome.receipt])


def _at_once(forms: Sequence[Form]) -> Row:
    """Send all forms of a new sale from several processes; return their time and outcome."""
    sale = _open_sale(len(forms))
    gate = StartGate(PROCESSES)
    connections.close_all()  # a forked process must not share them
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
    return {**_counts(sale, len(forms), len(answers)), "ms": round(1000 * seconds / len(forms), 4)}


def _counts(sale: Sale, sent: int, answers: int) -> Row:
    orders = Order.objects.filter(sale=sale).count()
    breaches = audit_sale(sale=sale).breaches
    return {"sent": sent, "answers": answers, "orders": orders, "breaches": breaches}


@contextmanager
def _without_unique_index() -> Iterator[None]:
    (unique,) = (one for one in Order._meta.constraints if one.name == "one_order_per_form")
    with connection.schema_editor() as editor:
        editor.remove_constraint(Order, unique)
    try:
        yield
    finally:
        Order.objects.all().delete()  # these orders may violate the index
        with connection.schema_editor() as editor:
            editor.add_constraint(Order, unique)


def _alone(buyers: Sequence[int]) -> Row:
    """Let one buyer after the other buy; return the median time and the outcome."""
    sale, seconds = _open_sale(len(buyers)), []
    for buyer in buyers:
        began = time.perf_counter()
        _send(sale, (buyer, "key"))
        seconds.append(time.perf_counter() - began)
    return {**_counts(sale, len(buyers), len(buyers)), "ms": round(1000 * median(seconds), 4)}


def _round(buyers: Sequence[int]) -> Iterator[tuple[str, Row]]:
    one_form, forms = [(buyers[0], "same")] * SENDS, [(buyer, "key") for buyer in buyers]
    yield "one form", _at_once(one_form)
    for variant in ("with", "without"):
        with nullcontext() if variant == "with" else _without_unique_index():
            yield f"alone, {variant}", _alone(buyers[:ALONE])
            yield f"crowd, {variant}", _at_once(forms)


def main(asked: Row) -> None:
    """Measure `asked["rounds"]` rounds."""
    call_command("migrate", verbosity=0, interactive=False)
    emit("versions", versions=versions())
    User.objects.bulk_create(User(username=f"buyer-{n}") for n in range(asked["buyers"]))
    buyers = list(User.objects.values_list("pk", flat=True))
    for number in range(asked["rounds"] + 1):
        about = {"system": "keys", "step": number + 1, "of": asked["rounds"] + 1}
        emit("progress", **about)
        for line, row in _round(buyers):
            if number:  # the first round is the warm-up
                emit("round", line=line, round=row)


def bench(asked: Row, progress: Progress) -> Row:
    """Return the report of {"rounds"} and optionally {"buyers"}."""
    report, measured = measure("keys", "mariadb", {"buyers": BUYERS, **asked}, progress)
    report["lines"] = [
        {"line": line, "ms": median(one["ms"] for one in done), "rounds": done}
        for line, done in measured.items()
    ]
    report["targets"] = [] if report["missing"] else list(targets(measured))
    return report


def targets(measured: dict[str, list[Row]]) -> Iterator[Row]:
    """Yield each target, and whether the rounds meet it."""

    def counts(line: str, name: str) -> set[int]:
        return {one[name] for one in measured[line]}

    one = counts("one form", "orders") == counts("one form", "answers") == {1}
    yield {"target": f"{SENDS} sends of one form: one order, equal answers", "met": one}
    (sent,) = counts("crowd, with", "sent")
    every = counts("crowd, with", "orders") == counts("crowd, with", "answers") == {sent}
    yield {"target": f"{sent} keys at once: {sent} orders", "met": every}
    for name in ("alone", "crowd"):
        pairs = zip(measured[f"{name}, with"], measured[f"{name}, without"], strict=True)
        added = median(one["ms"] / other["ms"] for one, other in pairs) - 1
        target = f"{name}: the keys add at most {MAX_ADDED:.0%} of the time ({added:+.1%})"
        yield {"target": target, "added": round(added, 4), "met": added <= MAX_ADDED}


def is_sound(report: Row) -> bool:
    """Return True if all was measured, the ledger is consistent and the counts are as required."""
    rounds = [one for row in report["lines"] for one in row["rounds"]]
    met = all(target["met"] for target in report["targets"] if "added" not in target)
    return not report["missing"] and met and not any(one["breaches"] for one in rounds)


def table(report: Row) -> tuple[Sequence[str], Rows]:
    """Return the measurements."""
    rows = [
        [
            row["line"],
            *(str(row["rounds"][-1][name]) for name in ("sent", "answers", "orders")),
            f"{row['ms']:.3f}",
        ]
        for row in report["lines"]
    ]
    return ("keys", "sends", "answers", "orders", "ms a send"), rows
