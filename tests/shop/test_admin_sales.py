"""Staff create, preview and close sales in the admin, and mistakes are explained at their field."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.test import Client
from django.utils import timezone

from inventory.models import Product
from shop.administration.audit import audit_sale
from shop.models import Order, Sale
from tests.shop.admin_pages import act, correct, fields_of, messages, times
from tests.shop.making import a_sale, buy, fresh, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]

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


@pytest.mark.parametrize("of", ["shop/sale", "waiting_room/room"])
def test_browsers_refuse_a_number_that_the_server_refuses(amy, of):
    """They accepted a limit of 0, and 0 people per minute."""
    numbers = re.findall('<input type="number"[^>]*>', amy.get(f"/admin/{of}/add/").text)
    assert numbers
    assert [one for one in numbers if 'min="1"' not in one and "step=" not in one] == []


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
    if mistake == "dear":
        assert sentence == "The sale price is above the regular price of ¥3."
    assert not Sale.objects.exists()


def test_sale_that_has_begun_may_be_created_but_not_one_that_is_over(amy, cup):
    assert amy.post(ADD, a_form(cup, **a_time("opens_at", -HOUR))).status_code == 302
    assert Sale.objects.get().phase() == Sale.Phase.OPEN


def test_end_of_an_existing_sale_is_not_moved_to_the_past(amy):
    sale = a_sale(opens_in=-7200, lasts=7200 + 600)
    page = f"/admin/shop/sale/{sale.pk}/change/"
    form = {"price": "9.90", "limit_per_customer": 3, **times(sale.opens_at, sale.closes_at)}
    response = amy.post(page, {**form, **a_time("closes_at", -HOUR)})
    assert "“End now”" in errors(response)["closes_at"][0]
    assert fresh(sale).closes_at == sale.closes_at
    Sale.objects.update(closes_at=timezone.now() - HOUR)
    form |= {"limit_per_customer": 4, **times(sale.opens_at, fresh(sale).closes_at)}
    assert amy.post(page, form).status_code == 302, "the end of an ended sale is unchanged"
    assert fresh(sale).limit_per_customer == 4


# --- corrections ------------------------------------------------------------------------------


def test_upcoming_sale_is_corrected(amy):
    sale = a_sale(opens_in=3600)
    later = sale.opens_at + HOUR
    new = {"price": "8.80", "limit_per_customer": 2, **times(later, later + HOUR)}
    assert correct(amy, sale, **new).status_code == 302
    found = fresh(sale)
    assert (str(found.price), found.limit_per_customer) == ("8.80", 2)
    assert found.opens_at == later.replace(microsecond=0)
    assert "8.80" in Client().get(sale.get_absolute_url()).text
    assert "above the regular price" in errors(correct(amy, found, price="20.01"))["price"][0]
    assert errors(correct(amy, found, price="0"))["price"] == ["The price must be above 0."]


@pytest.mark.parametrize("language", ["en", "zh-hans"])
def test_open_sale_is_corrected_by_the_fields_of_its_page(amy, language):
    amy.cookies["django_language"] = language
    sale, field = a_sale(opens_in=-30), r'<input type="(?:text|number)" name="(\w+)" value="(.*?)"'
    page = amy.get(f"/admin/shop/sale/{sale.pk}/change/").text
    sent = dict(re.findall(field, page[page.index('id="sale_form"') :]))
    assert sent.keys() == {"limit_per_customer", "closes_at_0", "closes_at_1"}
    sent["limit_per_customer"] = "3"
    assert amy.post(f"/admin/shop/sale/{sale.pk}/change/", sent).status_code == 302
    assert fresh(sale).limit_per_customer == 3
    assert fresh(sale).closes_at == sale.closes_at, "it was sent, but not changed"


def test_older_page_changes_only_what_its_reader_changed(amy):
    """Two members of staff have the page open, and one of them makes a mistake first."""
    sale = a_sale(opens_in=3600, lasts=10_800)
    page = f"/admin/shop/sale/{sale.pk}/change/"
    older = fields_of(amy.get(page))
    later = times(sale.opens_at + HOUR, sale.closes_at + 3 * HOUR)
    opening = {name: later[name] for name in ("opens_at_0", "opens_at_1")}
    assert amy.post(page, {**older, "price": "8.80", **opening}).status_code == 302
    closing = {name: later[name] for name in ("closes_at_0", "closes_at_1")}
    refused = amy.post(page, {**older, **closing, "limit_per_customer": "0"})
    said = messages(amy.post(page, {**fields_of(refused), "limit_per_customer": "3"}))
    found = fresh(sale)
    assert (str(found.price), found.limit_per_customer) == ("8.80", 3)
    assert times(found.opens_at, found.closes_at) == later
    assert "¥8.80" in said


@pytest.mark.parametrize(
    ("language", "changed", "added"),
    [
        ("en", "Price: ¥9.90 → ¥8.90; Limit per customer: 5 → 3", "Units added: 7."),
        ("zh-hans", "价格：¥9.90 → ¥8.90；每人限购：5 → 3", "补货 7 件。"),
    ],
)
def test_history_has_the_values_in_the_language_of_its_reader(amy, language, changed, added):
    sale = a_sale(opens_in=90)
    assert correct(amy, sale, limit_per_customer=3, price="8.90").status_code == 302
    act(amy, "restock", sale, units=7)
    assert correct(amy, fresh(sale)).status_code == 302
    amy.cookies["django_language"] = language
    page = amy.get(f"/admin/shop/sale/{sale.pk}/history/").text
    assert changed in page
    assert added in page
    assert re.search(r"<td>\s*</td>", page) is None, "an entry says nothing"


@pytest.mark.parametrize(
    ("opens_in", "ordered", "late"),
    [
        (90, False, set()),
        (30, False, {"price"}),
        (-30, False, {"price", "opens_at"}),
        (90, True, {"price", "opens_at"}),
    ],
)
def test_correction_comes_too_late(amy, cup, opens_in, ordered, late):
    """The page of the form may be older: what counts is the moment at which it is sent."""
    sale = a_sale(opens_in=opens_in)
    if ordered:  # the sale was open before, and its opening was changed in SQL
        Sale.objects.update(opens_at=timezone.now() - HOUR)
        buy(signed_in(), sale)
        Sale.objects.update(opens_at=sale.opens_at)
    page = amy.get(f"/admin/shop/sale/{sale.pk}/change/").text
    assert {one for one in ("price", "opens_at") if f'id="id_{one}' not in page} == late
    moved = times(sale.opens_at + HOUR, sale.closes_at + HOUR)
    for name, changed in {"price": {"price": "8.80"}, "opens_at": moved, "": {}}.items():
        response = correct(amy, sale, limit_per_customer=3, **changed)
        if name in late:
            assert errors(response) == {name: ["It is too late to change this."]}
            assert fresh(sale).limit_per_customer == 5
        else:
            assert response.status_code == 302
            Sale.objects.update(price=sale.price, opens_at=sale.opens_at, limit_per_customer=5)
    assert fresh(sale).price == sale.price


def test_upcoming_sale_is_cancelled_for_good(amy):
    sale, product = a_sale(opens_in=3600), "/products/{}/"
    asked = act(amy, "unlist", sale)
    assert f"Type “{sale.slug}” to confirm" in asked.text
    assert fresh(sale).phase() == Sale.Phase.BEFORE
    assert "is unlisted" in messages(act(amy, "unlist", sale, confirm=sale.slug))
    for path in ("/", product.format(sale.product.slug), "/products/?show=soon"):
        assert f"/sales/{sale.slug}/" not in Client().get(path).text
    assert product.format(sale.product.slug) in Client().get("/products/").text
    page = Client().get(sale.get_absolute_url())
    assert (page.status_code, "This sale is no longer listed." in page.text) == (200, True)
    assert buy(signed_in(), sale).status_code == 409
    assert "Unlisted" in amy.get("/admin/shop/sale/").text
    assert correct(amy, sale, closes_at_0="2030-01-01").status_code == 403
    act(amy, "open_now", sale)
    assert fresh(sale).phase() == Sale.Phase.ENDED


def test_ended_sale_is_hidden_and_an_open_one_is_not(amy):
    ended, running, opening = a_sale(lasts=30), a_sale(), a_sale(opens_in=0.5)
    order_page = buy(signed_in(), running)["Location"]
    for sale in (running, opening):
        assert "is open, or about to open" in messages(act(amy, "unlist", sale, confirm=sale.slug))
        assert fresh(sale).is_listed
    Sale.objects.filter(pk=running.pk).update(closes_at=timezone.now())
    for sale in (ended, running):
        act(amy, "unlist", sale, confirm=sale.slug)
    home = Client().get("/").text
    assert [f"/sales/{sale.slug}/" in home for sale in (ended, running, opening)] == [0, 0, 1]
    order = Order.objects.get()
    assert order_page == order.get_absolute_url()
    assert signed_in(order.customer).get(order_page).status_code == 200


def test_unsold_units_are_removed_once_the_name_was_typed(amy):
    sale = a_sale(stock=10)
    buy(signed_in(), sale, quantity=4)
    assert "removed from this sale: 6." in act(amy, "reduce", sale, units=6).text
    assert fresh(sale).left == 6
    for units, left in ((7, 6), (6, 0), (1, 0), (0, 0), (-1, 0), ("x", 0), ("9" * 30, 0), ("", 0)):
        typed = sale.slug if left != fresh(sale).left else ""  # a refusal needs no name
        said = messages(act(amy, "reduce", sale, units=units, confirm=typed))
        assert ("fewer units are unsold" in said) == (units in (7, 1))
        assert said.startswith("Units: ") == (units in (0, -1, "x", "9" * 30, "")), said
        amy.get("/admin/")  # shows the message, so that it is not shown again
        assert fresh(sale).left == left
    audit = audit_sale(sale=fresh(sale))
    assert (audit.ok, audit.initial, audit.held) == (True, 4, 4)
    assert "0 of 4 left" in Client().get(sale.get_absolute_url()).text


def test_address_is_taken_from_the_product_and_differs_by_more_than_case(amy, cup):
    Product.objects.update(slug="Cup")
    for expected in ("Cup", "Cup-2", "Cup-3"):
        assert amy.post(ADD, a_form(cup, slug="")).status_code == 302
        assert Sale.objects.order_by("pk").last().slug == expected
        Sale.objects.filter(slug=expected).update(slug=expected.lower())
    assert list(errors(amy.post(ADD, a_form(cup, slug="cup")))) == ["slug"]


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
    assert f"That doesn't match “{sale.slug}”. Nothing was changed." in unescape(wrong.text)
    assert fresh(sale).phase() == Sale.Phase.OPEN
    sent = re.findall(r'<input type="hidden" name="(?!csrf)([^"]*)" value="([^"]*)"', asked.text)
    assert dict(sent) == {"action": "close_now", "_selected_action": str(sale.pk)}
    closed = amy.post("/admin/shop/sale/", {**dict(sent), "confirm": sale.slug})
    assert messages(closed) == f"{sale.product.title} ({sale.slug}) has ended."
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
