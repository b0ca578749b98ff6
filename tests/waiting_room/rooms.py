"""Rooms for tests."""

from __future__ import annotations

from shop.models import Sale
from tests.shop.making import a_sale, fresh
from waiting_room.models import Room


def a_room(*, mode: str = Room.Mode.ARRIVAL, inlet: int = 60, **sale: float) -> Room:
    """Create a sale with a room, as a request would read it."""
    return Room.objects.create(sale=fresh(a_sale(**sale)), mode=mode, inlet_per_minute=inlet)


def open_now(sale: Sale) -> None:
    """Open the sale as staff do, and make this process read it again."""
    from shop.administration import sale_management
    from shop.purchase import admission

    assert sale_management.open_now(sale=sale)
    sale.refresh_from_db()
    admission.clear()
