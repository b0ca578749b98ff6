"""The workload "stock": a shop sells through its own middleware while its stores fail.

Customers send forms with keys, repeat them, cut connections and send again, cancel and pay.
"""

import json
import logging
import random
import threading
import time
import uuid
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import DatabaseError, close_old_connections, connections
from django.http import HttpResponse
from django.test import RequestFactory

from devservers import HOST
from loadtest.kernel.history import Recorder, dump
from loadtest.load.http.buyers import Buyer, sign_in
from loadtest.load.sale import open_sale, remove_sale
from shop.errors import STORE_ERRORS, ShopError
from shop.models import Order, RejectedReservation, Sale, User, digest
from shop.orders.service import cancel_order, pay_order
from shop.purchase.place_order import place_order
from shop.reservations import store
from shop.reservations.consumer import Consumer
from shop.reservations.reconciliation import reconcile
from shop.reservations.reserve import reserve
from shop.sales.purchase_request import PurchaseRequest
from verification.histories.lock_models import SOLD_OUT
from verification.torture.plan import Terms
from verification.torture.workload import THREADS, UNAVAILABLE_PAUSE, Work

CUSTOMERS = 40
"""Buyers of a run; one more asks for a unit at the end."""
MOST_SENDS, CUT_SHARE = 5, 0.3
"""Sends of a form, and the share of those whose connection is cut."""
FILE = "shop.json"
PROBE = "last of {}"
"""The key of the unit that is bought at the end; a sale fills in its name."""
REFUSED = (DatabaseError, ShopError, *STORE_ERRORS)
ERRORS = {"sold_out": SOLD_OUT[0], "limit": "limit"}
REQUESTS = RequestFactory()
UNDECIDED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


def open_sales(folder: Path, names: Sequence[str], terms: Terms) -> None:
    """Open sales with their customers; those of the last run go."""
    for sale in Sale.objects.all():
        remove_sale(sale)
    kind = Sale.Fulfilment.QUEUED if terms.is_queued else Sale.Fulfilment.DIRECT
    options: dict[str, Any] = {"limit_per_customer": terms.limit, "fulfilment": kind}
    sales = {name: open_sale(name, terms.units, product=name, **options).pk for name in names}
    known = sign_in(CUSTOMERS + 1)[:CUSTOMERS]
    buyers = [(one.user.pk, one.cookies, one.session, one.csrf) for one in known]
    (folder / FILE).write_text(json.dumps({"sales": sales, "buyers": buyers}))


def probe(name: str, end: float) -> str:
    """Buy a unit of a sale if one is left, until the monotonic time `end`; return what is wrong."""
    wrong = "no reply"
    while wrong and time.monotonic() < end:
        try:
            wrong = _unsold(name)
        except REFUSED as error:
            wrong = repr(error)
            connections.close_all()
            time.sleep(UNAVAILABLE_PAUSE)
    return wrong


def _unsold(name: str) -> str:
    """Write what is queued, then buy a unit; return what is wrong."""
    sale = Sale.objects.select_related("stock").get(slug=name)
    if sale.is_queued:
        Consumer(threading.Event()).round()
        reconcile(sale=sale)
        sale.refresh_from_db()
        if waiting := store.backlog(sale=sale):
            return f"{waiting} reservations wait"
    if sale.left:
        buyer = User.objects.get(username=f"buyer-{CUSTOMERS}")
        buy = reserve if sale.is_queued else place_order
        buy(PurchaseRequest(buyer.pk, sale, quantity=1, key=PROBE.format(name)))
        if sale.is_queued:
            Consumer(threading.Event()).round()
    return ""


def facts(name: str) -> dict[str, Any]:
    """Return the rows of a sale and the result of its audit."""
    sale = Sale.objects.select_related("stock").get(slug=name)
    rows = dump(sale)
    audit = rows.audit
    breaches = list[str](audit.breaches)
    if audit.reserved or audit.drift:
        breaches.append(f"{audit.reserved} units are reserved in Redis, the drift is {audit.drift}")
    rejected = RejectedReservation.objects.filter(sale=sale).values_list("number", "reason")
    found = {"id": sale.pk, "breaches": breaches, "rejected": dict(rejected)}
    return found | {"stocked": audit.initial, "limit": rows.limit, "orders": rows.orders}


