"""The gate between a waiting room and the purchase: `shop.purchase.admission` asks it."""

import time

from shop.errors import NotAdmitted, ServiceUnavailable
from shop.models import Sale
from waiting_room import service

MAX_REMEMBERED = 100_000
"""Turns; then the process asks Redis for them again."""

_turns: dict[tuple[int, int], tuple[float, bool]] = {}
"""By sale and customer: the earliest end (monotonic), and whether Redis knows of a try to buy."""


class RoomGate:
    """Lets those customers through who have their turn, or whose sale has no room."""

    def check(self, *, sale: Sale, customer_id: int) -> None:
        """Raise NotAdmitted, or ServiceUnavailable if the place cannot be read."""
        if service.room_of(sale=sale) and not self._has_turn(sale, customer_id, is_buying=True):
            raise NotAdmitted(url=url_of(sale))

    def page(self, *, sale: Sale, customer_id: int | None) -> str | None:
        """Return the URL of the room if the customer has to pass it first, else None."""
        if service.room_of(sale=sale) is None:
            return None
        try:
            has_turn = customer_id is not None and self._has_turn(sale, customer_id)
        except ServiceUnavailable:
            has_turn = False
        return None if has_turn else url_of(sale)

    def _has_turn(self, sale: Sale, customer_id: int, *, is_buying: bool = False) -> bool:
        until, is_told = _turns.get((sale.pk, customer_id), (0.0, False))
        is_known = time.monotonic() < until
        if is_known and (is_told or not is_buying):
            return True
        try:
            place = service.place_of(sale=sale, customer_id=customer_id, is_buying=is_buying)
        except ServiceUnavailable:
            if is_known:
                return True
            raise
        if place is None or not place.admitted:
            return False
        if len(_turns) >= MAX_REMEMBERED:
            _turns.clear()
        is_told = is_buying and sale.left > 0
        _turns[sale.pk, customer_id] = time.monotonic() + place.lasts, is_told
        return True


def url_of(sale: Sale) -> str:
    """Return the path of the room's page."""
    return f"{sale.get_absolute_url()}room/"


def clear() -> None:
    """Drop the turns that this process remembers."""
    _turns.clear()
