"""The pages of a waiting room, and what their script reads."""

from __future__ import annotations

import re

import pytest
from django.db import OperationalError
from django.test import Client

from devservers import Redis
from devservers.faults.waiting import until
from shop.models import Order, Sale
from shop.purchase import admission
from tests.shop.making import a_customer, a_sale, buy, signed_in
from tests.waiting_room.rooms import a_room, open_now
from waiting_room import service, views

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]
JSON = {"accept": "application/json"}


def url(sale: Sale, part: str = "") -> str:
    return f"/sales/{sale.slug}/room/{part}"


def view_of(client: Client, sale: Sale) -> str:
    """Return the one part of the page that is shown, which the script would also show."""
    html = client.get(url(sale)).content.decode()
    shown = re.findall(r'<section data-view="(\w+)" >', html)
    assert len(shown) == 1, shown
    return shown[0]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["arrival", "lottery"])
def test_page_follows_the_visitor_to_the_sale(mode: str) -> None:
    sale = a_room(mode=mode, opens_in=60, inlet=60_000).sale
    client, visitor = signed_in(), Client()
    assert view_of(client, sale) == view_of(visitor, sale) == "join"
    sale_page = client.get(sale.get_absolute_url()).text
    assert f'action="{url(sale, "join/")}"' in sale_page
    assert not re.search(f"purchase_token|/sales/{sale.slug}/buy/", sale_page)
    assert f"/accounts/sign-in/?next={url(sale)}" in visitor.get(sale.get_absolute_url()).text
    page = client.post(url(sale, "join/"), follow=True)
    assert page.redirect_chain == [(url(sale), 302)]
    assert view_of(client, sale) == "before"
    shown = client.get(sale.get_absolute_url()).text
    assert shown.count('room/"') == shown.count("See your place in the waiting room") == 1
    open_now(sale)
    service.status_of(sale=sale)
    until(lambda: view_of(client, sale) == "turn", "the turn")
    assert view_of(visitor, sale) == "join"
    page = " ".join(client.get(sale.get_absolute_url()).text.split())
    assert [one for one in ("It's your turn", "Buy now", "at least until") if one not in page] == []
    assert client.post(url(sale, "join/")).url == sale.get_absolute_url()


def test_customer_whose_turn_is_over_joins_again(settings, monkeypatch) -> None:
    monkeypatch.setattr(admission, "MAX_AGE", 0)
    settings.WAITING_ROOM_TURN_SECONDS = 10**6
    sale = a_room(opens_in=60, stock=1, inlet=600_000).sale
    people = [a_customer() for _ in range(3)]
    first, second, third = clients = [signed_in(one) for one in people]
    for client in clients:
        client.post(url(sale, "join/"))
    open_now(sale)  # one visit admits the first two, so that their time ends in the same second
    until(lambda: view_of(second, sale) == "turn", "the turns of the first two")
    assert (view_of(first, sale), view_of(third, sale)) == ("turn", "waiting")
    settings.WAITING_ROOM_TURN_SECONDS = 0  # the time of the first two is over
    # The visit that gives the third its turn is the last one: another one, a second later, would
    # end the time of this turn too.
    until(lambda: service.place_of(sale=sale, customer_id=people[2].pk).admitted, "the third turn")
    settings.WAITING_ROOM_TURN_SECONDS = 10**6
    assert view_of(third, sale) == "turn"
    assert view_of(first, sale) == view_of(second, sale) == "over"
    assert f'action="{url(sale, "join/")}"' in first.get(sale.get_absolute_url()).text
    place = second.post(url(sale, "join/"), headers=JSON).json()
    assert (place["position"], place["admitted"], place["is_over"]) == (4, True, False)
    assert second.post(url(sale, "join/"), headers=JSON).json()["position"] == 4
    assert first.post(url(sale, "join/"), headers=JSON).json()["position"] == 5
    assert view_of(first, sale) == "waiting"


