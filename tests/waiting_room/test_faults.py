"""Redis killed while people wait, and Redis that comes back empty."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count

import pytest
from django.db import connections

from devservers import Redis
from devservers.faults.waiting import until
from shop.errors import ServiceUnavailable
from shop.models import User
from shop.platform.redis import command
from tests.waiting_room.rooms import a_room
from waiting_room import service, store
from waiting_room.service import join, place_of, record_of, reset, status_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.mark.faults(row="R")
def test_no_acknowledged_place_is_lost_when_redis_is_killed(redis) -> None:
    room, numbers, acknowledged = a_room(opens_in=3600), count(1), {}

    def join_until_refused(_: int) -> None:
        with suppress(ServiceUnavailable):
            for customer in numbers:
                place = join(sale=room.sale, customer_id=customer)
                acknowledged[customer] = place.position
        connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        joining = pool.map(join_until_refused, range(4))
        until(lambda: len(acknowledged) >= 100, "places")
        redis.kill()
        list(joining)
    assert len({*acknowledged.values()}) == len(acknowledged)
    redis.start()
    until(lambda: status_of(sale=room.sale).state == "before", "Redis")
    for customer, position in acknowledged.items():
        assert place_of(sale=room.sale, customer_id=customer).position == position
    seen = status_of(sale=room.sale).joined
    assert len(acknowledged) <= seen <= len(acknowledged) + 4, "at most a reply per thread is lost"
    assert join(sale=room.sale, customer_id=10**6).position == seen + 1


@pytest.mark.faults(row="R")
def test_admitted_customers_stay_admitted_when_redis_is_killed(redis) -> None:
    room = a_room(inlet=6000)
    for customer in range(1, 11):
        join(sale=room.sale, customer_id=customer)
    until(lambda: status_of(sale=room.sale).serving >= 5, "five admissions")
    served = status_of(sale=room.sale).serving
    redis.kill()
    with pytest.raises(ServiceUnavailable):
        place_of(sale=room.sale, customer_id=1)
    redis.start()
    assert place_of(sale=room.sale, customer_id=served).admitted
    until(lambda: status_of(sale=room.sale).serving == 10, "all admissions")


@pytest.mark.parametrize("mode", ["arrival", "lottery"])
@pytest.mark.faults(row="R")
def test_room_without_its_data_stays_closed_until_the_reset(settings, mode) -> None:
    staff = User.objects.create_superuser("amy")
    room = a_room(mode=mode, opens_in=3600)
    with Redis() as redis:
        settings.REDIS_URL = redis.url
        first = join(sale=room.sale, customer_id=1)
        redis.kill()  # without an append-only file
        redis.start()
        for _ in range(2):
            service.clear()
            with pytest.raises(ServiceUnavailable):
                join(sale=room.sale, customer_id=2)
            assert status_of(sale=room.sale).state == "unavailable"
        with pytest.raises(ServiceUnavailable):
            record_of(room=service.room_of(sale=room.sale))
        reset(room=room, reason="Redis was lost", staff=staff)
        again = join(sale=room.sale, customer_id=2)
        assert again.position == first.position == (1 if mode == "arrival" else None)


@pytest.mark.faults(row="R")
def test_positions_repeat_if_a_lost_room_is_created_again(settings, monkeypatch) -> None:
    """The control: a process that takes the lost room for a new one gives position 1 twice."""
    room = a_room()
    with Redis() as redis:
        settings.REDIS_URL = redis.url
        first = join(sale=room.sale, customer_id=1)
        redis.kill()
        redis.start()
        store.create(room=room)
        assert join(sale=room.sale, customer_id=2).position == first.position == 1


def test_process_with_a_stale_row_does_not_create_a_lost_room_again() -> None:
    room = a_room(opens_in=3600)
    assert room.opened_at is None
    join(sale=room.sale, customer_id=1)
    command("UNLINK", *store.keys_of(room))
    service.open_room(room=room)  # as a process does that read the row before the first place
    with pytest.raises(ServiceUnavailable):
        join(sale=room.sale, customer_id=2)
