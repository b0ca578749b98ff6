"""Queued sales for tests: reservations, and a short-lived consumer."""

import threading
from collections import Counter
from typing import Any

from django.conf import settings

from shop.administration.audit import audit_sale
from shop.errors import ShopError
from shop.models import Sale, User
from shop.platform import redis
from shop.reservations import consumer, store
from shop.reservations.reconciliation import reconcile
from shop.reservations.reserve import Queued, reservation_status, reserve
from shop.sales.purchase_request import PurchaseRequest
from tests.shop.making import a_customer, a_sale, fresh


def redis_command(*command: object) -> Any:
    """Send a command on the connection of the reservation store."""
    return redis.command(*command, at=redis.Address(settings.QUEUE_REDIS_URL, ""))


def keys_of(sale: Sale) -> store.Keys:
    """Return the sale's current keys."""
    return store.keys_of(fresh(sale))


def a_queued_sale(**what: float) -> Sale:
    """Create a queued sale, as a request would read it."""
    return fresh(a_sale(fulfilment=Sale.Fulfilment.QUEUED, **what))


def ask(sale: Sale, customer: User | None = None, quantity: int = 1, key: str = "k") -> Queued:
    """Reserve units, by default as a new customer."""
    customer_id = (customer or a_customer()).pk
    return reserve(PurchaseRequest(customer_id, fresh(sale), quantity, key))


def told(sale: Sale, times: int, **what: object) -> Counter[str]:
    """Count the outcomes of this many new customers."""
    answers: Counter[str] = Counter()
    for _ in range(times):
        try:
            ask(sale, **what)
            answers["queued"] += 1
        except ShopError as error:
            answers[type(error).__name__] += 1
    return answers


def status(queued: Queued) -> str:
    """Return the current status of a reservation."""
    customer, token = queued.customer_id, queued.url.split("/")[2]
    return reservation_status(customer_id=customer, token=token).status


def consume() -> int:
    """Write all entries with a new consumer; return their number."""
    one = consumer.Consumer(threading.Event())
    count = one.round()
    while more := one.round():
        count += more
    return count


def assert_sound(sale: Sale, *, held: int, left: int) -> None:
    """Expect a consistent sale, in agreement with Redis."""
    audit = audit_sale(sale=fresh(sale))
    assert audit.ok, audit.breaches
    assert (audit.held, audit.reserved, audit.drift) == (held, 0, 0)
    assert store.left(sale=fresh(sale)) == left
    assert not reconcile(sale=fresh(sale), thoroughly=True)
