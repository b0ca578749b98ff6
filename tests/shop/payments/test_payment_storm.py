"""Two thousand payments at once, while webhooks go astray and the shop's processes are killed.

In the end, the shop and its payment provider agree on every payment.
"""

import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import requests
from django.db import connections
from django.utils import timezone

from devservers import Server, stop_all
from devservers.faults.waiting import until
from loadtest.load.http.buyers import Buyer, sign_in
from loadtest.resilience.processes import Celery, Web
from shop.administration.audit import audit_sale
from shop.models import Order, Payment, Sale
from shop.payments.service import refund_order
from tests.shop.making import a_sale, put_in_force
from tests.shop.payments.stripe_server import DECLINED, GOOD, ROOT, LocalStripe
from tests.shop.purchases import buy

EACH = 100
"""Orders of a customer."""
CUSTOMERS_AT_ONCE = 12
PATIENCE = 240.0
pytestmark = pytest.mark.django_db(transaction=True)


class Storm:
    """The processes, the customers' behaviour, and what has happened."""

    def __init__(self, web: Web, stripe: LocalStripe) -> None:
        self.web, self.stripe = web, stripe
        self.counts: Counter[str] = Counter()

    def send(self, buyer: Buyer, path: str, form: bool = True) -> requests.Response:
        """Send a request until it is not answered with 429 or 503, or cut off."""
        headers = {"Cookie": buyer.cookies, "Accept": "application/json" if form else "text/html"}
        body = {"csrfmiddlewaretoken": buyer.csrf} if form else None
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                reply = requests.request(
                    "POST" if form else "GET",
                    self.web.url.rstrip("/") + path,
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=20,
                )
                if reply.status_code not in (429, 503):
                    return reply
            except requests.RequestException:
                pass
            assert time.monotonic() < deadline, path
            self.counts["sent again"] += 1
            time.sleep(0.1)

    def pay(self, buyer: Buyer, order: Order) -> None:
        roll = random.Random(order.number).random()
        if roll < 0.15:  # the time to pay ends in a moment
            Order.objects.filter(pk=order.pk).update(pay_by=timezone.now() + timedelta(seconds=4))
        started = self.send(buyer, f"{order.get_absolute_url()}payment/")
        if started.status_code != 201:
            self.counts["not started"] += 1
            return
        page = self.send(buyer, started.json()["url"], form=False)
        if not (found := re.search(r'data-secret="((pi_\w+)_secret_\w+)"', page.text)):
            self.counts["page too late"] += 1
            return
        secret, intent = found.groups()
        if roll < 0.05:
            self.counts["left"] += 1
            return
        if roll < 0.10:
            until(lambda: not Order.objects.get(pk=order.pk).is_payable, seconds=PATIENCE)
        if 0.10 < roll < 0.20:
            self.stripe.pay_intent(intent, secret, DECLINED)
        self.counts[self.stripe.pay_intent(intent, secret, GOOD)] += 1
        if 0.20 < roll < 0.23:
            cancelled = self.send(buyer, f"{order.get_absolute_url()}cancel/")
            self.counts[f"cancel {cancelled.status_code}"] += 1
        elif roll > 0.6:
            self.send(buyer, started.json()["url"], form=False)

    def pay_all(self, buyer: Buyer, orders: list[Order]) -> None:
        try:
            for order in orders:
                self.pay(buyer, order)
        finally:
            connections.close_all()


def place_orders(sale: Sale, buyers: list[Buyer]) -> Iterator[tuple[Buyer, list[Order]]]:
    """Write the orders of each customer, in four parts."""
    for buyer in buyers:
        orders = [buy(sale, customer=buyer.user, key=f"{n}").order for n in range(EACH)]
        yield from ((buyer, orders[at::4]) for at in range(4))


def crash_until(
    done: threading.Event, servers: list[Server], counts: Counter[str], pause: float
) -> None:
    """Kill each server with its children and start it again, at least once."""
    while not done.is_set() or not counts["rounds"]:
        counts["rounds"] += 1
        for server in servers:
            done.wait(pause)
            server.pause()  # or it would start another child, which keeps the port
            children = server.children()
            server.kill()
            for pid in children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            counts[f"{server.name} killed"] += 1
            server.launch()
            server.wait_ready(PATIENCE)


