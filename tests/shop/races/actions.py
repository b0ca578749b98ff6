"""The calls that a process of a race can make; each returns its outcome."""

import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar
from unittest.mock import patch
from urllib.parse import urlencode

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.test import Client

from inventory.models import Stock
from locking.failpoints import reach
from shop.administration.sale_management import restock_sale
from shop.errors import LimitReached, Overloaded
from shop.mail import service as mail
from shop.models import Order, Sale, User
from shop.orders import service as orders
from shop.purchase.place_order import place_order
from shop.reservations import consumer
from shop.reservations.reserve import reserve as reserve_units
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import fresh
from waiting_room import lottery
from waiting_room.models import Room

T = TypeVar("T")
RETRY_SECONDS = 20.0
proceed = threading.Event()
"""Set by the parent; the worker replaces it by the event of its batch."""


def retried(call: Callable[[], T]) -> T:
    """Call again while the shop is overloaded, for some seconds."""
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        try:
            return call()
        except Overloaded:
            if time.monotonic() > deadline:
                raise


def buy(*, sale: int, customer: int, key: str) -> dict[str, Any]:
    """Send one form, again while the shop is overloaded."""
    row = Sale(pk=sale)
    placed = retried(lambda: place_order(PurchaseRequest(customer, fresh(row), 1, key)))
    return {"order": placed.order.number, "replayed": placed.replayed}


def reserve(*, sale: int, customer: int, key: str) -> dict[str, Any]:
    """Send one form for a queued sale."""
    queued = reserve_units(PurchaseRequest(customer, Sale.objects.get(pk=sale), 1, key))
    return {"ticket": queued.url, "replayed": queued.replayed}


def reserve_all(*, sale: int, forms: list[tuple[int, str]]) -> dict[str, Any]:
    """Send all forms until each is decided, and once more until stopped."""
    row, numbers, refused = fresh(Sale(pk=sale)), set[str](), 0
    waiting = deque(forms)
    while waiting or not proceed.is_set():
        waiting = waiting or deque(forms)
        customer, key = form = waiting.popleft()
        try:
            numbers.add(reserve_units(PurchaseRequest(customer, row, 1, key)).number)
        except LimitReached:
            pass
        except Overloaded:
            refused += 1
            waiting.append(form)
            time.sleep(0.01)
    return {"numbers": sorted(numbers), "refused": refused}


def consume() -> dict[str, Any]:
    """Write orders until stopped."""
    with patch.object(consumer, "REFRESH_INTERVAL", 0.1):
        consumer.Consumer(proceed).run()
    return {"ok": "told"}


def buy_until_told(*, sale: int) -> dict[str, Any]:
    """Buy as one patient new customer after the other; return how many succeeded."""
    bought = 0
    while not proceed.is_set():
        customer = User.objects.create(username=secrets.token_hex(8))
        buy(sale=sale, customer=customer.pk, key="k")
        bought += 1
    return {"bought": bought}


def pay(*, order: str) -> dict[str, Any]:
    """Pay like the pay button."""
    orders.pay_order(order=Order.objects.get(number=order))
    return {"ok": "paid"}


def cancel(*, order: str) -> dict[str, Any]:
    """Cancel like the cancel button, again while the shop is overloaded."""
    retried(lambda: orders.cancel_order(order=Order.objects.get(number=order)))
    return {"ok": "cancelled"}


def restock(*, sale: int, quantity: int) -> dict[str, Any]:
    """Restock like the admin."""
    restock_sale(sale=fresh(Sale(pk=sale)), quantity=quantity)
    return {"ok": "restocked"}


def expire() -> dict[str, Any]:
    """Expire orders like the scheduled task."""
    return {"ok": orders.expire_unpaid_orders()}


def send(*, path: str, session: str, form: dict[str, Any], patient: bool = True) -> dict[str, Any]:
    """Send a form of a signed-in browser; a patient one repeats it as the page's script does."""
    client = Client(headers={"host": "127.0.0.1", "accept": "application/json"})
    client.cookies[settings.SESSION_COOKIE_NAME] = session
    deadline = time.monotonic() + RETRY_SECONDS
    while True:
        told = client.post(path, urlencode(form), content_type="application/x-www-form-urlencoded")
        if not (patient and told.has_header("Retry-After")) or time.monotonic() > deadline:
            headers = dict(told.items())
            for of_this_time in ("Expires", "X-Request-ID"):
                headers.pop(of_this_time, None)
            return {"status": told.status_code, "headers": headers, "body": told.content.decode()}
        if "attempt" in form:
            form["attempt"] += 1
        time.sleep(int(told["Retry-After"]) * random.uniform(0.75, 1.25))


def send_mail() -> dict[str, Any]:
    """Send what is due, like the scheduled task."""
    return {"sent": mail.send_mail()}


def sit_on_the_row(*, sale: int) -> dict[str, Any]:
    """Stop inside a transaction that has locked the stock row."""
    with transaction.atomic():
        Stock.objects.filter(sale=sale).update(quantity=F("quantity"))
        reach("row.held")
    return {"ok": "gone"}


def draw(*, room: int, cutoff: int) -> dict[str, Any]:
    """Draw the lottery of a waiting room."""
    return {"drawn": lottery.draw(room=Room.objects.get(pk=room), cutoff=cutoff)}
