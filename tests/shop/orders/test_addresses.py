"""Delivery addresses: given after the purchase, and fixed once an order is shipped or closed."""

import re
from functools import partial

import pytest

from shop.errors import InvalidTransition
from shop.models import DeliveryAddress, Order
from shop.orders.addresses import mark_shipped, save_address, to_pack
from shop.orders.service import cancel_order, pay_order
from tests.shop.making import ADDRESS, a_customer, a_sale, signed_in
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


def path(order: Order) -> str:
    return f"/orders/{order.number}/address/"


def ordered(customer, sale) -> Order:
    """Return a paid order with an address."""
    order = buy(sale, customer=customer).order
    pay_order(order=order)
    save_address(order=order, lines=ADDRESS)
    return order


def test_address_is_asked_for_after_the_payment_and_kept(shop, order) -> None:
    page = shop.get(order.get_absolute_url()).text
    assert path(order) not in page, "first the payment"
    pay_order(order=order)
    assert 'name="street"' in shop.get(order.get_absolute_url()).text
    saved = shop.post(path(order), ADDRESS)
    assert (saved.status_code, saved["Location"]) == (303, order.get_absolute_url())
    page = shop.get(order.get_absolute_url()).text
    assert ADDRESS["street"] in page
    assert "Change address" in page
    changed = {**ADDRESS, "street": "南京东路 1 号"}
    assert shop.post(path(order), changed, HTTP_ACCEPT="application/json").json() == {
        "number": order.number,
        **changed,
    }
    assert DeliveryAddress.objects.values("street", "revision").get() == {
        "street": "南京东路 1 号",
        "revision": 2,
    }


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_address_in_chinese_goes_from_the_city_to_the_street(shop, order, language) -> None:
    pay_order(order=order)
    read = partial(shop.get, order.get_absolute_url(), headers={"accept-language": language})
    form = re.findall('name="(street|city)"', read().text)
    save_address(order=order, lines=ADDRESS)
    shown = re.findall(f"<br>({ADDRESS['street']}|(?:200002 )?{ADDRESS['city']})", read().text)
    if language == "en":
        assert (form, shown[1]) == (["street", "city"], "200002 上海市")
    else:
        assert (form, shown[0]) == (["city", "street"], "上海市")


def test_next_order_proposes_the_last_address(shop, li, order) -> None:
    save_address(order=order, lines=ADDRESS)
    newest = buy(a_sale(), customer=li).order
    form = shop.get(newest.get_absolute_url()).context["form"]
    assert {name: form[name].value() for name in ADDRESS} == ADDRESS
    assert not DeliveryAddress.objects.filter(order=newest).exists()


BAD_LINES = [
    *((name, "") for name in ("name", "phone", "street", "city")),
    *((name, "a\x00b") for name in ADDRESS),
    *((name, "a\nb") for name in ("name", "street", "city", "country")),
    *((name, "x" * 201) for name in ADDRESS),
    *(("phone", value) for value in ("call me", "12", "=1+1", "1" * 31)),
    *(("postcode", value) for value in ("=1", "-", "2000\u20280")),
]


def test_bad_line_is_explained_and_changes_nothing(shop, order) -> None:
    for name, value in BAD_LINES:
        page = shop.post(path(order), {**ADDRESS, name: value})
        assert (page.status_code, page.context["form"].errors.keys()) == (400, {name}), value
        assert f'id="id_{name}_error"' in page.text
        problem = shop.post(path(order), {**ADDRESS, name: value}, HTTP_ACCEPT="application/json")
        assert (problem.status_code, problem.json()["error"]) == (400, "bad_input"), value
    assert not DeliveryAddress.objects.exists()


def test_others_neither_see_nor_change_an_address(client, order) -> None:
    stranger = signed_in(a_customer())
    assert stranger.post(path(order), ADDRESS).status_code == 404
    response = client.post(path(order), ADDRESS)
    assert response["Location"] == f"/accounts/sign-in/?next={order.get_absolute_url()}"
    assert not DeliveryAddress.objects.exists()


def test_address_of_a_closed_order_is_fixed(shop, order) -> None:
    save_address(order=order, lines=ADDRESS)
    cancel_order(order=order)
    assert shop.post(path(order), {**ADDRESS, "city": "北京"}).status_code == 409
    assert DeliveryAddress.objects.get().city == ADDRESS["city"]
    assert path(order) not in shop.get(order.get_absolute_url()).text


def test_only_what_was_printed_is_shipped_and_then_fixed(li) -> None:
    sale = a_sale(stock=10)
    other_sale = ordered(a_customer(), a_sale())
    kept, changed, refunded, unprinted = (ordered(a_customer(), sale) for _ in range(4))
    unpaid = ordered(li, sale)
    Order.objects.filter(pk=unpaid.pk).update(status=Order.Status.PENDING)
    assert [one.order for one in to_pack(sale=sale)] == [kept, changed, refunded, unprinted]
    printed = {one.pk: one.address.revision for one in (kept, changed, refunded, other_sale)}
    save_address(order=changed, lines={**ADDRESS, "city": "北京"})
    Order.objects.filter(pk=refunded.pk).update(status=Order.Status.CANCELLED)

    assert mark_shipped(sale=sale, printed={**printed, 10**9: 1}) == 1
    assert mark_shipped(sale=sale, printed=printed) == 0, "once"
    assert [one.order for one in to_pack(sale=sale)] == [changed, unprinted]
    with pytest.raises(InvalidTransition):
        save_address(order=kept, lines=ADDRESS)
    page = signed_in(kept.customer).get(kept.get_absolute_url()).text
    assert "Shipped to" in page
    assert path(kept) not in page