class Shopping(Work):
    """The customers and the consumer of one process; a thread serves one after the other."""

    threads = 2 * THREADS

    def __init__(self, recorder: Recorder, **options: Any) -> None:
        super().__init__(recorder, **options)
        found = json.loads((recorder.folder / FILE).read_text())
        self.sales = {name: Sale(pk=pk, slug=name) for name, pk in found["sales"].items()}
        self.buyers = [Buyer(User(pk=pk), *rest) for pk, *rest in found["buyers"]]
        self.shop = WSGIHandler()
        self.bought: list[dict[str, Any]] = []

    def run(self) -> None:
        """Sell until the end, while a consumer writes the orders of queued sales."""
        settings.BUY_LIMIT = "100000/second"
        logging.disable()  # each 503 would be a line
        stop = threading.Event()
        consumer = threading.Thread(target=self._consume, args=(stop,))
        consumer.start()
        try:
            super().run()
        finally:
            stop.set()
            consumer.join()

    def _consume(self, stop: threading.Event) -> None:
        try:
            Consumer(stop).run()
        except Exception:  # noqa: BLE001 - whichever it is, the consumer has ended
            self.fail()

    def stock(self, rng: random.Random) -> None:
        """Buy, or change an order that was bought before."""
        if self.bought and rng.random() < 0.3:
            form = self.bought.pop(rng.randrange(len(self.bought)))
            self.change(form, rng.choice(("cancel", "cancel", "pay")))
        else:
            self.buy(rng)
        time.sleep(rng.choice((0.0, 0.005, 0.03)))

    def buy(self, rng: random.Random) -> None:
        """Send a form until its answer is final; sometimes cut the connection before."""
        buyer, name = rng.choice(self.buyers), rng.choice(self.names)
        form = {"sale": name, "user": buyer.user.pk, "key": uuid.uuid4().hex}
        form["quantity"] = rng.choice((1, 1, 2))
        cut: list[threading.Thread] = []
        for attempt in range(1, MOST_SENDS + 1):
            form["attempt"] = attempt
            if rng.random() < CUT_SHARE:
                cut.append(threading.Thread(target=self.send_and_cut, args=(buyer, {**form})))
                cut[-1].start()
                cut[-1].join(rng.choice((0.0, 0.01, 0.1)))
            elif self.send(buyer, form, is_cut=False):
                break
            time.sleep(rng.uniform(0.01, 0.1))
        for thread in cut:
            thread.join()

    def send_and_cut(self, buyer: Buyer, form: dict[str, Any]) -> None:
        """Send a form whose answer the customer does not get."""
        try:
            with self.expected_errors():
                self.send(buyer, form, is_cut=True)
        finally:
            connections.close_all()

    def send(self, buyer: Buyer, form: dict[str, Any], *, is_cut: bool) -> bool:
        """Send a form; return True if the answer is final."""
        with self.recorder.operation("buy", is_cut=is_cut, **form) as result:
            response = self.post(buyer, form)
            status, body = response.status_code, json.loads(response.content)
            result |= {"type": "unknown", "status": status}
            if status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
                result |= {"type": "ok", "order": body["url"]}
            elif status == HTTPStatus.CONFLICT and body["error"] in ERRORS:
                result |= {"type": "fail", "error": ERRORS[body["error"]]}
            elif status not in UNDECIDED:
                raise AssertionError(f"the response to {form} is {status} {body}")
        self.counts[f"answers {status}"] += 1
        if result.get("order") and not is_cut:
            self.counts["grants"] += 1
            self.bought.append(form)
        return status not in UNDECIDED

    def post(self, buyer: Buyer, form: dict[str, Any]) -> HttpResponse:
        """Return the shop's response to a form with a purchase token."""
        sale = self.sales[form["sale"]]
        text = buyer.form(sale, key=form["key"], is_first=False, attempt=form["attempt"])
        body = text.replace("quantity=1", f"quantity={form['quantity']}").encode()
        headers = {"accept": "application/json", "cookie": buyer.cookies, "host": HOST}
        kind = "application/x-www-form-urlencoded"
        request = REQUESTS.post(f"/sales/{sale.slug}/buy/", body, kind, headers=headers)
        response = self.shop(request.environ, lambda *_: len)
        response.close()
        assert isinstance(response, HttpResponse)
        return response

    def change(self, form: dict[str, Any], do: str) -> None:
        """Cancel or pay an order that has been acknowledged."""
        asked = {"customer_id": form["user"], "key": digest(form["key"])}
        close_old_connections()
        try:
            order = Order.objects.select_related("sale").filter(**asked).first()
            if order is not None:
                with self.recorder.operation(do, **form):
                    (cancel_order if do == "cancel" else pay_order)(order=order)
                self.counts[do] += 1
        except REFUSED:
            self.counts[f"{do} refused"] += 1