def test_expired_turn_that_no_one_needs_says_so(settings) -> None:
    sale, client = a_room(opens_in=-1, inlet=60_000).sale, signed_in()
    client.post(url(sale, "join/"))
    until(lambda: view_of(client, sale) == "turn", "the turn")
    assert "A turn lasts at least 2 min." in client.get(url(sale)).text
    settings.WAITING_ROOM_TURN_SECONDS = 0
    until(lambda: "you can still buy until" in client.get(url(sale)).text, "the end of its time")
    assert view_of(client, sale) == "turn"
    assert "A turn lasts" not in client.get(url(sale)).text


def test_turn_is_over_for_those_who_bought_all_they_may(settings) -> None:
    """And those who are admitted do not count as people who wait."""
    settings.WAITING_ROOM_TURN_SECONDS = 10**6
    sale = a_room(opens_in=-1, stock=1, limit=1, inlet=60_000).sale
    buyer, second, third = clients = [signed_in() for _ in range(3)]
    for client in clients:
        client.post(url(sale, "join/"))
    until(lambda: view_of(second, sale) == "turn", "the turns of the first two")
    assert '<td data-n="waiting">1</td>' in third.get(url(sale)).text
    assert view_of(buyer, sale) == "turn"
    order = buy(buyer, sale)["Location"]
    assert view_of(buyer, sale) == "bought"
    page = buyer.get(url(sale)).text
    assert f'href="{order}">See your order' in page
    assert "Reserved for you. Pay to make it yours." in page
    Order.objects.update(status=Order.Status.PAID)
    assert "You bought this." in buyer.get(url(sale)).text
    assert "your turn" not in buyer.get(sale.get_absolute_url()).text


def test_status_is_the_same_for_all_and_small() -> None:
    room = a_room(opens_in=-1, inlet=600)
    client = signed_in()
    client.post(url(room.sale, "join/"))
    service.clear()
    mine, other = (one.get(url(room.sale, "status.json")) for one in (client, Client()))
    assert mine.content == other.content
    assert mine.wsgi_request.COOKIES == {}, "no session is read"
    assert len(other.content) < 300
    kept = other.headers["Cache-Control"], other.headers["X-Accel-Expires"]
    assert kept == ("public, max-age=1", "1")
    assert "Set-Cookie" not in other.headers
    expected = {"state": "open", "joined": 1, "left": 10, "inlet": 600, "poll": 1}
    assert expected.items() <= other.json().items()


def test_place_belongs_to_the_account() -> None:
    sale = a_room(opens_in=60).sale
    li = a_customer()
    place = signed_in(li).post(url(sale, "join/"), headers=JSON).json()
    other_device = signed_in(li).get(url(sale, "place.json"), headers=JSON)
    assert other_device.json() == place == {**place, "position": 1, "admitted": False}
    assert "no-store" in other_device.headers["Cache-Control"]
    assert signed_in().get(url(sale, "place.json"), headers=JSON).status_code == 404
    assert Client().get(url(sale, "place.json"), headers=JSON).status_code == 401


def test_joining_needs_an_account_and_a_csrf_token() -> None:
    sale = a_room(opens_in=60).sale
    assert Client().post(url(sale, "join/")).url == f"/accounts/sign-in/?next={url(sale)}"
    assert signed_in(enforce_csrf_checks=True).post(url(sale, "join/")).status_code == 403
    assert signed_in().get(url(sale, "join/")).status_code == 405
    assert service.status_of(sale=sale).joined == 0


def test_sale_without_a_room_has_no_pages() -> None:
    for sale in (a_sale(), a_room(mode="none").sale):
        assert signed_in().get(url(sale)).url == sale.get_absolute_url()
        for part in ("status.json", "record.json", "place.json"):
            assert signed_in().get(url(sale, part)).status_code == 404
        assert signed_in().post(url(sale, "join/")).status_code == 404
    assert Client().get("/sales/none/room/status.json").status_code == 404


def test_ended_room_takes_no_one() -> None:
    sale = a_room(opens_in=-60, lasts=30).sale
    client = signed_in()
    assert view_of(client, sale) == "ended"
    assert client.post(url(sale, "join/"), headers=JSON).json()["error"] == "not_open"


