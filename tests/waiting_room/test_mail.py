"""The message about a customer's turn: to those who asked for it, while the turn lasts."""

from collections.abc import Callable

import pytest
from django.core import mail
from django.utils import timezone

from devservers.faults.waiting import until
from shop.mail.models import Message
from shop.mail.service import remind, send_mail
from shop.models import Product, User
from shop.purchase import admission
from tests.shop.making import signed_in
from tests.waiting_room.rooms import a_room, open_now
from waiting_room import lottery, service, store
from waiting_room.models import Room

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("impatient")]


def a_person(number: int) -> User:
    return User.objects.create(username=f"p{number}", email=f"p{number}@example.com")


def told() -> list[str]:
    return [message.to[0].partition("@")[0] for message in mail.outbox]


@pytest.mark.parametrize("mode", ["arrival", "lottery"])
def test_turn_leads_to_one_message(mode: str, monkeypatch, settings) -> None:
    """Four people, turns for two of them: of these, the one who asked for it gets a message."""
    settings.WAITING_ROOM_TURN_SECONDS = 90
    room = a_room(mode=mode, inlet=60_000, opens_in=600, stock=1)
    people = [a_person(number) for number in range(4)]
    for person in people:
        service.join(sale=room.sale, customer_id=person.pk)
    assert send_mail() == 0, "no turn has begun"
    open_now(room.sale)
    monkeypatch.setattr(lottery, "start", lottery.draw)

    def admitted() -> list[User]:
        service.status_of(sale=room.sale)
        places = [service.place_of(sale=room.sale, customer_id=one.pk) for one in people]
        return [one for one, place in zip(people, places, strict=True) if place.admitted]

    until(lambda: len(admitted()) == 2, "two turns")
    turns = admitted()
    others = [person.pk for person in people if person not in turns]
    ids = [person.pk for person in people]
    assert sorted(store.having_turn(room=Room.objects.get(), of=ids)) == sorted(
        person.pk for person in turns
    )
    for customer in [turns[0], *User.objects.filter(pk__in=others)]:
        response = signed_in(customer).post(f"/sales/{room.sale.slug}/room/remind/")
        assert response["Location"] == f"/sales/{room.sale.slug}/room/"
    waits = "We'll email you when it's your turn."
    pages = [signed_in(one).get(f"/sales/{room.sale.slug}/room/").text for one in people]
    assert sum(waits in page and "Email me" not in page for page in pages) == len(others)
    assert [send_mail(), send_mail()] == [1, 0]
    assert told() == [turns[0].username]
    assert f"/sales/{room.sale.slug}/" in mail.outbox[0].body
    assert "A turn lasts at least 1.5 min." in mail.outbox[0].body


def test_message_to_a_customer_without_a_turn_is_deleted() -> None:
    """One unit has two turns: the third person has none, and the fourth no place."""
    room, people = a_room(inlet=60_000, stock=1), [a_person(number) for number in range(1, 5)]
    for person in people[:3]:
        service.join(sale=room.sale, customer_id=person.pk)
    for person in (people[0], *people[2:]):
        remind(sale=room.sale, customer=person)
    for person in people[2:]:
        Message.objects.create(kind="turn", about=room.sale_id, customer=person)
    assert send_mail() == 1
    assert told() == ["p1"]
    assert Message.objects.get().customer == people[0]


@pytest.mark.parametrize("state", Message.State)
def test_every_request_leads_to_a_message(state: str) -> None:
    """Also after an earlier turn; a message that may be on its way is not sent twice."""
    room, person = a_room(inlet=60_000, stock=1, opens_in=600), a_person(1)
    service.join(sale=room.sale, customer_id=person.pk)
    remind(sale=room.sale, customer=person)
    Message.objects.create(kind="turn", about=room.sale_id, customer=person, state=state)
    page = signed_in(person).get(f"/sales/{room.sale.slug}/room/").text
    was_told = state in (Message.State.SENT, Message.State.FAILED)
    assert ("Email me" in page) == was_told
    assert ("We'll email you when it's your turn." in page) != was_told
    remind(sale=room.sale, customer=person)
    open_now(room.sale)
    assert Message.objects.filter(kind="opening").delete()[0] == 1
    until(lambda: service.place_of(sale=room.sale, customer_id=person.pk).admitted, "the turn")
    assert [send_mail(), send_mail()] == [0 if state == Message.State.SENDING else 1, 0]


def lose(room: Room) -> None:
    store.delete(room=room)


def unlist(room: Room) -> None:
    Product.objects.filter(pk=room.sale.product_id).update(is_listed=False)


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "due"])
@pytest.mark.parametrize("fault", [lose, unlist])
def test_unavailable_room_delays_no_other_message(fault: Callable, is_written: bool) -> None:
    people = [a_person(number) for number in range(2)]
    rooms = [a_room(inlet=60_000, stock=1) for _ in people]
    for room, person in zip(rooms, people, strict=True):
        service.join(sale=room.sale, customer_id=person.pk)
        remind(sale=room.sale, customer=person)
    if is_written:
        Message.objects.create(kind="turn", about=rooms[0].sale_id, customer=people[0])
    fault(Room.objects.get(pk=rooms[0].pk))
    admission.clear()
    assert send_mail() == 1
    assert told() == ["p1"]
    waiting = Message.objects.filter(state=Message.State.WAITING, due_at__gt=timezone.now())
    assert waiting.count() == is_written
