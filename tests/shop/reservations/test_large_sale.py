"""A queued sale with many customers: no command delays the other clients of Redis for long."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from locking.backends.redis.connection import Connection
from shop.models import CustomerQuota, Order, Sale, User
from shop.reservations import store
from shop.reservations.reconciliation import load, reconcile
from tests.shop.queued import a_queued_sale, consume, keys_of, redis_command, told

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

CHUNK = 50
CUSTOMERS = 600
"""Redis reads a smaller hash as a whole."""
BACKLOG = 300


@pytest.fixture
def large_sale(monkeypatch) -> Sale:
    """A sale with that many written orders."""
    monkeypatch.setattr(store, "CHUNK", CHUNK)
    sale, now = a_queued_sale(stock=2 * BACKLOG), timezone.now()
    sold = {"sale": sale, "quantity": 1, "unit_price": Decimal(9), "status": "paid", "pay_by": now}
    buyers = User.objects.bulk_create(User(username=f"u{number}") for number in range(CUSTOMERS))
    Order.objects.bulk_create(Order(customer=one, key=one.username, **sold) for one in buyers)
    CustomerQuota.objects.bulk_create(
        CustomerQuota(customer=one, sale=sale, taken=1) for one in buyers
    )
    return sale


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Return the numbers of items that each command has sent and received."""
    seen: list[int] = []

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(wire: Connection, *sent: object) -> Any:
            reply = real(wire, *sent)
            parts = [*sent, *(reply if isinstance(reply, list | dict) else [])]
            seen.append(sum(len(one) if isinstance(one, list) else 1 for one in parts))
            return reply

        return call

    for name in ("command", "run"):
        monkeypatch.setattr(Connection, name, counting(getattr(Connection, name)))
    return seen


def test_no_command_has_more_items_than_a_chunk(large_sale, sizes) -> None:
    most = 6 * CHUNK  # five values of an entry, and some more
    load(sale=large_sale)
    assert told(large_sale, BACKLOG) == {"queued": BACKLOG}
    reconcile(sale=large_sale, thoroughly=True)
    assert consume() == BACKLOG
    assert max(sizes) < most
    redis_command("HGETALL", keys_of(large_sale).outcomes)
    assert sizes[-1] > most, "the control"