@pytest.mark.django_db(transaction=True)
def test_drawn_positions_can_be_kept_but_not_the_record_which_a_reset_ends() -> None:
    sale = a_room(mode="lottery", opens_in=60).sale
    signed_in().post(url(sale, "join/"))
    before = Client().get(url(sale, "record.json"))
    assert before.json()["seed"] is before.json()["list"] is None
    assert before.headers["Cache-Control"] == "public, max-age=1"
    assert Client().get(url(sale, "positions-00.json")).status_code == 404
    open_now(sale)

    def is_revealed() -> bool:
        views.clear()
        service.status_of(sale=sale)
        return Client().get(url(sale, "record.json")).json()["seed"] is not None

    until(is_revealed, "the draw")
    after = Client().get(url(sale, "record.json"))
    assert len(after.json()["list"]) == 1
    assert after.headers["Cache-Control"] == "public, max-age=1"
    [ticket] = after.json()["list"]
    drawn = [Client().get(url(sale, f"positions-{part}.json")) for part in (ticket[:2], "zz")]
    assert drawn[0].json() == {ticket: 1}
    assert drawn[0].headers["Cache-Control"] == "public, max-age=300"
    assert drawn[0].headers["X-Accel-Expires"] == "300"
    assert drawn[1].json() == {}
    assert after.json()["commitment"] in Client().get(url(sale)).content.decode()


def test_script_that_checks_the_draw_can_be_downloaded() -> None:
    response = Client().get("/room/verify_lottery.py")
    source = b"".join(response.streaming_content)  # type: ignore[attr-defined]
    assert source == views.VERIFIER.read_bytes()
    assert "attachment" in response.headers["Content-Disposition"]


def test_room_is_closed_while_its_store_is_down(settings) -> None:
    """The status is 200, so that nginx keeps it, and the page opens again by itself."""
    with Redis() as redis:
        settings.REDIS_URL = redis.url
        sale = a_room(opens_in=-1, inlet=1).sale
        client = signed_in()
        client.post(url(sale, "join/"))
        assert view_of(client, sale) == "waiting"
        redis.pause()
        try:
            service.clear()
            status = Client().get(url(sale, "status.json"))
            assert (status.status_code, status.json()) == (200, {"state": "unavailable"})
            assert view_of(client, sale) == view_of(Client(), sale) == "unavailable"
            assert client.post(url(sale, "join/"), headers=JSON).status_code == 503
            assert "which updates by itself." in client.get(sale.get_absolute_url()).text
        finally:
            redis.resume()
        until(lambda: view_of(client, sale) == "waiting", "the room to open again", 20)


def test_visitor_of_a_sold_out_room_reads_so_before_joining() -> None:
    sale = a_room(opens_in=-1, stock=0).sale
    page = Client().get(url(sale)).content.decode()
    shown = re.search(r'<section data-view="join" >(.*?)</section>', page, re.S)
    assert shown
    assert re.search(r'<p class="note" data-when="sold_out" >', shown[1])


def test_room_is_closed_while_the_database_is_down(monkeypatch) -> None:
    sale = a_room(opens_in=-1).sale
    assert Client().get(url(sale, "status.json")).json()["state"] == "open"

    def fail(**_: object) -> None:
        raise OperationalError

    monkeypatch.setattr(views, "cached_sale", fail)
    response = Client().get(url(sale, "status.json"))
    assert (response.status_code, response.json()) == (200, {"state": "unavailable"})


@pytest.mark.parametrize(
    ("position", "serving", "inlet", "minutes"),
    [
        (1000, 0, 100, (8, 12)),
        (80, 0, 100, (0, 1)),
        (100, 500, 100, (0, 0)),
        (1, 0, 1_000_000, (0, 1)),
    ],
)
def test_estimate(position: int, serving: int, inlet: int, minutes: tuple[int, int]) -> None:
    assert views.estimate(position=position, serving=serving, inlet_per_minute=inlet) == minutes


def test_estimate_never_rises() -> None:
    ranges = [
        views.estimate(position=997, serving=serving, inlet_per_minute=77) for serving in range(998)
    ]
    assert ranges == sorted(ranges, reverse=True)
    assert sorted(high for _, high in ranges) == [high for _, high in reversed(ranges)]
