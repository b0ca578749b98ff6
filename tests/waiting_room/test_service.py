"""Places, the state of a room, and the controls of staff."""

from __future__ import annotations

from functools import partial

import pytest
from django.contrib.admin.models import LogEntry

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Product, Stock
from shop.errors import BadInput, ServiceUnavailable
from shop.models import User
from shop.purchase import admission
from tests.shop.making import a_customer
from tests.waiting_room.rooms import a_room, open_now
from waiting_room import service, store, tasks
from waiting_room.models import Room
from waiting_room.service import join, pause, place_of, reset, resume, set_inlet

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("impatient")]


@pytest.fixture
def staff() -> User:
    return User.objects.create_superuser("amy")


def status(room: Room) -> service.RoomStatus:
    return service.status_of(sale=room.sale)


def test_people_are_admitted_although_no_one_looks() -> None:
    """The room of a hidden product, which comes first, delays no other."""
    hidden, room = (a_room(opens_in=600, inlet=600) for _ in range(2))
    people = [1, 2, 3]
    for customer in people:
        join(sale=room.sale, customer_id=customer)
    for one in (hidden, room):
        open_now(one.sale)
    Product.objects.filter(pk=hidden.sale.product_id).update(is_listed=False)
    admission.clear()
    room.refresh_from_db()
    assert store.having_turn(room=room, of=people) == []
    tasks.admit()
    until(lambda: tasks.admit() or store.having_turn(room=room, of=people) == people, "their turns")


def test_simulated_customers_fill_the_room_of_the_demo() -> None:
    room = a_room(opens_in=600, inlet=60_000)
    tasks.fill(room.sale.slug, 3)
    tasks.fill(room.sale.slug, 3)
    assert status(room).waiting == 3
    open_now(room.sale)
    until(lambda: status(room).waiting == 0, "their turns")
    tasks.fill(room.sale.slug, 3)
    assert status(room).joined == 6
    tasks.fill("missing", 3)


def test_status_follows_the_stock() -> None:
    room = a_room(stock=1)
    assert (status(room).state, status(room).left) == ("open", 1)
    Stock.objects.update(quantity=0)
    assert status(room).state == "sold_out"
    Stock.objects.update(quantity=1)
    assert status(room).state == "open"
    for customer in (1, 2):
        join(sale=room.sale, customer_id=customer)
    seen = until(lambda: (now := status(room)).state == "offered" and now, "the turn of the first")
    assert (seen.left, seen.serving) == (1, 1)


def test_people_who_wait_poll_less_often(settings) -> None:
    settings.WAITING_ROOM_POLLS_PER_SECOND = 2
    room = a_room(opens_in=60)
    for customer in range(5):
        join(sale=room.sale, customer_id=customer)
    assert status(room).poll == 3


def test_pause_and_resume(staff) -> None:
    room = a_room(inlet=6000)
    pause(room=room, staff=staff)
    join(sale=room.sale, customer_id=1)
    seen = status(room)
    assert (seen.state, seen.reason, seen.serving) == ("paused", "paused", 0)
    assert seen.changed > 0
    resume(room=room, staff=staff)
    until(lambda: status(room).serving == 1, "admission")
    assert (status(room).state, status(room).reason) == ("open", "paused")
    assert place_of(sale=room.sale, customer_id=1).admitted
    pause(room=room, staff=staff)
    assert place_of(sale=room.sale, customer_id=1).admitted
    assert LogEntry.objects.filter(user=staff, object_id=room.pk).count() == 3


def test_only_a_lower_inlet_has_a_reason(staff) -> None:
    room = a_room(inlet=60)
    set_inlet(room=room, per_minute=90, staff=staff)
    assert (status(room).inlet, status(room).reason) == (90, "")
    set_inlet(room=room, per_minute=30, staff=staff)
    seen = status(room)
    assert (seen.inlet, seen.reason, seen.changed > 0) == (30, "slowed", True)
    with pytest.raises(BadInput):
        set_inlet(room=room, per_minute=1_000_001, staff=staff)
    assert (Room.objects.get().inlet_per_minute, status(room).inlet) == (30, 30)
    assert LogEntry.objects.count() == 2


def test_control_of_an_unavailable_store_changes_nothing(staff, settings) -> None:
    room = a_room()
    with Redis() as redis:
        settings.REDIS_URL = redis.url
        status(room)
    for change in (pause, partial(reset, reason="lost")):
        with pytest.raises(ServiceUnavailable):
            change(room=room, staff=staff)
    assert not Room.objects.get().is_paused
    assert Room.objects.get().generation == room.generation
    assert not LogEntry.objects.exists()
    assert status(room).state == "unavailable"


def test_reset_by_another_process_is_not_taken_for_a_loss(caplog) -> None:
    room = a_room(opens_in=-1)
    join(sale=room.sale, customer_id=a_customer().pk)
    assert status(room).joined == 1  # now this process knows the generation
    known = service.open_room(room=room)
    store.delete(room=room)
    # As a reset does, but without the signal, which another process does not get.
    new = {"generation": "another", "opened_at": None, "seed": "a" * 64, "earlier": [{}]}
    Room.objects.filter(pk=room.pk).update(**new)
    seen = status(room)
    assert (seen.state, seen.joined, seen.generation) == ("open", 0, "another")
    record = service.record_of(room=known)
    assert (record["commitment"], record["earlier"]) == (Room.objects.get().commitment, [{}])
    assert "Redis lost its places" not in caplog.text


def test_reset_starts_again_with_a_new_seed_and_is_public(staff) -> None:
    room = a_room(opens_in=60)
    join(sale=room.sale, customer_id=1)
    join(sale=room.sale, customer_id=2)
    first = reset(room=room, reason="Redis was lost", staff=staff)
    assert first.commitment != room.commitment
    assert place_of(sale=room.sale, customer_id=2) is None
    assert join(sale=room.sale, customer_id=2).position == 1
    second = reset(room=room, reason="once more", staff=staff)
    record = service.record_of(room=second)
    assert (record["seed"], record["commitment"]) == (None, second.commitment)
    dropped = [(one["commitment"], one["seed"], one["reason"]) for one in record["earlier"]]
    assert dropped == [
        (room.commitment, room.seed, "Redis was lost"),
        (first.commitment, first.seed, "once more"),
    ]
