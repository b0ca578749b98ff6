"""The gate between a waiting room and the purchase: `shop.purchase.admission` asks it."""

from shop.errors import NotAdmitted, ServiceUnavailable
from shop.models import Sale
from waiting_room import service

MAX_REMEMBERED = 100_000
"""Customers of one sale; then the process asks Redis for them again."""

_admitted: dict[int, set[int]] = {}
"""By sale: customers whom this process has seen admitted. An admission is never revoked."""


class RoomGate:
    """Lets those customers through who are admitted, or whose sale has no room."""

    def check(self, *, sale: Sale, customer_id: int) -> None:
        """Raise NotAdmitted, or ServiceUnavailable if the place cannot be read."""
        if service.room_of(sale=sale) is None or self._is_admitted(sale, customer_id):
            return
        raise NotAdmitted(url=url_of(sale))

    def page(self, *, sale: Sale, customer_id: int | None) -> str | None:
        """Return the URL of the room if the customer has to pass it first, else None."""
        if service.room_of(sale=sale) is None:
            return None
        try:
            is_admitted = customer_id is not None and self._is_admitted(sale, customer_id)
        except ServiceUnavailable:
            is_admitted = False
        return None if is_admitted else url_of(sale)

    def _is_admitted(self, sale: Sale, customer_id: int) -> bool:
        known = _admitted.setdefault(sale.pk, set())
        if customer_id in known:
            return True
        place = service.place_of(sale=sale, customer_id=customer_id)
        if place is None or not place.admitted:
            return False
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        known.add(customer_id)
        return True


def url_of(sale: Sale) -> str:
    """Return the path of the room's page."""
    return f"{sale.get_absolute_url()}room/"


def clear() -> None:
    """Drop the admissions that this process remembers."""
    _admitted.clear()
