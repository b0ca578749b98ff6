"""Places and the state of a room."""

from __future__ import annotations

import pytest

from shop.errors import NotFound, NotOpen
from tests.shop.making import a_customer, a_sale
from tests.waiting_room.rooms import a_room
from waiting_room.service import join, place_of, status_of

pytestmark = pytest.mark.django_db


def test_place_is_kept() -> None:
    sale = a_room(opens_in=60).sale
    first, second = a_customer().pk, a_customer().pk
    assert place_of(sale=sale, customer_id=first) is None
    place = join(sale=sale, customer_id=first)
    assert join(sale=sale, customer_id=second).position == 2
    assert join(sale=sale, customer_id=first) == place == place_of(sale=sale, customer_id=first)
    assert (place.position, place.admitted, len(place.ticket)) == (1, False, 16)
    status = status_of(sale=sale)
    assert (status.state, status.joined, status.serving) == ("before", 2, 0)


def test_sale_without_a_room_has_no_places() -> None:
    for sale in (a_sale(), a_room(mode="none").sale):
        with pytest.raises(NotFound):
            join(sale=sale, customer_id=1)
        with pytest.raises(NotFound):
            status_of(sale=sale)


def test_ended_sale_gives_no_places() -> None:
    sale = a_room(opens_in=-60, lasts=30).sale
    with pytest.raises(NotOpen):
        join(sale=sale, customer_id=1)
    assert status_of(sale=sale).state == "ended"
