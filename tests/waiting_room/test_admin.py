"""Waiting rooms in the admin: created, paused, changed, reset, and what staff see of them."""

from __future__ import annotations

import re
from unittest.mock import Mock

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from inventory.models import Product
from shop.errors import ServiceUnavailable
from shop.models import User
from shop.purchase import admission
from tests.shop.admin_pages import fields_of, messages
from tests.shop.making import a_customer, a_sale, signed_in, staff_with
from tests.waiting_room.rooms import a_room
from waiting_room import service, store
from waiting_room.models import Room

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]
LIST = "/admin/waiting_room/room/"
CHINESE = {"accept-language": "zh-hans"}


def act(client: Client, action: str, *rooms: Room, **form: object):
    chosen = [room.pk for room in rooms]
    return client.post(LIST, {"action": action, "_selected_action": chosen, **form}, follow=True)


def test_room_is_created_for_a_sale_that_has_not_ended(amy: Client) -> None:
    sale, ended, taken = a_sale(opens_in=60), a_sale(opens_in=-60, lasts=30), a_room().sale
    page = amy.get(f"{LIST}add/").content.decode()
    assert f'value="{sale.pk}"' in page
    assert not any(f'<option value="{other.pk}"' in page for other in (ended, taken))
    assert "If fewer people arrive per minute, no one waits." in page
    amy.post(f"{LIST}add/", {"sale": sale.pk, "mode": "lottery", "inlet_per_minute": 50})
    room = Room.objects.get(sale=sale)
    assert (room.mode, room.inlet_per_minute) == ("lottery", 50)
    assert service.status_of(sale=sale).state == "before"


def test_list_and_page_show_who_waits(amy: Client) -> None:
    room = a_room(opens_in=60, inlet=6)
    for _ in range(3):
        service.join(sale=room.sale, customer_id=a_customer().pk)
    page = amy.get(LIST).content.decode()
    assert "3 / 0 / 3" in page
    assert "before the opening" in page
    page = " ".join(amy.get(f"{LIST}{room.pk}/change/").text.split())
    for name, value in (("state", "before the opening"), ("people", "3 / 0 / 3")):
        assert re.search(f'field-{name}">.*?<div class="readonly">{value}</div>', page)
    assert re.search('People admitted per minute:</label> <div class="readonly">6</div>', page)
    assert amy.post(f"{LIST}{room.pk}/delete/", {"post": "yes"}).status_code == 403


def test_older_page_of_a_room_keeps_what_another_page_saved(amy: Client) -> None:
    room = a_room(opens_in=60)
    page = f"{LIST}{room.pk}/change/"
    older = fields_of(amy.get(page))
    amy.post(page, {**older, "mode": "lottery"})
    amy.post(page, {**older, "message": "Soon"})
    room.refresh_from_db()
    assert (room.mode, room.message) == ("lottery", "Soon")


def test_each_change_is_made_and_recorded_in_the_language_of_its_reader(amy: Client) -> None:
    room, other = a_room(opens_in=-1, inlet=6), a_room(opens_in=-1)

    def states() -> list[str]:
        service.clear()
        return [service.status_of(sale=one.sale).state for one in (room, other)]

    path = f"{LIST}{room.pk}/change/"
    for change, state, said in (
        ({"action": "pause"}, "paused", "已暂停。"),
        ({"action": "set_inlet", "per_minute": 12}, "paused", "每分钟放行人数：6 → 12。"),
        ({"action": "resume"}, "open", "已恢复放行。"),
    ):
        page = amy.get(path)
        assert f'name="action" value="{change["action"]}"' in page.text
        done = amy.post(LIST, {**fields_of(page), **change}, headers=CHINESE)
        assert (done["Location"], states()) == (path, [state, "open"])
        assert f"{room.sale.product.title} ({room.sale.slug})：{said}" in messages(done)
    sent = {"mode": "lottery", "message": "Soon", "message_zh": "马上"}
    assert amy.post(f"{LIST}{room.pk}/change/", sent).status_code == 302
    service.clear()
    status = service.status_of(sale=room.sale)
    assert (status.message, status.message_zh) == ("Soon", "马上")
    assert LogEntry.objects.count() == 4, "one for each change"
    path = f"{LIST}{room.pk}/history/"
    for page, sentences in (
        (
            amy.get(path, headers=CHINESE).text,
            ("已暂停。", "每分钟放行人数：6 → 12。", "先到先得 → ", "公告：– → Soon"),
        ),
        (amy.get(path).text, ("Paused.", "People admitted per minute: 6 → 12.", "Resumed.")),
    ):
        assert all(sentence in page for sentence in sentences)


def test_page_of_a_sale_shows_its_room_or_offers_one(amy: Client) -> None:
    room, without = a_room(), a_sale()
    page = amy.get(f"/admin/shop/sale/{room.sale.pk}/change/").text
    assert f'href="{LIST}{room.pk}/change/">Waiting room: First come' in page
    for name, value in (("Waiting room", "open"), ("People admitted", 0), ("People waiting", 0)):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in page
    page = amy.get(f"/admin/shop/sale/{without.pk}/change/").text
    link = f"/admin/waiting_room/room/add/?sale={without.pk}"
    assert link in page
    assert link not in staff_with("view_sale").get(f"/admin/shop/sale/{without.pk}/change/").text
    Product.objects.update(is_listed=False)
    admission.clear()
    service.clear()
    hidden = amy.get(f"/admin/shop/sale/{room.sale.pk}/change/")
    assert (hidden.status_code, "People admitted" in hidden.text) == (200, False)