def all_delivered(stripe: LocalStripe) -> bool:
    return not stripe.get("/_config/deliveries").get("waiting")


def settled() -> bool:
    open_ = Payment.objects.filter(status__in=("started", "refunding")).exists()
    return (
        not open_
        and not Order.objects.filter(status="pending", pay_by__lte=timezone.now()).exists()
    )


def disagreements(stripe: LocalStripe) -> Iterator[str]:
    """Yield each payment that is not the same in the shop and at its provider."""
    payments = {one.reference: one for one in Payment.objects.select_related("order")}
    paid: Counter[str] = Counter()
    for intent in stripe.get("/v1/payment_intents", limit=10**6)["data"]:
        charge = intent["latest_charge"] or {"refunds": {"data": []}}
        returned = [one["amount"] for one in charge["refunds"]["data"]]
        payment = payments.pop(intent["metadata"]["reference"], None)
        has_money = intent["status"] == "succeeded"
        if payment is None:  # the web process was killed before it saved the payment
            if has_money:
                yield f"paid, but unknown to the shop: {intent['id']}"
            continue
        paid[payment.order.number] += payment.status == "approved"
        if (has_money, returned) != {
            "approved": (True, []),
            "refunded": (True, [intent["amount"]]),
            "timed_out": (False, []),
        }.get(payment.status):
            yield f"{payment} {payment.status} {payment.order.status} {has_money} {returned}"
    yield from (f"unknown to the provider: {one}" for one in payments)
    for order in Order.objects.all():
        if paid[order.number] != (order.status == "paid"):
            yield f"order {order} is {order.status} with {paid[order.number]} payments"


@pytest.mark.long
def test_shop_and_provider_agree_on_every_payment(database_url, monkeypatch) -> None:
    number = 2_000
    put_in_force("redis")
    sale = a_sale(stock=number, limit=EACH)
    stripe = LocalStripe(config=["--chaos", "7"])
    own = {
        **stripe.settings,
        "DATABASE_URL": database_url,
        "DEBUG": "1",  # static files without collectstatic
        "PAYMENT_TIMEOUT_SECONDS": "30",
        "PYTHONPATH": str(ROOT),
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    web, worker, beat = Web(2), Celery("worker"), Celery("beat")
    storm, done = Storm(web, stripe), threading.Event()
    buyers = sign_in(number // EACH)
    began = time.monotonic()
    with ExitStack() as stack:
        stack.callback(stop_all, [stripe, web, worker, beat])
        stripe.start()
        stripe.send_webhooks_to(f"{web.url}payments/webhook/")
        for part in (web, worker, beat):
            part.launch()
        work = list(place_orders(sale, buyers))
        crashes = threading.Thread(
            target=crash_until, args=(done, [web, worker], storm.counts, number / 200), daemon=True
        )
        crashes.start()
        stack.callback(done.set)
        with ThreadPoolExecutor(CUSTOMERS_AT_ONCE) as pool:
            list(pool.map(lambda one: storm.pay_all(*one), work))
        done.set()
        crashes.join()
        for order in Order.objects.filter(status="paid")[: number // 50]:
            refund_order(order=order)
            storm.counts["refunded by staff"] += 1
        until(settled, seconds=PATIENCE + number / 20)
        seconds = time.monotonic() - began
        until(partial(all_delivered, stripe), seconds=PATIENCE)
        told: dict[str, Any] = stripe.get("/_config/deliveries")
        counts = Counter(Payment.objects.values_list("status", flat=True))
        print(f"\n{number} orders in {seconds:.0f} s: {dict(counts)}\n{dict(storm.counts)}\n{told}")  # noqa: T201
        assert list(disagreements(stripe)) == []
    audit = audit_sale(sale=sale)
    assert audit.ok, audit
    for kind in ("duplicated", "late", "out of order", "lost", "repeated"):
        assert told.get(kind), f"no webhook was {kind}"
    for kind in ("forged", "stale"):
        assert told[kind] == told[f"{kind} 403"] > 0
    assert not any(kind.endswith(("400", "404")) for kind in told)
    assert storm.counts["web killed"] > 0
    assert storm.counts["worker killed"] > 0
    assert min(counts["approved"], counts["refunded"], counts["timed_out"]) > 0
    assert audit.sold == counts["approved"]
