"""The gate between a waiting room and the purchase: `shop.purchase.admission` asks it."""

import time

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from shop.errors import NotAdmitted, NotFound, ServiceUnavailable
from shop.models import Sale
from shop.purchase.admission import GateState
from waiting_room import service
from waiting_room.models import Room

MAX_REMEMBERED = 100_000
"""Turns; then the process asks Redis for them again."""

_turns: dict[tuple[str, int], tuple[float, bool]] = {}
"""By generation of the room and customer: the earliest end (monotonic), and whether Redis knows of
a try to buy."""
clear = _turns.clear


class RoomGate:
    """Lets those customers through who have their turn, or whose sale has no room."""

    def check(self, *, sale: Sale, customer_id: int) -> None:
        """Raise NotAdmitted, or ServiceUnavailable if the place cannot be read."""
        room = service.room_of(sale=sale)
        if room and self._ask(room, sale, customer_id, is_buying=True).state != "turn":
            raise NotAdmitted(url=url_of(sale))

    def state(self, *, sale: Sale, customer_id: int | None) -> GateState | None:
        """Return the customer's state in the room of the sale, None without a room."""
        room = service.room_of(sale=sale)
        if room is None:
            return None
        try:
            return self._ask(room, sale, customer_id) if customer_id else GateState(url_of(sale))
        except ServiceUnavailable:
            return GateState(url_of(sale), "closed")

    def figures(self, *, sale: Sale) -> list[tuple[Promise, object]]:
        """Return the state of the room and its people, for staff."""
        try:
            now = service.status_of(sale=sale)
        except NotFound:  # there is no room, or the product is hidden
            return []
        people = ((_("People admitted"), now.serving), (_("People waiting"), now.waiting))
        return [(_("Waiting room"), service.STATES[now.state]), *people]

    def _ask(
        self, room: Room, sale: Sale, customer_id: int, *, is_buying: bool = False
    ) -> GateState:
        turn = room.generation, customer_id
        until, is_told = _turns.get(turn, (0.0, False))
        seen, url = GateState(url_of(sale), "turn", lasts=until - time.monotonic()), url_of(sale)
        is_known = seen.lasts > 0
        if is_known and (is_told or not is_buying):
            return seen
        try:
            verb = "buy" if is_buying else ""
            place = service.place_of(sale=sale, customer_id=customer_id, verb=verb)
        except ServiceUnavailable:
            if is_known:
                return seen
            raise
        if place is None:
            return GateState(url)
        if not place.admitted:
            return GateState(url, "over" if place.is_over else "waiting")
        if len(_turns) >= MAX_REMEMBERED:
            _turns.clear()
        is_told = is_buying and sale.left > 0
        _turns[turn] = time.monotonic() + place.lasts, is_told
        return GateState(url, "turn", place.lasts)


def url_of(sale: Sale) -> str:
    """Return the path of the room's page."""
    return f"{sale.get_absolute_url()}room/"