def test_inlet_above_the_measured_rate_is_confirmed(amy: Client, settings) -> None:
    settings.WAITING_ROOM_INLET_PER_MINUTE = 100
    room = a_room(inlet=50)

    def inlet(**form: object) -> int:
        act(amy, "set_inlet", room, **form)
        room.refresh_from_db()
        return room.inlet_per_minute

    assert inlet(per_minute="80") == 80
    for wrong in ("", "0", "-1", "many", "9999999"):
        assert inlet(per_minute=wrong) == 80
    assert inlet(per_minute="500") == 80
    assert inlet(per_minute="500", confirm="another") == 80
    assert inlet(per_minute="500", confirm=room.sale.slug) == 500


def test_message_that_was_not_broadcast_is_not_reported_as_saved(amy: Client) -> None:
    room = a_room(opens_in=-1)
    service.status_of(sale=room.sale)  # creates its state
    store.delete(room=room)
    form = {"mode": room.mode, "message": "Back at noon", "message_zh": ""}
    page = amy.post(f"{LIST}{room.pk}/change/", form, follow=True)
    page_text = page.content.decode()
    assert "nothing was changed. Its store is unavailable or has lost the places." in page_text
    assert "charged" not in page_text
    assert "changed successfully" not in page_text
    room.refresh_from_db()
    assert room.message == ""


@pytest.mark.parametrize("step", ["delete", "configure"])
def test_refused_change_of_mode_and_message_closes_no_room(amy: Client, monkeypatch, step) -> None:
    """Redis fails between two commands, and the whole change is undone."""
    room = a_room(opens_in=-1)
    service.status_of(sale=room.sale)  # creates its state
    monkeypatch.setattr(store, step, Mock(side_effect=ServiceUnavailable))
    amy.post(f"{LIST}{room.pk}/change/", {"mode": "lottery", "message": "Soon", "message_zh": ""})
    monkeypatch.undo()
    service.clear()
    assert service.status_of(sale=room.sale).state != "unavailable"


def test_room_of_a_hidden_product_asks_to_list_it(amy: Client) -> None:
    room = a_room()
    Product.objects.update(is_listed=False)
    admission.clear()
    told = act(amy, "pause", room).text
    assert "nothing was changed. The product of its sale is not listed: list it first." in told
    room.refresh_from_db()
    assert not room.is_paused


def test_mode_can_change_while_no_one_has_a_place(amy: Client) -> None:
    """Also after staff and customers looked at the room, and after a reset."""
    room, customer = a_room(opens_in=60), a_customer().pk

    def change(mode: str) -> str:
        service.clear()
        amy.get(LIST)  # shows the state of the room, and so creates it
        form = {"mode": mode, "message": "", "message_zh": ""}
        return amy.post(f"{LIST}{room.pk}/change/", form, follow=True).text

    def mode() -> tuple[str, str]:
        service.clear()
        row = Room.objects.get()
        return row.mode, service.record_of(room=row)["mode"]

    change("lottery")
    assert mode() == ("lottery", "lottery")
    service.join(sale=room.sale, customer_id=customer)
    assert "Customers have places. Reset the room first." in change("arrival")
    assert mode() == ("lottery", "lottery")
    assert service.place_of(sale=room.sale, customer_id=customer) is not None
    act(amy, "reset", room, confirm=room.sale.slug, reason="The wrong mode")
    change("arrival")
    assert mode() == ("arrival", "arrival")


def test_reset_is_confirmed(amy: Client) -> None:
    room, customer = a_room(opens_in=60), a_customer().pk
    service.join(sale=room.sale, customer_id=customer)
    assert act(amy, "reset", room).status_code == 200
    assert service.place_of(sale=room.sale, customer_id=customer) is not None
    told = act(amy, "reset", room, confirm=room.sale.slug).text
    assert "nothing was changed. Give a reason." in told
    assert service.place_of(sale=room.sale, customer_id=customer) is not None
    act(amy, "reset", room, confirm=room.sale.slug, reason="Redis was lost")
    assert service.place_of(sale=room.sale, customer_id=customer) is None
    assert [one["reason"] for one in Room.objects.get().earlier] == ["Redis was lost"]
    assert (
        "has reset this room 1 time." not in signed_in().get(f"/sales/{room.sale.slug}/room/").text
    )
    Room.objects.update(mode="lottery")
    service.clear()
    assert "has reset this room 1 time." in signed_in().get(f"/sales/{room.sale.slug}/room/").text


def test_customers_and_readers_change_nothing() -> None:
    room = a_room(opens_in=-1)
    assert signed_in().post(LIST, {"action": "pause"}).status_code == 302
    ben = User.objects.create_user("ben", is_staff=True)
    assert act(signed_in(ben), "pause", room).status_code == 403
    assert service.status_of(sale=room.sale).state == "open"
