"""Staff create, preview and close sales in the admin, and mistakes are explained at their field."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inventory.models import Product
from shop.models import RejectedReservation, Sale, User
from tests.shop.admin_pages import act, messages, times
from tests.shop.making import a_sale, fresh, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]

ADD = "/admin/shop/sale/add/"
HOUR = timedelta(hours=1)


@pytest.fixture
def cup() -> Product:
    return Product.objects.create(slug="cup", name="Cup", price=3)


def a_form(product: Product, **changed: object) -> dict[str, object]:
    """Return a valid form, with other values."""
    now = timezone.now()
    form = {"product": product.pk, "slug": "tea", "price": "1.50", "quantity": 8}
    form |= {"fulfilment": "direct", "limit_per_customer": 2, **times(now + HOUR, now + 2 * HOUR)}
    return {**form, **changed}


def errors(response) -> dict[str, list[str]]:
    return {name: list(of) for name, of in response.context["adminform"].form.errors.items()}


def a_time(name: str, offset: timedelta) -> dict[str, str]:
    sent = times(timezone.now() + offset, timezone.now() + offset)
    return {key: value for key, value in sent.items() if key.startswith(name)}


MISTAKES = {
    "over": ({**a_time("opens_at", -2 * HOUR), **a_time("closes_at", -HOUR)}, "closes_at"),
    "closes first": (a_time("closes_at", HOUR / 2), "closes_at"),
    "first day": ({"opens_at_0": "0001-01-01", "opens_at_1": "00:00:00"}, "opens_at"),
    "no end": ({"closes_at_0": "9999-12-31", "closes_at_1": "23:59:59"}, "closes_at"),
    "dear": ({"price": "3.01"}, "price"),
    "negative": ({"price": "-1"}, "price"),
    "no limit": ({"limit_per_customer": 0}, "limit_per_customer"),
    "no stock": ({"quantity": 0}, "quantity"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_explained_at_its_field(amy, cup, mistake):
    changed, field = MISTAKES[mistake]
    response = amy.post(ADD, a_form(cup, **changed))
    assert response.status_code == 200
    found = errors(response)
    assert list(found) == [field]
    (sentence,) = found[field]
    assert sentence.endswith(".")
    assert not re.search(r"[Cc]onstraint|sale_", sentence)
    assert not Sale.objects.exists()


def test_price_error_names_the_regular_price(amy, cup):
    (sentence,) = errors(amy.post(ADD, a_form(cup, price="3.01")))["price"]
    assert sentence == "The sale price is above the regular price of ¥3.00."
    assert amy.post(ADD, a_form(cup, price="3.00")).status_code == 302


def test_sale_that_has_begun_may_be_created_but_not_one_that_is_over(amy, cup):
    assert amy.post(ADD, a_form(cup, **a_time("opens_at", -HOUR))).status_code == 302
    assert Sale.objects.get().phase() == Sale.Phase.OPEN


def test_end_of_an_existing_sale_is_not_moved_to_the_past(amy):
    sale = a_sale(opens_in=-7200, lasts=7200 + 600)
    page = f"/admin/shop/sale/{sale.pk}/change/"
    form = {"limit_per_customer": 3, **times(sale.opens_at, sale.closes_at)}
    response = amy.post(page, {**form, **a_time("closes_at", -HOUR)})
    assert "“Close now”" in errors(response)["closes_at"][0]
    assert fresh(sale).closes_at == sale.closes_at
    Sale.objects.update(closes_at=timezone.now() - HOUR)
    form = {"limit_per_customer": 4, **times(sale.opens_at, fresh(sale).closes_at)}
    assert amy.post(page, form).status_code == 302, "the end of an ended sale is unchanged"
    assert fresh(sale).limit_per_customer == 4


def test_address_is_taken_from_the_product(amy, cup):
    for expected in ("cup", "cup-2", "cup-3"):
        assert amy.post(ADD, a_form(cup, slug="")).status_code == 302
        assert Sale.objects.order_by("pk").last().slug == expected
    Sale.objects.filter(slug="cup-3").update(slug="CUP-3")
    assert amy.post(ADD, a_form(cup, slug="")).status_code == 302
    assert Sale.objects.order_by("pk").last().slug == "cup-4"
    assert list(errors(amy.post(ADD, a_form(cup, slug="cup")))) == ["slug"]


def test_address_differs_from_all_others_by_more_than_case(amy, cup):
    Product.objects.update(slug="Cup")
    for expected in ("Cup", "Cup-2", "Cup-3"):
        assert amy.post(ADD, a_form(cup, slug="")).status_code == 302
        assert Sale.objects.order_by("pk").last().slug == expected
        Sale.objects.filter(slug=expected).update(slug=expected.lower())


def test_new_form_proposes_times_and_explains_its_fields(amy):
    page = amy.get(ADD)
    initial = page.context["adminform"].form.initial
    assert timezone.now() < initial["opens_at"] < timezone.now() + HOUR
    assert initial["closes_at"] == initial["opens_at"] + HOUR
    assert re.findall(r'class="fieldset-heading">([^<]*)<', page.text) == [
        "Offer",
        "Opening times",
        "Order processing",
    ]
    assert "All times are UTC+8." in page.text
    helps = re.findall(r'class="help"[^>]*>\s*<div>(.*?)</div>', page.text, re.S)
    assert len(helps) == 8
    assert all(text.endswith(".") for text in helps)


def test_preview_shows_the_sale_before_it_opens(amy, cup):
    amy.post(ADD, a_form(cup))
    sale = Sale.objects.get()
    change = f"/admin/shop/sale/{sale.pk}/change/"
    link = re.search(r'<a href="([^"]*)" class="viewsitelink">', amy.get(change).text)
    assert link
    assert "Upcoming" in Client().get(link[1]).text
    Product.objects.update(is_listed=False)
    hidden = amy.get(change).text
    assert f'href="/sales/{sale.slug}/"' not in hidden


# --- closing ----------------------------------------------------------------------------------


def test_close_now_requires_the_typed_name(amy):
    sale = a_sale()
    asked = act(amy, "close_now", sale)
    assert asked.status_code == 200
    assert f"Type “{sale.slug}” to confirm" in asked.text
    assert fresh(sale).phase() == Sale.Phase.OPEN
    wrong = act(amy, "close_now", sale, confirm="another")
    assert wrong.status_code == 400
    assert f"That doesn't match “{sale.slug}”. Nothing was changed." in unescape(wrong.text)
    assert fresh(sale).phase() == Sale.Phase.OPEN
    sent = re.findall(r'<input type="hidden" name="(?!csrf)([^"]*)" value="([^"]*)"', asked.text)
    assert dict(sent) == {"action": "close_now", "_selected_action": str(sale.pk)}
    closed = amy.post("/admin/shop/sale/", {**dict(sent), "confirm": sale.slug})
    assert messages(closed) == f"{sale.slug} has ended."
    assert fresh(sale).phase() == Sale.Phase.ENDED


def test_several_sales_are_closed_by_their_number(amy):
    sales, upcoming = [a_sale(), a_sale(stock=0)], a_sale(opens_in=600)
    chosen = [sale.pk for sale in (*sales, upcoming)]
    sent = {"action": "close_now", "_selected_action": chosen}
    asked = amy.post("/admin/shop/sale/", sent)
    assert "Type “2” to confirm" in asked.text
    assert upcoming.slug not in asked.text.split("<form method")[-1]
    amy.post("/admin/shop/sale/", {**sent, "confirm": "2"})
    assert {fresh(sale).phase() for sale in sales} == {Sale.Phase.ENDED}
    assert fresh(upcoming).phase() == Sale.Phase.BEFORE


def test_list_of_rejected_reservations_costs_the_same_for_many_sales(amy):
    """Its filter lists the sales, as the page of each sale is called."""
    costs = []
    for _ in range(2):
        for sale in (a_sale(), a_sale()):
            RejectedReservation.objects.create(number=sale.slug[-8:], sale=sale, reason="limit")
        with CaptureQueriesContext(connection) as queries:
            page = amy.get("/admin/shop/rejectedreservation/")
        assert f"sale__slug={sale.slug}" in page.text
        # The policy of the banner is read once a second.
        costs.append(sum("lockpolicy" not in query["sql"] for query in queries))
    assert costs[0] == costs[1]


# --- signing in -------------------------------------------------------------------------------


def test_sign_in_page_names_the_account_without_access():
    li = User.objects.create(username="li-who-buys")
    page = signed_in(li).get("/admin/", follow=True).text
    assert "You are authenticated as li-who-buys," in page
