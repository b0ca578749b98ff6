"""Rooms for tests."""

from __future__ import annotations

import time
from datetime import timedelta

from django.utils import timezone

from inventory.models import Stock
from shop.administration import sale_management
from shop.models import Sale
from shop.platform.redis import command
from shop.purchase import admission
from tests.shop.making import a_sale, fresh
from waiting_room import service, store
from waiting_room.models import Room
from waiting_room.store import Snapshot


def a_room(*, mode: str = Room.Mode.ARRIVAL, inlet: int = 60, **sale: float) -> Room:
    """Create a sale with a room, as a request would read it."""
    return Room.objects.create(sale=fresh(a_sale(**sale)), mode=mode, inlet_per_minute=inlet)


class StoredRoom:
    """A room in Redis alone, for tests of the store."""

    def __init__(self, *, opens_in: float = -60, lasts: float = 3600, **fields: object) -> None:
        opens_at = timezone.now() + timedelta(seconds=opens_in)
        stock = Stock(quantity=100)
        self.sale = Sale(
            pk=time.time_ns(), opens_at=opens_at, closes_at=opens_at + timedelta(seconds=lasts)
        )
        self.sale.stock = stock
        self.room = Room(sale=self.sale, **{"mode": "arrival", "inlet_per_minute": 60, **fields})
        store.create(room=self.room)

    def visit(self, customer: int | None = None, verb: str = "") -> Snapshot:
        seen = store.visit(room=self.room, sale=self.sale, customer_id=customer, verb=verb)
        assert seen is not None
        return seen

    def join(self, customer: int) -> Snapshot:
        return self.visit(customer, "join")

    def fill(self, people: int) -> None:
        """Give customers 1, 2, ... the place of the same number, in an instant."""
        state, places = store.keys_of(self.room)[:2]
        for start in range(1, people + 1, 1000):
            numbers = range(start, min(start + 1000, people + 1))
            command("HSET", places, *(part for one in numbers for part in (one, one)))
        command("HSET", state, "joined", people)

    def open_now(self) -> None:
        """Move the opening to the past: each call passes it to the store."""
        self.sale.opens_at = timezone.now() - timedelta(seconds=1)


def open_now(sale: Sale) -> None:
    """Open the sale as staff do, and make this process read it again."""
    assert sale_management.open_now(sale=sale)
    sale.refresh_from_db()
    admission.clear()
    service.clear()
