"""The gate of the purchase: both entry points, direct and queued sales, replays, a lost store."""

from __future__ import annotations

import pytest

from devservers.faults.waiting import until
from locking.testing.calls import within
from shop.models import Order, Sale, User
from tests.shop.making import a_sale
from tests.shop.web.wsgi_browser import Browser, alone, li
from tests.waiting_room.rooms import a_room, open_now
from waiting_room import gate, service
from waiting_room.models import Room
from waiting_room.service import join, place_of

__all__ = ["alone", "li"]
pytestmark = pytest.mark.django_db(transaction=True)

ENTRIES = pytest.mark.parametrize("entry", ["token", "session"])
gate_state = gate.RoomGate().state
BOUND = 30.0
"""Seconds, on a loaded machine, within which a customer must have a response."""


def send(browser: Browser, sale: Sale, entry: str, key: str = "k"):
    form = browser.form(sale, key=key)
    if entry == "session":
        form = {**form, **browser.secret, "purchase_token": ""}
    return browser.json(sale, form)


def admitted(room: Room, customer_id: int) -> None:
    """Join, and wait for the turn."""
    join(sale=room.sale, customer_id=customer_id)
    until(lambda: place_of(sale=room.sale, customer_id=customer_id).admitted, "the turn")


@pytest.mark.parametrize(("entry", "fulfilment"), [("token", "direct"), ("session", "queued")])
def test_purchase_needs_an_admission(li, entry, fulfilment) -> None:
    room = a_room(inlet=6000, fulfilment=fulfilment)
    refused = send(li, room.sale, entry)
    assert (refused.status, refused.body["error"]) == (409, "not_admitted")
    assert refused.body["url"] == f"/sales/{room.sale.slug}/room/"
    page = li.send(room.sale, li.form(room.sale))
    assert (page.status, "not your turn" in page.text) == (409, True)
    assert not Order.objects.exists()
    admitted(room, li.user.pk)
    bought = send(li, room.sale, entry)
    assert bought.status == (202 if fulfilment == "queued" else 201)
    again = send(li, room.sale, entry)
    assert again.body == bought.body, "a replay gets the same response"


@ENTRIES
def test_customer_with_an_order_gets_the_same_response(li, entry) -> None:
    """The room was added after the purchase: only the order shows that it was allowed."""
    sale = a_sale()
    bought = send(li, sale, entry)
    assert bought.status == 201
    Room.objects.create(sale=sale, mode="arrival")
    again = send(li, sale, entry)
    assert (again.status, again.body) == (201, bought.body)
    assert send(Browser(), sale, entry).status == 409


def test_reset_ends_the_turns_that_a_process_remembers(li) -> None:
    """Everyone has to join again; before, such a customer could buy for up to two minutes."""
    room = a_room(inlet=60_000)
    admitted(room, li.user.pk)
    assert gate_state(sale=room.sale, customer_id=li.user.pk).state == "turn"
    service.reset(room=room, reason="Redis was replaced", staff=li.user)
    assert gate_state(sale=room.sale, customer_id=li.user.pk).state == "outside"
    assert send(li, room.sale, "token").body["error"] == "not_admitted"


def test_gate_knows_the_state_of_the_room(li) -> None:
    room = a_room(mode="lottery", inlet=6000, opens_in=60)
    url = f"/sales/{room.sale.slug}/room/"
    assert gate_state(sale=room.sale, customer_id=None) == (url, "outside", 0)
    assert gate_state(sale=room.sale, customer_id=li.user.pk) == (url, "outside", 0)
    join(sale=room.sale, customer_id=li.user.pk)
    assert gate_state(sale=room.sale, customer_id=li.user.pk) == (url, "waiting", 0)
    open_now(room.sale)
    until(lambda: place_of(sale=room.sale, customer_id=li.user.pk).admitted, "the turn")
    second = Browser()
    service.pause(room=room, staff=User.objects.create_superuser("amy"))
    join(sale=room.sale, customer_id=second.user.pk)
    assert gate_state(sale=room.sale, customer_id=second.user.pk) == (url, "waiting", 0)
    assert send(second, room.sale, "token").body["error"] == "not_admitted"
    state = gate_state(sale=room.sale, customer_id=li.user.pk)
    assert (state.url, state.state, 0 < state.lasts < 125) == (url, "turn", True)


@pytest.mark.parametrize(("entry", "fault"), [("token", "kill"), ("session", "pause")])
@pytest.mark.faults(row="R")
def test_room_stays_closed_while_redis_is_down(li, redis, entry, fault) -> None:
    """503 in bounded time; a customer whom this process has seen admitted may still buy."""
    room = a_room(inlet=6000)
    admitted(room, li.user.pk)
    assert gate_state(sale=room.sale, customer_id=li.user.pk).state == "turn"
    getattr(redis, fault)()
    try:
        other = Browser()
        with within(BOUND):
            refused = send(other, room.sale, entry)
        assert (refused.status, refused.body["error"]) == (503, "store_down")
        assert int(refused.headers["Retry-After"]) > 0
        assert gate_state(sale=room.sale, customer_id=other.user.pk).state == "closed"
        bought = send(li, room.sale, entry)
        gate.clear()  # it remembers no admission; the order shows that it was allowed
        again = send(li, room.sale, entry)
        assert (again.status, again.body) == (bought.status, bought.body) == (201, bought.body)
        assert Order.objects.count() == 1
    finally:
        redis.resume() if fault == "pause" else redis.start()
    until(lambda: send(other, room.sale, entry).status == 409, "the room to respond")


@pytest.mark.faults(row="R")
def test_purchases_without_a_gate_ignore_the_room(li, redis, monkeypatch) -> None:
    """The control: without the gate the same request buys."""
    room = a_room()
    redis.kill()
    assert send(li, room.sale, "token").status == 503
    monkeypatch.setattr("shop.purchase.admission.gates", [])
    assert send(li, room.sale, "token").status == 201
